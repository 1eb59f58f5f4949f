#!/usr/bin/env bash
# Checks the GPU kernels on the device at hand and writes one report.
#
#   scripts/gpu-check.sh [--device cuda|hip|gpu-host] [--build DIR] [REPORT]
#
# REPORT: gpu-report.md by default. Without --build samba is configured and built in build/gpu for the device that is
# there (nvcc or hipcc must be installed; Debian 12's or Ubuntu 24.04's packages give the rest). After the build at most
# five minutes: the recorded cases with the published hashes, training against the processor byte by byte, decode
# against prefill, and the benchmark beside cuBLAS and the memory's bandwidth. What the device has no kernels for is
# told. The exit code is 0 when nothing failed. --device gpu-host tries this script on the host adapter, with fewer and
# smaller cases.
set -euo pipefail
cd "$(dirname "$0")/.."
device="" build="" report=gpu-report.md
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    -*) echo "gpu-check: unknown flag $1" >&2; exit 2 ;;
    *) report=$1; shift ;;
  esac
done
report=$(realpath -m "$report")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$device" ]; then
  if command -v nvidia-smi >/dev/null; then
    device=cuda
  elif command -v rocminfo >/dev/null; then
    device=hip
  else
    echo "gpu-check: no nvidia-smi and no rocminfo: there is no device to check" >&2
    exit 4
  fi
fi
options=() description="the host adapter"
case $device in
  cuda)
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d '. ')
    options=(-DSAMBA_GPU_CUDA_ARCHITECTURES="$capability" -DSAMBA_HIP=OFF)
    description=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)
    ;;
  hip)
    description=$(rocminfo | grep -om1 'gfx[0-9a-f]*')
    options=(-DSAMBA_GPU_HIP_ARCHITECTURES="$description" -DSAMBA_CUDA=OFF)
    ;;
  gpu-host) ;;
  *) echo "gpu-check: --device must be cuda, hip or gpu-host, got $device" >&2; exit 2 ;;
esac
if [ -z "$build" ]; then
  build=build/gpu
  if [ "$device" = gpu-host ]; then options=(-DSAMBA_GPU_HOST=ON); fi
  scripts/setup.sh program
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSAMBA_BUILD_TESTS=OFF -DSAMBA_MPI=OFF "${options[@]}" \
    >"$work/configure.log" 2>&1 || { cat "$work/configure.log" >&2; exit 1; }
  ninja -C "$build" samba >"$work/build.log" || { tail -40 "$work/build.log" >&2; exit 1; }
fi
samba=$build/samba

# What is tried: all of it on a device, a small part on the host adapter.
cases=(test/golden) steps=20 smaller=() bench=(--quick) seconds=300
if [ "$device" = gpu-host ]; then
  cases=(test/golden/core) steps=2 smaller=(--set batch.length=8)
  bench=(--shapes test/gpu_bench_shapes.json --repeat 1) seconds=900
fi
deadline=$((SECONDS + seconds))
failed=0
{
  echo "# GPU report, $(date -u '+%Y-%m-%d %H:%M UTC')"
  echo
  echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), device $device: $description"
} >"$report"

# section TITLE COMMAND...: what it prints, and whether it passed. Exit code 2 with "not offered by the device" in what
# it says: the device has no kernels for it.
section() {
  local title=$1 status=0 left=$((deadline - SECONDS)) verdict=passed
  shift
  if [ "$left" -le 0 ]; then
    verdict="not run, the time is over"
    failed=1
    : >"$work/out"
  else
    # In a shell of its own, so that functions can be timed out too.
    timeout "$left" bash -c "set -euo pipefail; $(declare -f same_training decode_is_prefill); \"\$@\"" section "$@" \
      >"$work/out" 2>&1 || status=$?
    if [ "$status" -eq 2 ] && grep -q "not offered by the device" "$work/out"; then
      verdict="not offered by this device"
    elif [ "$status" -ne 0 ]; then
      verdict="FAILED (exit $status)"
      failed=1
    fi
  fi
  echo "gpu-check: $title: $verdict"
  {
    echo
    echo "## $title: $verdict"
    echo '```'
    tail -60 "$work/out"
    echo '```'
  } >>"$report"
}

# same_training SAMBA DEVICE FOLDER CONFIG STEPS FLAGS...: the same checkpoint and metrics on the processor and the
# device, and the device's run continued on the processor.
same_training() {
  local samba=$1 device=$2 folder=$3 config=$4 steps=$5 name
  shift 5
  name=$(printf 'checkpoints/step-%08d.samba' "$steps")
  for where in cpu "$device"; do
    "$samba" train --config "$config" --device "$where" --out "$folder/run-$where" --steps "$steps" "$@" \
      --set checkpoint.every=$((steps / 2)) --progress never >"$folder/train.out" 2>&1 ||
      { local status=$?; tail -5 "$folder/train.out"; return "$status"; }
  done
  cmp "$folder/run-cpu/$name" "$folder/run-$device/$name"
  for where in cpu "$device"; do
    sed 's/"seconds":[^,]*,//' "$folder/run-$where/metrics.jsonl" >"$folder/metrics-$where"
  done
  cmp "$folder/metrics-cpu" "$folder/metrics-$device"
  echo "$steps steps of $config: checkpoints and metrics of cpu and $device are the same bytes"
  sed -n "s/.*\"seconds\":\([^,]*\),.*/\1/p" "$folder/run-$device/metrics.jsonl" | sort -n | head -1 |
    sed 's/$/ s a step at best/'
}

# decode_is_prefill SAMBA DEVICE MODEL: the checks of verify --model, and the text of the processor.
decode_is_prefill() {
  local samba=$1 device=$2 model=$3
  "$samba" verify --model "$model" --device "$device"
  for where in cpu "$device"; do
    "$samba" decode --model "$model" --device "$where" --prompt "This program is " --max-tokens 24 --logprobs --json
  done | sed 's/"[a-z_]*seconds[a-z_]*":[^,}]*,*//g; s/"[a-z_]*per_second":[^,}]*,*//g' | uniq | wc -l | grep -qx 1
  echo "24 tokens and their log probabilities: the same on cpu and $device"
}

mkdir "$work/attention" "$work/hybrid"
section "Device" "$samba" --version
section "Recorded cases and published hashes" "$samba" verify --cases "${cases[@]}" --device "$device"
section "Training, attention" same_training "$samba" "$device" "$work/attention" configs/attention_small.json "$steps" \
  "${smaller[@]}"
section "Training, hybrid tutorial" same_training "$samba" "$device" "$work/hybrid" configs/tutorial_hybrid.json "$steps" \
  "${smaller[@]}"
section "Decode and prefill, attention" decode_is_prefill "$samba" "$device" "$work/attention/run-cpu"
section "Decode and prefill, hybrid" decode_is_prefill "$samba" "$device" checkpoints/licences_tiny.samba
section "Benchmark" "$samba" bench "${bench[@]}" --device "$device" --progress never
if [ "$device" != gpu-host ]; then
  section "Code of the kernels" scripts/check_gpu_code.sh "$build" --table
fi
echo "gpu-check: $report"
exit "$failed"
