#!/usr/bin/env bash
# Configures and builds: scripts/build.sh [PRESET [TARGET...]]; presets are those of CMakePresets.json. build/samba is the
# program of "release" (the default: with GPU kernels where nvcc or hipcc is installed) or "program", whichever came last.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -gt 0 ] && shift
targets=()
[ $# -gt 0 ] && targets=(--target "$@")

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build --preset "$preset" "${targets[@]}"
case $preset in
  release | program) ln -sfn "$preset/samba" build/samba ;;
esac
