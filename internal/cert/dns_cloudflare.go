package cert

import (
	"context"

	"github.com/cloudflare/cloudflare-go/v7/dns"
	"github.com/cloudflare/cloudflare-go/v7/option"

	"github.com/sluice-proxy/sluice/internal/config"
)

// cloudflareZone is a zone at Cloudflare. Of their library only the package of records is linked; its optional fields have
// no constructor there, and are set by hand.
type cloudflareZone struct {
	id      string
	records *dns.RecordService
}

func newCloudflareZone(n *config.DNS) *cloudflareZone {
	opts := []option.RequestOption{
		option.WithEnvironmentProduction(), option.WithAPIToken(n.Token.Reveal()), option.WithRequestTimeout(callTime),
		option.WithHTTPClient(newServiceClient()),
	}
	if n.Endpoint != "" {
		opts = append(opts, option.WithBaseURL(n.Endpoint))
	}
	return &cloudflareZone{id: n.ZoneID, records: dns.NewRecordService(opts...)}
}

func (z *cloudflareZone) add(ctx context.Context, name, value string) error {
	var r dns.TXTRecordParam
	r.Type.Value, r.Type.Present = dns.TXTRecordTypeTXT, true
	r.Name.Value, r.Name.Present = name, true
	r.Content.Value, r.Content.Present = `"`+value+`"`, true
	r.TTL.Value, r.TTL.Present = recordLife, true
	p := dns.RecordNewParams{Body: r}
	p.ZoneID.Value, p.ZoneID.Present = z.id, true
	_, err := z.records.New(ctx, p)
	return err
}

// remove looks for the record: another instance, or this one before a restart, may have added it.
func (z *cloudflareZone) remove(ctx context.Context, name, value string) error {
	var p dns.RecordListParams
	p.ZoneID.Value, p.ZoneID.Present = z.id, true
	p.Type.Value, p.Type.Present = dns.RecordListParamsTypeTXT, true
	p.Name.Value.Exact.Value, p.Name.Value.Exact.Present, p.Name.Present = name, true, true
	found, err := z.records.List(ctx, p)
	if err != nil {
		return err
	}
	for _, r := range found.Result {
		if r.Content != value && r.Content != `"`+value+`"` {
			continue
		}
		var d dns.RecordDeleteParams
		d.ZoneID.Value, d.ZoneID.Present = z.id, true
		if _, err := z.records.Delete(ctx, r.ID, d); err != nil {
			return err
		}
	}
	return nil
}
