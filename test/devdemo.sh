#!/bin/bash
# Takes the tour of the development network (sluice dev demo), and then looks
# for itself whether anything is left of it: names and holders of network
# namespaces, control groups, processes, sockets, files, and rules and links
# of the machine's own namespace. Usage: test/devdemo.sh [DIRECTORY OF BINARIES]
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${1:-bin}")
run=d$(($$ % 1000000))

if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
	echo "devdemo: needs Linux and root, for network namespaces and control groups" >&2
	exit 2
fi

# What belongs to the machine itself and must not change.
own() {
	ip -o link 2>/dev/null | sed 's/^[0-9]*: //; s/@.*//; s/: .*//' | sort
	if command -v nft >/dev/null; then nft list ruleset 2>/dev/null | sed 's/packets [0-9]* bytes [0-9]*//'; fi
}

# The namespaces of the run, as long as it lasts: by inode, since a namespace
# may outlive its name.
watch_inodes() {
	while :; do
		for f in /run/netns/sluice-"$run"-*; do
			[ -e "$f" ] && stat -L -c %i "$f"
		done 2>/dev/null >>"$seen"
		sleep 0.2
	done
}

seen=$(mktemp)
before=$(own)
watch_inodes &
watcher=$!
trap 'kill "$watcher" 2>/dev/null; rm -f "$seen"' EXIT

"$bin/sluice" dev demo --run "$run"
code=$?
over=$(cut -d' ' -f1 /proc/uptime)
kill "$watcher"
wait "$watcher" 2>/dev/null

problems=0
left() {
	echo "devdemo: LEFT: $*" >&2
	problems=$((problems + 1))
}

for f in /run/netns/sluice-"$run"-* /run/sluice-"$run"; do
	[ -e "$f" ] && left "$f"
done
while read -r f; do left "control group $f"; done < <(find /sys/fs/cgroup -maxdepth 3 -type d -name "sluice-$run" 2>/dev/null)
while read -r f; do left "socket $f"; done < <(grep -o "/run/sluice-$run/.*" /proc/net/unix)
[ "$(own)" = "$before" ] || left "rules or links of the machine itself have changed"

inodes=$(sort -u "$seen")
[ -n "$inodes" ] || left "nobody saw a namespace of the run: this check is broken"
# What has ended and waits for the machine's init to take note of it is not there
# any more. The brackets keep grep from finding itself.
while read -r f; do
	p=${f%/*}
	grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "$p/status" || continue
	left "process ${p#/proc/}: $(tr '\0' ' ' 2>/dev/null <"$p/cmdline")"
done < <(grep -als "sluice-$run[/]" /proc/[0-9]*/cgroup /proc/[0-9]*/cmdline)
# An inode may be somebody else's by now: only a process that began before the
# end counts.
ticks=$(getconf CLK_TCK)
while read -r f inode; do
	p=${f%/ns/net}
	began=$(sed 's/.*) //' "$p/stat" 2>/dev/null | cut -d' ' -f20)
	if [ -n "$began" ] && awk "BEGIN { exit !($began / $ticks < $over) }"; then
		left "process ${p#/proc/} in the namespace $inode of the run"
	fi
done < <(stat -L -c '%n %i' /proc/[0-9]*/ns/net 2>/dev/null | grep -wF -- "$inodes")

if [ "$problems" = 0 ]; then
	echo "devdemo: nothing is left of $(wc -l <<<"$inodes") namespaces and the rules in them: no name, holder, link, control group, process, socket or file"
	command -v nft >/dev/null || echo "devdemo: without nft the rules of the machine itself were not compared"
fi
[ "$code" = 0 ] && [ "$problems" = 0 ]
