"""Bugs that users of other servers reported, at the engine and around it:
`tests/cases/served_reports.jsonl`. Each test names its case.
"""

import json
import random
import re
import subprocess
import tempfile
import threading
import time
import unittest
from collections import Counter
from pathlib import Path

from reports import CANARY, CASES, NOT_YET, ReportCase, case
from support import BINARY, ROOT, SMOLLM2, Server, script, tool
from test_operation import ask, open_stream, until
from test_safetensors import write_checkpoint

class Traceable(unittest.TestCase):
    def test_every_case_has_a_test(self):
        """By its id, which a test or its comment holds."""
        files = [*ROOT.glob("tests/python/test_*.py"), *ROOT.glob("host/**/tests/**/*.rs")]
        text = "\n".join(path.read_text() for path in files)
        missing = {name for name in CASES if not re.search(rf"\b{name}\b", text)}
        self.assertEqual(missing, set(NOT_YET))


class Blocks(ReportCase):
    """No model: the blocks of the KV cache and who gets a step's tokens."""

    @classmethod
    def start(cls, stack):
        header = {"max_model_len": 4096, "step_ms": 5}
        path = stack.enter_context(script(header, {"text": "x" * 400}))
        return ["--scripted", path, "--max-num-batched-tokens", 2048, *cls.flags()]

    @classmethod
    def flags(cls):
        return []

    def test_en_003_blocks_come_back(self):
        """en-003; the audit of the pool is `blocks_come_back_for_every_length`."""
        asked, expected = case("en-003")
        for num_prompt in asked["prompt_tokens"]:
            for max_tokens in asked["max_tokens"]:
                prompts = [[97] * num_prompt] * asked["repeat"]
                answer = self.ok("completions", {"prompt": prompts, "max_tokens": max_tokens})
                self.assertEqual(len(answer["choices"]), asked["repeat"])
        until(lambda: self.server.metric("vllm:num_requests_running") == 0)
        used = self.server.metric("vllm:kv_cache_usage_perc")
        self.assertEqual(used, expected["blocks_with_refcount_gt_0_after_drain"])

    def test_en_011_a_long_prompt_beside_a_stream(self):
        """en-011; with a model: `Tiny.test_en_011_says_the_same_beside_a_long_prompt`."""
        asked, expected = case("en-011")
        victim, attacker = asked["victim"], asked["attacker"]
        count = "vllm:iteration_tokens_total_count"
        before = self.server.metric(count), self.large_steps()
        request = {"prompt": [97] * victim["prompt_tokens"], "max_tokens": victim["max_tokens"]}
        with self.beside("completions", request) as beside:
            until(lambda: self.server.metric(count) > before[0] + 5)
            prompt = [98] * attacker["prompt_tokens"]
            self.ok("completions", {"prompt": prompt, "max_tokens": attacker["max_tokens"]})
        usage = beside["answer"][2]["usage"]
        self.assertEqual(usage["completion_tokens"], victim["max_tokens"])
        # A token in each step but for these, wherever they were.
        num_steps = self.server.metric(count) - before[0]
        longest_gap = 1 + num_steps - victim["max_tokens"]
        self.assertLessEqual(longest_gap, expected["victim_gap_steps_max"])
        self.assertEqual(self.large_steps(), before[1])

    def large_steps(self):
        """Steps with twice the chunk's tokens and more."""
        _, _, text = self.server.http("GET", "/metrics")
        bucket = r'vllm:iteration_tokens_total_bucket{[^}]*le="%s"} (\d+)'
        total, small = (int(re.search(bucket % le, text)[1]) for le in (r"\+Inf", "512"))
        return total - small


class BlocksWithoutCache(Blocks):
    @classmethod
    def flags(cls):
        return ["--no-enable-prefix-caching"]


class Tiny(ReportCase):
    """A model of random weights."""

    PROMPT = random.Random(5).choices(range(250), k=4000)

    @classmethod
    def start(cls, stack):
        cls.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_checkpoint(cls.folder, max_len=4096)
        cls.no_cache = cls.serve(stack, "--no-enable-prefix-caching")
        # 25 blocks of 16 tokens of 256 bytes.
        pool = ["--kv-cache-memory-bytes", 25 * 16 * 256]
        cls.small = cls.serve(stack, "--max-model-len", 200, *pool)
        return [cls.folder, *cls.flags()]

    @staticmethod
    def flags():
        return ["--served-model-name", "scripted", "--dtype", "float32"]

    @classmethod
    def serve(cls, stack, *more):
        server = Server(cls.folder, *cls.flags(), *more)
        stack.callback(server.stop)
        return server

    def say(self, prompt, max_tokens=16, server=None, **more):
        """(ids and log-probabilities, cached tokens)"""
        request = {"model": "scripted", "prompt": prompt, "max_tokens": max_tokens,
                   "temperature": 0, "logprobs": 1, "return_token_ids": True, "ignore_eos": True}
        url = "/v1/completions"
        status, _, answer = (server or self.server).http("POST", url, {**request, **more})
        self.assertEqual(status, 200, answer)
        [choice] = answer["choices"]
        self.assertEqual(len(choice["token_ids"]), max_tokens)
        said = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        return said, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_en_005_every_state_of_the_cache(self):
        """en-005"""
        asked, _ = case("en-005")
        for run in range(asked["runs"]):
            for length in asked["prompts_len"]:
                # Another prompt each time, so that it is cold.
                start = 400 * run + 5 * length
                prompt = self.PROMPT[start : start + length]
                wanted, _ = self.say(prompt, server=self.no_cache)
                modes = [self.say(prompt, server=self.small) for _ in range(2)]
                self.assertEqual([cached > 0 for _, cached in modes], [False, True])
                for other in range(4):
                    self.say([other, *self.PROMPT[3000:3150]], 1, server=self.small)
                evicted = self.say(prompt, server=self.small)
                self.assertEqual(evicted[1], 0)
                self.say([*prompt[:-5], 1, 2, 3], server=self.server)
                shared = self.say(prompt, server=self.server)
                for said, _ in [*modes, evicted, shared]:
                    self.assertEqual(said, wanted, (run, length))

    def test_en_008_the_last_token_is_computed(self):
        """en-008"""
        asked, _ = case("en-008")
        for length in asked["prompt_tokens"]:
            prompt = self.PROMPT[700 : 700 + length]
            runs = [self.say(prompt, 8) for _ in range(asked["same_prompt"])]
            for said, cached in runs:
                self.assertEqual(said, runs[0][0])
                self.assertLess(cached, length)

    def test_en_011_says_the_same_beside_a_long_prompt(self):
        """en-011"""
        asked, _ = case("en-011")
        victim, attacker = asked["victim"], asked["attacker"]
        short = self.PROMPT[900 : 900 + victim["prompt_tokens"]]
        long = self.PROMPT[:attacker["prompt_tokens"]]
        alone = self.say(short, victim["max_tokens"], server=self.no_cache)[0]
        one_shot = self.say(long, attacker["max_tokens"], server=self.no_cache)[0]
        said = {}

        def stay():
            said["short"] = self.say(short, victim["max_tokens"], server=self.no_cache)[0]

        thread = threading.Thread(target=stay)
        thread.start()
        said["long"] = self.say(long, attacker["max_tokens"], server=self.no_cache)[0]
        thread.join(60)
        self.assertEqual(said, {"short": alone, "long": one_shot})


class Memory(unittest.TestCase):
    def test_us_002_too_little_memory(self):
        """us-002: before anything is loaded, with a length that fits."""
        _, expected = case("us-002")
        flags = [str(SMOLLM2), "--kv-cache-memory-bytes", str(14 << 20)]
        begin = time.monotonic()
        done = subprocess.run(
            [BINARY, "serve", *flags, "--port", "0", "--max-model-len", "8192"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        self.assertLess(time.monotonic() - begin, 5 * expected["max_s"])
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"needs \d+\.\d MB .* room for \d+\.\d MB")
        self.assertIn("--kv-cache-memory-bytes", done.stderr)
        fits = re.search(r"--max-model-len (\d+)", done.stderr)[1]
        Server(*flags, "--max-model-len", fits).stop()


class Counts(ReportCase):
    @classmethod
    def start(cls, stack):
        header = {"step_ms": 10, "special_tokens": ["<|im_start|>", "<|im_end|>"]}
        call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        path = stack.enter_context(script(
            header, {"text": "hello"}, {"when": "call", "text": call},
            {"when": "go", "text": "word " * 300},
        ))  # fmt: skip
        return ["--scripted", path, "--tool-call-parser", "hermes", "--max-num-seqs", "2",
                "--max-queued-requests", "0"]  # fmt: skip

    def counts(self):
        _, _, text = self.server.http("GET", "/metrics")
        self.lint(text)
        ended = re.findall(r'request_success_total{[^}]*finished_reason="(\w+)"} (\d+)', text)
        counts = Counter({name: int(value) for name, value in ended})
        for code, value in re.findall(r'http_responses_total{[^}]*code="(\d+)"} (\d+)', text):
            counts["http_4xx"] += int(value) if code.startswith("4") else 0
            counts["http_429"] += int(value) if code == "429" else 0
        counts["ttft"] = int(self.server.metric("vllm:time_to_first_token_seconds_count"))
        return counts

    def lint(self, text):
        """HELP and TYPE once per family, no series twice."""
        lines = text.splitlines()
        heads = [tuple(line.split()[:3]) for line in lines if line.startswith("#")]
        series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
        for names in (heads, series):
            self.assertEqual([name for name, num in Counter(names).items() if num > 1], [])

    def test_us_003_everything_is_counted_once(self):
        """us-003"""
        _, expected = case("us-003")
        before = self.counts()
        for _ in range(3):
            self.ok("chat/completions", {**CANARY, "max_tokens": 20})
        for _ in range(2):
            self.ok("chat/completions", {**CANARY, "max_tokens": 2})
        message = {"role": "user", "content": "call"}
        answer = self.ok("chat/completions", {"messages": [message], "tools": [tool("f")]})
        self.assertEqual(answer["choices"][0]["finish_reason"], "tool_calls")
        streams = [open_stream(self.server) for _ in range(2)]
        status, _, _ = self.post("chat/completions", CANARY)
        self.assertEqual(status, 429)
        for stream in streams:
            stream.close()
        until(lambda: self.server.metric("vllm:num_requests_running") == 0)
        self.refused("chat/completions", {**CANARY, "temperature": -1}, "temperature")
        until(lambda: self.counts()["abort"] - before["abort"] == 2)
        after = self.counts()
        delta = {name: after[name] - before[name] for name in expected["delta"]}
        self.assertEqual(delta, expected["delta"])
        self.assertEqual(after["ttft"] - before["ttft"], expected["ttft_count"])
        for name, wanted in expected["gauges_after"].items():
            self.assertEqual(self.server.metric(f"vllm:num_requests_{name}"), wanted)


class NoModels(unittest.TestCase):
    """One line that names the path, what is wrong and what to do; no trace, no model loaded."""

    def test_us_005_each_says_what_it_lacks(self):
        """us-005"""
        asked, expected = case("us-005")
        with tempfile.TemporaryDirectory() as folder:
            models = dict(self.models(Path(folder)))
            self.assertEqual(list(models), asked["model_args"])
            for name, (model, *words) in models.items():
                begin = time.monotonic()
                done = subprocess.run(
                    [BINARY, "serve", model, "--port", "0"],
                    capture_output=True, text=True, timeout=30, check=False,
                )  # fmt: skip
                self.assertLess(time.monotonic() - begin, 5 * expected["max_ms"] / 1000)
                self.assertNotEqual(done.returncode, 0, name)
                [line] = done.stderr.strip().splitlines()
                for word in [str(model), *words]:
                    self.assertIn(word, line, name)
                for never in expected["never"]:
                    self.assertNotIn(never, line)

    @staticmethod
    def models(folder):
        """What the case calls them: what to serve, and words of the answer."""
        yield "/no/such/dir", ("/no/such/dir", "no such file or directory", "GGUF")
        (folder / "empty").mkdir()
        yield "./empty_dir", (folder / "empty", "config.json")
        (folder / "file.txt").write_text("hello")
        yield "file.txt", (folder / "file.txt", "GGUF", "not a directory")

        def checkpoint(name):
            (folder / name).mkdir()
            write_checkpoint(folder / name)
            return folder / name

        mute = checkpoint("mute")
        (mute / "tokenizer.json").unlink()
        yield "dir_without_tokenizer", (mute, "tokenizer")
        cut = checkpoint("cut")
        weights = cut / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        yield "dir_with_truncated_shard", (cut, "model.safetensors")
        lacking = checkpoint("lacking")
        (lacking / "model.safetensors").rename(lacking / "model-00001-of-00002.safetensors")
        shards = {"model.norm.weight": "model-00001-of-00002.safetensors",
                  "lm_head.weight": "model-00002-of-00002.safetensors"}  # fmt: skip
        index = {"metadata": {}, "weight_map": shards}
        (lacking / "model.safetensors.index.json").write_text(json.dumps(index))
        yield "dir_with_index_missing_shard", (lacking, "model-00002-of-00002.safetensors")
        untold = folder / "untold"
        untold.mkdir()
        config = {"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}
        (untold / "config.json").write_text(json.dumps(config))
        yield "unknown_architecture", (untold, "NobodyForCausalLM")
        yield "org/name (offline)", ("org/name", "offline", "no such file")


if __name__ == "__main__":
    unittest.main()
