#!/usr/bin/env bash
# Builds and runs with the tools that find what no comparison of bits does:
#
#   scripts/sanitize.sh address [--long] [TEST...]   address, leak and undefined-behaviour sanitizers over the quick tests,
#                                                    with --long over the long ones, or over the tests that are named
#   scripts/sanitize.sh thread [TEST...]             the thread sanitizer over the tests whose work is divided among threads
#   scripts/sanitize.sh valgrind                     a short decode and prefill of the shipped checkpoint, without AVX-512
#
# Tests are built and run one by one; one line each, and what was found, in build/sanitizers or build/threads, in log/ (what
# a test printed) and report/ (what a sanitizer said, also in the processes that a test starts). A test that has passed since
# its program was built is not run again. Ends with 0 when nothing was found. --jobs N: so many compilers at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?address, thread or valgrind}
shift
label=quick jobs=$(nproc) tests=()
while [ $# -gt 0 ]; do
  case $1 in
    --long) label=long ;;
    --jobs) jobs=$2; shift ;;
    *) tests+=("$1") ;;
  esac
  shift
done

# Tests that are not for a sanitizer:
no_sanitizer=(
  install_test            # builds a project of its own against the installed library
  format_test             # runs nothing of samba
  llama_cpp_live_test     # runs llama.cpp
  gpu_code_test           # reads what nvcc and hipcc made; there is none in these builds
  gpu_code_refusals_test  # the same
  gpu_check_test          # the host adapter of the GPU kernels is off in these builds
  memory_use_test         # compares resident memory with plans; a sanitizer has memory of its own
  memory_fault_walk_test  # a preloaded library and limits of the address space, of which a sanitizer needs all
  fault_walk_test         # a preloaded library
)

run_tests() {
  local folder=$1 test build code failed=() begin log passed=0
  shift
  mkdir -p "$folder/log" "$folder/report"
  local targets
  targets=$(ninja -C "$folder" -t targets all | sed 's/: .*//')
  for test in "$@"; do
    build=(samba_cli)
    grep -qx "$test" <<<"$targets" && build+=("$test")
    cmake --build "$folder" -j "$jobs" --target "${build[@]}" >"$folder/log/$test.build" 2>&1 ||
      { tail -n 20 "$folder/log/$test.build"; exit 2; }
    log=$folder/log/$test
    if [ -e "$log.passed" ] && [ "$log.passed" -nt "$folder/samba" ] &&
      { [ ! -e "$folder/test/$test" ] || [ "$log.passed" -nt "$folder/test/$test" ]; }; then
      passed=$((passed + 1))
      continue
    fi
    rm -f "$folder"/report/* "$log".report.* "$log.passed"
    begin=$SECONDS code=0
    ctest --test-dir "$folder" --output-on-failure --no-tests=error -R "^$test\$" >"$log" 2>&1 || code=$?
    for report in "$folder"/report/*; do
      [ -e "$report" ] || continue
      mv "$report" "$log.${report##*/}"
      code=9
    done
    if [ "$code" = 0 ]; then
      touch "$log.passed"
      passed=$((passed + 1))
      echo "$test: nothing found ($((SECONDS - begin)) s)"
    else
      failed+=("$test")
      echo "$test: FAILED ($((SECONDS - begin)) s), see $log*"
    fi
  done
  echo "$what: $passed tests without a finding, ${#failed[@]} with one: ${failed[*]:-}"
  [ "${#failed[@]}" = 0 ]
}

# The names of the tests of a label, without those that are not for a sanitizer.
names() {
  ctest --test-dir "$1" -N -L "^$2\$" | sed -n 's/^ *Test *#[0-9]*: //p' | grep -vxF "$(printf '%s\n' "${no_sanitizer[@]}")"
}

case $what in
  address)
    cmake --preset sanitizers >/dev/null
    reports=$PWD/build/sanitizers/report/report
    # Leaks of whole programs too; what is too large is no memory, as without the sanitizer.
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1:allocator_may_return_null=1:log_path=$reports
    echo 'leak:libfontconfig' >build/sanitizers/leaks_of_others  # which cairo loads for the letters of samba plot
    export LSAN_OPTIONS=suppressions=$PWD/build/sanitizers/leaks_of_others:print_suppressions=0
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path=$reports
    [ "${#tests[@]}" -gt 0 ] || mapfile -t tests < <(names build/sanitizers "$label")
    run_tests build/sanitizers "${tests[@]}"
    ;;
  thread)
    [ "${#tests[@]}" -gt 0 ] || tests=(thread_team_test ranks_test rank_faults_test prepare_test train_tokenizer_test
      tokenizer_test float_environment_test core_kernels_test norm_kernels_test linear_cpu_test linear_groups_test
      attention_kernels_test mamba1_kernels_test mamba2_kernels_test mamba3_kernels_test packed_kernels_test decode_batch_test
      general_training_test shard_training_test verify_suites_test)
    cmake --preset threads >/dev/null
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:log_path=$PWD/build/threads/report/report
    run_tests build/threads "${tests[@]}"
    ;;
  valgrind)
    scripts/build.sh ci samba_cli
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
