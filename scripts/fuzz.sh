#!/usr/bin/env bash
# Fuzzes the readers of files: builds samba_fuzz with clang, lets every reader run for some seconds, and prints what all
# runs in the working folder amount to. Corpora stay there, so that the next call goes on where this one ended.
#
#   scripts/fuzz.sh                             every reader for 60 seconds
#   scripts/fuzz.sh --seconds 600 gguf torch    two of them for ten minutes each
#   scripts/fuzz.sh --rounds 5                  five times in turn
#   scripts/fuzz.sh --table                     the table alone
#
# --jobs N runs N readers at a time (default: as many as there are cores), --work FOLDER is the working folder (default
# build/fuzz/work), --no-build takes the samba_fuzz that is there, --timeout N lets an input take N seconds (default 20; give
# more where other work has the processor). Ends with 1 when an input was found on which a reader crashed, took too long or
# took too much memory: it lies in FOLDER/found/READER. Keep it as test/fuzz/found/READER/NAME.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60 rounds=1 timeout=20 jobs=$(nproc) work=build/fuzz/work build=1 run=1 readers=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --timeout) timeout=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --work) work=$2; shift ;;
    --no-build) build=0 ;;
    --table) build=0 run=0 ;;
    -*) echo "fuzz.sh: unknown option $1" >&2; exit 2 ;;
    *) readers+=("$1") ;;
  esac
  shift
done
mkdir -p "$work"
work=$(cd "$work" && pwd)
fuzz=$work/samba_fuzz

if [ "$build" = 1 ]; then
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz
  cp -f build/fuzz/test/fuzz/samba_fuzz "$fuzz"
fi

# One reader, once. Adds a line to runs.tsv: reader, seconds, CPU seconds, executions, edges covered, found.
one() {
  local reader=$1 log tmp usage before after status=0
  mkdir -p "$work/corpus/$reader" "$work/found/$reader" "$work/log"
  # Every input becomes a file: in memory where the system has a place for that.
  if [ -w /dev/shm ]; then tmp=$(mktemp -d /dev/shm/samba-fuzz.XXXXXX); else tmp=$(mktemp -d); fi
  log=$work/log/$reader.$(date +%Y%m%dT%H%M%S)
  before=$(ls "$work/found/$reader" | wc -l)
  TIMEFORMAT='%R %U %S'
  usage=$( { time TMPDIR="$tmp" "$fuzz" "--reader=$reader" -max_total_time="$seconds" \
    "-timeout=$timeout" -report_slow_units=$((timeout / 2)) \
    -rss_limit_mb=3000 -malloc_limit_mb=1024 -max_len=70000 -print_final_stats=1 -dict="$work/seeds/$reader.dict" \
    -use_value_profile=$((RANDOM % 2)) \
    -artifact_prefix="$work/found/$reader/" "$work/corpus/$reader" "$work/seeds/$reader" >"$log" 2>&1; } 2>&1 ) || status=$?
  rm -rf "$tmp"
  after=$(ls "$work/found/$reader" | wc -l)
  awk -v reader="$reader" -v found=$((after - before)) -v usage="$usage" -v status="$status" '
    match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) }
    /^#[0-9]+/ { runs = substr($1, 2) }
    /stat::number_of_executed_units/ { runs = $2 }
    END { split(usage, t, " "); printf "%s\t%d\t%.1f\t%d\t%d\t%d\t%d\n", reader, t[1], t[2] + t[3], runs, edges, found, status }
  ' "$log" >>"$work/runs.tsv"
}
export -f one
export seconds timeout work fuzz

if [ "$run" = 1 ]; then
  if [ "$build" = 1 ] || [ ! -d "$work/seeds" ]; then
    rm -rf "$work/seeds"
    "$fuzz" --seeds="$work/seeds"
  fi
  [ "${#readers[@]}" -gt 0 ] || mapfile -t readers < <("$fuzz" --list)
  for ((round = 0; round < rounds; ++round)); do
    printf '%s\n' "${readers[@]}" | xargs -P "$jobs" -I{} bash -c 'one {}'
  done
fi

awk -F'\t' '
  { seconds[$1] += $2; cpu[$1] += $3; runs[$1] += $4; found[$1] += $6; if ($5 > edges[$1]) edges[$1] = $5 }
  END {
    printf "%-16s %10s %12s %14s %10s %6s\n", "reader", "seconds", "CPU seconds", "executions", "edges", "found"
    for (reader in runs) {
      printf "%-16s %10d %12d %14d %10d %6d\n", reader, seconds[reader], cpu[reader], runs[reader], edges[reader], found[reader] | "sort"
      all_seconds += seconds[reader]; all_cpu += cpu[reader]; all_runs += runs[reader]; all_found += found[reader]
    }
    close("sort")
    printf "%-16s %10d %12d %14d %10s %6d\n", "all", all_seconds, all_cpu, all_runs, "", all_found
  }' "$work/runs.tsv"

left=$(find "$work/found" -type f 2>/dev/null | wc -l)
[ "$left" -eq 0 ] || { echo "inputs to look at: $left, in $work/found"; exit 1; }
