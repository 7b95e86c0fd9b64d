"""Structured output of real models, through OpenAI's client."""

import json
import re
import unittest

from support import QWEN, SMOLLM2, ServerCase, fold, tool, whole

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
    },
    "required": ["city", "country", "population", "sights"],
    "additionalProperties": False,
}


def schema(of):
    body = {"name": "answer", "strict": True, "schema": of}
    return {"type": "json_schema", "json_schema": body}


class Structured(ServerCase):
    @classmethod
    def start(cls, stack):
        return [SMOLLM2, "--served-model-name", "demo"]

    def ask(self, text="Tell me about Paris.", **more):
        request = {"model": "demo", "messages": [{"role": "user", "content": text}]}
        request |= {"temperature": 0, "max_tokens": 160, **more}
        answer = whole(self.client.chat.completions.create(**request))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = fold(self.client.chat.completions.create(**request, **options))
        self.assert_same_answer(streamed, answer)
        return answer

    def test_a_schema_holds(self):
        for fields in ({}, {"temperature": 1, "seed": 7}):
            answer = self.ask(response_format=schema(CITY), **fields)
            self.assertEqual(answer["finish"], "stop")
            city = json.loads(answer["content"])
            self.assertEqual(set(city), set(CITY["required"]))
            self.assertIn(city["country"], CITY["properties"]["country"]["enum"])
            self.assertIsInstance(city["population"], int)
            self.assertLessEqual(len(city["sights"]), 2)

    def test_every_choice_follows_it(self):
        answer = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me about Rome."}],
            response_format=schema(CITY), n=4, temperature=1, max_tokens=160,
        )
        texts = [choice.message.content for choice in answer.choices]
        self.assertGreater(len(set(texts)), 1)
        for text in texts:
            self.assertIn(json.loads(text)["country"], ["France", "Italy", "Spain"])

    def test_kinds(self):
        def outputs(**kind):
            return self.ask(extra_body={"structured_outputs": kind})["content"]

        self.assertIn(outputs(choice=["yes", "no"]), ["yes", "no"])
        self.assertTrue(re.fullmatch(r"[A-Z][a-z]{2,8}, [0-9]{4}", outputs(
            regex="[A-Z][a-z]{2,8}, [0-9]{4}")))
        self.assertIn(outputs(grammar='start: "a" | "b" "c"'), ["a", "bc"])
        self.assertIsInstance(json.loads(outputs(json=CITY)), dict)

    def test_completions(self):
        answer = self.client.completions.create(
            model="demo", prompt="The capital of Italy is", max_tokens=20, temperature=0,
            extra_body={"structured_outputs": {"choice": ["Rome", "Paris"]}},
        )
        self.assertEqual((answer.choices[0].text, answer.choices[0].finish_reason),
                         ("Rome", "stop"))

    def test_what_cannot_be_enforced_is_named(self):
        def post(of):
            body = {"model": "demo", "messages": [{"role": "user", "content": "x"}],
                    "response_format": schema(of)}
            return self.server.http("POST", "/v1/chat/completions", body)

        unique = {"type": "object", "properties": {"t": {"type": "array", "uniqueItems": True}}}
        self.assert_error(post(unique), 400, "response_format", "uniqueItems")
        self.assert_error(post({"not": {}}), 400, "response_format", "not")


class ForcedCall(ServerCase):
    @classmethod
    def setUpClass(cls):
        if not QWEN.exists():
            print(f"SKIPPED: no {QWEN.name}; run `cargo xtask fetch-models qwen0.5b`")
            raise unittest.SkipTest("the model is not cached")
        super().setUpClass()

    @classmethod
    def start(cls, stack):
        return [QWEN, "--served-model-name", "qwen", "--tool-call-parser", "hermes"]

    def test_required_and_named(self):
        tools = [tool("get_weather", city="string"), tool("get_time", zone="string")]
        named = {"type": "function", "function": {"name": "get_time"}}
        for choice, names in (("required", ["get_weather", "get_time"]), (named, ["get_time"])):
            answer = whole(self.client.chat.completions.create(
                model="qwen", messages=[{"role": "user", "content": "Weather in Paris?"}],
                tools=tools, tool_choice=choice, parallel_tool_calls=False,
                temperature=0, max_tokens=64,
            ))
            [call] = answer["tool_calls"]
            self.assertIn(call["name"], names)
            self.assertIsInstance(json.loads(call["arguments"]), dict)
            self.assertEqual(answer["finish"], "tool_calls")
