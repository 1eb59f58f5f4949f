#!/usr/bin/env bash
# A real run by one command: text, tokenizer, shards, a hybrid model of 10 M parameters trained on them, its evaluation,
# samples, the picture of its loss, and the comparison with the recorded run (docs/first-run.md). Run again it goes on
# where it stopped.
#
#   scripts/first_run.sh [FOLDER]                     default: runs/first
#   scripts/first_run.sh --text DIR [FOLDER]          text of your own
#   scripts/first_run.sh --config FILE [FOLDER]       another recipe (default: configs/first_run.json)
#   scripts/first_run.sh --steps N [FOLDER]           stops after N steps; without --steps it goes on to the end
#   scripts/first_run.sh --compare FILE [FOLDER]      the "hashes" of another run, in place of docs/first-run.sha256
#
# SAMBA names another executable than the one that scripts/build.sh makes, THREADS the number of threads.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
text="" config=$root/configs/first_run.json steps=()
recorded=$root/docs/first-run.sha256
while [ $# -gt 0 ]; do
  case $1 in
    --text) text=$(realpath "$2") recorded="" && shift 2 ;;
    --config) config=$(realpath "$2") recorded="" && shift 2 ;;
    --compare) recorded=$(realpath "$2") && shift 2 ;;
    --steps) steps=(--steps "$2") && shift 2 ;;
    -*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
    *) break ;;
  esac
done
folder=${1:-$root/runs/first}
say() { printf '\n== %s\n' "$*"; }

if [ -z "${SAMBA:-}" ]; then
  say "Set up and build"
  "$root/scripts/setup.sh" program
  "$root/scripts/build.sh" program samba_cli >/dev/null
  SAMBA=$root/build/samba
fi
run_samba() { "$SAMBA" ${THREADS:+--threads "$THREADS"} "$@"; }
mkdir -p "$folder"

say "Text"
if [ -z "$text" ]; then
  text=$folder/documents
  "$root/scripts/get_text.sh" "$text" >/dev/null
fi
printf '%s files, %s bytes\n' "$(find "$text" -type f | wc -l)" "$(find "$text" -type f -print0 | xargs -0 cat | wc -c)"

say "Tokenizer"
tokenizer=$folder/tokenizer.json
[ -f "$tokenizer" ] || run_samba train-tokenizer "$text" --vocab-size 4096 --out "$tokenizer"

say "Shards"
shards=$folder/shards
if [ ! -f "$shards/index.json" ]; then
  going_on=()
  [ ! -e "$shards" ] || going_on=(--resume)
  run_samba prepare "$text" --tokenizer "$tokenizer" --held-out 0.01 --dedup --out "$shards" "${going_on[@]}"
fi

say "Train ($(basename "$config"))"
run=$folder/run
if [ -e "$run/latest" ]; then
  if [ ${#steps[@]} -eq 0 ]; then # those of the configuration: the run may have been begun with fewer
    steps=(--steps "$(run_samba train --config "$config" --data "$shards" --print-config |
      sed -n 's/^  "steps": \([0-9]*\),$/\1/p')")
  fi
  run_samba train --resume "$run" "${steps[@]}"
else
  run_samba train --config "$config" --data "$shards" --out "$run" --force "${steps[@]}"
fi

say "What is held out, and samples"
run_samba train --resume "$run" --eval-only
say "Continue prompts"
for prompt in "The kernel" "If the file does not exist," "To use this function, you"; do
  printf '%s' "$prompt"
  run_samba decode --model "$run" --prompt "$prompt" --max-tokens 80 --temperature 0.6 --top-p 0.95 --seed 1
  printf '\n'
done

say "Draw"
run_samba plot "$run" --out "$folder/loss.svg" --out "$folder/report.html"

say "Compare"
# "NAME SHA-256" of the tokenizer, the shards and the parameters on the way.
hashes() {
  printf 'tokenizer %s\n' "$(sha256sum <"$tokenizer" | cut -d ' ' -f 1)"
  printf 'shards %s\n' "$(sed -n 's/^ *"sha256": "\([0-9a-f]*\)"$/\1/p' "$shards/index.json" | tail -1)"
  sed -n 's/^{"step":\([0-9]*\),.*"parameters_sha256":"\([0-9a-f]*\)".*/step \1 \2/p' "$run/metrics.jsonl" |
    awk '$2 == 20 || $2 % 100 == 0 { print "step-" $2, $3 }'
  printf 'checkpoint-%s %s\n' "$(basename "$(cat "$run/latest")" .samba)" \
    "$(sha256sum <"$run/$(cat "$run/latest")" | cut -d ' ' -f 1)"
}
hashes >"$folder/hashes"
if [ -z "$recorded" ]; then
  cat "$folder/hashes"
else
  equal=0 different=0
  while read -r name sha256; do
    wanted=$(awk -v name="$name" '$1 == name { print $2 }' "$recorded")
    [ -n "$wanted" ] || continue
    if [ "$wanted" = "$sha256" ]; then
      equal=$((equal + 1))
    else
      different=$((different + 1))
      printf '%s: %s, recorded: %s\n' "$name" "$sha256" "$wanted"
    fi
  done <"$folder/hashes"
  printf 'recorded hashes: %s equal, %s different\n' "$equal" "$different"
  [ "$different" -eq 0 ] || exit 1
fi
say "Done: $run; its report: $folder/report.html"
