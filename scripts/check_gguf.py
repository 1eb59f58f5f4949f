#!/usr/bin/env python3
"""Whether llama.cpp reads the GGUF files that samba writes: the same greedy tokens, the same tokens of text.

    scripts/check_gguf.py build/samba --recorded     # compares what samba writes with what llama.cpp has read
    python3 -m venv venv && venv/bin/pip install llama-cpp-python
    venv/bin/python scripts/check_gguf.py build/samba            # llama.cpp reads it now
    venv/bin/python scripts/check_gguf.py build/samba --record   # the same, and records the result

Models are those of test/gguf (scripts/record_gguf.py: greedy tokens of transformers), converted once; vocabularies those
of test/tokenizers (tokens of `tokenizers` and `sentencepiece`) in a model of a few thousand numbers. test/gguf/llama_cpp.json
holds what llama.cpp made of files with these SHA-256: a file that is written today with the same bytes needs no llama.cpp
to be known good. llama.cpp takes text up to its first zero byte; lines with one are left out, and lines for which a
tokenizer has no tokens. Every line whose tokens are others than those of the original tokenizer gets its cause, each
shown by what llama.cpp does without it (docs/formats/gguf.md).

Ends with 77 where the command zstd is missing, or the package llama_cpp and --recorded is not given.
"""

import hashlib
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata
from fractions import Fraction

SOURCE = pathlib.Path(__file__).resolve().parent.parent
RECORD = SOURCE / "test/gguf/llama_cpp.json"
MODELS = ["llama", "qwen2", "qwen3", "gemma", "mamba", "mamba2"]
VOCABULARIES = {"gpt2": "json", "llama3": "json", "qwen2": "json", "llama2": "json", "gemma": "json",
                "sentencepiece_bpe": "model", "sentencepiece_unigram": "model"}
ROWS = 4096  # tokens of the model around a vocabulary; those behind the tokenizer's are named unused


def convert(samba, source, target):
    done = subprocess.run([samba, "convert", str(source), str(target), "--to", "gguf"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"samba convert {source}: {done.stderr}")
    return target


def unpacked(name):
    packed = SOURCE / "test/tokenizers" / (name + ".zst")
    return subprocess.run(["zstd", "-dc", str(packed)], check=True, capture_output=True).stdout


def integers(path, name):
    """A tensor of integers in a safetensors file."""
    content = path.read_bytes()
    size, = struct.unpack_from("<Q", content)
    entry = json.loads(content[8:8 + size])[name]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    width = {"I64": "q", "I32": "i"}[entry["dtype"]]
    return list(struct.unpack("<%d%s" % ((end - begin) // struct.calcsize(width), width), content[begin:end]))


def write_tensors(path, shapes):
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4
        for axis in shape:
            size *= axis
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def vocabulary_folder(folder, form, kind):
    """A Hugging Face folder whose weights are zeros."""
    folder.mkdir()
    width, inner = 8, 16
    config = {"model_type": "llama", "vocab_size": ROWS, "hidden_size": width, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": inner, "max_position_embeddings": 64,
              "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [ROWS, width], "model.norm.weight": [width],
              layer + "input_layernorm.weight": [width], layer + "post_attention_layernorm.weight": [width]}
    shapes.update({layer + f"self_attn.{part}_proj.weight": [width, width] for part in "qkvo"})
    shapes.update({layer + f"mlp.{part}_proj.weight": [inner, width] for part in ("gate", "up")})
    shapes[layer + "mlp.down_proj.weight"] = [width, inner]
    write_tensors(folder / "model.safetensors", shapes)
    content = unpacked(f"{form}.tokenizer.{kind}")
    (folder / f"tokenizer.{kind}").write_bytes(without_zeros(content) if kind == "json" else content)
    return folder


def without_zeros(content):
    """Without the pieces that have a zero byte: samba refuses them, as llama.cpp ends texts there."""
    value = json.loads(content)
    model = value["model"]
    model["vocab"] = {piece: number for piece, number in model["vocab"].items() if "\0" not in piece}
    model["merges"] = [merge for merge in model["merges"] if "\0" not in "".join(merge)]
    return json.dumps(value).encode()


def written_files(samba, place):
    """Name -> file, as samba writes them now."""
    files = {}
    for name in MODELS:
        files["model/" + name] = convert(samba, SOURCE / f"test/gguf/{name}.gguf", place / f"{name}.gguf")
    for form, kind in VOCABULARIES.items():
        folder = vocabulary_folder(place / ("vocabulary_" + form), form, kind)
        files["vocabulary/" + form] = convert(samba, folder, place / f"vocabulary_{form}.gguf")
    return files


def compare_with_record(files):
    recorded = json.loads(RECORD.read_text())
    different = 0
    for name, path in files.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        equal = recorded["files"].get(name, {}).get("sha256") == digest
        different += not equal
        if not equal:
            print(f"{name}: samba writes other bytes than those that llama.cpp has read (SHA-256 {digest})")
    print(f"{len(files) - different} of {len(files)} files are those that llama-cpp-python "
          f"{recorded['llama_cpp_python']} has read")
    return different


def greedy_tokens(llama_cpp, name, path):
    record = SOURCE / f"test/gguf/{name}.safetensors"
    wanted = integers(record, "greedy")
    model = llama_cpp.Llama(str(path), n_ctx=64, n_batch=64, n_threads=1, verbose=False)
    tokens = []
    for token in model.generate(integers(record, "ids")[:prompt_length(record)], temp=0.0, top_k=1, repeat_penalty=1.0):
        tokens.append(token)
        if len(tokens) == len(wanted):
            break
    return {"greedy_tokens": len(wanted), "different": [i for i, pair in enumerate(zip(tokens, wanted)) if pair[0] != pair[1]]}


def prompt_length(record):
    """Of the first row of `ids`."""
    content = record.read_bytes()
    size, = struct.unpack_from("<Q", content)
    return json.loads(content[8:8 + size])["ids"]["shape"][-1]


class Vocabulary:
    """A file as llama.cpp reads it, beside the tokenizer that the file was made of."""

    def __init__(self, llama_cpp, form, path):
        self.model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model.model)
        size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.pieces = [llama_cpp.llama_vocab_get_text(vocabulary, i).decode() for i in range(size)]
        self.scores = [llama_cpp.llama_vocab_get_score(vocabulary, i) for i in range(size)]
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        # What sentencepiece recorded has special tokens as text.
        self.file = json.loads(unpacked(form + ".tokenizer.json")) if VOCABULARIES[form] == "json" else None
        self.specials = [token["content"] for token in self.file["added_tokens"]] if self.file else []
        self.type = self.file["model"]["type"] if self.file else form.partition("_")[2]

    def tokens(self, text, special):
        return self.model.tokenize(text.encode(), add_bos=False, special=special) if text else []

    def by_parts(self, line):
        """The line cut at the tokenizer's own special tokens; what is between them is text."""
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, self.specials)) + ")", line):
            ids += [self.ids[part]] if part in self.specials else self.tokens(part, special=False)
        return ids

    def likelihood(self, ids):
        return sum(Fraction(self.scores[i]) for i in ids)

    def cause(self, line, got, wanted):
        """Why llama.cpp has other tokens; each cause is shown by what comes without it."""
        if self.type == "unigram":
            unknown = [i for i in got if self.pieces[i] == "<unk>"]
            if unknown != [i for i in wanted if self.pieces[i] == "<unk>"]:
                return "unexplained"
            return "equally likely" if self.likelihood(got) == self.likelihood(wanted) else "unexplained"
        if self.file["normalizer"] == {"type": "NFC"}:
            same = self.tokens(unicodedata.normalize("NFC", line), special=True) == wanted
            return "no NFC" if same else "unexplained"
        return "special by name" if self.by_parts(line) == wanted else "unexplained"


def text_tokens(llama_cpp, form, path, lines):
    vocabulary = Vocabulary(llama_cpp, form, path)
    wanted = json.loads(unpacked(f"{form}.recorded.json"))["ids"]
    compared, different, causes = 0, [], {}
    for number, (line, ids) in enumerate(zip(lines, wanted)):
        if ids is None or "\0" in line:
            continue
        compared += 1
        got = vocabulary.tokens(line, special=vocabulary.file is not None)
        if got != ids:
            different.append(number)
            cause = vocabulary.cause(line, got, ids)
            causes[cause] = causes.get(cause, 0) + 1
    return {"lines": compared, "different": different, "causes": causes}


def read_by_llama_cpp(llama_cpp, files):
    lines = json.loads(unpacked("lines.json"))
    results = {}
    for name, path in files.items():
        kind, _, form = name.partition("/")
        result = greedy_tokens(llama_cpp, form, path) if kind == "model" else text_tokens(llama_cpp, form, path, lines)
        print(f"{name}: {result.get('greedy_tokens', result.get('lines'))} compared, "
              f"{len(result['different'])} different {result.get('causes') or ''}", flush=True)
        results[name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **result}
    return results


def main():
    samba, flags = sys.argv[1], sys.argv[2:]
    if shutil.which("zstd") is None:
        print("skipped: the command zstd, which unpacks test/tokenizers, is not installed")
        return 77
    llama_cpp = None
    if "--recorded" not in flags:
        try:
            import llama_cpp
        except ImportError:
            print("skipped: the package llama_cpp is not installed (pip install llama-cpp-python); what it has read is "
                  "compared by --recorded")
            return 77
    with tempfile.TemporaryDirectory() as folder:
        files = written_files(samba, pathlib.Path(folder))
        if llama_cpp is None:
            return compare_with_record(files) != 0
        results = read_by_llama_cpp(llama_cpp, files)
    if "--record" in flags:
        text = json.dumps({"llama_cpp_python": llama_cpp.__version__, "files": results}, indent=1)
        RECORD.write_text(re.sub(r"(?<=[\[\d,])\n +(?=[\d\]])", "", text) + "\n")
        return 0
    recorded = json.loads(RECORD.read_text())["files"]
    worse = [name for name, result in results.items() if len(result["different"]) > len(recorded[name]["different"])]
    if worse:
        print("more is different than was recorded: " + ", ".join(worse))
    unexplained = [name for name, result in results.items() if "unexplained" in result.get("causes", {})]
    if unexplained:
        print("lines are different without a known cause: " + ", ".join(unexplained))
    return bool(worse or unexplained)


if __name__ == "__main__":
    sys.exit(main())
