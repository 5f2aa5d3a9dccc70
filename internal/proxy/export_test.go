package proxy

// ParseTimeout reads a grpc-timeout.
var ParseTimeout = parseTimeout
