#!/usr/bin/env bash
# Installs the build into a fresh folder and builds and runs the consumer project against it.
# Usage: install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/prefix" >"$folder/install.log"
"$folder/prefix/bin/samba" --version >/dev/null
cmake -S "$source/test/consumer" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix" >"$folder/configure.log"
cmake --build "$folder/build" >"$folder/build.log" || { cat "$folder/build.log"; exit 1; }
"$folder/build/consumer"
