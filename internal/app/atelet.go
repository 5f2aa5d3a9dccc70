package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/internal/atelet"
	"github.com/sluice-proxy/sluice/internal/cert"
)

// interceptionMount is the directory of a worker's component with who signs for intercepted names.
const interceptionMount = "egress-mitm.ate.dev"

// AteletOptions describe the agent of a worker. Client, Broker and Interception of the embedded options are made by RunAtelet.
type AteletOptions struct {
	atelet.Options
	Control ControlOptions
	// BrokerSocket is the path of the Unix socket on which keys of actors are certified; empty is none.
	BrokerSocket string
}

// RunAtelet is a worker's agent until ctx ends, or until the control plane refuses it for good.
func RunAtelet(ctx context.Context, o AteletOptions) (err error) {
	if o.Client, err = DialControl(o.Control); err != nil {
		return err
	}
	defer func() { _ = o.Client.Close() }()
	bundle := filepath.Join(o.Control.Credentials, interceptionMount, cert.TrustFile)
	if _, err := os.Stat(bundle); err == nil {
		o.Interception = bundle
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if o.BrokerSocket != "" {
		if o.Broker, err = listenBroker(o.BrokerSocket); err != nil {
			return err
		}
		defer func() { _ = o.Broker.Close() }()
	}
	o.Worker.Namespace = workerNamespace
	a, err := atelet.New(o.Options)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func listenBroker(path string) (net.Listener, error) {
	l, err := cert.ListenMinter(path) // certificates are asked for here, too, and a socket is a socket
	if errors.Is(err, cert.ErrLocked) {
		return nil, fmt.Errorf("the broker's socket %s is in use: has the worker another agent?", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the broker's socket: %w", err)
	}
	return l, nil
}
