#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, trains a small Samba model on the licence
# texts of this system, continues a prompt with it and verifies its checkpoint. Run again it goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "Set up and build"
scripts/setup.sh program
scripts/build.sh program samba_cli >/dev/null
samba=build/samba
"$samba" --version

run=runs/quickstart
say "Train a small hybrid model (configs/quickstart.json) into $run"
if [ -e "$run/latest" ]; then
  "$samba" train --resume "$run"
else
  "$samba" train --config configs/quickstart.json --out "$run" --force # moves aside what never came to a checkpoint
fi

prompt="This License "
say "Continue the prompt \"$prompt\""
printf '%s' "$prompt"
"$samba" decode --model "$run" --prompt "$prompt" --max-tokens 160 --temperature 0.4 --seed 1

say "Verify the checkpoint"
"$samba" verify --model "$run"

say "Done. The loss as a picture: $run/loss.svg"
