#!/usr/bin/env python3
"""Writes tiny random models of other programs, what they compute, and whether transformers loads what samba writes.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors numpy
    venv/bin/python scripts/record_convert.py test/huggingface/folders --samba build/samba

One folder a model. `save_pretrained` of transformers writes config.json, the weights and generation_config.json; the
folders of mamba_ssm, which does not install without CUDA, are written with its names and its config.json from the
weights of the same model of transformers. Beside them:

  expected.safetensors   ids (2, 12) int32; logits (2, 12, vocab) float32, computed in float64 and rounded once;
                         greedy (2, 16) int32: the tokens that greedy decoding adds. Absent where no package computes
                         the model (Mamba-3).
  written.json           the SHA-256 of config.json and model.safetensors that `samba convert FOLDER OUT.samba` and
                         `samba convert OUT.samba FOLDER2 [--model-type T]` write. transformers has loaded FOLDER2, found
                         every tensor of the first folder in it with the same bits (float16: the same values), and
                         decoded the same greedy tokens.
"""

import argparse
import hashlib
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import safetensors.numpy
import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from record_huggingface import float64_only  # noqa: E402

BATCH, LENGTH, GENERATED = 2, 12, 16
SMALLEST_MARGIN = 1e-3  # between the two best logits of every greedy step

SMALL = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
}
MAMBA = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
MAMBA2 = {**MAMBA, "num_heads": 1, "head_dim": 64, "n_groups": 1, "state_size": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


class TooClose(Exception):
    pass


def default_rope(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def model(name, family, *, dtype="float32", twist=None, model_type=None, **config):
    return {"name": name, "family": family, "dtype": dtype, "twist": twist, "model_type": model_type, "config": config}


MODELS = [
    model("llama", "Llama", **SMALL, rms_norm_eps=1e-6, rope_parameters=default_rope()),
    model("llama_tied", "Llama", **SMALL, dtype="bfloat16", tie_word_embeddings=True, rms_norm_eps=1e-5,
          rope_parameters=LLAMA3),
    model("llama_stored_twice", "Llama", **SMALL, twist="twice", tie_word_embeddings=True, attention_bias=True,
          mlp_bias=True, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    model("llama_float16", "Llama", **{**SMALL, "head_dim": 8}, dtype="float16", rope_parameters=default_rope()),
    model("llama_sharded", "Llama", **SMALL, twist="shards", rope_parameters=default_rope()),
    model("mistral", "Mistral", **SMALL, sliding_window=5, rope_parameters=default_rope()),
    model("qwen2", "Qwen2", **SMALL, rope_parameters=default_rope(1000000.0), tie_word_embeddings=True),
    model("qwen2_windows", "Qwen2", **SMALL, rope_parameters=default_rope(), use_sliding_window=True,
          sliding_window=4, max_window_layers=1),
    model("qwen3", "Qwen3", **{**SMALL, "head_dim": 8}, dtype="bfloat16", rope_parameters=default_rope(1000000.0)),
    model("gemma", "Gemma", **{**SMALL, "head_dim": 8, "num_key_value_heads": 1}, rope_parameters=default_rope()),
    model("starcoder2", "Starcoder2", **SMALL, sliding_window=6, rope_parameters=default_rope(100000.0)),
    model("stablelm", "StableLm", **{**SMALL, "hidden_size": 32}, use_qkv_bias=True,
          rope_parameters=default_rope(partial_rotary_factor=0.25)),
    model("phi3", "Phi3", **SMALL, model_type="phi3", sliding_window=7, rope_parameters=default_rope()),
    model("phi3_partial", "Phi3", **{**SMALL, "hidden_size": 32}, tie_word_embeddings=True, dtype="bfloat16",
          rope_parameters=default_rope(partial_rotary_factor=0.75)),
    model("mamba", "Mamba", **MAMBA),
    model("mamba_bfloat16", "Mamba", **MAMBA, dtype="bfloat16", tie_word_embeddings=False),
    model("mamba2", "Mamba2", **MAMBA2, tie_word_embeddings=True),
    model("mamba2_limit", "Mamba2", **{**MAMBA2, "num_hidden_layers": 1}, time_step_limit=(0.01, 0.2)),
    model("mamba_ssm_1", "Mamba", **MAMBA, twist="mamba_ssm_safetensors"),
    model("mamba_ssm_1_bin", "Mamba", **MAMBA, dtype="float16", twist="mamba_ssm_bin"),
    model("mamba_ssm_2_bin", "Mamba2", **{**MAMBA2, "num_hidden_layers": 1}, tie_word_embeddings=True,
          twist="mamba_ssm_bin"),
    model("mamba_ssm_3_bin", "Mamba3", **{**MAMBA, "num_hidden_layers": 1}, twist="mamba_ssm_bin"),
]


def draw(parameters, seed):
    """Weights large enough that the logits differ: norms around one, everything else spread."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in parameters:
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith(("norm.weight", "layernorm.weight", "norm_f.weight")):
            parameter.data = (1.0 + 0.1 * noise).to(parameter.dtype)
        elif name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
            parameter.data = (parameter.data.double() + 0.1 * noise).to(parameter.dtype)
        elif parameter.ndim >= 2:
            parameter.data = (noise * 1.5 / math.sqrt(parameter.shape[-1])).to(parameter.dtype)
        else:
            parameter.data = (0.3 * noise).to(parameter.dtype)


def make(entry, seed):
    config_class = getattr(transformers, entry["family"] + "Config")
    config = config_class(**entry["config"], bos_token_id=1, eos_token_id=2, pad_token_id=0)
    network = getattr(transformers, entry["family"] + "ForCausalLM")(config)
    draw(network.named_parameters(), seed)
    network = network.to(getattr(torch, entry["dtype"]))
    if config.tie_word_embeddings:
        network.tie_weights()
    return network


def compute(folder, network=None):
    """Logits of fixed ids in float64, and the tokens greedy decoding adds to each row."""
    network = network or transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    vocab = network.config.vocab_size
    ids = numpy.random.Generator(numpy.random.PCG64(7)).integers(0, vocab, (BATCH, LENGTH))
    network = network.double().eval()
    with float64_only(), torch.no_grad():
        # Buffers made in float32 (the rotary frequencies) are made again in float64.
        for module in network.modules():
            if hasattr(module, "inv_freq") and hasattr(module, "compute_default_rope_parameters"):
                fresh = type(module)(module.config)
                module.inv_freq = fresh.inv_freq
                if hasattr(module, "original_inv_freq"):
                    module.original_inv_freq = fresh.inv_freq
        tokens = torch.tensor(ids)
        logits = network(tokens, use_cache=False).logits
        for _ in range(GENERATED):
            last = network(tokens, use_cache=False).logits[:, -1]
            best = last.topk(2).values
            if float((best[:, 0] - best[:, 1]).min()) < SMALLEST_MARGIN:
                raise TooClose(f"{folder}: the two best tokens of a step are too close to tell them apart in float32")
            tokens = torch.cat([tokens, last.argmax(-1, keepdim=True)], 1)
    return {
        "ids": ids.astype(numpy.int32),
        "logits": logits.numpy().astype(numpy.float32),
        "greedy": tokens[:, LENGTH:].numpy().astype(numpy.int32),
    }


def mamba_ssm_config(entry):
    layer = {"Mamba": "Mamba1", "Mamba2": "Mamba2", "Mamba3": "Mamba3"}[entry["family"]]
    config = entry["config"]
    return {
        "d_model": config["hidden_size"],
        "d_intermediate": 0,
        "n_layer": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"] - 3,  # padded to a multiple of 16
        "ssm_cfg": {"layer": layer} if layer != "Mamba1" else {},
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": True,
    }


def mamba3_state(config, seed):
    """The tensors of mamba_ssm.modules.mamba3.Mamba3 with its default arguments (SISO), in MambaLMHeadModel."""
    width, inner = config["hidden_size"], 2 * config["hidden_size"]
    heads = inner // 64
    state = {"backbone.embedding.weight": torch.empty(config["vocab_size"], width)}
    for i in range(config["num_hidden_layers"]):
        prefix = f"backbone.layers.{i}."
        state |= {
            prefix + "mixer.dt_bias": torch.full((heads,), -3.0),
            prefix + "mixer.B_bias": torch.ones(heads, 1, 128),
            prefix + "mixer.C_bias": torch.ones(heads, 1, 128),
            prefix + "mixer.D": torch.ones(heads),
            prefix + "mixer.in_proj.weight": torch.empty(2 * inner + 256 + 3 * heads + 32, width),
            prefix + "mixer.B_norm.weight": torch.ones(128),
            prefix + "mixer.C_norm.weight": torch.ones(128),
            prefix + "mixer.out_proj.weight": torch.empty(width, inner),
            prefix + "norm.weight": torch.ones(width),
        }
    state["backbone.norm_f.weight"] = torch.ones(width)
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    draw(parameters.items(), seed)
    state = {name: parameter.detach() for name, parameter in parameters.items()}
    state["lm_head.weight"] = state["backbone.embedding.weight"]
    return state


def write_mamba_ssm(folder, entry, network, seed):
    if network is None:
        state = mamba3_state(entry["config"], seed)
    else:
        state = {name.replace("backbone.embeddings.", "backbone.embedding."): tensor.detach()
                 for name, tensor in network.state_dict().items()}
        state["lm_head.weight"] = state["backbone.embedding.weight"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(mamba_ssm_config(entry), indent=4))
    if entry["twist"] == "mamba_ssm_bin":
        torch.save(state, folder / "pytorch_model.bin")
        return
    state = {name: tensor.clone() for name, tensor in state.items()}
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})


def write(folder, entry, seed):
    network = None if entry["family"] == "Mamba3" else make(entry, seed)
    if (entry["twist"] or "").startswith("mamba_ssm"):
        write_mamba_ssm(folder, entry, network, seed)
        return network
    network.save_pretrained(folder, max_shard_size="10KB" if entry["twist"] == "shards" else "1GB")
    if entry["twist"] == "twice":
        path = folder / "model.safetensors"
        state = safetensors.torch.load_file(path)
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(state, path, {"format": "pt"})
    return network


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_state(folder):
    state = {}
    for path in sorted(folder.glob("model*.safetensors")):
        state |= safetensors.torch.load_file(path)
    return state


def same_tensors(first, second, exact):
    a, b = load_state(first), load_state(second)
    if "lm_head.weight" in a and "lm_head.weight" not in b:  # tied and stored twice
        assert torch.equal(a.pop("lm_head.weight"), a["model.embed_tokens.weight"])
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for name in a:
        assert not exact or a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name].double(), b[name].double()), name


def check_written(samba, folder, entry, expected):
    """Through a samba file into a folder that transformers loads; what it then computes is what it computed before."""
    with tempfile.TemporaryDirectory() as place:
        file, back = pathlib.Path(place) / "model.samba", pathlib.Path(place) / "back"
        more = ["--model-type", entry["model_type"]] if entry["model_type"] else []
        subprocess.run([samba, "convert", folder, file, "--progress", "never"], check=True, capture_output=True)
        subprocess.run([samba, "convert", file, back, "--progress", "never", *more], check=True, capture_output=True)
        digests = {name: sha256(back / name) for name in ("config.json", "model.safetensors")}
        if expected is None:
            return {"sha256": digests}
        again = compute(back)
        assert numpy.array_equal(again["greedy"], expected["greedy"]), folder
        assert numpy.array_equal(again["logits"], expected["logits"]), folder
        network = json.loads((back / "config.json").read_text())["model_type"]
        if not (entry["twist"] or "").startswith("mamba_ssm") and network == entry["family"].lower():
            same_tensors(folder, back, entry["dtype"] != "float16")
        return {"model_type": network, "sha256": digests, "transformers": transformers.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--samba", type=pathlib.Path, help="the program whose folders transformers shall load")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for index, entry in enumerate(MODELS):
        folder = arguments.out / entry["name"]
        if arguments.only not in entry["name"]:
            continue
        mamba_ssm = (entry["twist"] or "").startswith("mamba_ssm")
        for attempt in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            network = write(folder, entry, 5000 + index + 100 * attempt)
            try:
                expected = None if network is None else compute(folder, network if mamba_ssm else None)
                break
            except TooClose:
                continue
        if expected is not None:
            safetensors.numpy.save_file(expected, folder / "expected.safetensors")
        if arguments.samba:
            record = check_written(arguments.samba.resolve(), folder, entry, expected)
            (folder / "written.json").write_text(json.dumps(record, indent=2) + "\n")
        print(entry["name"], sum(path.stat().st_size for path in folder.iterdir()), "bytes", flush=True)


if __name__ == "__main__":
    main()
