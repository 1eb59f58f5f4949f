#!/usr/bin/env bash
# Sets up what is missing, builds with warnings as errors, and runs the tests of a label: "quick" (the default), "long",
# or "all". Ends with ctest's summary and, behind it, why tests were skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
label=${1:-quick}

scripts/setup.sh all
scripts/build.sh ci
selection=()
[ "$label" = all ] || selection=(-L "^${label}\$")
result=0
ctest --test-dir build/ci --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}" || result=$?
grep -h '^skipped: ' build/ci/Testing/Temporary/LastTest.log || true
exit "$result"
