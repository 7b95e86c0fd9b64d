"""Tool calls and reasoning over scripted tokens: tokenizer, detokenizer, component, SSE."""

import json
import threading
import time
import unittest

from support import ACME, Server, ServerCase, fold, script, tool, whole

TOOLS = [tool("get_weather", city="string")]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HEADER = {
    "special_tokens": ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"],
    "eos": "<|im_end|>",
}
REPLIES = [
    {"text": "Hello! How can I help?"},
    {"when": "weather", "text": f"Let me look.\n{CALL}"},
    {"when": "two calls", "text": f"{CALL}\n{CALL}"},
    {"when": "broken call", "text": '<tool_call>{"name": "get_weather", oops}</tool_call> done'},
    {"when": "cut call", "text": CALL[:70]},
    {"when": "think first", "text": f"<think>\nParis, then.\n</think>\n\nSo: \n{CALL}"},
    {"when": "only think", "text": "<think>\nhm\n</think>\n\nForty-two."},
    {"when": "unicode", "text": "Grüße, 東京 🛶!"},
]


def ask(text):
    return {"model": "scripted", "messages": [{"role": "user", "content": text}]}


class Scripted(ServerCase):
    @classmethod
    def start(cls, stack):
        path = stack.enter_context(script(HEADER, *REPLIES))
        return ["--scripted", path, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]

    def both(self, text, **more):
        """The answer, after checking that streaming gives the same one."""
        request = {**ask(text), "max_tokens": 400, **more}
        answer = whole(self.client.chat.completions.create(**request))
        stream = self.client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        self.assert_same_answer(fold(stream), answer)
        return answer

    def test_plain(self):
        answer = self.both("hi")
        self.assertEqual(answer["content"], "Hello! How can I help?")
        self.assertEqual(answer["finish"], "stop")
        self.assertEqual(answer["tool_calls"], [])
        self.assertIsNone(answer["reasoning"])

    def test_unicode_is_never_cut(self):
        self.assertEqual(self.both("unicode")["content"], "Grüße, 東京 🛶!")

    def test_call(self):
        answer = self.both("weather", tools=TOOLS)
        self.assertEqual(answer["content"], "Let me look.")
        self.assertEqual(answer["finish"], "tool_calls")
        [call] = answer["tool_calls"]
        self.assertEqual(call["name"], "get_weather")
        self.assertEqual(json.loads(call["arguments"]), {"city": "Paris"})

    def test_two_calls(self):
        answer = self.both("two calls", tools=TOOLS)
        self.assertIsNone(answer["content"])
        self.assertEqual([c["name"] for c in answer["tool_calls"]], ["get_weather"] * 2)

    def test_no_tools_means_text(self):
        self.assertEqual(self.both("weather")["content"], f"Let me look.\n{CALL}")
        answer = self.both("weather", tools=TOOLS, tool_choice="none")
        self.assertEqual(answer["content"], f"Let me look.\n{CALL}")
        self.assertEqual(answer["finish"], "stop")

    def test_broken_call_is_text(self):
        answer = self.both("broken call", tools=TOOLS)
        self.assertEqual(answer["content"], REPLIES[3]["text"])
        self.assertEqual(answer["finish"], "stop")

    def test_limit_cuts_a_call(self):
        # One token a byte, but the marker is one token: stop inside the city's name.
        num_tokens = 2 + len(CALL) - len("<tool_call></tool_call>") - 6
        answer = self.both("weather", tools=TOOLS, max_tokens=len("Let me look.\n") + num_tokens)
        self.assertEqual(answer["finish"], "length")
        self.assertTrue('{"city": "Paris"}'.startswith(answer["tool_calls"][0]["arguments"]))

    def test_reasoning(self):
        answer = self.both("only think")
        self.assertEqual(answer["reasoning"], "hm")
        self.assertEqual(answer["content"], "Forty-two.")
        message = self.client.chat.completions.create(**ask("only think"), max_tokens=99)
        self.assertEqual(message.choices[0].message.reasoning_content, "hm")

    def test_reasoning_then_call(self):
        answer = self.both("think first", tools=TOOLS)
        self.assertEqual(answer["reasoning"], "Paris, then.")
        self.assertEqual(answer["content"], "So:")
        self.assertEqual(len(answer["tool_calls"]), 1)

    def test_arguments_stream_as_they_come(self):
        stream = self.client.chat.completions.create(
            **ask("weather"), tools=TOOLS, stream=True, max_tokens=400
        )
        pieces = [
            call.function.arguments
            for chunk in stream
            for call in (chunk.choices[0].delta.tool_calls or [])
            if call.function.arguments
        ]
        self.assertGreater(len(pieces), 5, pieces)
        self.assertEqual("".join(pieces), '{"city": "Paris"}')

    def test_stop_string_cuts_before_the_parser(self):
        answer = self.both("hi", stop=["How"])
        self.assertEqual(answer["content"], "Hello! ")
        self.assertEqual(answer["finish"], "stop")

    def test_usage(self):
        usage = self.both("hi")["usage"]
        self.assertEqual(usage.completion_tokens, len("Hello! How can I help?") + 1)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        again = self.client.chat.completions.create(**ask("hi"), max_tokens=1)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_per_request_parser(self):
        answer = self.both("weather", tools=TOOLS, extra_body={"tool_call_parser": "llama3_json"})
        self.assertEqual(answer["tool_calls"], [])
        self.assertIn('{"name": "get_weather"', answer["content"])
        response = self.server.http(
            "POST", "/v1/chat/completions", {**ask("hi"), "tool_call_parser": "hermez"}
        )
        self.assert_error(response, 400, "tool_call_parser", "hermez")

    def test_required_choice_is_enforced(self):
        # The script says no call here: the grammar makes one all the same.
        unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}},
                "required": ["unit"], "additionalProperties": False}
        weather = {"type": "function", "function": {"name": "weather", "parameters": unit}}
        # Without reasoning the call comes at once; the script's backend likes all else alike, so
        # that only a greedy choice is the same twice.
        fields = {"tools": [weather], "tool_choice": "required", "parallel_tool_calls": False,
                  "temperature": 0, "extra_body": {"reasoning_parser": "none"}}
        answer = self.both("hi", **fields)
        [call] = answer["tool_calls"]
        self.assertEqual(call["name"], "weather")
        self.assertIn(json.loads(call["arguments"])["unit"], ["C", "F"])
        self.assertEqual(answer["finish"], "tool_calls")


class Upload(unittest.TestCase):
    """A parser for a format that the server has never heard of, uploaded while it streams."""

    def test_upload_mid_stream(self):
        text = f"Checking.\n{acme_call('Paris')}\nDone."
        header = {**HEADER, "step_ms": 10}
        with script(header, {"text": text}) as path:
            server = Server("--scripted", path, "--tool-call-parser", "hermes")
            try:
                self.run_upload(server, text)
            finally:
                server.stop()

    def run_upload(self, server, text):
        client = server.client()
        begun, old = threading.Event(), {}

        def stream_before():
            request = {**ask("go"), "tools": TOOLS, "max_tokens": 400, "stream": True}
            chunks = []
            for chunk in client.chat.completions.create(**request):
                chunks.append(chunk)
                if len(chunks) == 3:
                    begun.set()
            old.update(fold(chunks))

        thread = threading.Thread(target=stream_before)
        thread.start()
        self.assertTrue(begun.wait(30))

        start = time.monotonic()
        status, _, body = server.admin("POST", "/v1/extensions?name=acme", ACME.read_bytes())
        self.assertEqual(status, 201, body)
        self.assertTrue(body["digest"].startswith("sha256:"))
        status, _, body = server.admin("PUT", "/v1/extensions/acme/bind", {"model": "scripted"})
        self.assertEqual(status, 200, body)
        print(f"upload to served: {(time.monotonic() - start) * 1000:.0f} ms", end=" ")
        new = whole(client.chat.completions.create(**ask("go"), tools=TOOLS, max_tokens=400))
        self.assertTrue(thread.is_alive() or old, "the old stream must span the upload")

        [call] = new["tool_calls"]
        self.assertEqual(call["name"], "get_weather")
        self.assertEqual(json.loads(call["arguments"]), {"city": "Paris"})
        self.assertEqual(new["finish"], "tool_calls")
        thread.join(60)
        self.assertEqual(old["content"], text, "the stream in flight keeps its binding")
        self.assertEqual(old["tool_calls"], [])

        status, _, listed = server.admin("GET", "/v1/extensions")
        self.assertEqual(status, 200)
        self.assertIn("acme", json.dumps(listed))


def acme_call(city):
    return f"%% call get_weather\ncity = {json.dumps(city)}\n%% end"


if __name__ == "__main__":
    unittest.main()
