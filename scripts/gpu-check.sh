#!/usr/bin/env bash
# Checks the GPU kernels on the device at hand and writes one report: scripts/gpu-check.sh [REPORT], gpu-report.md by
# default. Needs nvcc or hipcc; Debian or Ubuntu packages give the rest (scripts/setup.sh). At most five minutes after
# the build: the recorded cases, the tutorial's training against the processor, decode against prefill, and the
# benchmark with the library's products and the memory's bandwidth beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
report=$(realpath -m "${1:-gpu-report.md}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

scripts/setup.sh
architectures=()
if command -v nvidia-smi >/dev/null; then
  device=cuda
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d '. ')
  architectures=(-DSAMBA_GPU_CUDA_ARCHITECTURES="$capability")
  description=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)
elif command -v rocminfo >/dev/null; then
  device=hip
  name=$(rocminfo | grep -om1 'gfx[0-9a-f]*')
  architectures=(-DSAMBA_GPU_HIP_ARCHITECTURES="$name")
  description=$name
else
  echo "gpu-check: no nvidia-smi and no rocminfo: there is no device to check" >&2
  exit 4
fi
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release "${architectures[@]}" >"$work/configure.log" ||
  { cat "$work/configure.log" >&2; exit 1; }
ninja -C build/gpu samba >"$work/build.log" || { tail -40 "$work/build.log" >&2; exit 1; }
samba=build/gpu/samba

failed=0
{
  echo "# GPU report, $(date -u '+%Y-%m-%d %H:%M UTC')"
  echo
  echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), device $device: $description"
} >"$report"

# section TITLE COMMAND...: what it prints, and whether it failed.
section() {
  local title=$1 status=0
  shift
  timeout 120 "$@" >"$work/out" 2>&1 || status=$?
  [ "$status" -eq 0 ] || failed=1
  {
    echo
    echo "## $title: $([ "$status" -eq 0 ] && echo passed || echo "FAILED (exit $status)")"
    echo '```'
    tail -40 "$work/out"
    echo '```'
  } >>"$report"
}

same_training() {
  for where in cpu "$device"; do
    "$samba" train --config configs/attention_small.json --device "$where" --out "$work/run-$where" --steps 20 >/dev/null
  done
  cmp "$work/run-cpu/checkpoints/step-00000020.samba" "$work/run-$device/checkpoints/step-00000020.samba"
  echo "20 steps: the checkpoints of cpu and $device are the same bytes"
}

section "Device" "$samba" --version
section "Recorded cases" "$samba" verify --cases test/golden --device "$device"
section "Training, device against processor" same_training
section "Model checks, decode against prefill" "$samba" verify --model checkpoints/licences_tiny.samba --device "$device"
section "Benchmark" "$samba" bench --quick --device "$device"
section "Code of the kernels" scripts/check_gpu_code.sh build/gpu --table
echo "gpu-check: $report"
exit "$failed"
