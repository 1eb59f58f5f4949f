#!/usr/bin/env bash
# Measures every row of `samba bench` on one thread and on all cores and writes bench.json, bench.txt and roofline.svg
# into build/bench. With --peers also installs llama.cpp, PyTorch, transformers and mojolearn-core from PyPI into
# build/peers and runs them in turn with samba on the same shapes: peers.json and peers.txt. Rows, --threads and
# --repeat hold for both parts.
# An idle machine, please: ratios of one run mean something, absolute times do not.
# Usage: scripts/bench.sh [--peers] [flags of samba bench, e.g. --quick, or rows]
set -euo pipefail
cd "$(dirname "$0")/.."
peers=no
if [ "${1:-}" = --peers ]; then
  peers=yes
  shift
fi
out=build/bench
arguments=()  # of samba bench
for_peers=()
rows=()
while [ $# -gt 0 ]; do
  taken=1
  case "$1" in
    --out | --threads | --repeat | --shapes | --device | --isa | --numeric-mode | --log-level | --progress) taken=2 ;;
  esac
  if [ $# -lt "$taken" ]; then
    echo "bench: $1 needs a value" >&2
    exit 2
  fi
  case "$1" in
    --out) out=$2 ;;
    --out=*) out=${1#--out=} ;;
    *) arguments+=("${@:1:taken}") ;;
  esac
  case "$1" in
    --threads | --repeat) for_peers+=("$1" "$2") ;;
    --threads=* | --repeat=*) for_peers+=("$1") ;;
    -*) ;;
    *) rows+=("$1") ;;
  esac
  shift "$taken"
done
scripts/setup.sh
scripts/build.sh release samba_cli >&2
build/samba bench --out "$out" "${arguments[@]}"
[ "$peers" = yes ] || exit 0

python=build/peers/bin/python
if [ ! -x "$python" ]; then
  python3 -m venv build/peers
  "$python" -m pip install --quiet --upgrade pip
fi
# llama-cpp-python is compiled here, for this processor; PyTorch's own index has builds without CUDA.
"$python" -m pip install --quiet numpy gguf transformers mojolearn-core llama-cpp-python >&2
"$python" -c 'import torch' 2>/dev/null ||
  "$python" -m pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu >&2 ||
  "$python" -m pip install --quiet torch >&2
"$python" scripts/bench_peers.py --samba build/samba --out "$out" "${for_peers[@]}" --only "${rows[@]}"
