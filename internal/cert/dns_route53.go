package cert

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"

	"github.com/sluice-proxy/sluice/internal/config"
)

// route53Zone is a hosted zone of Amazon Route 53. There a name has one set of values, replaced as a whole: changes from
// here come one after the other.
type route53Zone struct {
	id     string
	client *route53.Client
	mu     sync.Mutex // held over a change: it reads and writes
}

func newRoute53Zone(n *config.DNS) *route53Zone {
	id, secret, _ := strings.Cut(n.Token.Reveal(), ":")
	keys := aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}
	o := route53.Options{
		Region:      "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil }),
		HTTPClient:  newServiceClient(),
	}
	if n.Endpoint != "" {
		o.BaseEndpoint = &n.Endpoint
	}
	return &route53Zone{id: n.ZoneID, client: route53.New(o)}
}

func (z *route53Zone) add(ctx context.Context, name, value string) error {
	return z.change(ctx, name, func(have []string) []string {
		if slices.Contains(have, value) {
			return have
		}
		return append(have, value)
	})
}

func (z *route53Zone) remove(ctx context.Context, name, value string) error {
	return z.change(ctx, name, func(have []string) []string {
		return slices.DeleteFunc(have, func(v string) bool { return v == value })
	})
}

// change replaces the values of a name.
func (z *route53Zone) change(ctx context.Context, name string, edit func([]string) []string) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	old, err := z.find(ctx, name)
	if err != nil {
		return err
	}
	var values []string
	if old != nil {
		for _, r := range old.ResourceRecords {
			values = append(values, strings.Trim(aws.ToString(r.Value), `"`))
		}
	}
	c := types.Change{Action: types.ChangeActionUpsert, ResourceRecordSet: &types.ResourceRecordSet{
		Name: aws.String(name + "."), Type: types.RRTypeTxt, TTL: aws.Int64(recordLife),
	}}
	for _, v := range edit(slices.Clone(values)) {
		c.ResourceRecordSet.ResourceRecords = append(c.ResourceRecordSet.ResourceRecords, types.ResourceRecord{Value: aws.String(`"` + v + `"`)})
	}
	switch empty := len(c.ResourceRecordSet.ResourceRecords) == 0; {
	case empty && old == nil:
		return nil
	case empty:
		c.Action, c.ResourceRecordSet = types.ChangeActionDelete, old // a set is deleted by naming all of it
	}
	_, err = z.client.ChangeResourceRecordSets(ctx, &route53.ChangeResourceRecordSetsInput{
		HostedZoneId: &z.id, ChangeBatch: &types.ChangeBatch{Changes: []types.Change{c}},
	})
	return err
}

// find returns the set of a name; nil when there is none. The service lists from a name on.
func (z *route53Zone) find(ctx context.Context, name string) (*types.ResourceRecordSet, error) {
	out, err := z.client.ListResourceRecordSets(ctx, &route53.ListResourceRecordSetsInput{
		HostedZoneId: &z.id, StartRecordName: aws.String(name + "."), StartRecordType: types.RRTypeTxt, MaxItems: aws.Int32(1),
	})
	if err != nil {
		return nil, err
	}
	for _, s := range out.ResourceRecordSets {
		if s.Type == types.RRTypeTxt && strings.EqualFold(strings.TrimSuffix(aws.ToString(s.Name), "."), name) {
			return &s, nil
		}
	}
	return nil, nil
}
