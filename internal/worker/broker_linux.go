package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// brokerTimeout bounds one request for a certificate.
const brokerTimeout = 10 * time.Second

// CertificateRequest is what a broker is asked: to have the key of a PKCS #10 request (DER) certified as a worker's that
// acts for the actor.
type CertificateRequest struct {
	Actor
	Request []byte
}

// CertificateAnswer is a chain in DER, leaf first.
type CertificateAnswer struct{ Chain [][]byte }

// Broker has keys certified by whoever serves POST /v1/certificate at a Unix socket, in JSON. That is this machine's agent
// of the control plane, which knows which actors are assigned here. It answers 403, 409 or 412 for an actor that is
// not, or is another one by now; everything else that is not 200 may be asked for again.
func Broker(path string) Mint {
	client := &http.Client{Timeout: brokerTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	return func(ctx context.Context, a Actor, request []byte) ([][]byte, error) {
		chain, err := askBroker(ctx, client, CertificateRequest{a, request})
		if err != nil {
			return nil, fmt.Errorf("asking the broker at %s: %w", path, err)
		}
		return chain, nil
	}
}

func askBroker(ctx context.Context, client *http.Client, what CertificateRequest) ([][]byte, error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://broker/v1/certificate", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOrder))
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusConflict, http.StatusPreconditionFailed:
		return nil, fmt.Errorf("%w: answered %s: %.200q", ErrNoLonger, response.Status, body)
	default:
		return nil, fmt.Errorf("answered %s: %.200q", response.Status, body)
	}
	var answer CertificateAnswer
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return answer.Chain, nil
}
