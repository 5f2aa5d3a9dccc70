// Package telemetry is where finished exchanges and the statistics of parts go: the metrics and their exposition,
// the access log, the process log, and the ids that tie records together. Metrics and AccessLog live as long as the
// process and survive reloads; a Meter is resolved once a generation and may be dropped with it. The package reads
// records and never decides anything about traffic: recording cannot fail, block or slow an exchange down. It must
// not know listeners, pools or handlers; what it reads from them at scrape time comes through the funcs of Sources.
package telemetry
