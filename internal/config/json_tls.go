package config

import "crypto/tls"

// sharedTLSTree is what entrypoints and management have.
func sharedTLSTree(t *TLS) tree {
	out := tree{"cert_file": t.CertFile, "key_file": t.KeyFile, "min_version": "1.2", "client_ca_file": orNull(t.ClientCAFile)}
	if t.MinVersion == tls.VersionTLS13 {
		out["min_version"] = "1.3"
	}
	return out
}

func tlsTree(t *TLS) any {
	if t == nil {
		return nil
	}
	out := sharedTLSTree(t)
	others := []any{}
	for _, p := range t.Certificates {
		others = append(others, tree{"cert_file": p.CertFile, "key_file": p.KeyFile})
	}
	out["certificate"], out["strict_sni"], out["alpn"] = others, t.StrictSNI, list(t.ALPN)
	out["client_auth"], out["acme"] = string(t.ClientAuth), t.ACME != nil
	if a := t.ACME; a != nil {
		out["acme_email"], out["acme_domains"], out["acme_directory_url"] = orNull(a.Email), list(a.Domains), a.Directory
		out["acme_ca_file"], out["acme_storage_path"] = orNull(a.CAFile), a.StoragePath
		out["acme_challenge"] = orNull(string(a.Challenge))
		out["acme_dns"], out["acme_eab"] = dnsTree(a.DNS), nil
		if a.EAB != nil {
			out["acme_eab"] = tree{"key_id": a.EAB.KeyID, "hmac_key": Redacted}
		}
	}
	return out
}

func dnsTree(n *DNS) any {
	if n == nil {
		return nil
	}
	out := tree{"provider": string(n.Provider), "zone_id": n.ZoneID, "token": Redacted, "propagation_wait_secs": secs(n.Propagation)}
	if n.Provider == DNSUpdate {
		out["server"], out["key_name"], out["key_algorithm"] = n.Server, orNull(n.KeyName), n.KeyAlg
	} else {
		out["endpoint"] = orNull(n.Endpoint)
	}
	return out
}
