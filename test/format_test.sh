#!/usr/bin/env bash
# Every source file is as .clang-format wants it. Skipped (77) where clang-format is missing or of another version.
# Usage: format_test.sh SOURCE_DIR
set -euo pipefail
cd "$1"
wanted=14
if ! version=$(clang-format --version 2>/dev/null) || ! [[ $version =~ version\ $wanted\. ]]; then
  echo "skipped: clang-format $wanted is not installed (Debian package clang-format-$wanted)"
  exit 77
fi
# Template text that is included inside namespaces is left as it is.
find apps backends lib test \( -name '*.h' -o -name '*.cpp' \) ! -name 'elementary-inl.h' -print0 |
  xargs -0 clang-format --dry-run --Werror
