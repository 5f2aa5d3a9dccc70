package config

import (
	"net"
)

// ControlPlane is where a control plane of actors is, and who we are there. Files are PEM, and read again when they change.
type ControlPlane struct {
	Address        string // host:port
	ServerName     string // in its certificate; default the host of Address
	CredentialFile string // our key and chain
	CAFile         string // who signs its certificate
}

// controlPlane decodes the control block of a block, which must have one, and returns with it the names of its files for CheckFiles.
func (d *decoder) controlPlane(o *object) (p ControlPlane, files [2]text) {
	c := o.child("control")
	if c == nil {
		o.missing("control { … }", `write control { address = "host:port", credential_file = "…", ca_file = "…" }`)
		return p, files
	}
	addr := c.str("address", true)
	host, _, err := net.SplitHostPort(addr.s)
	if addr.ok && (err != nil || host == "" || !validPort(addr.s)) {
		d.bad(addr, CodeAddress, "address in %s must be host:port", c.title)
	}
	p.Address, p.ServerName = addr.s, host
	if name := c.str("server_name", false); name.ok {
		if canonical, why := canonicalHost(name.s); why != "" || canonical == "" {
			d.bad(name, CodeValue, "server_name in %s is no host name", c.title)
		}
		p.ServerName = name.s
	}
	files = d.credentials(c)
	p.CredentialFile, p.CAFile = files[0].s, files[1].s
	c.finish(nil)
	return p, files
}

// credentials reads the names of the files of one side of mutual TLS.
func (d *decoder) credentials(o *object) [2]text {
	files := [2]text{o.str("credential_file", true), o.str("ca_file", true)}
	for i, key := range []string{"credential_file", "ca_file"} {
		if files[i].ok && files[i].s == "" {
			d.bad(files[i], CodeValue, "%s in %s is empty", key, o.title)
		}
	}
	return files
}

func controlTree(p ControlPlane) tree {
	return tree{"address": p.Address, "server_name": p.ServerName, "credential_file": p.CredentialFile, "ca_file": p.CAFile}
}
