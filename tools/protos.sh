#!/bin/bash
# Usage: protos.sh [FOLDER]: generates the Go code of api/*/*.proto into FOLDER
# (default api). It needs protoc with its standard imports (Debian:
# protobuf-compiler, libprotobuf-dev); the plugins are pinned in tools/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath "${1:-api}")
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
go build -modfile=tools/go.mod -o "$plugins/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
cd api
PATH="$plugins:$PATH" protoc --proto_path=. \
	--go_out="$out" --go_opt=paths=source_relative \
	--go-grpc_out="$out" --go-grpc_opt=paths=source_relative \
	*/*.proto
