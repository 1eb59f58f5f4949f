#!/usr/bin/env bash
# Verifies this machine in CI: the suites on everything it has, the report kept, then a record of your own if there is
# one. Ends with 1 at the first bit that differs. Usage: scripts/ci-verify.sh [RECORD.json]
set -euo pipefail
cd "$(dirname "$0")/.."
samba=${SAMBA:-build/samba}
"$samba" verify --quick --json --progress never >verify-report.json ||
  { python3 -c 'import json; [print(r["device"], r["instruction_set"], c["id"], c["first_difference"]) for r in json.load(open("verify-report.json"))["configurations"] for c in r["cases"] if c["verdict"] == "different"]'; exit 1; }
if [ $# -gt 0 ]; then "$samba" verify --against "$1"; fi
