#!/bin/sh
# Usage: goversion.sh goX.Y.Z: exits non-zero when the go command in use is older.
set -eu
want=$1
have=$(go env GOVERSION)
oldest=$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)
if [ "$oldest" != "$want" ]; then
	echo "go is $have, at least $want is required (export GOTOOLCHAIN=$want)" >&2
	exit 1
fi
echo "== $have"
