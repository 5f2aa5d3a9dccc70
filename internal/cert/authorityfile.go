package cert

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The file of an authority is PEM: for each CA, in the order of their making, its key (PKCS #8) with the headers State
// (active for the one that signs, else idle), Since (when it was first trusted, RFC 3339) and Until (when all that it has
// signed has ended), then its certificate, then, if it has one, the certificate by its predecessor. It is replaced as a whole: a crash leaves the old content or the new.
const (
	stateHeader = "State"
	sinceHeader = "Since"
	untilHeader = "Until"
	stateActive = "active"
	stateIdle   = "idle"
)

func (a *Authority) write(cas []*ca) error {
	if a.options.File == "" {
		return nil
	}
	out, err := formatAuthority(cas)
	if err != nil {
		return err
	}
	defer clear(out)
	return replaceFile(a.options.File, out)
}

func formatAuthority(cas []*ca) ([]byte, error) {
	var out []byte
	for _, c := range cas {
		der, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			return nil, err
		}
		state := stateIdle
		if c.active {
			state = stateActive
		}
		out = append(out, encode(keyBlock, der, map[string]string{
			stateHeader: state, sinceHeader: c.since.UTC().Format(time.RFC3339Nano), untilHeader: c.until.UTC().Format(time.RFC3339Nano),
		})...)
		out = append(out, encode(certificateBlock, c.cert.Raw, nil)...)
		if c.cross != nil {
			out = append(out, encode(certificateBlock, c.cross, nil)...)
		}
	}
	return out, nil
}

// replaceFile writes a file that only its owner can read, and makes sure that it is there after a crash.
func replaceFile(name string, content []byte) error {
	temporary := name + "." + token() + ".tmp"
	if err := writeFile(temporary, content, 0o600); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	if err := os.Rename(temporary, name); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return syncDirectory(filepath.Dir(name))
}

// writeFile makes a new file and syncs it.
func writeFile(name string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// token makes a name that nobody else has.
func token() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// read returns the CAs of the file, nil when there is none.
func (a *Authority) read() ([]*ca, error) {
	if a.options.File == "" {
		return nil, nil
	}
	content, err := readFile(a.options.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer clear(content)
	cas, err := parseAuthority(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.options.File, err)
	}
	return cas, nil
}

// parseAuthority reads the content of an authority's file. It is strict: whatever is not as write makes it is an error, and
// so is a state that rotation never leads to. No error shows a byte of a key.
func parseAuthority(content []byte) ([]*ca, error) {
	var cas []*ca
	for rest := content; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("something behind the last PEM block")
		}
		switch {
		case block.Type == keyBlock:
			c, err := parseKey(block)
			if err != nil {
				return nil, err
			}
			cas = append(cas, c)
		case block.Type == certificateBlock && len(cas) > 0:
			if err := cas[len(cas)-1].add(block.Bytes); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("an unexpected PEM block %.40q", block.Type)
		}
	}
	if err := checkRotation(cas); err != nil {
		return nil, err
	}
	// What decoding passes over, such as text between blocks or a block that is broken, is not written again.
	same, err := formatAuthority(cas)
	defer clear(same)
	if err != nil || !bytes.Equal(same, content) {
		return nil, errors.New("something that is not a PEM block as it was written")
	}
	return cas, nil
}

// checkRotation insists on the states that rotation leads to: one CA, that signs; with a second one that does not yet; or with
// one that signs instead, certified by the first.
func checkRotation(cas []*ca) error {
	active := 0
	for _, c := range cas {
		if c.cert == nil || c.cert.CheckSignatureFrom(c.cert) != nil {
			return errors.New("a key without its own certificate")
		}
		if c.active {
			active++
		}
	}
	if active != 1 || len(cas) > 2 {
		return fmt.Errorf("%d certificate authorities, of which %d sign", len(cas), active)
	}
	if cas[0].cross != nil {
		return errors.New("a certificate by a predecessor that is not there")
	}
	if len(cas) == 2 {
		return cas[1].checkCross(cas[0])
	}
	return nil
}

// checkCross checks the certificate by the predecessor, which is there from the moment that the CA signs.
func (c *ca) checkCross(before *ca) error {
	if (c.cross != nil) != c.active {
		return errors.New("a certificate by the predecessor that is missing, or there too early")
	}
	if c.cross == nil {
		return nil
	}
	cross, err := x509.ParseCertificate(c.cross)
	if err != nil || cross.CheckSignatureFrom(before.cert) != nil || !bytes.Equal(cross.RawSubject, c.cert.RawSubject) {
		return errors.New("a certificate that is not by the predecessor")
	}
	return nil
}

func parseKey(block *pem.Block) (*ca, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(crypto.Signer)
	if err != nil || !ok {
		return nil, errors.New("a key that cannot be read")
	}
	since, err := time.Parse(time.RFC3339Nano, block.Headers[sinceHeader])
	until, bad := time.Parse(time.RFC3339Nano, block.Headers[untilHeader])
	state := block.Headers[stateHeader]
	if err != nil || bad != nil || state != stateActive && state != stateIdle {
		return nil, errors.New("a key without a valid state and times")
	}
	return &ca{key: key, since: since, until: until, active: state == stateActive}, nil
}

// add takes the certificate of a key, or the one by its predecessor.
func (c *ca) add(der []byte) error {
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("a certificate that cannot be read: %w", err)
	}
	public, ok := c.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(parsed.PublicKey) || !parsed.IsCA {
		return errors.New("a certificate that is not its key's")
	}
	switch {
	case c.cert == nil:
		c.cert = parsed
	case c.cross == nil:
		c.cross = parsed.Raw
	default:
		return errors.New("more than two certificates of one key")
	}
	return nil
}
