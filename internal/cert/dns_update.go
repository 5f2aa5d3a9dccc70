package cert

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"

	"github.com/sluice-proxy/sluice/internal/config"
)

// updateTime bounds one update.
const updateTime = 10 * time.Second

// tsigFudge is by how many seconds the clocks may differ (RFC 8945 section 10).
const tsigFudge = 300

// updateZone is a zone whose primary server takes updates (RFC 2136), signed if there is a key (RFC 8945).
type updateZone struct {
	zone, server string
	key, alg     string
	secret       config.Secret
}

func newUpdateZone(n *config.DNS) *updateZone {
	z := &updateZone{zone: dns.Fqdn(n.ZoneID), server: n.Server, secret: n.Token, alg: dns.Fqdn(n.KeyAlg)}
	if n.Token.Reveal() != "" {
		z.key = dns.CanonicalName(n.KeyName)
	}
	return z
}

func (z *updateZone) add(ctx context.Context, name, value string) error {
	m := new(dns.Msg).SetUpdate(z.zone)
	m.Insert([]dns.RR{record(name, value)})
	return z.update(ctx, m)
}

func (z *updateZone) remove(ctx context.Context, name, value string) error {
	m := new(dns.Msg).SetUpdate(z.zone)
	m.Remove([]dns.RR{record(name, value)})
	return z.update(ctx, m)
}

func record(name, value string) dns.RR {
	return &dns.TXT{
		Hdr: dns.RR_Header{Name: dns.Fqdn(name), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: recordLife}, Txt: []string{value},
	}
}

// update sends a message over TCP, where answers cannot be forged from afar, and checks the answer and its signature.
func (z *updateZone) update(ctx context.Context, m *dns.Msg) error {
	c := &dns.Client{Net: "tcp", Timeout: updateTime}
	if z.key != "" {
		c.TsigSecret = map[string]string{z.key: z.secret.Reveal()}
		m.SetTsig(z.key, z.alg, tsigFudge, time.Now().Unix())
	}
	answer, _, err := c.ExchangeContext(ctx, m, z.server)
	switch {
	case err != nil:
		return fmt.Errorf("updating zone %s at %s: %w", z.zone, z.server, err)
	case answer.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("updating zone %s at %s: the server answers %s", z.zone, z.server, dns.RcodeToString[answer.Rcode])
	case z.key != "" && answer.IsTsig() == nil:
		return errors.New("updating zone " + z.zone + ": the answer is not signed")
	}
	return nil
}
