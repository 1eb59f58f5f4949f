#!/usr/bin/env python3
"""Loads GGUF files with llama.cpp and compares its greedy tokens with those recorded from transformers.

    python3 -m venv venv && venv/bin/pip install llama-cpp-python safetensors numpy
    for name in llama qwen2 qwen3 gemma mamba mamba2; do samba convert test/gguf/$name.gguf out/$name.gguf --to gguf; done
    venv/bin/python scripts/check_gguf.py test/gguf out

For every model NAME.safetensors of the first folder (scripts/record_gguf.py) that the second one has as NAME.gguf.

    venv/bin/python scripts/check_gguf.py --tokens model.gguf lines.json recorded.json

compares what llama.cpp makes of text with what was recorded (test/tokenizers, unpacked): for every line the same ids.
llama.cpp takes text up to its first zero byte; lines with one are left out.
"""

import json
import pathlib
import sys

import llama_cpp
import safetensors.numpy


def check_tokens(path, lines, recorded):
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    wanted = json.loads(pathlib.Path(recorded).read_text())["ids"]
    compared, different = 0, []
    for number, (line, ids) in enumerate(zip(json.loads(pathlib.Path(lines).read_text()), wanted)):
        if ids is None or "\0" in line:
            continue
        compared += 1
        got = model.tokenize(line.encode(), add_bos=False, special=False) if line else []
        if got != ids:
            different.append(number)
    print(f"{path}: {compared} lines, {len(different)} differ {different[:10]}")
    return different != []


def main():
    if sys.argv[1] == "--tokens":
        return check_tokens(*sys.argv[2:5])
    records, folder = map(pathlib.Path, sys.argv[1:3])
    different = 0
    for path in sorted(folder.glob("*.gguf")):
        record = records / (path.stem + ".safetensors")
        if not record.exists():
            continue
        tensors = safetensors.numpy.load_file(record)
        model = llama_cpp.Llama(str(path), n_ctx=64, n_batch=64, n_threads=1, verbose=False)
        tokens = []
        for token in model.generate([int(i) for i in tensors["ids"][0]], temp=0.0, top_k=1, repeat_penalty=1.0):
            tokens.append(token)
            if len(tokens) == len(tensors["greedy"]):
                break
        equal = tokens == tensors["greedy"].tolist()
        different += not equal
        print(f"{path.name}: {len(tokens)} greedy tokens {'equal' if equal else 'differ: ' + str(tokens)}")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
