"""`tenon bench`: offline with the demo model, serve against a scripted server, compare of files."""

import json
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

from support import BINARY, SMOLLM2, Server, script

STEP_MS = 10
OUTPUT_LEN = 12
OFFLINE_METRICS = [
    "prefill_tok_per_s",
    "decode_tok_per_s",
    "ttft_ms",
    "itl_ms_p50",
    "itl_ms_p99",
    "peak_rss_mb",
    "load_s",
]


def bench(*args):
    command = [str(BINARY), "bench", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tenon-bench-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def fails(self, says, *args):
        done = bench(*args)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(says, done.stderr)

    def test_offline(self):
        sizes = ["--prompt-len", 40, "--output-len", 6, "--batch", 3, "--runs", 2]
        done = bench("offline", "--model", SMOLLM2, *sizes, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        for name in OFFLINE_METRICS:
            self.assertGreater(result[name], 0, name)
        self.assertGreaterEqual(result["itl_ms_p99"], result["itl_ms_p50"])
        self.assertEqual(result["config"]["batch"], 3)
        self.assertTrue(result["machine"]["cpu"])
        # A sequence's tokens come once per step: the aggregate follows from the gap.
        self.assertLess(result["decode_tok_per_s"], 3 * 1000 / result["itl_ms_p50"] * 2)
        table = bench("offline", "--model", SMOLLM2, *sizes)
        self.assertEqual(table.returncode, 0, table.stderr)
        for name in OFFLINE_METRICS:
            self.assertIn(name, table.stdout)

    def test_offline_says_what_cannot_be(self):
        self.fails("cannot load", "offline", "--model", "/nonexistent.gguf")
        long = ["--prompt-len", 9000, "--output-len", 2]
        self.fails("--prompt-len 9000", "offline", "--model", SMOLLM2, *long)
        self.fails("--batch", "offline", "--model", SMOLLM2, "--batch", 0)
        self.fails("--max-num-batched-tokens", "offline", "--model", SMOLLM2, "--batch", 600)

    def test_serve_and_compare(self):
        header = {"step_ms": STEP_MS}
        with script(header, {"text": "abcdefgh" * 8}) as path:
            server = Server("--scripted", path)
            self.addCleanup(server.stop)
            saved, page = self.folder / "a.json", self.folder / "a.html"
            target = ["--url", server.url, "--model", "scripted", "--vocab-size", 256]
            load = ["--num-prompts", 6, "--concurrency", 2]
            load += ["--input-len", 48, "--output-len", OUTPUT_LEN, "--shared-prefix-len", 32]
            done = bench("serve", *target, *load, "--json", saved, "--html", page,
                         "--goodput", "ttft:100000", f"tpot:{STEP_MS // 10}")  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Output token throughput (tok/s)", done.stdout)
            self.check_result(json.loads(saved.read_text()))
            self.check_page(page.read_text())
            good = self.folder / "good.json"
            bench("serve", *target, *load, "--json", good, "--goodput", "e2el:100000")
            result = json.loads(good.read_text())
            self.assertEqual(result["request_goodput"], result["request_throughput"])
            self.fails("--goodput", "serve", *target, *load, "--goodput", "itl:3")
            open_loop = bench("serve", *target, *load, "--request-rate", 50)
            self.assertEqual(open_loop.returncode, 0, open_loop.stderr)
            objectives = ["ttft:100000", f"tpot:{STEP_MS // 10}"]
            self.assertEqual(json.loads(saved.read_text())["config"]["goodput"], objectives)
            before = saved.read_bytes(), page.read_bytes()
            self.fails("server answered 404", "serve", *target[:2], "--model", "other", *load,
                       "--json", saved, "--html", page)  # fmt: skip
            self.assertEqual((saved.read_bytes(), page.read_bytes()), before)
            self.assertEqual(len(list(self.folder.iterdir())), 3, "a temporary file stays")
            self.fails("cannot write --json", "serve", *target, *load, "--json", "/nope/x")
            self.fails("--shared-prefix-len", "serve", *target, *load[:4], "--input-len", 8,
                       "--shared-prefix-len", 9)  # fmt: skip
        self.check_compare(saved)

    def check_result(self, result):
        self.assertEqual((result["completed"], result["failed"]), (6, 0))
        self.assertEqual(result["total_input_tokens"], 6 * 48)
        self.assertEqual(result["total_output_tokens"], 6 * OUTPUT_LEN)
        self.assertEqual(result["max_concurrent_requests"], 2)
        for name in ["ttft", "tpot", "itl", "e2el"]:
            for part in ["mean", "median", "p99"]:
                self.assertGreater(result[f"{part}_{name}_ms"], 0, f"{part} {name}")
        # Chunks arrive as they are made, not at the end.
        self.assertGreater(result["median_itl_ms"], STEP_MS / 2)
        least = STEP_MS * OUTPUT_LEN / 1000 * 3
        self.assertGreater(result["duration"], least)
        self.assertAlmostEqual(result["request_throughput"], 6 / result["duration"])
        # Nobody's tokens come faster than the steps.
        self.assertEqual(result["request_goodput"], 0)

    def check_page(self, page):
        drawings = re.findall(r"<svg.*?</svg>", page, re.S)
        self.assertEqual(len(drawings), 3)
        for drawing in drawings:
            xml.etree.ElementTree.fromstring(drawing)
        self.assertNotIn("<script", page)

    def check_compare(self, saved):
        same = bench("compare", saved, saved)
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertIn("p99_ttft_ms", same.stdout)
        result = json.loads(saved.read_text())
        other = self.folder / "other.json"
        for flag, value, warns in [("url", "http://127.0.0.1:1", False), ("seed", 7, True)]:
            config = {**result["config"], flag: value}
            other.write_text(json.dumps({**result, "config": config}))
            done = bench("compare", saved, other)
            self.assertEqual("warning" in done.stderr, warns, done.stderr)
        worse = self.folder / "b.json"
        for name, factor in [("output_throughput", 0.9), ("p99_ttft_ms", 1.1)]:
            worse.write_text(json.dumps({**result, name: result[name] * factor}))
            done = bench("compare", saved, worse)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("1 metrics are worse", done.stderr)
            self.assertEqual(bench("compare", worse, saved).returncode, 0)
            self.assertEqual(bench("compare", saved, worse, "--tolerance", 0.2).returncode, 0)
        worse.write_text("[]")
        self.fails("no `kind`", "compare", saved, worse)


if __name__ == "__main__":
    unittest.main()
