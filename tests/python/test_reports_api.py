"""Bugs that users of other servers reported, at the API: `tests/cases/served_reports.jsonl`.

Each test names its case; what is asked and expected comes from there where it can be sent as it is.
"""

import json

from reports import CANARY, ReportCase, case
from support import SMOLLM2, script

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NULL_KEYS = {"content", "finish_reason", "logprobs", "refusal", "system_fingerprint",
             "service_tier", "param", "code"}  # fmt: skip


class Scripted(ReportCase):
    """One token a byte, no beginning of sequence."""

    @classmethod
    def start(cls, stack):
        replies = [{"text": "hello"}, {"when": "The tide", "text": "came"}]
        path = stack.enter_context(script({"chat_template": TEMPLATE}, *replies))
        return ["--scripted", path, "--tool-call-parser", "hermes"]

    def test_ap_002_lists_of_log_probabilities(self):
        """ap-002"""
        asked, expected = case("ap-002")
        request = {**asked["request"], "temperature": 0}
        del request["modes"]
        [choice] = self.ok("completions", request)["choices"]
        lists = choice["logprobs"]
        for name, wanted in expected["logprobs"].items():
            if name.endswith("_len"):
                self.assertEqual(len(lists[name.removesuffix("_len")]), wanted, name)
        for top in lists["top_logprobs"]:
            self.assertIn(len(top), expected["logprobs"]["top_logprobs_entry_size"])
        self.assertEqual(lists["text_offset"][0], 0)
        sizes = [b - a for a, b in zip(lists["text_offset"], lists["text_offset"][1:])]
        self.assertEqual(sizes, [len(token) for token in lists["tokens"]][:-1])
        streamed = {name: [] for name in lists}
        for chunk in self.stream("completions", request):
            for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
                streamed[name] += values
        self.assertEqual(streamed, lists)

    def test_ap_005_nothing_to_generate(self):
        """ap-005"""
        asked, expected = case("ap-005")
        for number, request in enumerate(asked["request_variants"], 1):
            wanted = expected[str(number)]
            answer = self.ok("completions", request)
            [choice] = answer["choices"]
            self.assertEqual(choice["text"], wanted["text"])
            self.assertEqual(choice["finish_reason"], wanted["finish_reason"])
            self.assertEqual(answer["usage"]["completion_tokens"], 0)
            if "tokens_len" in wanted:
                num_tokens = len(choice["logprobs"]["tokens"])
                self.assertEqual(num_tokens, answer["usage"]["prompt_tokens"])
                self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
            chunks = self.stream("completions", request)
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            self.assertEqual(text, wanted["text"])
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        self.assert_canary()

    def test_ap_006_usage_of_streams(self):
        """ap-006; variant 3, an extension of vLLM, is refused by its name."""
        asked, _ = case("ap-006")
        plain, with_usage, continuous, unary = asked["request_variants"]
        for chunk in self.stream("chat/completions", {**CANARY, **plain}):
            self.assertNotIn("usage", chunk)
        *chunks, last = self.stream("chat/completions", {**CANARY, **with_usage})
        for chunk in chunks:
            self.assertTrue(chunk["choices"])
            self.assertIsNone(chunk["usage"])
        self.assertEqual(last["choices"], [])
        self.assertGreater(last["usage"]["completion_tokens"], 0)
        self.refused("chat/completions", {**CANARY, **unary}, "stream_options")
        param = "stream_options.continuous_usage_stats"
        self.refused("chat/completions", {**CANARY, **continuous}, param)

    def test_ap_007_response_formats_that_are_none(self):
        """ap-007"""
        asked, expected = case("ap-007")
        for number, fields in enumerate(asked["request_variants"], 1):
            wanted = expected[str(number)]
            param = wanted["error"]["param"]
            for stream in [False, True]:
                error = self.refused("chat/completions", {**CANARY, **fields, "stream": stream})
                self.assertTrue(f"{error['param']}.".startswith(f"{param}."), error)
                self.assertTrue(error["message"])
                self.assertIn(wanted.get("message_contains", ""), error["message"])

    def test_ap_008_empty_requests(self):
        """ap-008; there is neither /tokenize nor /detokenize."""
        asked, expected = case("ap-008")
        for number, (line, body) in enumerate(asked["requests"], 1):
            method, path = line.split()
            if path.endswith("tokenize"):
                self.assert_error(self.server.http(method, path, body), 404)
                continue
            wanted = expected[str(number)]
            # No beginning of sequence: nothing is in the prompt.
            wanted = wanted.get("without_bos", wanted)
            body = body.encode() if isinstance(body, str) else {"model": "scripted", **body}
            response = self.server.http(method, path, body)
            self.assert_error(response, wanted["status"])
            error = response[2]["error"]
            self.assertEqual(error["type"], wanted["error"]["type"])
            param = wanted["error"]["param"]
            self.assertTrue(error["param"] == param or error["param"].startswith(f"{param}["))
            self.assert_canary()

    def prompt(self, messages, **fields):
        """What the template made of the messages."""
        answer = self.ok("chat/completions", {
            "messages": messages, "max_tokens": 3, "return_token_ids": True, **fields,
        })  # fmt: skip
        return bytes(i for i in answer["prompt_token_ids"] if i < 256).decode()

    def test_ap_011_histories_of_the_assistant(self):
        """ap-011"""
        asked, _ = case("ap-011")
        function = {"name": "ping_relay", "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function}]
        prompts = []
        for message in asked["assistant_variants"]:
            history = [{"role": "user", "content": "a"}, message]
            if "tool_calls" in message:
                history.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
            history.append({"role": "user", "content": "c"})
            prompts.append(self.prompt(history, tools=tools))
        self.assertEqual(prompts[0], prompts[1])
        for prompt in prompts[2:]:
            self.assertRegex(prompt, r'"name": ?"ping_relay", ?"arguments": ?({}|"{}")')

    def test_ap_012_text_in_parts(self):
        """ap-012"""
        asked, _ = case("ap-012")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        before = {"role": "assistant", "content": "", "tool_calls": [call]}
        for role in asked["roles"]:
            prompts = set()
            for content in asked["content_variants"]:
                history = [{"role": role, "content": content}]
                if role == "tool":
                    history = [before, {**history[0], "tool_call_id": "c1"}]
                prompts.add(self.prompt(history))
            [prompt] = prompts
            self.assertIn("7 knots", prompt)
            for content in asked["bad"]:
                bad = [*history[:-1], {**history[-1], "content": content}]
                error = self.refused("chat/completions", {"messages": bad})
                self.assertEqual(error["param"], f"messages[{len(bad) - 1}].content[0]")

    def test_ap_021_null_is_absent(self):
        """ap-021"""
        asked, _ = case("ap-021")
        base = {**asked["base"], "model": "scripted"}
        requests = [{**base, field: None} for field in asked["set_to_null_one_by_one"]]
        requests.append({**base, **asked["unknown"]})
        requests += [{**base, "tools": tools} for tools in asked["tools_variants"]]
        for request in requests:
            answer = self.ok("chat/completions", request)
            self.assertEqual(answer["choices"][0]["message"]["content"], "hel", request)
            self.assertLessEqual(set(null_keys(answer)), NULL_KEYS)

    def test_ap_022_wrong_types(self):
        """ap-022"""
        asked, expected = case("ap-022")
        base = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        tools = [{"type": "function", "function": {"name": "f"}}]
        for number, fields in enumerate(asked["wrong_types"], 1):
            wanted = expected[str(number)]
            request = {**base, **({"tools": tools} if "tool_choice" in fields else {}), **fields}
            if wanted["status"] == 200:
                self.ok("chat/completions", request)
            else:
                self.refused("chat/completions", request, wanted["error"]["param"])


def null_keys(value):
    """Keys of objects whose value is null, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if inner is None:
                yield key
            yield from null_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from null_keys(inner)


class Context(ReportCase):
    """A context of 128 tokens, one a character, and a model that never ends."""

    @classmethod
    def start(cls, stack):
        asked, _ = case("ap-016")
        header = {
            "chat_template": "{{ messages[0].content }}",
            "max_model_len": asked["limit"],
        }
        return ["--scripted", stack.enter_context(script(header, {"text": "x" * 200}))]

    def test_ap_016_borders_of_the_context(self):
        """ap-016"""
        asked, expected = case("ap-016")
        for number, sizes in enumerate(asked["cases"], 1):
            wanted = expected[str(number)]
            text = "a" * sizes["prompt_tokens"]
            for path, param, prompt in [
                ("chat/completions", "messages", [{"role": "user", "content": text}]),
                ("completions", "prompt", text),
            ]:
                request = {param: prompt, "max_tokens": sizes["max_tokens"]}
                if wanted["status"] == 200:
                    answer = self.ok(path, request)
                    self.assertEqual(answer["usage"]["completion_tokens"], 1)
                    self.assertEqual(answer["choices"][0]["finish_reason"], "length")
                    continue
                for stream in [False, True]:
                    error = self.refused(path, {**request, "stream": stream}, param)
                    self.assertEqual(error["code"], wanted["error"]["code"])
                    for words in wanted["message_contains"]:
                        self.assertIn(words, error["message"])


class Vocabulary(ReportCase):
    """The vocabulary of a real model; what it says is scripted."""

    SIZE = 49152

    @classmethod
    def start(cls, stack):
        canoe = {"when": "canoe", "text": "\N{CANOE} ok"}
        path = stack.enter_context(script({}, {"text": "and so it goes on " * 9}, canoe))
        return ["--scripted", path, SMOLLM2]

    def test_ap_003_bytes_of_tokens(self):
        """ap-003"""
        _, expected = case("ap-003")
        request = {"messages": [{"role": "user", "content": "canoe"}], "logprobs": True,
                   "top_logprobs": 5, "temperature": 0}  # fmt: skip
        num_tokens = self.ok("chat/completions", request)["usage"]["completion_tokens"] - 1
        self.assertGreater(num_tokens, 2, "the canoe is one token")
        request["max_tokens"] = num_tokens
        [choice] = self.ok("chat/completions", request)["choices"]
        self.assertEqual(choice["message"]["content"], expected["content"])
        entries = choice["logprobs"]["content"]
        text = bytes(byte for entry in entries for byte in entry["bytes"])
        self.assertEqual(text, bytes(sum(expected["logprobs_content_bytes"], [])))
        self.assertTrue(all(entry["token"] for entry in entries))
        streamed = []
        for chunk in self.stream("chat/completions", request):
            streamed += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        self.assertEqual(streamed, entries)

    def test_ap_017_values_out_of_range(self):
        """ap-017; of stop tokens a request has 128 at most."""
        asked, expected = case("ap-017")
        text = json.dumps(asked["request_variants"]).replace("151936", str(self.SIZE))
        variants = json.loads(text)
        greedy = {"prompt": "x", "temperature": 0, "max_tokens": 8, "return_token_ids": True}
        alone = self.ok("completions", greedy)["choices"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        for fields, status in zip(variants, expected["status_by_variant"], strict=True):
            for name, value in fields.items():
                if isinstance(value, str) and ".." in value:
                    first, last = map(int, value.split(".."))
                    fields[name] = list(range(first, last + 1))
            if len(fields.get("stop_token_ids", [])) > 128:
                status = 400
            with self.beside("completions", greedy) as beside:
                if status == 200:
                    text = self.ok("chat/completions", {**chat, **fields})["choices"]
                    if "top_p" in fields:
                        cold = self.ok("chat/completions", {**chat, "temperature": 0})["choices"]
                        self.assertEqual(text, cold)
                else:
                    param = self.refused("chat/completions", {**chat, **fields})["param"]
                    self.assertTrue(param.startswith(next(iter(fields))), (fields, param))
            self.assertEqual(beside["answer"][2]["choices"], alone)


class Scored(ReportCase):
    """A real model without a beginning of sequence."""

    @classmethod
    def start(cls, stack):
        return [SMOLLM2, "--served-model-name", "scripted"]

    def test_ap_004_echo_with_log_probabilities(self):
        """ap-004"""
        asked, expected = case("ap-004")
        answer = self.ok("completions", {**asked["request"], "return_token_ids": True})
        [choice] = answer["choices"]
        lists, num_prompt = choice["logprobs"], answer["usage"]["prompt_tokens"]
        self.assertEqual(len(lists["tokens"]), num_prompt + 1)
        self.assertTrue(choice["text"].startswith(expected["text_starts_with"]))
        first, *rest = lists["token_logprobs"]
        self.assertIsNone(first)
        self.assertTrue(all(value <= 0 for value in rest))
        # The model's own: each token as the last one of a prompt.
        ids = choice["prompt_token_ids"]
        self.assertGreater(num_prompt, 1)
        for end in range(2, num_prompt + 1):
            alone = {"prompt": ids[:end], "echo": True, "logprobs": 1, "max_tokens": 0}
            scored = self.ok("completions", alone)["choices"][0]["logprobs"]["token_logprobs"]
            self.assertAlmostEqual(scored[-1], lists["token_logprobs"][end - 1], delta=1e-4)


class Overload(ReportCase):
    @classmethod
    def start(cls, stack):
        path = stack.enter_context(script({"step_ms": 20}, {"text": "0123456789"}))
        limits = case("ap-020")[0]["limits"]
        return ["--scripted", path, "--max-num-seqs", limits["max_running"],
                "--max-queued-requests", limits["max_queued"]]  # fmt: skip

    def test_ap_020_a_thousand_at_once(self):
        """ap-020"""
        asked, expected = case("ap-020")
        request = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 10}
        self.ok("chat/completions", request)
        before = self.rss_mb()
        answers, most = self.flood("chat/completions", request, asked["parallel"], 100)
        self.assertLessEqual(most, expected["accepted_at_a_time_max"])
        refused = sorted(seconds for (status, _, _), seconds in answers if status != 200)
        self.assertEqual(len(answers), asked["parallel"])
        self.assertGreater(len(refused), asked["parallel"] / 2)
        for response, _ in answers:
            if response[0] == 200:
                self.assertEqual(response[2]["usage"]["completion_tokens"], 10)
                continue
            self.assert_error(response, 429)
            for key, value in expected["others"]["error"].items():
                self.assertEqual(response[2]["error"][key], value)
            self.assertGreaterEqual(int(response[1]["retry-after"]), 1)
        p99_ms = refused[len(refused) * 99 // 100] * 1000
        # A hundred threads of Python share the server's cores.
        self.assertLess(p99_ms, 4 * expected["others"]["p99_ms"])
        self.assertLess(self.rss_mb() - before, expected["rss_growth_mb_max"])
        self.assert_canary()
