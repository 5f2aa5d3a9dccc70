// Package provider is the seam to where configuration comes from: it owns the shape in which a source hands its
// texts over and the limits on them. Each source is a package below this one; it finds and reads, and never decides
// what a text means.
//
// Lifetime: a Sources value is read once and never changed; it lives as long as the attempt to put it in force. The
// package must not know how a source is reached, and nothing of what a configuration says.
package provider

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/sluice-proxy/sluice/internal/config"
)

// The limits on what a source may hand over. What exceeds one is an error, never cut.
const (
	MaxFileBytes = 1 << 20 // of one text
	MaxFragments = 256     // texts beside the main one
)

// Sources are the texts of one configuration: the main one first, then its fragments sorted by name. They are one
// document: the order only decides which of two findings is named first.
type Sources []config.Source

// Digest is the lower-case hex SHA-256 over the texts in order, the same as config.Config.Digest of what they say.
// Equal digests mean that nothing has changed.
func (s Sources) Digest() string {
	sum := sha256.New()
	for _, src := range s {
		sum.Write(src.Text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Texts returns the texts by file name, for the excerpts of findings.
func (s Sources) Texts() map[string][]byte {
	texts := make(map[string][]byte, len(s))
	for _, src := range s {
		texts[src.File] = src.Text
	}
	return texts
}
