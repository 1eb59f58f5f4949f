#!/usr/bin/env bash
# Continuous integration, a job of its own beside .ci/run: every reader of files for 60 seconds under libFuzzer. Keep the
# folder build/fuzz/work between runs (a cache), then the search goes on where it ended. Needs clang (apt: clang).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang++ >/dev/null || { echo "ci-fuzz: clang++ is needed" >&2; exit 2; }
scripts/setup.sh
exec scripts/fuzz.sh --seconds "${SAMBA_FUZZ_SECONDS:-60}"
