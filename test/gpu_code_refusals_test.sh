#!/usr/bin/env bash
# scripts/check_gpu_code.sh refuses device code with arithmetic that the spec does not have: small kernels, each compiled
# with one wrong flag or one wrong function. Usage: gpu_code_refusals_test.sh SOURCE_DIR BUILD_DIR; skipped (77) where
# the build has no device code.
set -euo pipefail
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
ran=0

# expect WANTED [MESSAGE]: what the check gives for $work/build, WANTED being its exit code.
expect() {
  local status=0
  "$source/scripts/check_gpu_code.sh" "$work/build" >"$work/out" 2>&1 || status=$?
  ran=1
  if [ "$status" -ne "$1" ] || ! grep -qF -- "$2" "$work/out"; then
    echo "$label: exit $status, wanted $1 and \"$2\":"
    cat "$work/out"
    failed=1
  fi
}

# The statement of a kernel of x[i], y[i] and z[i].
kernel() {
  [ -z "${2:-}" ] || echo "#include <$2>"
  echo "__global__ void probe(float* x, const float* y, const float* z) { const auto i = threadIdx.x; $1; }"
}

# cuda WANTED MESSAGE STATEMENT FLAGS...
cuda() {
  local wanted=$1 message=$2 statement=$3 folder=$work/build/backends/gpu/cuda
  shift 3
  label="CUDA, $statement, $*"
  rm -rf "$work/build"
  mkdir -p "$folder"
  grep -vE '^-(I|fmad|ftz|prec)' "$build/backends/gpu/cuda/command" >"$folder/command"
  printf '%s\n' "$@" >>"$folder/command"
  kernel "$statement" >"$folder/probe.cu"
  local command
  mapfile -t command <"$folder/command"
  "${command[@]}" -arch=sm_90 -c "$folder/probe.cu" -o "$folder/probe.cu.o"
  expect "$wanted" "$message"
}

# hip WANTED MESSAGE STATEMENT FLAGS...
hip() {
  local wanted=$1 message=$2 statement=$3 folder=$work/build/backends/gpu/hip
  shift 3
  label="HIP, $statement, $*"
  rm -rf "$work/build"
  mkdir -p "$folder"
  kernel "$statement" hip/hip_runtime.h >"$work/probe.hip.cpp"
  hipcc -x hip -std=c++20 -O3 "--rocm-device-lib-path=$libraries" --offload-arch=gfx90a --offload-arch=gfx1030 "$@" \
    -c "$work/probe.hip.cpp" -o "$folder/probe.hip.cpp.o"
  expect "$wanted" "$message"
}

if [ -e "$build/backends/gpu/cuda/command" ]; then
  exact=(-fmad=false -ftz=false -prec-div=true -prec-sqrt=true)
  all='x[i] = y[i] / z[i] + sqrtf(y[i]) * z[i]'
  cuda 0 'PTX' "$all" "${exact[@]}"
  cuda 1 'a flush of subnormals in probe.ptx' 'x[i] = y[i] + z[i]' -fmad=false -ftz=true
  cuda 1 'an approximation in probe.ptx' 'x[i] = y[i] / z[i]' -fmad=false -prec-div=false
  cuda 1 'an approximation in probe.ptx' 'x[i] = sqrtf(y[i])' -fmad=false -prec-sqrt=false
  cuda 1 'an approximation in probe.ptx' 'x[i] = __expf(y[i])' "${exact[@]}"
  cuda 1 'may contract products and sums' 'x[i] = y[i] * z[i] + y[i]' -fmad=true
  cuda 1 'a flush of subnormals in probe.ptx' "$all" -use_fast_math
fi
libraries=$(sed -n 's/^SAMBA_HIP_DEVICE_LIBRARY:[A-Z]*=//p' "$build/CMakeCache.txt")
if ls "$build"/backends/gpu/hip/*.o >/dev/null 2>&1; then
  hip 0 'clean' 'x[i] = y[i] / z[i] + sqrtf(y[i]) * z[i]' -ffp-contract=off
  hip 1 'an approximate function in probe' 'x[i] = __expf(y[i])' -ffp-contract=off
  hip 1 'a reciprocal outside of a division' 'x[i] = y[i] / z[i]' -ffast-math
  hip 1 'a root that is not corrected' 'x[i] = __builtin_amdgcn_sqrtf(y[i])' -ffp-contract=off
  hip 1 'flushes subnormals in probe' 'x[i] = y[i] + z[i]' -ffp-contract=off -fgpu-flush-denormals-to-zero
fi
if [ "$ran" -eq 0 ]; then
  echo "skipped: this build has no device code"
  exit 77
fi
exit "$failed"
