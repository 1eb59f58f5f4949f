#!/usr/bin/env python3
"""Records blocks of every GGUF tensor type with their values, and tiny models of every architecture as llama.cpp
converts them.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors numpy gguf llama-cpp-python
    venv/bin/python scripts/record_gguf.py test/gguf --llama LLAMA_CPP_SOURCE

blocks.safetensors: for every type T the tensors "T.blocks" (uint8, rows of bytes) and "T.values" (float32), expanded by
the package gguf. The bytes are drawn (numpy, PCG64): any codes; scales are halves of both signs, zeros and subnormal
halves among them, but no infinity or NaN.

ARCHITECTURE.gguf: a causal language model of transformers of two layers with drawn float32 weights, converted by
llama.cpp's convert_hf_to_gguf.py (without a tokenizer); ARCHITECTURE.safetensors: the same weights by the names of
transformers, token ids, logits computed in float64 and rounded once ("logits"), and a greedy continuation ("greedy"),
with the configuration in the metadata. llama_mixed.gguf: the model llama with its matrices rounded to several types.
LLAMA_CPP_SOURCE is a checkout of llama.cpp (the source package of
llama-cpp-python holds one in vendor/llama.cpp).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import safetensors.numpy

TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
ROWS, COLUMNS = 6, 512
# Where the halves of a block are.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}


def drawn_halves(draws, count):
    """Finite halves: ordinary ones, zeros of both signs, subnormal ones, the largest."""
    halves = draws.normal(0, 0.05, count).astype(numpy.float16).view(numpy.uint16)
    special = numpy.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0400, 0x3C00], dtype=numpy.uint16)
    chosen = draws.random(count) < 0.2
    halves[chosen] = special[draws.integers(0, len(special), chosen.sum())]
    return halves


def record_blocks(folder):
    tensors = {}
    for seed, name in enumerate(TYPES):
        draws = numpy.random.default_rng(seed)
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        if name == "F16":
            data = drawn_halves(draws, ROWS * COLUMNS).view(numpy.uint8)
        elif name == "BF16":
            words = draws.integers(0, 65536, ROWS * COLUMNS).astype(numpy.uint16)
            words[(words & 0x7F80) == 0x7F80] = 0x0001  # subnormal in the place of infinities and NaN
            data = words.view(numpy.uint8)
        else:
            blocks = draws.integers(0, 256, (ROWS * COLUMNS // values, size)).astype(numpy.uint8)
            for at in SCALES[name]:
                blocks[:, at : at + 2] = drawn_halves(draws, len(blocks)).view(numpy.uint8).reshape(-1, 2)
            data = blocks.reshape(-1)
        data = data.reshape(ROWS, -1)
        tensors[name + ".blocks"] = data
        tensors[name + ".values"] = gguf.dequantize(data, kind).astype(numpy.float32).reshape(ROWS, COLUMNS)
    safetensors.numpy.save_file(tensors, folder / "blocks.safetensors")


def configurations():
    import transformers

    shared = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, bos_token_id=1, eos_token_id=2)
    attention = dict(
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, max_position_embeddings=512
    )
    return {
        "llama": transformers.LlamaConfig(**shared, **attention, rms_norm_eps=1e-5, tie_word_embeddings=False,
                                          attention_bias=True, rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0,
                                          "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 8192}),
        "qwen2": transformers.Qwen2Config(**shared, **attention, tie_word_embeddings=True),
        "qwen3": transformers.Qwen3Config(**shared, **attention, head_dim=32, tie_word_embeddings=False),
        "gemma": transformers.GemmaConfig(**shared, **attention, head_dim=32),
        "mamba": transformers.MambaConfig(**shared, state_size=16, tie_word_embeddings=True),
        "mamba2": transformers.Mamba2Config(**shared, state_size=128, head_dim=64, num_heads=2, n_groups=1, expand=2,
                                            chunk_size=256, tie_word_embeddings=True),
    }


def drawn_model(config, seed):
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draws = numpy.random.default_rng(100 + seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            if "norm" in name:
                base = 0.0 if config.model_type == "gemma" else 1.0
                value = base + draws.normal(0, 0.1, shape)
            elif name.endswith("A_log"):
                value = draws.uniform(0, 2.7, shape)
            elif name.endswith(("dt_bias", "dt_proj.bias")):
                value = draws.uniform(-4, -2, shape)
            elif name.endswith(".D"):
                value = draws.normal(1, 0.1, shape)
            else:
                value = draws.normal(0, 0.1, shape)
            parameter.copy_(torch.from_numpy(value.astype(numpy.float32)))
    model.tie_weights()
    return model.eval()


def convert(model, path, llama):
    """llama.cpp's own converter, its vocabulary left out."""
    driver = """
import sys
sys.path.insert(0, sys.argv[1]); sys.argv = ["convert"] + sys.argv[2:]
import convert_hf_to_gguf as program
from conversion.base import TextModel
def set_vocab(self):
    self.gguf_writer.add_tokenizer_model("no_vocab")
    if self.gguf_writer.arch != "llama": self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])
import conversion.llama, conversion.qwen, conversion.gemma, conversion.mamba
for module in (conversion.llama, conversion.qwen, conversion.gemma, conversion.mamba):
    for kind in vars(module).values():
        if isinstance(kind, type) and "set_vocab" in vars(kind): kind.set_vocab = set_vocab
TextModel.set_vocab = set_vocab
program.main()
"""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        subprocess.run([sys.executable, "-c", driver, str(llama), folder, "--outtype", "f32", "--outfile", str(path)],
                       check=True)


def greedy(model, ids, count):
    import torch

    ids = list(ids)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


def record_models(folder, llama):
    import torch
    import transformers

    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from record_huggingface import float64_only

    for seed, (name, config) in enumerate(configurations().items()):
        model = drawn_model(config, seed)
        convert(model, folder / f"{name}.gguf", llama)
        tensors = {key: value.numpy().copy() for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        ids = numpy.random.default_rng(200 + seed).integers(3, 96, (1, 24)).astype(numpy.int32)
        continuation = greedy(model, ids[0], 16)
        with float64_only():
            wide = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
            wide.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
            with torch.no_grad():
                logits = wide.eval()(torch.from_numpy(ids).long()).logits
        tensors["ids"] = ids
        tensors["logits"] = logits.numpy().astype(numpy.float32)
        tensors["greedy"] = numpy.array(continuation, dtype=numpy.int32)
        safetensors.numpy.save_file(
            tensors, folder / f"{name}.safetensors",
            {"config": json.dumps(config.to_dict()), "transformers": transformers.__version__, "torch": torch.__version__})


MIXTURE = {
    "attn_q.weight": "Q4_1", "attn_k.weight": "Q5_0", "attn_v.weight": "Q5_1", "attn_output.weight": "F16",
    "ffn_gate.weight": "Q4_0", "ffn_up.weight": "BF16", "ffn_down.weight": "Q8_0", "token_embd.weight": "Q8_0",
}


def mix_types(source, target):
    """The same model with matrices of every type that the package gguf rounds to."""
    read = gguf.GGUFReader(source)
    write = gguf.GGUFWriter(target, "llama")
    for name, field in read.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds = field.types
        write.add_key_value(name, field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)
    for tensor in read.tensors:
        values = numpy.array(tensor.data)
        name = MIXTURE.get(tensor.name.split(".", 2)[-1] if tensor.name.startswith("blk.") else tensor.name)
        if name is None:
            write.add_tensor(tensor.name, values)
            continue
        kind = gguf.GGMLQuantizationType[name]
        rounded = gguf.quantize(values, kind)
        write.add_tensor(tensor.name, rounded, raw_dtype=kind)
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--llama", type=pathlib.Path, help="source of llama.cpp; without it the blocks alone")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    record_blocks(given.folder)
    if given.llama:
        record_models(given.folder, given.llama)
    if (given.folder / "llama.gguf").exists():
        mix_types(given.folder / "llama.gguf", given.folder / "llama_mixed.gguf")


if __name__ == "__main__":
    main()
