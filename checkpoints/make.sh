#!/usr/bin/env bash
# Makes checkpoints/licences_tiny.samba anew. The bits do not depend on the machine: the result is the shipped file.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh program
scripts/build.sh program samba_cli >/dev/null
run=$(mktemp -d)/run
build/samba train --config checkpoints/licences_tiny.json --out "$run"
cp "$run/$(cat "$run/latest")" checkpoints/licences_tiny.samba
sha256sum checkpoints/licences_tiny.samba
