"""The demo model behind the real OpenAI client: chat, streaming, logprobs, n, stop, usage, errors."""

import math

import openai
from support import SMOLLM2, Server, ServerCase, fold, tool, whole

QUESTION = [{"role": "user", "content": "Who wrote Hamlet?"}]
TOOLS = [tool("get_weather", city="string")]


class DemoModel(ServerCase):
    @classmethod
    def start(cls, stack):
        return [SMOLLM2, "--served-model-name", "demo"]

    def chat(self, **more):
        request = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
        return self.client.chat.completions.create(**{**request, **more})

    def test_models(self):
        [model] = self.client.models.list().data
        self.assertEqual(model.id, "demo")
        self.assertGreater(model.max_model_len, 1000)
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat_answers_and_streams_the_same(self):
        answer = whole(self.chat())
        self.assertIn("Shakespeare", answer["content"])
        stream = self.chat(stream=True, stream_options={"include_usage": True})
        self.assert_same_answer(fold(stream), answer)

    def test_system_message_and_parts(self):
        messages = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": [{"type": "text", "text": "Who wrote Hamlet?"}]},
        ]
        self.assertIn("Shakespeare", self.chat(messages=messages).choices[0].message.content)

    def test_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=3, max_tokens=5).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual(len(tokens), 5)
        self.assertEqual("".join(t.token for t in tokens), choice.message.content)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token, "greedy takes the best")
            self.assertLessEqual(sum(math.exp(t.logprob) for t in token.top_logprobs), 1.0001)
            self.assertEqual(bytes(token.bytes).decode(), token.token)

    def test_n(self):
        answer = self.chat(n=2, temperature=1.5, seed=7, max_tokens=16)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        texts = [c.message.content for c in answer.choices]
        self.assertNotEqual(texts[0], texts[1])
        again = self.chat(n=2, temperature=1.5, seed=7, max_tokens=16)
        self.assertEqual([c.message.content for c in again.choices], texts)
        self.assertEqual(answer.usage.completion_tokens, 32)

    def test_stop(self):
        text = self.chat(max_tokens=40).choices[0].message.content
        stop = text[5:8]
        choice = self.chat(max_tokens=40, stop=[stop]).choices[0]
        self.assertEqual(choice.message.content, text[: text.index(stop)])
        self.assertEqual(choice.finish_reason, "stop")

    def test_usage_and_length(self):
        answer = self.chat(max_tokens=3)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 3)
        long = [{"role": "user", "content": "Say yes. " * 40}]
        self.chat(messages=long, max_tokens=1)
        cached = self.chat(messages=long, max_tokens=1).usage.prompt_tokens_details.cached_tokens
        self.assertGreater(cached, 64)

    def test_completions(self):
        request = {"model": "demo", "temperature": 0, "max_tokens": 8}
        answer = self.client.completions.create(prompt="The sky is", logprobs=2, **request)
        choice = answer.choices[0]
        self.assertEqual(len(choice.logprobs.tokens), 8)
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        stream = self.client.completions.create(prompt="The sky is", stream=True, **request)
        self.assertEqual("".join(c.choices[0].text for c in stream if c.choices), choice.text)
        both = self.client.completions.create(prompt=["The sky is", "One, two,"], **request)
        self.assertEqual([c.index for c in both.choices], [0, 1])
        self.assertEqual(both.choices[0].text, choice.text)
        echoed = self.client.completions.create(prompt="The sky is", echo=True, **request)
        self.assertEqual(echoed.choices[0].text, "The sky is" + choice.text)

    def test_tools_that_the_template_ignores(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(tools=TOOLS)
        self.assertEqual(raised.exception.body["param"], "tools")
        self.assertIn("template", raised.exception.body["message"])
        answer = self.chat(tools=TOOLS, extra_body={"allow_ignored_tools": True})
        self.assertEqual(answer.choices[0].message.content, self.chat().choices[0].message.content)

    def test_the_flag_allows_ignored_tools(self):
        server = Server(SMOLLM2, "--served-model-name", "demo", "--allow-ignored-tools")
        try:
            request = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
            answer = whole(server.client().chat.completions.create(**request, tools=TOOLS))
        finally:
            server.stop()
        self.assertEqual(answer["content"], self.chat().choices[0].message.content)
        self.assertEqual(answer["tool_calls"], [])

    def test_errors_name_the_field(self):
        def post(**fields):
            body = {"model": "demo", "messages": QUESTION, **fields}
            return self.server.http("POST", "/v1/chat/completions", body)

        self.assert_error(post(temperature=-1), 400, "temperature")
        self.assert_error(post(top_p=1.5), 400, "top_p")
        self.assert_error(post(n=0), 400, "n")
        self.assert_error(post(max_tokens=0), 400, "max_tokens")
        self.assert_error(post(messages=[]), 400, "messages")
        self.assert_error(post(top_logprobs=50, logprobs=True), 400, "top_logprobs")
        self.assert_error(post(logit_bias={"999999999": 1}), 400, "logit_bias")
        self.assert_error(post(stop_token_ids=[10**12]), 400)
        self.assert_error(post(response_format={"type": "xml"}), 400, "response_format.type")
        self.assert_error(post(messages=[{"role": "user", "content": "a " * 20000}]), 400)
        self.assert_error(post(model="other"), 404, "model", "other")
        body = {"model": "demo", "prompt": [10**7]}
        self.assert_error(self.server.http("POST", "/v1/completions", body), 400, "prompt[0]")

    def test_errors_of_http(self):
        http = self.server.http
        self.assert_error(http("POST", "/v1/chat/completions", b"{"), 400)
        self.assert_error(http("POST", "/v1/chat/completions", b'{"model": "\xff"}'), 400)
        self.assert_error(http("POST", "/v1/nothing", {}), 404)
        self.assert_error(http("GET", "/v1/chat/completions"), 405)
        self.assert_error(http("POST", "/v1/chat/completions", b" " * (9 << 20)), 413)
        self.assert_error(http("GET", "/v1/extensions"), 401)
        # And it still serves.
        self.assertIn("Shakespeare", self.chat().choices[0].message.content)

    def test_unknown_fields_are_ignored(self):
        answer = self.chat(extra_body={"no_such_field": {"a": 1}}, max_tokens=1)
        self.assertEqual(answer.usage.completion_tokens, 1)

    def test_metrics(self):
        before = self.server.metric("vllm:generation_tokens_total")
        self.chat(max_tokens=4)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 4)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)
