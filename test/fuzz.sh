#!/bin/bash
# Usage: fuzz.sh TIME: runs every fuzz target of the repository for TIME each,
# one after the other, and goes on after a failure so that one run shows all.
# Interesting inputs are hardly minimised: where goroutines race, coverage is
# not the same twice, and by default a worker would try for a minute each time.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
failed=0 ran=0
while IFS=: read -r file name; do
	echo "== $name ($(dirname "$file"), $time)"
	ran=$((ran + 1))
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 20x "./$(dirname "$file")" </dev/null || failed=$((failed + 1))
done < <(grep -rHoE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' internal cmd gateway 2>/dev/null | sed 's/:func /:/' | sort)
echo "$ran fuzz targets, $failed failed"
[ "$failed" -eq 0 ] && [ "$ran" -gt 0 ]
