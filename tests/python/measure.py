"""Prefill and decode speed of a model through the HTTP API, medians of five runs.

    PYTHONPATH=target/python TENON_BINARY=target/release/tenon python3 tests/python/measure.py MODEL
"""

import statistics
import sys
import time

from support import Server

NUM_RUNS = 5
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128


def stream(client, prompt, num_tokens):
    """Seconds to the first token and between the first and the last one."""
    start = time.monotonic()
    first = last = None
    request = {"model": "model", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    extra = {"ignore_eos": True}
    for chunk in client.completions.create(**request, stream=True, extra_body=extra):
        if chunk.choices and chunk.choices[0].text:
            last = time.monotonic()
            first = first or last
    return first - start, last - first


def main():
    begin = time.monotonic()
    server = Server(*sys.argv[1:], "--served-model-name", "model")
    started = time.monotonic() - begin
    try:
        client = server.client()
        stream(client, [10, 11, 12], 8)
        prefill, decode = [], []
        for run in range(NUM_RUNS):
            # A prompt of its own for each run: nothing comes from the prefix cache.
            prompt = [100 + (run * 7919 + i * 31) % 5000 for i in range(PROMPT_TOKENS)]
            first, _ = stream(client, prompt, 1)
            prefill.append(PROMPT_TOKENS / first)
            _, rest = stream(client, [100 + run, 12, 13, 14], OUTPUT_TOKENS)
            decode.append((OUTPUT_TOKENS - 1) / rest)
        peak_kib = next(
            int(line.split()[1])
            for line in open(f"/proc/{server.process.pid}/status")
            if line.startswith("VmHWM")
        )
    finally:
        server.stop()
    print(f"start to healthy      {started:8.2f} s")
    print(f"prefill {PROMPT_TOKENS}           {statistics.median(prefill):8.0f} tok/s")
    print(f"decode, batch 1       {statistics.median(decode):8.0f} tok/s")
    print(f"peak resident memory  {peak_kib / 1024:8.0f} MB")


if __name__ == "__main__":
    main()
