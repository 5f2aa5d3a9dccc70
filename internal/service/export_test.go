package service

import "crypto/tls"

// Shown is what connections begin with that show a certificate.
func Shown(certFile, keyFile string, base *tls.Config) (func() *tls.Config, error) {
	s, err := newShown(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return s.fork(base).tls, nil
}

// What the gRPC health service is asked and answers.
var (
	HealthRequest = healthRequest
	HealthAnswer  = healthAnswer
)
