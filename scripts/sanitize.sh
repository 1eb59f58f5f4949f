#!/usr/bin/env bash
# Builds and runs with the tools that find what no comparison of bits does:
#
#   scripts/sanitize.sh address [TEST...]    address and undefined-behaviour sanitizers over all tests, or those that match
#   scripts/sanitize.sh thread [TEST...]     the thread sanitizer over the tests whose work is divided among threads
#   scripts/sanitize.sh valgrind             a short decode and prefill of the shipped checkpoint, without AVX-512
#
# Ends with 0 when nothing was found.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?address, thread or valgrind}
shift

# The tests that match, joined as ctest wants them.
pattern() { local IFS='|'; echo "${*:-.}"; }

case $what in
  address)
    cmake --preset sanitizers >/dev/null
    cmake --build build/sanitizers
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    exec ctest --test-dir build/sanitizers --output-on-failure --no-tests=error -E 'install_test|format_test' -R "$(pattern "$@")"
    ;;
  thread)
    tests=("$@")
    [ $# -gt 0 ] || tests=(thread_team_test core_kernels_test linear_cpu_test attention_kernels_test mamba1_kernels_test
      mamba2_kernels_test mamba3_kernels_test packed_kernels_test decode_batch_test general_training_test ranks_test
      rank_faults_test prepare_test tokenizer_test verify_suites_test)
    cmake --preset threads >/dev/null
    cmake --build build/threads --target "${tests[@]}"
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    exec ctest --test-dir build/threads --output-on-failure --no-tests=error -R "^($(pattern "${tests[@]}"))\$"
    ;;
  valgrind)
    scripts/build.sh ci
    for set in avx2 scalar; do
      for command in 'decode --max-tokens 4 --temperature 0.8 --seed 1' prefill; do
        # shellcheck disable=SC2086  # the flags are words of their own
        valgrind --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite -q build/ci/samba --isa "$set" \
          --threads 2 $command --model checkpoints/licences_tiny.samba --prompt "The "
      done
    done
    ;;
  *) echo "sanitize.sh: address, thread or valgrind, got $what" >&2; exit 2 ;;
esac
