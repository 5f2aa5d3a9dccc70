package devplane

import (
	"context"
	"errors"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/store"
)

// An atespace is a name and nothing else, and its record holds an empty object.
type nothing struct{}

// CreateAtespace makes an atespace.
func (p *Plane) CreateAtespace(ctx context.Context, name string) (m actor.Meta, err error) {
	if err := actor.CheckName("atespace.metadata.name", name); err != nil {
		return m, err
	}
	return update(ctx, p, func(tx store.Tx) (m actor.Meta, err error) {
		err = create(tx, atespaceKey(name), &nothing{}, &m)
		return m, existing(err, "atespace %s exists already", name)
	})
}

// GetAtespace returns what is known of an atespace.
func (p *Plane) GetAtespace(ctx context.Context, name string) (actor.Meta, error) {
	if err := actor.CheckName("atespace.name", name); err != nil {
		return actor.Meta{}, err
	}
	return view(ctx, p, func(tx store.Tx) (actor.Meta, error) { return getAtespace(tx, name) })
}

func getAtespace(tx store.Tx, name string) (actor.Meta, error) {
	return get(tx, atespaceKey(name), &nothing{}, "atespace %s not found", name)
}

// ListAtespaces returns up to limit atespaces in the order of their names, from the first behind after.
func (p *Plane) ListAtespaces(ctx context.Context, after string, limit int) ([]actor.Named, error) {
	return view(ctx, p, func(tx store.Tx) ([]actor.Named, error) {
		records, err := tx.List(KindAtespace, "", after, limit)
		out := make([]actor.Named, len(records))
		for i, r := range records {
			out[i] = actor.Named{Name: r.Name, Meta: metaOf(r)}
		}
		return out, err
	})
}

// DeleteAtespace forgets an atespace, which must hold no actors and no templates any more.
func (p *Plane) DeleteAtespace(ctx context.Context, name string, t actor.Terms) (actor.Meta, error) {
	if err := actor.CheckName("atespace.name", name); err != nil {
		return actor.Meta{}, err
	}
	return update(ctx, p, func(tx store.Tx) (actor.Meta, error) {
		m, err := getAtespace(tx, name)
		if err != nil {
			return m, err
		}
		if !t.Hold(m) {
			return m, actor.Refuse(actor.Aborted, "atespace %s has another uid or version", name)
		}
		for _, kind := range []string{KindActor, KindTemplate} {
			if held, err := tx.List(kind, name, "", 1); err != nil {
				return m, err
			} else if len(held) > 0 {
				return m, actor.Refuse(actor.FailedPrecondition, "atespace %s is not empty: it has %s %s", name, kind, held[0].Name)
			}
		}
		return m, tx.Delete(atespaceKey(name), m.Version)
	})
}

// CreateTemplate makes a template. Its atespace must be there.
func (p *Plane) CreateTemplate(ctx context.Context, t actor.Template) (actor.Template, error) {
	if err := t.Check("actor_template"); err != nil {
		return actor.Template{}, actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	t = t.WithDefaults()
	return update(ctx, p, func(tx store.Tx) (actor.Template, error) {
		if _, err := tx.Get(atespaceKey(t.Atespace)); errors.Is(err, store.ErrNotFound) {
			return t, actor.Refuse(actor.FailedPrecondition, "atespace %s of actor_template %s does not exist", t.Atespace, t.Ref)
		} else if err != nil {
			return t, err
		}
		err := create(tx, templateKey(t.Ref), &t, &t.Meta)
		return t, existing(err, "actor_template %s exists already", t.Ref)
	})
}

func getTemplate(tx store.Tx, ref actor.Ref) (t actor.Template, err error) {
	t.Ref = ref
	t.Meta, err = get(tx, templateKey(ref), &t, "actor_template %s not found", ref)
	return t, err
}

// GetTemplate returns a template.
func (p *Plane) GetTemplate(ctx context.Context, ref actor.Ref) (actor.Template, error) {
	if err := checkRef("actor_template", ref); err != nil {
		return actor.Template{}, err
	}
	return view(ctx, p, func(tx store.Tx) (actor.Template, error) { return getTemplate(tx, ref) })
}

// ListTemplates returns up to limit templates of an atespace in the order of their names, from the first behind after.
func (p *Plane) ListTemplates(ctx context.Context, atespace, after string, limit int) ([]actor.Template, error) {
	if err := actor.CheckName("atespace", atespace); err != nil {
		return nil, err
	}
	return view(ctx, p, func(tx store.Tx) ([]actor.Template, error) {
		records, err := tx.List(KindTemplate, atespace, after, limit)
		out := make([]actor.Template, len(records))
		for i, r := range records {
			out[i].Ref = actor.Ref{Atespace: r.Group, Name: r.Name}
			if err := decode(r, &out[i]); err != nil {
				return nil, err
			}
			out[i].Meta = metaOf(r)
		}
		return out, err
	})
}

// DeleteTemplate forgets a template. Actors that were made from it cannot be resumed until they are given another.
func (p *Plane) DeleteTemplate(ctx context.Context, ref actor.Ref, terms actor.Terms) (actor.Template, error) {
	if err := checkRef("actor_template", ref); err != nil {
		return actor.Template{}, err
	}
	return update(ctx, p, func(tx store.Tx) (actor.Template, error) {
		t, err := getTemplate(tx, ref)
		if err != nil {
			return t, err
		}
		if !terms.Hold(t.Meta) {
			return t, actor.Refuse(actor.Aborted, "actor_template %s has another uid or version", ref)
		}
		return t, tx.Delete(templateKey(ref), t.Version)
	})
}

// policyOf puts what is stored, the rules alone, and what is the same for each together.
func policyOf(ref actor.Ref, rules []egress.Rule, m actor.Meta) egress.Kept {
	return egress.Kept{Policy: egress.Policy{Name: egress.PolicyName, Atespace: ref.Atespace, Rules: rules}, Meta: m}
}

func getPolicy(tx store.Tx, ref actor.Ref) (egress.Kept, error) {
	var rules []egress.Rule
	m, err := get(tx, policyKey(ref), &rules, "actor %s has no egress policy", ref)
	return policyOf(ref, rules, m), err
}

func checkPolicy(ref actor.Ref, policy egress.Policy) error {
	if err := checkRef("actor", ref); err != nil {
		return err
	}
	if err := policy.Validate("egress_policy", ref.Atespace); err != nil {
		return actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return nil
}

// CreatePolicy makes an actor's policy. Default ports are written out.
func (p *Plane) CreatePolicy(ctx context.Context, ref actor.Ref, policy egress.Policy) (egress.Kept, error) {
	if err := checkPolicy(ref, policy); err != nil {
		return egress.Kept{}, err
	}
	return update(ctx, p, func(tx store.Tx) (egress.Kept, error) {
		kept := policyOf(ref, policy.WithDefaults().Rules, actor.Meta{})
		if _, err := getActor(tx, ref); isNotFound(err) {
			return kept, actor.Refuse(actor.FailedPrecondition, "actor %s does not exist", ref)
		} else if err != nil {
			return kept, err
		}
		err := create(tx, policyKey(ref), &kept.Rules, &kept.Meta)
		return kept, existing(err, "actor %s has an egress policy already", ref)
	})
}

// GetPolicy returns an actor's policy.
func (p *Plane) GetPolicy(ctx context.Context, ref actor.Ref) (egress.Kept, error) {
	if err := checkRef("actor", ref); err != nil {
		return egress.Kept{}, err
	}
	return view(ctx, p, func(tx store.Tx) (egress.Kept, error) { return getPolicy(tx, ref) })
}

// UpdatePolicy replaces an actor's policy. UID and version are required.
func (p *Plane) UpdatePolicy(ctx context.Context, ref actor.Ref, policy egress.Policy, t actor.Terms) (egress.Kept, error) {
	if err := checkPolicy(ref, policy); err != nil {
		return egress.Kept{}, err
	}
	var f actor.Faults
	if t.Require(&f, "egress_policy.metadata"); len(f) > 0 {
		return egress.Kept{}, invalid(f)
	}
	return p.changePolicy(ctx, ref, t, func(tx store.Tx, kept *egress.Kept) error {
		kept.Rules = policy.WithDefaults().Rules
		return put(tx, policyKey(ref), &kept.Rules, &kept.Meta)
	})
}

// DeletePolicy forgets an actor's policy, and returns what it was.
func (p *Plane) DeletePolicy(ctx context.Context, ref actor.Ref, t actor.Terms) (egress.Kept, error) {
	if err := checkRef("actor", ref); err != nil {
		return egress.Kept{}, err
	}
	return p.changePolicy(ctx, ref, t, func(tx store.Tx, kept *egress.Kept) error {
		return tx.Delete(policyKey(ref), kept.Version)
	})
}

func (p *Plane) changePolicy(ctx context.Context, ref actor.Ref, t actor.Terms, f func(store.Tx, *egress.Kept) error) (egress.Kept, error) {
	return update(ctx, p, func(tx store.Tx) (egress.Kept, error) {
		kept, err := getPolicy(tx, ref)
		if err != nil {
			return kept, err
		}
		if !t.Hold(kept.Meta) {
			return kept, actor.Refuse(actor.Aborted, "the egress policy of actor %s has another uid or version", ref)
		}
		err = f(tx, &kept)
		return kept, err
	})
}
