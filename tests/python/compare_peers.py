"""This engine and its peers on the same files, in one run: medians of alternating measurements.

    python3 tests/python/compare_peers.py --models DIR [--only TEXT] [--runs 3] [--out FILE]

DIR holds `NAME.gguf` for the names in MODELS; what is missing there is skipped with a line. The
programs come from variables or PATH: TENON_BINARY (`tenon`), TENON_LLAMA_BENCH (`llama-bench`),
TENON_LLAMA_BATCHED_BENCH (`llama-batched-bench`), TENON_LLAMA_SERVER (`llama-server`), TENON_VLLM
(`vllm`, its CPU build, which serves the directory `smollm2-bf16` in DIR as transformers saves it),
and TENON_PEAKS, the example `peaks` of the CPU backend, for the DRAM bandwidth of the same minutes.
TENON_PREFIX is put before each of them, such as `nice -n -19` on a machine with other work.
"""

import argparse
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

THREADS = "2"
# Each thread on a CPU of its own, as ours are: on a busy machine both may end up on one.
PINNED = ["--cpu-mask", "0x3", "--cpu-strict", "1"]
BATCHED = ["-t", THREADS, "-tb", THREADS, "-b", "2048", "-ub", "512", "--output-format", "jsonl"]

# Megabytes that one decode step of one sequence reads: all weights but an untied embedding.
MODELS = {
    "smollm2-q4_1": 96.6,
    "smollm2-q4_0": 89.9,
    "smollm2-q8_0": 143.0,
    "smollm2-bf16": 269.1,
    "smollm2-f16": 269.1,
    "smollm2-q5_0": 103.0,
    "qwen2.5-coder-0.5b-q4_k_m": 391.9,
    "qwen2.5-coder-1.5b-q4_k_m": 980.0,
}

# Kind, model, batch, tokens before, ratio asked for.
WORKLOADS = [
    ("decode", "smollm2-q4_1", 1, 16, 2.2),
    ("decode", "smollm2-q4_0", 1, 16, 1.4),
    ("decode", "smollm2-q8_0", 1, 16, 1.4),
    ("decode", "smollm2-bf16", 1, 16, 1.2),
    ("decode", "qwen2.5-coder-0.5b-q4_k_m", 1, 16, 1.4),
    ("decode", "qwen2.5-coder-1.5b-q4_k_m", 1, 16, 1.0),
    ("prefill", "smollm2-q4_1", 1, 512, 5.0),
    ("prefill", "smollm2-q4_0", 1, 512, 2.3),
    ("prefill", "smollm2-q8_0", 1, 512, 2.5),
    ("prefill", "smollm2-bf16", 1, 512, None),
    ("prefill", "smollm2-f16", 1, 512, None),
    ("prefill", "smollm2-q5_0", 1, 512, None),
    ("prefill", "qwen2.5-coder-0.5b-q4_k_m", 1, 512, 2.3),
    ("prefill", "qwen2.5-coder-1.5b-q4_k_m", 1, 512, 1.8),
    ("decode", "smollm2-q4_0", 8, 128, 3.0),
    ("decode", "smollm2-q4_0", 16, 128, 3.3),
    ("decode", "smollm2-q4_0", 32, 128, 4.0),
    ("decode", "smollm2-q4_0", 1, 4096, 1.5),
    ("decode", "smollm2-q4_0", 1, 8000, 1.5),
    ("decode", "smollm2-q4_0", 8, 4096, 1.5),
    ("decode", "smollm2-q4_0", 8, 8000, 1.5),
    ("serve", "smollm2-q8_0", 8, 128, 2.3),
    ("serve", "smollm2-q8_0", 16, 128, 2.0),
    ("serve, vLLM", "smollm2-q8_0", 8, 128, 2.3),
    ("serve, vLLM", "smollm2-q8_0", 16, 128, 2.0),
    ("serve, vLLM", "smollm2-bf16", 8, 128, None),
    ("serve, vLLM", "smollm2-bf16", 16, 128, None),
    ("prefill, vLLM", "smollm2-bf16", 1, 512, 1.1),
]
VLLM_MODEL = "smollm2-bf16"
VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OUTPUT_TOKENS = 128
LONG_OUTPUT_TOKENS = 32


class Missing(Exception):
    """A program, a model or a result that is not there."""


def program(variable, name):
    path = os.environ.get(variable) or shutil.which(name)
    if not path:
        raise Missing(f"`{name}` is neither in PATH nor in {variable}")
    return shlex.split(os.environ.get("TENON_PREFIX", "")) + [path]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"`{shlex.join(command)}` failed:\n{done.stderr[-2000:]}")
    return done.stdout


def dram_gb_per_s():
    try:
        found = json.loads(run(program("TENON_PEAKS", "peaks") + [THREADS, "0.3"]))
    except Missing:
        return None
    return found["dram_read_gb_per_s"]


def output_tokens(before):
    return LONG_OUTPUT_TOKENS if before > 1024 else OUTPUT_TOKENS


def peer_offline(kind, model, batch, before):
    if kind == "prefill" or batch == 1 and before < 1024:
        shape = ["-p", str(before), "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", "128"]
        bench = program("TENON_LLAMA_BENCH", "llama-bench")
        out = run(bench + ["-m", model, "-t", THREADS, "-r", "1", "-o", "json"] + PINNED + shape)
        return json.loads(out)[0]["avg_ts"]
    after = output_tokens(before)
    shape = ["-npp", str(before), "-ntg", str(after), "-npl", str(batch)]
    context = ["-c", str(batch * (before + after) + 64)]
    bench = program("TENON_LLAMA_BATCHED_BENCH", "llama-batched-bench")
    out = run(bench + ["-m", model] + BATCHED + PINNED + context + shape)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        # It passes over shapes that do not fit its context, and still ends well.
        raise Missing(f"`llama-batched-bench` measured nothing with {shlex.join(context + shape)}")
    return json.loads(lines[-1])["speed_tg"]


def own_offline(kind, model, batch, before):
    after = 2 if kind == "prefill" else output_tokens(before)
    shape = ["--prompt-len", str(before), "--output-len", str(after), "--batch", str(batch)]
    # With one run the warm-up is the measurement of a fresh process, as the peer's.
    bench = program("TENON_BINARY", "tenon") + ["bench", "offline", "--model", model, "--runs", "1"]
    found = json.loads(run(bench + shape + ["--threads", THREADS, "--json"]))
    return found["prefill_tok_per_s" if kind == "prefill" else "decode_tok_per_s"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def under_load(command, port, clients, prompt_len, after=OUTPUT_TOKENS):
    """What the load generator says of a server."""
    url = f"http://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env={**os.environ, **VLLM_VARIABLES}, **quiet)
    try:
        # vLLM takes minutes.
        for _ in range(3000):
            try:
                urllib.request.urlopen(url + "/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        result = f"/tmp/compare_peers.{os.getpid()}.json"
        load = [program("TENON_BINARY", "tenon")[-1], "bench", "serve", "--url", url]
        num_prompts = max(clients * 3, 7)
        load += ["--model", "model", "--num-prompts", str(num_prompts), "--json", result]
        load += ["--concurrency", str(clients), "--input-len", str(prompt_len)]
        run(load + ["--output-len", str(after)])
        with open(result) as file:
            return json.load(file)
    finally:
        server.terminate()
        server.wait()


def peer_serve(model, clients, before):
    port = free_port()
    command = program("TENON_LLAMA_SERVER", "llama-server") + ["-m", model, "-t", THREADS]
    command += ["-tb", THREADS, "-np", str(clients), "-c", str(clients * 512), "-b", "2048"]
    command += ["-ub", "512", "--no-cache-prompt", "--cache-ram", "0", "--alias", "model"]
    command += PINNED
    return under_load(command + ["--port", str(port)], port, clients, before)


def vllm_serve(model, clients, before, after):
    port = free_port()
    directory = os.path.join(os.path.dirname(model), VLLM_MODEL)
    command = program("TENON_VLLM", "vllm") + ["serve", directory, "--dtype", "bfloat16"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "32", "--no-enable-prefix-caching"]
    command += ["--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port)]
    return under_load(command, port, clients, before, after)


def own_serve(model, clients, before, after=OUTPUT_TOKENS):
    port = free_port()
    command = program("TENON_BINARY", "tenon") + ["serve", model]
    command += ["--served-model-name", "model", "--threads", THREADS, "--port", str(port)]
    return under_load(command, port, clients, before, after)


def measure(workload, path, runs):
    kind, _, batch, before, _ = workload
    peers, own, tails, bandwidth = [], [], [], [dram_gb_per_s()]
    for _ in range(runs):
        if kind == "prefill, vLLM":
            for side, serve in ((peers, vllm_serve), (own, own_serve)):
                side.append(1000 * before / serve(path, batch, before, 1)["median_ttft_ms"])
        elif kind.startswith("serve"):
            ours = own_serve(path, batch, before)
            if kind == "serve":
                theirs = peer_serve(path, batch, before)
            else:
                theirs = vllm_serve(path, batch, before, OUTPUT_TOKENS)
            peers.append(theirs["output_throughput"])
            own.append(ours["output_throughput"])
            tails.append((theirs["p99_itl_ms"], ours["p99_itl_ms"]))
        else:
            peers.append(peer_offline(kind, path, batch, before))
            own.append(own_offline(kind, path, batch, before))
        bandwidth.append(dram_gb_per_s())
    known = [b for b in bandwidth if b]
    return {
        "peer": statistics.median(peers),
        "own": statistics.median(own),
        "ratio": statistics.median(own) / statistics.median(peers),
        "peer_runs": peers,
        "own_runs": own,
        "itl_p99_ms": [statistics.median(side) for side in zip(*tails)],
        "dram_read_gb_per_s": statistics.median(known) if known else None,
    }


def row(workload, found):
    kind, model, batch, before, asked = workload
    count = "" if kind.startswith("prefill") else f"batch {batch}, "
    what = f"{kind}, {model}, {count}{before}"
    target = f"{asked:.1f}x" if asked else ""
    cells = [what, f"{found['peer']:.0f}", f"{found['own']:.0f}", f"{found['ratio']:.2f}x", target]
    dram = found["dram_read_gb_per_s"]
    share = ""
    if dram and kind == "decode" and batch == 1 and before < 1024:
        share = f", {found['own'] * MODELS[model] / 1000 / dram:.0%} used"
    cells.append(f"{dram:.1f} GB/s{share}" if dram else "")
    if found["itl_p99_ms"]:
        theirs, ours = found["itl_p99_ms"]
        cells[-1] += f"; p99 between tokens {theirs:.0f} and {ours:.0f} ms"
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    print("| workload | peer tok/s | own tok/s | ratio | asked | DRAM read |")
    print("|---|---|---|---|---|---|", flush=True)
    results = []
    for workload in WORKLOADS:
        name = " ".join(str(part) for part in workload[:4])
        path = os.path.join(args.models, workload[1] + ".gguf")
        if args.only not in name:
            continue
        try:
            if not os.path.exists(path):
                raise Missing(f"`{path}` is missing")
            found = measure(workload, path, args.runs)
        except Missing as missing:
            print(f"skipped: {name}: {missing}", flush=True)
            continue
        print(row(workload, found), flush=True)
        results.append({"workload": name, **found})
        if args.out:
            with open(args.out, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
