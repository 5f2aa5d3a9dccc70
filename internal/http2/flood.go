package http2

import (
	"time"

	"golang.org/x/net/http2"
)

// Budgets of frames that cost work and bring nothing. Each is a number at once and a number a second after that; who
// spends more is answered with ENHANCE_YOUR_CALM.
const (
	idleBurst   = 1000 // PING, SETTINGS, PRIORITY, empty DATA and CONTINUATION, frames of unknown types
	idleRate    = 100
	updateBurst = 1000 // WINDOW_UPDATE, beside those that each DATA frame sent and each stream opened entitle to
	updateRate  = 100
	perData     = 8
	perStream   = 4
	faultRate   = 10 // streams refused, malformed or opened after GOAWAY; resetsBorne times MaxStreams at once
)

// resetsBorne is how many times MaxStreams a client may take back more streams than it sees through. Then it has to come
// again over a new connection, so that the work that it causes for nothing has a bound (CVE-2023-44487).
const resetsBorne = 4

// maxContinuations bounds the frames of one field block (CVE-2024-27316); its bytes are bounded by the settings.
const maxContinuations = 64

// Budget is one of them. It is not safe for concurrent use. Time is looked at only when the number at once is used up.
type Budget struct {
	left, burst int
	most        int // that useful work adds up to
	rate        int // a second
	since       time.Time
}

// NewBudget makes a full one of burst at once and rate a second.
func NewBudget(burst, rate int) Budget {
	return Budget{left: burst, burst: burst, most: burst, rate: rate, since: time.Now()}
}

// Spend takes n; false when that is more than there is.
func (b *Budget) Spend(n int) bool {
	if b.left < n {
		b.gain()
	}
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

// gain adds what time has brought. Who calls it before each Spend never gets the number at once twice, the second time for the
// time before the first.
func (b *Budget) gain() {
	now := time.Now()
	more := int(min(now.Sub(b.since), time.Hour) * time.Duration(b.rate) / time.Second)
	if more > 0 {
		b.left, b.since = max(b.left, min(b.left+more, b.burst)), now
	}
}

// updatesEarned bounds what DATA frames and streams entitle to. It is far above what arrives at once for a window full of DATA: some clients answer
// each 4 KiB by two WINDOW_UPDATE frames, and after a pause all of these together.
const updatesEarned = 256 << 10

// updateBudget is the one of WINDOW_UPDATE.
func updateBudget() Budget {
	b := NewBudget(updateBurst, updateRate)
	b.most = updatesEarned
	return b
}

// earn adds n for useful work.
func (b *Budget) earn(n int) { b.left = min(b.left+n, b.most) }

// flood is the end of a connection whose client sends too much of what.
func flood(what string) *connError {
	return &connError{http2.ErrCodeEnhanceYourCalm, "too many " + what}
}
