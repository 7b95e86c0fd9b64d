"""One real tool call: Qwen2.5-Coder-0.5B-Instruct writes a bare JSON object."""

import json
import unittest

from support import QWEN, Server, ServerCase, fold, tool, whole


class RealToolCall(ServerCase):
    @classmethod
    def setUpClass(cls):
        if not QWEN.exists():
            print(f"SKIPPED: no {QWEN.name}; run `cargo xtask fetch-models qwen0.5b`")
            raise unittest.SkipTest("the model is not cached")
        super().setUpClass()

    @classmethod
    def start(cls, stack):
        return [QWEN, "--served-model-name", "qwen", "--tool-call-parser", "llama3_json"]

    def test_auto_takes_the_format_of_the_template(self):
        server = Server(QWEN, "--served-model-name", "qwen", "--max-model-len", "512")
        try:
            [line] = [line for line in server.lines_until("ready") if line.startswith("parser")]
        finally:
            server.stop()
        self.assertRegex(line, r"`hermes`.*auto: the template has .*<tool_call>")

    def test_weather(self):
        request = {
            "model": "qwen",
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [tool("get_weather", city="string")],
            "temperature": 0,
            "max_tokens": 64,
        }
        answer = whole(self.client.chat.completions.create(**request))
        [call] = answer["tool_calls"]
        self.assertEqual(call["name"], "get_weather")
        self.assertIn("Paris", json.loads(call["arguments"])["city"])
        self.assertEqual(answer["finish"], "tool_calls")
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = fold(self.client.chat.completions.create(**request, **options))
        self.assert_same_answer(streamed, answer)
