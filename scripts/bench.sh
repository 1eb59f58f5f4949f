#!/usr/bin/env bash
# Measures the matrix product of the cpu executor beside OpenBLAS, on one thread and on all, and beside it the integer
# product of fixed15_v1 and packed weights. An idle machine, please: ratios of one run mean something, absolute times do
# not.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh release gemm_bench fixed15_bench packed_bench >&2
# Some machines pin an old OpenBLAS kernel by these variables.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
build/release/test/bench/gemm_bench --threads 1 "$@"
build/release/test/bench/gemm_bench --threads "$(nproc)" "$@"
build/release/test/bench/fixed15_bench "$@"
build/release/test/bench/packed_bench --threads 1 "$@"
