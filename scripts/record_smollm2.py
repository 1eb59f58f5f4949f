#!/usr/bin/env python3
"""Records what Hugging Face transformers computes in float32 with the weights of SmolLM2-135M-Instruct Q4_1, expanded.

    python3 -m venv venv && venv/bin/pip install torch transformers accelerate safetensors numpy gguf
    scripts/get_smollm2.sh FOLDER
    venv/bin/python scripts/record_smollm2.py FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf test/gguf/smollm2.safetensors

transformers reads the GGUF file itself and expands its tensors with the package gguf; attention is the plain one
(eager). For prompt i of ten:

  <i>.prompt     (length)      int32, the ids of the text by the file's tokenizer; the text is in the metadata
  <i>.greedy     (64)          int32, the token of the largest logit, 64 times; end-of-text tokens do not end it
  <i>.top_ids    (64, 8)       int32, the tokens of the 8 largest logits of every step
  <i>.top        (64, 8)       float32, these logits
  <i>.logits     (vocab)       float32, all logits behind the prompt, of the prompts 0 and 5

The metadata hold the texts, the smallest distance of the two largest logits of every prompt, and versions.
"""

import argparse
import json
import pathlib

import numpy
import safetensors.numpy
import torch
import transformers

STEPS = 64
CHAT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "In the year 1969, three astronauts",
    CHAT.format("What is the capital of Italy?"),
    CHAT.format("Write a short poem about the moon."),
    CHAT.format("Explain in two sentences why the sky is blue."),
    CHAT.format("List three fruits that are red."),
    CHAT.format("Ein Satz auf Deutsch, bitte: Wie wird das Wetter morgen? 你好 🙂 12345"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    given = parser.parse_args()
    place = dict(pretrained_model_name_or_path=str(given.model.parent), gguf_file=given.model.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tensors, margins = {}, []
    for i, text in enumerate(PROMPTS):
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids, cache, rows = torch.tensor([prompt]), None, []
        greedy = []
        with torch.no_grad():
            for _ in range(STEPS):
                result = model(ids, past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                rows.append(result.logits[0, -1].numpy().copy())
                greedy.append(int(rows[-1].argmax()))
                ids = torch.tensor([[greedy[-1]]])
        order = numpy.stack([numpy.argsort(-row, kind="stable")[:8] for row in rows])
        top = numpy.stack([row[best] for row, best in zip(rows, order)])
        margins.append(float((top[:, 0] - top[:, 1]).min()))
        tensors[f"{i}.prompt"] = numpy.array(prompt, dtype=numpy.int32)
        tensors[f"{i}.greedy"] = numpy.array(greedy, dtype=numpy.int32)
        tensors[f"{i}.top_ids"] = order.astype(numpy.int32)
        tensors[f"{i}.top"] = top.astype(numpy.float32)
        if i in (0, 5):
            tensors[f"{i}.logits"] = rows[0]
        print(f"prompt {i}: {len(prompt)} tokens, smallest margin {margins[-1]:.2g}: {tokenizer.decode(greedy)!r}")
    safetensors.numpy.save_file(
        tensors,
        given.out,
        {
            "prompts": json.dumps(PROMPTS),
            "margins": json.dumps(margins),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
    )


if __name__ == "__main__":
    main()
