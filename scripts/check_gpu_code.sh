#!/usr/bin/env bash
# Reads the code that the device compilers made of the GPU kernels and fails on anything the spec's arithmetic does not
# have. Usage: scripts/check_gpu_code.sh BUILD_DIR [--table]; --table prints the table of resources for docs/gpu.md.
#
# PTX (CUDA):   compiled with -fmad=false (what is contracted is an ordinary fused step there); no .ftz, no .approx, no
#               .full; every add, sub, mul, fma and div of floats names its rounding (.rn), which forbids ptxas to
#               contract a product and a sum.
# SASS (CUDA):  of the approximate unit (MUFU) only RCP and RSQ, which begin the correctly rounded division and root that
#               div.rn, rcp.rn and sqrt.rn expand to: the PTX has no other source of them. .FTZ only where ptxas writes it
#               itself, inside these expansions, whose operands it has brought into the normal range (and in integer
#               divisions): no FFMA.FTZ, no .FTZ in a kernel without MUFU, at most ten an expansion. Needs cuobjdump and
#               nvdisasm (CUOBJDUMP=PATH, on the PATH or beside nvcc); without them a line says so.
# ISA (HIP):    every kernel's descriptor keeps subnormals of float32 (its denormal mode is 3); no v_exp, v_log, v_sin,
#               v_cos; v_mad and v_mac (which flush) only with the factors 2^32 and -2^32 of an integer division; v_rcp
#               only in such a division or in a correctly rounded one, which ends in v_div_fixup; v_sqrt and v_rsq at
#               most as often as the comparisons with 0x0f800000 that begin a correctly rounded root.
set -euo pipefail
build=$(cd "${1:?usage: check_gpu_code.sh BUILD_DIR [--table]}" && pwd)
table=${2:-}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
read_kernels=0  # of the target at hand
verdict=clean   # on it

fail() {
  echo "check_gpu_code: $1" >&2
  bad=1
  verdict="not clean, see above"
}

# forbid FILE PATTERN WHAT: the pattern must not occur.
forbid() {
  if grep -nE -m3 -- "$2" "$1" >"$work/found"; then
    fail "$3 in $(basename "$1"):"
    cat "$work/found" >&2
  fi
}

# kernels FILE PATTERN: adds the kernels of a file to those that were read.
kernels() {
  read_kernels=$((read_kernels + $(grep -cE -- "$2" "$1" || true)))
}

check_cuda() {
  local nvcc unit name object command
  read_kernels=0 verdict=clean
  mapfile -t command <"$build/backends/gpu/cuda/command"
  nvcc=${command[0]}
  local flags=" ${command[*]} "
  if [[ $flags != *" -fmad=false "* || $flags == *" -fmad=true "* ]]; then
    fail "nvcc may contract products and sums: its command has no -fmad=false"
  fi
  local cuobjdump=${CUOBJDUMP:-$(command -v cuobjdump || true)}
  [ -n "$cuobjdump" ] || { [ -x "$(dirname "$nvcc")/cuobjdump" ] && cuobjdump=$(dirname "$nvcc")/cuobjdump; } || true
  for unit in "$build"/backends/gpu/cuda/*.cu; do
    name=$(basename "$unit" .cu)
    "${command[@]}" -arch=compute_90 -ptx "$unit" -o "$work/$name.ptx"
    kernels "$work/$name.ptx" '^[^/]*\.entry '
    forbid "$work/$name.ptx" '\.ftz' 'a flush of subnormals'
    forbid "$work/$name.ptx" '\.approx|\.full' 'an approximation'
    forbid "$work/$name.ptx" '^[^/]*[[:space:]](add|sub|mul|fma|mad|div|sqrt|rcp)\.f(32|64)' 'an operation without a rounding (may be contracted)'
    forbid "$work/$name.ptx" '^[[:space:]]*trap;' 'a path that the compiler holds impossible (device code read a constant of the host)'
    if [ -n "$cuobjdump" ]; then
      object="$unit.o"
      PATH="$(dirname "$cuobjdump"):$PATH" "$cuobjdump" --dump-sass "$object" >"$work/$name.sass"
      [ "$(grep -c 'Function :' "$work/$name.sass")" -ge "$(grep -c '\.entry ' "$work/$name.ptx")" ] ||
        fail "machine code of fewer kernels than the PTX has in $name"
      forbid "$work/$name.sass" 'FFMA[A-Z.0-9]*\.FTZ' 'a fused step that flushes'
      awk '/Function :/ { judge(); kernel = $NF; ftz = mufu = 0 }
           /MUFU/ { ++mufu } /\.FTZ/ { ++ftz }
           function judge() { if (ftz > 10 * mufu) { print kernel ": " ftz " .FTZ, " mufu " MUFU"; bad = 1 } }
           END { judge(); exit bad }' "$work/$name.sass" >"$work/found" || {
        fail "flushes of subnormals outside of divisions and roots in $name:"
        cat "$work/found" >&2
      }
      forbid "$work/$name.sass" 'MUFU\.(EX2|LG2|SIN|COS|TANH|SQRT)' 'an approximate function'
    fi
    [ "$table" != --table ] || resources "$nvcc" "$name"
  done
  [ "$read_kernels" -gt 0 ] || fail "no kernel of CUDA was found"
  if [ -n "$cuobjdump" ]; then
    echo "check_gpu_code: PTX and machine code of CUDA, $read_kernels kernels: $verdict"
  else
    echo "check_gpu_code: PTX of CUDA, $read_kernels kernels: $verdict; no cuobjdump: the machine code was not read"
  fi
}

# Of every kernel for sm_90: registers, bytes of shared memory, stack and spills, and the warps that a multiprocessor
# holds of it.
resources() {
  local nvcc=$1 name=$2
  "$(dirname "$nvcc")/ptxas" -arch=sm_90 -v "$work/$name.ptx" -o "$work/$name.cubin" >"$work/$name.log" 2>&1 || true
  # First the threads of a block, then the registers and bytes. Of sm_90: 64 warps and 32 blocks a multiprocessor, 16384
  # registers for each of four schedulers, given to a warp by 256, 228 KiB of shared memory, 1 KiB of it for each block.
  awk -v unit="$name" '
    function least(a, b) { return a < b ? a : b }
    function resident(threads, registers, shared,   warps, blocks) {
      warps = int((threads + 31) / 32)
      blocks = int(4 * int(16384 / (256 * int((registers * 32 + 255) / 256))) / warps)
      blocks = least(blocks, int(233472 / (128 * int((shared + 127) / 128) + 1024)))
      return warps * least(blocks, least(32, int(64 / warps)))
    }
    FNR == NR { if (match($0, /\.entry [A-Za-z0-9_$]+/)) entry = substr($0, RSTART + 7, RLENGTH - 7)
                if ($1 == ".maxntid") threads[entry] = $2 + 0
                next }
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
    /bytes stack frame/ { stack = $1; spill = $5 }
    /Used [0-9]+ registers/ { for (i = 1; i < NF; ++i) { if ($i == "Used") registers = $(i + 1)
                                                         if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i }
      printf "| %s | `%s` | %d | %d | %d | %d | %d |\n", unit, kernel, registers, shared, stack, spill,
        resident(threads[kernel], registers, shared); shared = 0 }' \
    "$work/$name.ptx" "$work/$name.log" | c++filt | sed -E 's/samba::cuda::|\(anonymous namespace\)::|\(samba::[A-Za-z]+\)//g'
}

# at_most FILE PATTERN LIMIT WHAT: no more lines with the pattern than with the limit.
at_most() {
  local found limit
  found=$(grep -cE "$2" "$1" || true)
  limit=$(grep -cE "$3" "$1" || true)
  [ "$found" -le "$limit" ] || fail "$4 in $(basename "$1"): $found of '$2', $limit of '$3'"
}

# The descriptor of a kernel, 64 bytes at the symbol KERNEL.kd in .rodata: bits 16 and 17 of the word at byte 48 are its
# denormal mode of float32 (LLVM, "User Guide for AMDGPU Backend", Kernel Descriptor).
subnormals_kept() {
  local address offset value name word
  read -r address offset < <(readelf -SW "$1" | awk '$2 == ".rodata" || $3 == ".rodata" { for (i = 1; i <= NF; ++i) if ($i == ".rodata") print $(i + 2), $(i + 3) }')
  while read -r value name; do
    read_kernels=$((read_kernels + 1))
    word=$(od -An -tu4 -j $((16#$value - 16#$address + 16#$offset + 48)) -N 4 "$1")
    [ $((word >> 16 & 3)) -eq 3 ] || fail "$(c++filt "${name%.kd}") flushes subnormals in $(basename "$1")"
  done < <(readelf -sW "$1" | awk '$8 ~ /\.kd$/ { print $2, $8 }' | sort -u)
}

check_hip() {
  local object architecture name code
  read_kernels=0 verdict=clean
  for object in "$build"/backends/gpu/hip/*.hip.cpp.o; do
    name=$(basename "$object" .hip.cpp.o)
    objcopy --dump-section ".hip_fatbin=$work/$name.fatbin" "$object" "$work/ignored.o" 2>/dev/null || true
    [ -s "$work/$name.fatbin" ] || continue  # a unit without kernels
    for architecture in gfx90a gfx1030; do
      code=$work/$name.$architecture
      clang-offload-bundler-15 --unbundle --type=o --input="$work/$name.fatbin" --output="$code.elf" \
        --targets="hipv4-amdgcn-amd-amdhsa--$architecture"
      llvm-objdump-15 -d "$code.elf" >"$code.isa"
      forbid "$code.isa" 'v_(exp|log|sin|cos)_f32' 'an approximate function'
      grep -vE '0x[4c]f800000' "$code.isa" >"$code.rest"
      forbid "$code.rest" 'v_(mad|mac|madak|madmk|mad_legacy|mac_legacy)_f32' 'a step that flushes'
      at_most "$code.isa" 'v_rcp_f32' 'v_div_fixup_f32|v_(mac|fmac|mad|fma|madmk|fmamk)[a-z_0-9]*.*0x4f800000' 'a reciprocal outside of a division'
      at_most "$code.isa" 'v_(sqrt|rsq)_f32' 'v_cmp.*0x0?f800000|0x0?f800000' 'a root that is not corrected'
      subnormals_kept "$code.elf"
    done
  done
  [ "$read_kernels" -gt 0 ] || fail "no kernel of HIP was found"
  echo "check_gpu_code: ISA of HIP, $read_kernels kernels: $verdict"
}

found=0
if ls "$build"/backends/gpu/cuda/*.cu >/dev/null 2>&1; then
  found=1
  check_cuda
fi
if ls "$build"/backends/gpu/hip/*.o >/dev/null 2>&1; then
  found=1
  check_hip
fi
if [ "$found" -eq 0 ]; then
  echo "check_gpu_code: skipped, this build has no device code (no nvcc, no hipcc)"
  exit 77
fi
exit "$bad"
