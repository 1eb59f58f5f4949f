#!/usr/bin/env bash
# Installs what samba needs to build, from Debian's packages: only what is missing, as root or through sudo. With
# "program" only what the program needs, without tests; with "all" also hipcc, whose compiler takes 320 MB: the tests
# build the GPU kernels for HIP.
set -euo pipefail

packages=(build-essential cmake ninja-build ccache pkg-config
          nlohmann-json3-dev libspdlog-dev libcli11-dev libzstd-dev zlib1g-dev libopenblas-dev libhwy-dev libssl-dev
          libcairo2-dev libicu-dev libpcre2-dev libsentencepiece-dev)
[ "${1:-}" = program ] || packages+=(catch2 librapidcheck-dev libopenmpi-dev zstd)
[ "${1:-}" != all ] || packages+=(hipcc)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: this system has no apt-get; please install: ${missing[*]}" >&2
  exit 2
fi
run=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo; please install: ${missing[*]}" >&2
    exit 2
  fi
  run=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run[@]}" apt-get update -q &&
       "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; } \
     </dev/null >"$log" 2>&1; then
  cat "$log" >&2
  echo "setup: apt-get failed, see above" >&2
  exit 4
fi
