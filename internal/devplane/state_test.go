package devplane_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/devplane"
)

// legal is the table of operations as the contract has it: in which states each is legal, and in which it is done already.
const legal = `
resume   SUSPENDED PAUSED RESUMING        / RUNNING
suspend  RUNNING PAUSED SUSPENDING        / SUSPENDED
pause    RUNNING                          /
revert   RUNNING PAUSED CRASHED           /
delete   SUSPENDED CRASHED                /
`

func TestJudge(t *testing.T) {
	want := map[string]devplane.Verdict{}
	for line := range strings.Lines(strings.TrimSpace(legal)) {
		left, right, _ := strings.Cut(line, "/")
		words := strings.Fields(left)
		for _, s := range words[1:] {
			want[words[0]+" "+s] = devplane.Legal
		}
		for _, s := range strings.Fields(right) {
			want[words[0]+" "+s] = devplane.Already
		}
	}
	if len(want) != 14 {
		t.Fatalf("the table has %d entries", len(want))
	}
	for op := actor.Resume; op <= actor.Delete; op++ {
		for s := actor.Resuming; s <= actor.Reverting; s++ {
			name := fmt.Sprint(op, " ", s)
			if got := devplane.Judge(op, s, false); got != want[name] {
				t.Errorf("%s: %d, want %d", name, got, want[name])
			}
			forced := want[name]
			if op == actor.Delete {
				forced = devplane.Legal
			}
			if got := devplane.Judge(op, s, true); got != forced {
				t.Errorf("%s in any state: %d, want %d", name, got, forced)
			}
		}
	}
}

// The numbers of states are those of the wire.
func TestStateNumbers(t *testing.T) {
	for i, name := range []string{"UNSPECIFIED", "RESUMING", "RUNNING", "SUSPENDING", "SUSPENDED", "PAUSING", "PAUSED", "CRASHED", "DELETING", "REVERTING"} {
		if got := actor.State(i).String(); got != name {
			t.Errorf("state %d is %s, want %s", i, got, name)
		}
	}
}
