package egress

// Handshake is what a TLS connection shows of itself before it is opened.
type Handshake struct {
	ServerName string // as written
	// Hidden is set when the real name may be encrypted (RFC 9849).
	Hidden bool
	Port   uint16 // that was dialed
}

// JudgeTLS decides a TLS connection by its server name: closed, opened or passed on. Without a name it is closed.
func JudgeTLS(rules *Rules, h Handshake) (Mode, Verdict) {
	if h.ServerName == "" {
		return ModeClose, refuse(0, SNIMissing, "")
	}
	name, err := ParseName(h.ServerName)
	if err != nil {
		return ModeClose, refuse(0, SNIInvalid, err.Error())
	}
	m, ok := rules.TLS(name, h.Port)
	v := Verdict{Reason: Allowed, Match: m, Ruled: ok, Host: name}
	switch {
	case !ok:
		v.Reason = rules.Near(name, false)
		return ModeClose, v
	case m.Kind == HTTPS:
		return ModeIntercept, v
	case h.Hidden:
		v.Reason, v.Detail = NameHidden, "encrypted client hello"
		return ModeClose, v
	}
	return ModePassthrough, v
}

// Request is what of a request inside a tunnel is decided by.
type Request struct {
	Leg Leg // LegCleartext or LegIntercepted
	// SNI is the name that the connection was opened for; the zero Host in clear text.
	SNI    Host
	Method string
	// Authority is the target's, or else that of the Host field; HostField is the field itself, "" if it is not there.
	Authority, HostField string
	Port                 uint16 // that was dialed
	// Upgrade is set when the request asks for another protocol on its connection.
	Upgrade bool
	// Carries reports whether the request has a field of that name, as a policy spells it: in any case.
	Carries func(field string) bool
	// Fronting allows an authority that is not the SNI.
	Fronting bool
}

// Judge decides one request. Port and address in the authority play no part: what counts is the port that was dialed.
func Judge(rules *Rules, q Request) Verdict {
	switch {
	case q.Method == "CONNECT":
		return refuse(403, NestedConnect, "")
	case q.Upgrade:
		return refuse(403, UpgradeRefused, "")
	}
	host, err := ParseAuthority(q.Authority)
	if err != nil {
		return refuse(400, AuthorityInvalid, err.Error())
	}
	if q.HostField != "" && q.HostField != q.Authority {
		if other, err := ParseAuthority(q.HostField); err != nil || other != host {
			return refuse(403, AuthorityMismatch, "")
		}
	}
	if q.Leg == LegIntercepted {
		if v := sniAllows(rules, q, host); !v.OK() {
			return v
		}
	}
	m, ok := matchRequest(rules, q.Leg, host, q.Port)
	v := Verdict{Reason: Allowed, Match: m, Ruled: ok, Host: host}
	if !ok {
		v.Reason, v.Status = rules.Near(host, q.Leg == LegCleartext), 403
		if m.Kind == Passthrough {
			v.Reason = OtherKind
		}
		return v
	}
	for _, e := range m.Effects {
		if q.Carries == nil || q.Carries(e.Header) {
			v.Reason, v.Status, v.Detail = CredentialsUnsupported, 403, e.Header
			return v
		}
	}
	return v
}

// sniAllows decides by the name that the connection was opened for: it must be the authority, and still be allowed.
func sniAllows(rules *Rules, q Request, host Host) Verdict {
	if !q.Fronting && host != q.SNI {
		return refuse(403, SNIMismatch, "")
	}
	if _, ok := matchRequest(rules, LegIntercepted, q.SNI, q.Port); !ok {
		return refuse(403, NoRule, "of the server name")
	}
	return Verdict{Reason: Allowed}
}

// matchRequest finds the rule that allows requests of a leg. That for clear text is never one for TLS, and the other way
// round; any other leg has none.
func matchRequest(rules *Rules, leg Leg, host Host, port uint16) (Match, bool) {
	switch leg {
	case LegCleartext:
		return rules.Clear(host, port)
	case LegIntercepted:
		m, ok := rules.TLS(host, port)
		return m, ok && m.Kind == HTTPS
	}
	return Match{}, false
}
