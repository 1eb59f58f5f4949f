#!/usr/bin/env python3
"""Records one decoder layer of each public model family, and some whole models, computed by Hugging Face transformers.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors numpy
    venv/bin/python scripts/record_huggingface.py test/huggingface

A file of a layer holds a tiny model of one layer whose final norm is replaced by the identity, so that the model's
output is the layer's; a file of a model (kind "stack") holds a causal language model of two layers. Weights and inputs
are drawn here (numpy, PCG64, one seed a file) and rounded to float32; the modules then run in float64 throughout (see
`float64_only`), and what they give is rounded to float32 once, at the end. So a recorded value is the public model's
mathematics, free of its own rounding.

Tensors of a layer (float32):
  x, y               (batch, length, width)   input of the layer; its output for the whole sequence at once
  decode             (batch, length, width)   outputs of a prefill of `prefix` tokens, then one token at a time
  cache.*            the cache after these calls, in the layout of transformers
  <name>             a weight, by its name in the layer's state_dict
  grad_output        (batch, length, width)   with `gradients` only
  grad.x, grad.<name>   gradients of sum(y * grad_output) for the whole sequence
Tensors of a model:
  ids, targets       (batch, length)          int32; targets below 0 are not counted
  y, decode          (batch, length, vocab)   logits, as above
  <name>             a weight, by its name in the model
  loss, grad.<name>  with `gradients` only: the mean cross-entropy of the counted targets
Metadata, one JSON object under the key "recording": kind, options of the samba block or model with the same meaning,
prefix, the class and its configuration, seed and versions.
"""

import argparse
import contextlib
import json
import pathlib

import numpy
import safetensors.numpy
import torch
import transformers
from torch import nn


@contextlib.contextmanager
def float64_only():
    """While active, what modules spell as float32 (norms, softmax, rotary tables, scans) means float64."""
    kept = (torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype())
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]
        torch.set_default_dtype(kept[3])


def transformer(
    family, options, *, name=None, width=24, heads=4, kv_heads=2, intermediate=20, length=9, prefix=5, gradients=True,
    **config
):
    """A decoder layer of heads * head_dim == width. `options`: those of samba's transformer block beside the heads."""
    return {
        "name": name or family.lower(),
        "family": family,
        "kind": "transformer",
        "options": {"n_heads": heads, "n_kv_heads": kv_heads, **options},
        "length": length,
        "prefix": prefix,
        "gradients": gradients,
        "config": {
            "vocab_size": 8,
            "hidden_size": width,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": intermediate,
            "max_position_embeddings": 4096,
            "attn_implementation": "eager",
            "pad_token_id": 0,
            **config,
        },
    }


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# What samba calls rmsnorm_offset is the norm of Gemma, geglu_tanh its activation "gelu_pytorch_tanh"; gelu_tanh is
# Starcoder2's. Mistral's sliding_window W means the last W positions, the token itself included, as samba's `window`.
FAMILIES = [
    transformer("Llama", {}, rms_norm_eps=1e-6, rope_parameters=rope()),
    transformer(
        "Llama",
        {
            "rope_theta": 500000.0,
            "norm_eps": 1e-5,
            "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        },
        name="llama_rope_llama3",
        heads=2,
        kv_heads=1,
        width=32,
        length=40,
        prefix=36,
        rms_norm_eps=1e-5,
        rope_parameters=rope("llama3", 500000.0, **LLAMA3),
    ),
    transformer(
        "Llama",
        {"norm_eps": 1e-5, "rope_scaling": {"type": "linear", "factor": 4.0}, "qkv_bias": True, "o_bias": True,
         "mlp_bias": True},
        name="llama_rope_linear",
        rms_norm_eps=1e-5,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=rope("linear", factor=4.0),
    ),
    transformer("Mistral", {"window": 4}, length=13, prefix=6, sliding_window=4, head_dim=6,
                rms_norm_eps=1e-6, rope_parameters=rope()),
    transformer("Qwen2", {"qkv_bias": True, "rope_theta": 1000000.0, "norm_eps": 1e-6}, rms_norm_eps=1e-6,
                rope_parameters=rope(theta=1000000.0)),
    transformer("Qwen3", {"qk_norm": True, "rope_theta": 1000000.0, "norm_eps": 1e-6}, rms_norm_eps=1e-6, head_dim=6,
                rope_parameters=rope(theta=1000000.0)),
    transformer("Gemma", {"norm": "rmsnorm_offset", "mlp": "geglu_tanh"}, kv_heads=1, head_dim=6, rms_norm_eps=1e-6,
                hidden_act="gelu_pytorch_tanh", rope_parameters=rope()),
    transformer(
        "Starcoder2",
        {"norm": "layernorm", "norm_eps": 1e-5, "mlp": "gelu_tanh", "norm_bias": True, "qkv_bias": True, "o_bias": True,
         "mlp_bias": True, "window": 6, "rope_theta": 100000.0},
        length=12,
        prefix=7,
        sliding_window=6,
        use_bias=True,
        norm_epsilon=1e-5,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        rope_parameters=rope(theta=100000.0),
    ),
    transformer(
        "StableLm",
        {"norm": "layernorm", "norm_eps": 1e-5, "norm_bias": True, "qkv_bias": True, "rope_dim": 2},
        heads=3,
        kv_heads=3,
        use_qkv_bias=True,
        use_parallel_residual=False,
        layer_norm_eps=1e-5,
        rope_parameters=rope(partial_rotary_factor=0.25),
    ),
    {
        "name": "mamba",
        "family": "Mamba",
        "kind": "mamba1",
        "options": {},
        "length": 11,
        "prefix": 6,
        "gradients": True,
        "config": {"vocab_size": 8, "hidden_size": 20, "num_hidden_layers": 1, "state_size": 16, "pad_token_id": 0,
                   "use_mambapy": False},
    },
    # Length 259 crosses the border of a chunk, which is 256 in both programs.
    {
        "name": "mamba2",
        "family": "Mamba2",
        "kind": "mamba2",
        "options": {},
        "length": 259,
        "prefix": 251,
        "gradients": True,
        "config": {"vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 1, "head_dim": 64,
                   "n_groups": 1, "state_size": 128, "chunk_size": 256, "pad_token_id": 0},
    },
    # Both limits are active. There is no decode: transformers does not clamp dt in its one-token path.
    {
        "name": "mamba2_dt_limit",
        "family": "Mamba2",
        "kind": "mamba2",
        "options": {"dt_limit": [0.1, 0.3]},
        "length": 7,
        "prefix": None,
        "gradients": False,
        "config": {"vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 1, "head_dim": 64,
                   "n_groups": 1, "state_size": 128, "chunk_size": 256, "pad_token_id": 0,
                   "time_step_limit": (0.1, 0.3)},
    },
]


def model(name, family, layer, options, *, gradients=True, length=8, prefix=5, **config):
    """A causal language model of two equal layers. `layer`, `options`: those of samba's configuration."""
    return {
        "name": name,
        "family": family,
        "kind": "stack",
        "options": {"vocab": 12, "d_model": config["hidden_size"], "layers": [layer, layer], **options},
        "length": length,
        "prefix": prefix,
        "gradients": gradients,
        # No padding token: transformers leaves its embedding without a gradient.
        "config": {"vocab_size": 12, "num_hidden_layers": 2, "pad_token_id": None, "bos_token_id": None,
                   "eos_token_id": None, **config},
    }


# Gemma multiplies embeddings by sqrt(hidden_size), which samba's `embedding_scale` states as a number; its heads and
# Qwen3's need not add up to the model's width.
MODELS = [
    model(
        "model_llama",
        "Llama",
        {"kind": "transformer", "n_heads": 4, "n_kv_heads": 2, "intermediate": 20},
        {"tie_embeddings": False, "norm_eps": 1e-6},
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=20,
        rms_norm_eps=1e-6,
        rope_parameters=rope(),
        tie_word_embeddings=False,
        attn_implementation="eager",
    ),
    model(
        "model_gemma",
        "Gemma",
        {"kind": "transformer", "n_heads": 4, "n_kv_heads": 1, "head_dim": 10, "intermediate": 20,
         "norm": "rmsnorm_offset", "mlp": "geglu_tanh"},
        {"embedding_scale": 20**0.5, "final_norm": "rmsnorm_offset", "norm_eps": 1e-6},
        hidden_size=20,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=10,
        intermediate_size=20,
        rms_norm_eps=1e-6,
        hidden_act="gelu_pytorch_tanh",
        rope_parameters=rope(),
        tie_word_embeddings=True,
        attn_implementation="eager",
    ),
    model(
        "model_qwen3",
        "Qwen3",
        {"kind": "transformer", "n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "intermediate": 20, "qk_norm": True,
         "rope_theta": 1000000.0},
        {"norm_eps": 1e-6},
        hidden_size=20,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=20,
        rms_norm_eps=1e-6,
        rope_parameters=rope(theta=1000000.0),
        tie_word_embeddings=True,
        attn_implementation="eager",
    ),
    model(
        "model_mamba",
        "Mamba",
        {"kind": "mamba1"},
        {"norm_eps": 1e-5},
        hidden_size=16,
        state_size=16,
        use_mambapy=False,
        tie_word_embeddings=True,
    ),
]


def drawn(generator, name, shape, offset_norm):
    """Matrices with rows of unit gain, everything else as in a trained model; rounded to float32."""
    value = generator.standard_normal(shape)
    if name.endswith("A_log"):
        steps = numpy.arange(1, shape[-1] + 1) if len(shape) == 2 else numpy.full(shape, 2.0)
        value = numpy.log(steps) + 0.3 * value
    elif name.endswith("dt_bias") or name.endswith("dt_proj.bias"):
        value = -2.0 + 0.7 * value
    elif name.endswith("conv1d.weight"):
        value = 0.5 * value
    elif name.endswith("bias"):
        value = 0.3 * value
    elif len(shape) == 2:
        value = 1.3 * value / shape[1] ** 0.5
    else:
        value = (0.0 if offset_norm else 1.0) + 0.2 * value
    return value.astype(numpy.float32)


def build(spec, generator):
    """The model, and the module whose parameters are recorded."""
    config = getattr(transformers, spec["family"] + "Config")(**spec["config"])
    whole = spec["kind"] == "stack"
    network = getattr(transformers, spec["family"] + ("ForCausalLM" if whole else "Model"))(config).double().eval()
    recorded = network
    if not whole:
        for attribute in ("norm", "norm_f"):
            if hasattr(network, attribute):
                setattr(network, attribute, nn.Identity())
        recorded = network.layers[0]
    with torch.no_grad():
        for name, parameter in recorded.named_parameters():
            value = drawn(generator, name, tuple(parameter.shape), spec["family"] == "Gemma")
            parameter.copy_(torch.from_numpy(value).double())
    return network, recorded


def decoded(network, key, inputs, output, prefix):
    """Outputs of a prefill of `prefix` tokens and of one token at a time behind it, and the cache."""
    result = network(**{key: inputs[:, :prefix]}, use_cache=True)
    outputs = [getattr(result, output)]
    for position in range(prefix, inputs.shape[1]):
        result = network(**{key: inputs[:, position : position + 1]}, cache=result.cache, use_cache=True)
        outputs.append(getattr(result, output))
    return torch.cat(outputs, dim=1), result.cache


def cache_tensors(spec, cache):
    if spec["kind"] == "transformer":
        return {"cache.keys": cache.layers[0].keys, "cache.values": cache.layers[0].values}
    return {
        "cache.conv_state": cache.get_conv_state(0, state_idx=0),
        "cache.recurrent_state": cache.get_recurrent_state(0, state_idx=0),
    }


def record_layer(spec, generator, batch):
    network, layer = build(spec, generator)
    shape = (batch, spec["length"], spec["config"]["hidden_size"])
    values = generator.standard_normal(shape).astype(numpy.float32)
    values[:, 1::3] /= 64  # small enough for the epsilon of a norm to matter
    x = torch.from_numpy(values).double()
    tensors = {"x": x, **dict(layer.named_parameters())}

    x.requires_grad_(True)
    y = network(inputs_embeds=x, use_cache=False).last_hidden_state
    assert y.dtype == torch.float64
    tensors["y"] = y
    if spec["gradients"]:
        grad_output = torch.from_numpy(generator.standard_normal(shape).astype(numpy.float32)).double()
        (y * grad_output).sum().backward()
        tensors["grad_output"] = grad_output
        tensors["grad.x"] = x.grad
        for name, parameter in layer.named_parameters():
            tensors["grad." + name] = parameter.grad
    if spec["prefix"] is not None:
        with torch.no_grad():
            tensors["decode"], cache = decoded(network, "inputs_embeds", x.detach(), "last_hidden_state", spec["prefix"])
            tensors.update(cache_tensors(spec, cache))
    return tensors


def record_model(spec, generator, batch):
    network, _ = build(spec, generator)
    vocab = spec["config"]["vocab_size"]
    ids = torch.from_numpy(generator.integers(0, vocab, (batch, spec["length"])))
    targets = torch.from_numpy(generator.integers(0, vocab, (batch, spec["length"])))
    targets[:, 2::4] = -100
    tensors = {"ids": ids, "targets": targets, **dict(network.named_parameters())}

    logits = network(input_ids=ids, use_cache=False).logits
    assert logits.dtype == torch.float64
    tensors["y"] = logits
    if spec["gradients"]:
        # Not the models' own loss, which shifts the labels by one position.
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        tensors["loss"] = loss.reshape(1)
        for name, parameter in network.named_parameters():
            tensors["grad." + name] = parameter.grad
    with torch.no_grad():
        tensors["decode"], _ = decoded(network, "input_ids", ids, "logits", spec["prefix"])
    return tensors


def record(spec, seed):
    generator = numpy.random.Generator(numpy.random.PCG64(seed))
    batch = 1 if spec["length"] > 100 else 2
    with float64_only():
        tensors = (record_model if spec["kind"] == "stack" else record_layer)(spec, generator, batch)
    integers = ("ids", "targets")
    return {
        name: value.detach().numpy().astype(numpy.int32 if name in integers else numpy.float32)
        for name, value in tensors.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the .safetensors files go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed, spec in [*enumerate(FAMILIES, start=4000), *enumerate(MODELS, start=4100)]:
        tensors = record(spec, seed)
        recording = {
            "kind": spec["kind"],
            "options": spec["options"],
            "prefix": spec["prefix"] or 0,
            "model": spec["family"] + ("ForCausalLM" if spec["kind"] == "stack" else "Model"),
            "config": spec["config"],
            "seed": seed,
            "transformers": transformers.__version__,
            "torch": torch.__version__.split("+")[0],
        }
        path = folder / (spec["name"] + ".safetensors")
        # One key, since safetensors writes several in any order.
        safetensors.numpy.save_file(tensors, path, metadata={"recording": json.dumps(recording)})
        print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
