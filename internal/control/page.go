package control

import (
	"encoding/base64"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxTemplates bounds a page of templates, which have up to 1 MiB each.
	maxTemplates = 50
)

// pageOf reads what is asked of a list: how many, and behind which name. A token is that name, so that it stays good
// whatever is added and removed.
func pageOf(size int32, token string) (after string, limit int, err error) {
	switch {
	case size < 0:
		return "", 0, actor.Refuse(actor.InvalidArgument, "page_size: %d is negative", size)
	case size == 0:
		limit = defaultPage
	default:
		limit = min(int(size), maxPage)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) > 200 || base64.RawURLEncoding.EncodeToString(raw) != token { // decoding passes over line ends
		return "", 0, actor.Refuse(actor.InvalidArgument, "page_token: not one of this server's")
	}
	return string(raw), limit, nil
}

// namePage is pageOf for lists of names.
func namePage(size int32, token string) (after string, limit int, err error) {
	if after, limit, err = pageOf(size, token); err == nil && after != "" && !actor.ValidName(after) {
		err = actor.Refuse(actor.InvalidArgument, "page_token: not one of this server's")
	}
	return after, limit, err
}

// refPage is pageOf for lists of references.
func refPage(size int32, token string) (after actor.Ref, limit int, err error) {
	text, limit, err := pageOf(size, token)
	if err != nil || text == "" {
		return after, limit, err
	}
	if after, err = actor.ParseRef(text); err != nil {
		err = actor.Refuse(actor.InvalidArgument, "page_token: not one of this server's")
	}
	return after, limit, err
}

// nextToken is what goes on behind the last of a page; a page that is not full is the last one.
func nextToken(n, limit int, last func() string) string {
	if n < limit {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(last()))
}
