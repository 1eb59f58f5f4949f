#!/usr/bin/env python3
"""Times other programs beside samba, in turn, on the same shapes: llama.cpp, PyTorch with transformers, mojolearn.

    scripts/bench_peers.py --samba build/samba --out build/bench [--threads 1,2] [--repeat 7] [--only decode/llama_28m ...]

Every repetition of a row runs samba once (`samba bench ROW --paced`) and then each peer once, after a warm-up of each.
Each lives in a process of its own, which keeps its model and waits while the others run. All get the same cores. Weights are drawn at random: their values change nothing in the time of a float32 model.

Needs what scripts/bench.sh --peers installs: numpy, torch, transformers, llama-cpp-python, gguf, mojolearn-core. A peer
that is not installed is left out and named. Writes OUT/peers.json and prints a table.
"""
import argparse
import datetime
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

LLAMA_28M = dict(kind="llama", d_model=512, layers=8, heads=8, kv_heads=4, intermediate=1408, vocab=4096, tied=False)
LLAMA_134M = dict(kind="llama", d_model=768, layers=12, heads=12, kv_heads=12, intermediate=2048, vocab=32000, tied=False)
LLAMA_4_2M = dict(kind="llama", d_model=256, layers=4, heads=8, kv_heads=8, intermediate=688, vocab=4096, tied=True)
MAMBA_130M = dict(kind="mamba", d_model=768, layers=24, vocab=50280)
MAMBA2_130M = dict(kind="mamba2", d_model=768, layers=24, vocab=50288)
TUTORIAL = dict(kind="samba", vocab=256, d_model=128, layers=["mamba3", "attention"] * 3, n_heads=4, n_kv_heads=2,
                intermediate=384)
SAMBA_2_6M = dict(kind="samba", vocab=256, d_model=256, layers=["mamba3", "attention", "mamba3"], n_heads=8,
                  intermediate=704)
PREFILL, DECODE_AT, DECODE = 512, 128, 32  # tokens, as in configs/bench/models.json
BLOCK_WIDTH, BLOCK_STEPS = 768, 16

# row: (the shape, the peers that can run it)
ROWS = {
    "prefill/llama_28m": (LLAMA_28M, ["llama.cpp", "torch"]),
    "decode/llama_28m": (LLAMA_28M, ["llama.cpp", "torch"]),
    "prefill/llama_134m": (LLAMA_134M, ["llama.cpp", "torch"]),
    "decode/llama_134m": (LLAMA_134M, ["llama.cpp", "torch"]),
    "prefill/mamba_130m": (MAMBA_130M, ["llama.cpp", "torch"]),
    "decode/mamba_130m": (MAMBA_130M, ["llama.cpp", "torch"]),
    "prefill/mamba2_130m": (MAMBA2_130M, ["llama.cpp", "torch"]),
    "decode/mamba2_130m": (MAMBA2_130M, ["llama.cpp", "torch"]),
    "training/llama_4_2m": (dict(LLAMA_4_2M, batch=(8, 128)), ["torch"]),
    "training/tutorial_hybrid": (dict(TUTORIAL, batch=(8, 128)), ["mojolearn"]),
    "training/samba_2_6m": (dict(SAMBA_2_6M, batch=(4, 128)), ["mojolearn"]),
}
for block in ("transformer", "mamba1", "mamba2", "mamba3"):
    for step in ("prefill", "step", "backward"):
        ROWS[f"block/{block}/{step}"] = (dict(kind=block, d_model=BLOCK_WIDTH), ["mojolearn"])

MODULES = {"llama.cpp": ["llama_cpp", "gguf", "numpy"], "torch": ["torch", "transformers"],
           "mojolearn": ["mojolearn", "numpy"]}
PACKAGES = {"llama.cpp": ["llama_cpp_python"], "torch": ["torch", "transformers"], "mojolearn": ["mojolearn_core"]}


# ---- the peers: each function returns (work, units), work() being one repetition that returns its seconds ----

def timed(run, before=None):
    def work():
        if before:
            before()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    return work


def write_gguf(shape, path):
    """A GGUF file of the shape with random float32 weights and no tokenizer."""
    import gguf
    import numpy

    random = numpy.random.default_rng(0)
    d, vocab = shape["d_model"], shape["vocab"]
    writer = gguf.GGUFWriter(path, shape["kind"])
    writer.add_context_length(2048)
    writer.add_embedding_length(d)
    writer.add_block_count(shape["layers"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, columns):
        writer.add_tensor(name, random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(0.02))

    def vector(name, *sizes, value=1.0):
        writer.add_tensor(name, numpy.full(sizes, value, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, d)
    vector("output_norm.weight", d)
    if not shape.get("tied", True):
        matrix("output.weight", vocab, d)
    inner = 2 * d
    if shape["kind"] == "llama":
        width = shape["intermediate"]
        writer.add_feed_forward_length(width)
        writer.add_head_count(shape["heads"])
        writer.add_head_count_kv(shape["kv_heads"])
        writer.add_rope_dimension_count(d // shape["heads"])
    else:
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(16 if shape["kind"] == "mamba" else 128)
        writer.add_ssm_time_step_rank(math.ceil(d / 16) if shape["kind"] == "mamba" else inner // 64)
        if shape["kind"] == "mamba2":
            writer.add_ssm_group_count(1)
    for i in range(shape["layers"]):
        block = f"blk.{i}."
        vector(block + "attn_norm.weight", d)
        if shape["kind"] == "llama":
            kv = d // shape["heads"] * shape["kv_heads"]
            matrix(block + "attn_q.weight", d, d)
            matrix(block + "attn_k.weight", kv, d)
            matrix(block + "attn_v.weight", kv, d)
            matrix(block + "attn_output.weight", d, d)
            vector(block + "ffn_norm.weight", d)
            matrix(block + "ffn_gate.weight", width, d)
            matrix(block + "ffn_up.weight", width, d)
            matrix(block + "ffn_down.weight", d, width)
        elif shape["kind"] == "mamba":
            rank = math.ceil(d / 16)
            matrix(block + "ssm_in.weight", 2 * inner, d)
            matrix(block + "ssm_conv1d.weight", inner, 4)
            vector(block + "ssm_conv1d.bias", inner, value=0.1)
            matrix(block + "ssm_x.weight", rank + 32, inner)
            matrix(block + "ssm_dt.weight", inner, rank)
            vector(block + "ssm_dt.bias", inner, value=-3.0)
            vector(block + "ssm_a", inner, 16, value=-1.0)
            vector(block + "ssm_d", inner)
            matrix(block + "ssm_out.weight", d, inner)
        else:
            heads, channels = inner // 64, inner + 256
            matrix(block + "ssm_in.weight", 2 * inner + 256 + heads, d)
            matrix(block + "ssm_conv1d.weight", channels, 4)
            vector(block + "ssm_conv1d.bias", channels, value=0.1)
            vector(block + "ssm_dt.bias", heads, value=-3.0)
            vector(block + "ssm_a", heads, 1, value=-1.0)
            vector(block + "ssm_d", heads, 1)
            vector(block + "ssm_norm.weight", 1, inner)
            matrix(block + "ssm_out.weight", d, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_work(row, shape, threads):
    import ctypes

    import llama_cpp

    # In the temporary folder of the comparison, which this process has as TMPDIR.
    path = os.path.join(tempfile.gettempdir(), f"samba-bench-{shape['kind']}-{shape['d_model']}-{shape['layers']}.gguf")
    if not os.path.exists(path):
        write_gguf(shape, path + ".part")
        os.replace(path + ".part", path)
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp does not load " + path)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 1024, PREFILL, PREFILL
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    keep = (silent, model)

    def feed(tokens):
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_get_logits_ith(context, -1)  # waits

    def clear():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return keep

    if row.startswith("prefill"):
        return timed(lambda: feed([i % shape["vocab"] for i in range(PREFILL)]), clear), PREFILL

    def prompt():
        clear()
        feed([i % shape["vocab"] for i in range(DECODE_AT)])

    def steps():
        for i in range(DECODE):
            feed([i])
    return timed(steps, prompt), DECODE


def torch_model(shape):
    import transformers

    common = dict(vocab_size=shape["vocab"], hidden_size=shape["d_model"], num_hidden_layers=shape["layers"],
                  use_cache=True)
    if shape["kind"] == "llama":
        config = transformers.LlamaConfig(
            **common, intermediate_size=shape["intermediate"], num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"], max_position_embeddings=2048, tie_word_embeddings=shape["tied"])
        return transformers.LlamaForCausalLM(config)
    if shape["kind"] == "mamba":
        return transformers.MambaForCausalLM(transformers.MambaConfig(**common, state_size=16, tie_word_embeddings=True))
    config = transformers.Mamba2Config(**common, state_size=128, head_dim=64, n_groups=1, expand=2,
                                       num_heads=2 * shape["d_model"] // 64, tie_word_embeddings=True)
    return transformers.Mamba2ForCausalLM(config)


def torch_work(row, shape, threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = torch_model(shape)
    if row.startswith("training"):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.randint(0, shape["vocab"], shape["batch"])

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return timed(step), shape["batch"][0] * shape["batch"][1]

    model.eval()
    cache_name = "past_key_values" if shape["kind"] == "llama" else "cache_params"

    @torch.inference_mode()
    def feed(ids, cache=None, position=0):
        extra = {cache_name: cache} if cache is not None else {}
        if cache is not None and shape["kind"] != "llama":
            extra["cache_position"] = torch.tensor([position])
        try:
            return getattr(model(input_ids=ids, use_cache=True, logits_to_keep=1, **extra), cache_name)
        except TypeError:
            extra.pop("cache_position", None)
            return getattr(model(input_ids=ids, use_cache=True, **extra), cache_name)

    prompt = torch.arange(PREFILL).remainder(shape["vocab"])[None]
    if row.startswith("prefill"):
        return timed(lambda: feed(prompt)), PREFILL
    state = {}

    def begin():
        state["cache"] = feed(prompt[:, :DECODE_AT])

    def steps():
        for i in range(DECODE):
            state["cache"] = feed(prompt[:, i:i + 1], state["cache"], DECODE_AT + i)
    return timed(steps, begin), DECODE


def block_weights(kind, d, random):
    inner, heads, rank = 2 * d, 2 * d // 64, math.ceil(d / 16)
    if kind == "transformer":
        matrices = {name + "_proj.weight": (d, d) for name in "qkvo"}
        matrices.update({"gate_proj.weight": (2048, d), "up_proj.weight": (2048, d), "down_proj.weight": (d, 2048)})
        others = {"input_layernorm.weight": ((d,), 1.0), "post_attention_layernorm.weight": ((d,), 1.0)}
    elif kind == "mamba1":
        matrices = {"in_proj.weight": (2 * inner, d), "conv1d.weight": (inner, 1, 4),
                    "x_proj.weight": (rank + 32, inner), "dt_proj.weight": (inner, rank), "out_proj.weight": (d, inner)}
        others = {"norm.weight": ((d,), 1.0), "conv1d.bias": ((inner,), 0.1), "dt_proj.bias": ((inner,), -3.0),
                  "A_log": ((inner, 16), 0.5), "D": ((inner,), 1.0)}
    elif kind == "mamba2":
        matrices = {"in_proj.weight": (2 * inner + 256 + heads, d), "conv1d.weight": (inner + 256, 1, 4),
                    "out_proj.weight": (d, inner)}
        others = {"block_norm.weight": ((d,), 1.0), "conv1d.bias": ((inner + 256,), 0.1), "dt_bias": ((heads,), -3.0),
                  "A_log": ((heads,), 0.5), "D": ((heads,), 1.0), "norm.weight": ((inner,), 1.0)}
    else:
        matrices = {"in_proj.weight": (2 * inner + 256 + 3 * heads + 32, d), "out_proj.weight": (d, inner)}
        others = {"block_norm.weight": ((d,), 1.0), "dt_bias": ((heads,), -3.0), "B_norm.weight": ((128,), 1.0),
                  "C_norm.weight": ((128,), 1.0), "B_bias": ((heads, 128), 1.0), "C_bias": ((heads, 128), 1.0),
                  "D": ((heads,), 1.0)}
    import numpy
    weights = {name: random.standard_normal(size, dtype=numpy.float32) * numpy.float32(0.02)
               for name, size in matrices.items()}
    weights.update({name: numpy.full(size, value, dtype=numpy.float32) for name, (size, value) in others.items()})
    return weights


def mojolearn_work(row, shape, threads):
    import mojolearn
    import numpy

    random = numpy.random.default_rng(0)
    if row.startswith("training"):
        rows, length = shape["batch"]
        config = mojolearn.SambaConfig(vocab=shape["vocab"], d_model=shape["d_model"], layers=tuple(shape["layers"]),
                                       n_heads=shape["n_heads"], n_kv_heads=shape.get("n_kv_heads"),
                                       intermediate=shape["intermediate"])
        model = mojolearn.SambaStack(config, generator=mojolearn.training.Generator(1), lr=1e-3, max_norm=1.0)
        ids = random.integers(0, shape["vocab"], (rows, length + 1)).astype(numpy.int32)
        inputs, targets = numpy.ascontiguousarray(ids[:, :-1]), numpy.ascontiguousarray(ids[:, 1:])
        return timed(lambda: model.train_step(inputs, targets)), rows * length

    kind, step = shape["kind"], row.split("/")[2]
    weights = block_weights(kind, shape["d_model"], random)
    name = {"transformer": "TransformerBlock"}.get(kind, kind.capitalize() + "Block")
    block = getattr(mojolearn, name)(weights, **({"n_heads": 12} if kind == "transformer" else {}))
    x = random.standard_normal((1, PREFILL, shape["d_model"]), dtype=numpy.float32)
    if step == "prefill":
        return timed(lambda: block.forward(x)), 1
    if step == "backward":
        gradient = random.standard_normal(x.shape, dtype=numpy.float32)
        return timed(lambda: block.backward(x, gradient)), 1
    token = numpy.ascontiguousarray(x[:, :1])
    state = {}

    def begin():
        state["state"] = block.allocate_state(1, PREFILL + BLOCK_STEPS) if kind == "transformer" else block.allocate_state(1)
        block.forward(x, state["state"])

    def steps():
        for _ in range(BLOCK_STEPS):
            block.step(token, state["state"])
    return timed(steps, begin), BLOCK_STEPS


WORK = {"llama.cpp": llama_cpp_work, "torch": torch_work, "mojolearn": mojolearn_work}


def run_worker(peer, row, threads):
    """One JSON line a repetition: asked for by a line on stdin."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    work, units = WORK[peer](row, ROWS[row][0], threads)
    work()
    answers.write(json.dumps({"ready": True}) + "\n")
    for _ in sys.stdin:
        processor = time.process_time()
        seconds = work()
        answers.write(json.dumps({"seconds": seconds, "units": units, "cpu": time.process_time() - processor}) + "\n")


# ---- the comparison ----

class Worker:
    def __init__(self, peer, row, threads, environment):
        self.peer, self.samples = peer, []
        command = [sys.executable, os.path.abspath(__file__), "--worker", peer, row, "--threads", str(threads)]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env=environment)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(f"{self.peer}: " + (self.errors.read().strip().splitlines() or ["ended"])[-1])
        return json.loads(line)

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.answer()
        self.samples.append(answer["units"] / answer["seconds"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def environment_of(peer, threads, folder):
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    environment.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1",
                       TRANSFORMERS_VERBOSITY="error", TMPDIR=folder)
    if peer == "mojolearn":
        import sysconfig
        libraries = os.path.join(sysconfig.get_paths()["purelib"], "mojolearn", ".libs")
        environment.update(MOJOLEARN_NUMERIC_MODE="identical", MOJOLEARN_VENDOR="cpu",
                           MODULAR_MAX_NUM_THREADS=str(threads),
                           LD_LIBRARY_PATH=libraries + ":" + environment.get("LD_LIBRARY_PATH", ""))
    return environment


class Samba:
    """`samba bench` of one row, a repetition at a time."""

    def __init__(self, samba, row, threads, repeat):
        command = [samba, "bench", f"{row}/{threads}t", "--threads", str(threads), "--repeat", str(repeat), "--paced",
                   "--json", "--progress", "never"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise RuntimeError("samba bench ended early")

    def report(self):
        output, _ = self.process.communicate()
        report = json.loads(output)
        return report["rows"][0], report["machine"]


def compare(samba, row, peers, threads, repeat, folder):
    workers, missing = [], []
    for peer in peers:
        try:
            workers.append(Worker(peer, row, threads, environment_of(peer, threads, folder)))
        except RuntimeError as error:
            missing.append(str(error))
    ours = Samba(samba, row, threads, repeat)
    for _ in range(repeat):
        ours.run()
        for worker in workers:
            worker.run()
    result, machine = ours.report()
    for worker in workers:
        worker.close()
    median = result["achieved"] * result["seconds"]["wall_min"] / result["seconds"]["wall_median"]
    entry = {"name": result["name"], "threads": threads, "unit": result["unit"], "achieved": result["achieved"],
             "median": median, "limit": result["limit"], "ratio": result["ratio"], "peers": {}, "missing": missing}
    for worker in workers:
        entry["peers"][worker.peer] = {"achieved": max(worker.samples), "median": statistics.median(worker.samples),
                                       "ratio": result["achieved"] / max(worker.samples),
                                       "ratio_of_medians": median / statistics.median(worker.samples)}
    return entry, machine


def table_line(entry):
    line = f"{entry['name']:34} {entry['achieved']:10.4g} {entry['limit']:10.4g} {entry['ratio']:6.2f}  {entry['unit']:9}"
    for name, peer in entry["peers"].items():
        line += f"  {name} {peer['achieved']:.4g} ({peer['ratio']:.2f}x, medians {peer['ratio_of_medians']:.2f}x)"
    return line + "".join(f"  [{reason}]" for reason in entry["missing"])


def versions(peers):
    from importlib import metadata
    found = {}
    for package in sorted({package for peer in peers for package in PACKAGES[peer]}):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def installed(peer):
    import importlib.util
    return all(importlib.util.find_spec(module) for module in MODULES[peer])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samba", default="build/samba", help="the program")
    parser.add_argument("--out", default="build/bench", help="a folder for peers.json and peers.txt")
    parser.add_argument("--threads", default=f"1,{len(os.sched_getaffinity(0))}", help="numbers of threads")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="rows: names, or parts of names")
    parser.add_argument("--peers", default="llama.cpp,torch,mojolearn")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    counts = sorted({int(count) or len(os.sched_getaffinity(0)) for count in re.findall(r"\d+", arguments.threads)})
    if arguments.worker:
        return run_worker(*arguments.worker, counts[0])
    peers = [peer for peer in arguments.peers.split(",") if peer in WORK]
    for peer in [peer for peer in peers if not installed(peer)]:
        print(f"{peer} is not installed: left out", file=sys.stderr)
        peers.remove(peer)
    os.makedirs(arguments.out, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    rows, lines, machine = [], [], {}
    with tempfile.TemporaryDirectory(prefix="samba-bench-") as folder:
        for row, threads in [(row, threads) for row in ROWS for threads in counts]:
            chosen = [peer for peer in ROWS[row][1] if peer in peers]
            if not chosen or (arguments.only and not any(part in f"{row}/{threads}t" for part in arguments.only)):
                continue
            os.sched_setaffinity(0, cores[:threads])  # the children too
            entry, machine = compare(os.path.abspath(arguments.samba), row, chosen, threads, arguments.repeat, folder)
            rows.append(entry)
            lines.append(table_line(entry))
            print(lines[-1], flush=True)
    os.sched_setaffinity(0, cores)
    report = {"time_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S"),
              "machine": machine, "versions": versions(peers), "python": sys.version.split()[0], "rows": rows}
    with open(os.path.join(arguments.out, "peers.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(arguments.out, "peers.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
