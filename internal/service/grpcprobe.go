package service

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
)

// healthMethod is the standard health service (grpc/health/v1/health.proto).
const healthMethod = "/grpc.health.v1.Health/Check"

// Of what a health service answers, SERVING alone is healthy.
var servingNames = [...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

const serving = 1

// maxHealthAnswer bounds the message that a health service answers with.
const maxHealthAnswer = 1 << 10

// maxTold bounds each of the texts of a backend's that are logged, in bytes.
const maxTold = 200

var (
	errNotServing   = errors.New("health check answered")
	errHealthAnswer = errors.New("health check answered with something other than a gRPC message")
)

// overHTTP2 is what gRPC is spoken over, in clear text as over TLS.
var overHTTP2 = func() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}()

// call is the probe of a backend that speaks gRPC: it asks the health service for the service that the check names.
func (p *probe) call(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(healthRequest(p.check.spec.GRPCService)))
	if err != nil {
		return fmt.Errorf("making the health check request: %w", err)
	}
	req.Host = p.check.spec.host
	req.Header.Set("User-Agent", "sluice-health-check")
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	res, err := p.client.Do(req)
	if err != nil {
		return probeError(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w %d", errStatus, res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxHealthAnswer))
	if err != nil {
		return probeError(err)
	}
	status, message := res.Trailer.Get("Grpc-Status"), res.Trailer.Get("Grpc-Message")
	if status == "" { // an answer without a message has it in the head
		status, message = res.Header.Get("Grpc-Status"), res.Header.Get("Grpc-Message")
	}
	if status != "0" {
		return fmt.Errorf("%w with grpc-status %q: %q", errNotServing, told(status), told(message))
	}
	said, err := healthAnswer(body)
	switch {
	case err != nil:
		return err
	case said == serving:
		return nil
	case said < uint64(len(servingNames)):
		return fmt.Errorf("%w %s", errNotServing, servingNames[said])
	}
	return fmt.Errorf("%w %d", errNotServing, said)
}

// told is the beginning of a backend's text.
func told(text string) string { return text[:min(len(text), maxTold)] }

// healthRequest is a HealthCheckRequest with the length that gRPC puts before each message.
func healthRequest(name string) []byte {
	const service = 1<<3 | 2 // field 1, of a length
	var message []byte
	if name != "" {
		message = append(binary.AppendUvarint([]byte{service}, uint64(len(name))), name...)
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return append(frame, message...)
}

// healthAnswer is the status in a HealthCheckResponse behind its length.
func healthAnswer(frame []byte) (status uint64, err error) {
	const prefix, field, maxNumber = 5, 1, 1<<29 - 1
	if len(frame) < prefix || frame[0] != 0 || uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-prefix) {
		return 0, errHealthAnswer
	}
	for m := frame[prefix:]; len(m) > 0; {
		tag, n := binary.Uvarint(m)
		if n <= 0 || tag>>3 < 1 || tag>>3 > maxNumber {
			return 0, errHealthAnswer
		}
		m = m[n:]
		value, skip := protoField(m, tag&7)
		if skip < 0 {
			return 0, errHealthAnswer
		}
		if tag == field<<3 {
			status = value
		}
		m = m[skip:]
	}
	return status, nil
}

// protoField reads what a field of the wire type holds: the value of a varint, and the bytes it takes, or -1.
func protoField(m []byte, wire uint64) (value uint64, size int) {
	switch wire {
	case 0:
		value, size = binary.Uvarint(m)
		if size == 0 {
			return 0, -1
		}
		return value, max(size, -1)
	case 1:
		size = 8
	case 2:
		length, n := binary.Uvarint(m)
		if n <= 0 || length > math.MaxInt32 {
			return 0, -1
		}
		size = n + int(length)
	case 5:
		size = 4
	default: // groups, which no version of the message has
		return 0, -1
	}
	if size > len(m) {
		return 0, -1
	}
	return 0, size
}
