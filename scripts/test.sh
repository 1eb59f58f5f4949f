#!/usr/bin/env bash
# Sets up what is missing, builds with warnings as errors, and runs the tests of a label: "quick" (the default), "long",
# or "all". Ends with ctest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."
label=${1:-quick}

scripts/setup.sh
scripts/build.sh ci
selection=()
[ "$label" = all ] || selection=(-L "^${label}\$")
exec ctest --test-dir build/ci --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}"
