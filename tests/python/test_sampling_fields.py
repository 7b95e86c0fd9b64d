"""The fields beyond OpenAI's, through the real client (`extra_body`) and a real model."""

import concurrent.futures
import json
from pathlib import Path

import openai
from support import SMOLLM2, ServerCase

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "Who wrote Hamlet?"}]


class Fields(ServerCase):
    @classmethod
    def start(cls, stack):
        return [SMOLLM2, "--served-model-name", "demo"]

    def complete(self, prompt=PROMPT, **fields):
        known = {"max_tokens", "echo", "logprobs", "n", "best_of", "stop", "stream", "seed"}
        own = {k: v for k, v in fields.items() if k in known}
        extra = {k: v for k, v in fields.items() if k not in known}
        request = {"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 16}
        if "temperature" in extra:
            request["temperature"] = extra.pop("temperature")
        return self.client.completions.create(**{**request, **own}, extra_body=extra)

    def text(self, prompt=PROMPT, **fields):
        return self.complete(prompt, **fields).choices[0].text

    def chat(self, **extra):
        return self.client.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, max_tokens=12, extra_body=extra
        )

    def refused(self, param, **fields):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(**fields)
        self.assertEqual(caught.exception.param, param)

    # --- log-probabilities of prompts

    def test_a_scored_text_has_the_log_probabilities_of_its_generation(self):
        said = self.complete(logprobs=2, max_tokens=12).choices[0]
        whole = PROMPT + said.text
        ids = self.complete(max_tokens=12, return_token_ids=True).choices[0]
        ids = ids.prompt_token_ids + ids.token_ids
        scored = self.complete(ids, echo=True, logprobs=2, max_tokens=0).choices[0]
        self.assertEqual(scored.text, whole)
        lists = scored.logprobs
        self.assertIsNone(lists.token_logprobs[0])
        self.assertIsNone(lists.top_logprobs[0])
        self.assertTrue(all(p <= 0 for p in lists.token_logprobs[1:]))
        # A prompt in pieces and one token at a time: the same bits.
        num = len(said.logprobs.tokens)
        self.assertEqual(lists.token_logprobs[-num:], said.logprobs.token_logprobs)
        self.assertEqual(lists.top_logprobs[-num:], said.logprobs.top_logprobs)
        self.assertEqual("".join(lists.tokens), whole)
        for offset, token in zip(lists.text_offset, lists.tokens):
            self.assertEqual(whole[offset : offset + len(token)], token)

    def test_echo_with_an_output(self):
        answer = self.complete("Boats float", echo=True, logprobs=1, max_tokens=1)
        lists = answer.choices[0].logprobs
        self.assertEqual(len(lists.tokens), answer.usage.prompt_tokens + 1)
        self.assertTrue(answer.choices[0].text.startswith("Boats float"))
        self.assertEqual(lists.token_logprobs.index(None), 0)
        self.assertEqual(lists.token_logprobs.count(None), 1)

    def test_prompt_logprobs_of_both_endpoints(self):
        for answer, count in [
            (self.complete(prompt_logprobs=3).choices[0].prompt_logprobs, 3),
            (self.chat(prompt_logprobs=0).prompt_logprobs, 0),
        ]:
            self.assertIsNone(answer[0])
            for entry in answer[1:]:
                self.assertIn(len(entry), (max(count, 1), count + 1))
                for token in entry.values():
                    self.assertEqual(set(token), {"logprob", "rank", "decoded_token"})
        self.refused("prompt_logprobs", prompt_logprobs=-1)
        self.refused("prompt_logprobs", prompt_logprobs=1000)
        self.refused("prompt_logprobs", prompt_logprobs=1, stream=True)

    def test_long_prompts_in_parallel_cost_little_memory(self):
        def rss_mb():
            status = Path(f"/proc/{self.server.process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0]) / 1024

        prompt = "word and word or " * 100
        self.complete(prompt, max_tokens=1)
        before = rss_mb()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            ask = lambda _: self.complete(prompt, prompt_logprobs=20, max_tokens=1)
            answers = list(pool.map(ask, range(8)))
        for answer in answers:
            got = answer.choices[0].prompt_logprobs
            self.assertEqual(len(got), answer.usage.prompt_tokens)
            self.assertEqual(got, answers[0].choices[0].prompt_logprobs)
        self.assertLess(rss_mb() - before, 256)

    # --- repetitions

    def test_dry_ends_a_loop(self):
        # A small model that repeats itself, once it has begun.
        prompt = "one two three one two three one two three one two three one two"
        self.assertTrue(self.text(prompt, max_tokens=8).startswith(" three one two three"))
        dry = {"dry_multiplier": 5, "max_tokens": 8}
        self.assertFalse(self.text(prompt, **dry).startswith(" three one two three"))
        free = {**dry, "dry_allowed_length": 50}
        self.assertTrue(self.text(prompt, **free).startswith(" three one two three"))
        self.refused("dry_base", dry_base=0.5)

    def test_repetition_detection(self):
        prompt = "one two three one two three one two three one two three one two"
        wanted = {"max_pattern_size": 5, "min_count": 3}
        fields = {"max_tokens": 64, "return_token_ids": True}
        choice = self.complete(prompt, repetition_detection=wanted, **fields).choices[0]
        self.assertEqual(choice.finish_reason, "repetition")
        ids = choice.token_ids
        self.assertTrue(any(ids[-size:] * 3 == ids[-3 * size :] for size in range(1, 6)), ids)
        free = self.complete(prompt, **fields).choices[0].token_ids
        self.assertEqual(free[: len(ids)], ids)
        self.assertGreater(len(free), len(ids))
        _, _, metrics = self.server.http("GET", "/metrics")
        self.assertRegex(metrics, r'request_success_total{[^}]*"repetition"[^}]*} 1')
        self.refused("repetition_detection.min_count", repetition_detection={"max_pattern_size": 2})

    # --- best_of, ids, stops, cut prompts

    def test_best_of(self):
        fields = {"temperature": 1.2, "seed": 3, "max_tokens": 8, "logprobs": 0}
        best = self.complete(n=2, best_of=12, **fields)
        all_of_them = self.complete(n=12, **fields)

        def mean(choice):
            return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

        ranked = sorted(all_of_them.choices, key=mean, reverse=True)
        self.assertEqual([c.text for c in best.choices], [c.text for c in ranked[:2]])
        self.assertEqual([c.index for c in best.choices], [0, 1])
        self.refused("best_of", n=3, best_of=2)
        self.refused("best_of", best_of=100_000)
        self.refused("best_of", best_of=2, stream=True)

    def test_ids_come_back_as_a_prompt(self):
        answer = self.complete(return_token_ids=True, max_tokens=6).choices[0]
        again = self.complete(answer.prompt_token_ids + answer.token_ids, echo=True, max_tokens=0)
        self.assertEqual(again.choices[0].text, PROMPT + answer.text)
        chat = self.chat(return_token_ids=True)
        self.assertEqual(len(chat.prompt_token_ids), chat.usage.prompt_tokens)
        self.assertEqual(len(chat.choices[0].token_ids), chat.usage.completion_tokens)
        streamed = []
        for chunk in self.complete(return_token_ids=True, max_tokens=6, stream=True):
            streamed += chunk.choices[0].token_ids
        self.assertEqual(streamed, answer.token_ids)
        named = self.complete(return_tokens_as_token_ids=True, logprobs=0, max_tokens=6).choices[0]
        self.assertEqual(named.logprobs.tokens, [f"token_id:{i}" for i in answer.token_ids])

    def test_a_stop_token_may_stay(self):
        ids = self.complete(return_token_ids=True, max_tokens=2).choices[0].token_ids
        whole = self.text(max_tokens=2)
        stopped = self.text(stop_token_ids=[ids[1]], max_tokens=9)
        kept = self.text(stop_token_ids=[ids[1]], max_tokens=9, include_stop_str_in_output=True)
        self.assertEqual(kept, whole)
        self.assertTrue(whole.startswith(stopped) and stopped != whole)

    def test_cut_prompts(self):
        answer = self.complete(truncate_prompt_tokens=2, echo=True, max_tokens=0)
        self.assertEqual(answer.usage.prompt_tokens, 2)
        self.assertTrue(PROMPT.endswith(answer.choices[0].text))
        cut = {"truncate_prompt_tokens": 2, "truncation_side": "right"}
        right = self.text(echo=True, max_tokens=0, **cut)
        self.assertTrue(PROMPT.startswith(right))
        self.refused("truncation_side", truncation_side="up")

    def test_chat_echo(self):
        messages = [*QUESTION, {"role": "assistant", "content": "Hamlet was"}]
        answer = self.client.chat.completions.create(
            model="demo",
            messages=messages,
            temperature=0,
            max_tokens=8,
            extra_body={"echo": True, "continue_final_message": True},
        )
        self.assertTrue(answer.choices[0].message.content.startswith("Hamlet was"))

    # --- what is known and not supported, and what is ignored

    def test_known_but_unsupported_fields_are_named(self):
        for name, value in {
            "use_beam_search": True,
            "length_penalty": 2,
            "thinking_token_budget": 5,
            "return_token_offsets": True,
            "logits_processors": ["x"],
            "typical_p": 0.5,
            "mirostat": 1,
        }.items():
            self.refused(name, **{name: value})
        neutral = {"use_beam_search": False, "length_penalty": 1, "mirostat": 0, "typical_p": 1}
        ignored = {"user": "u", "store": True, "metadata": {"a": "b"}, "some_new_field": {"a": 1}}
        self.assertEqual(self.text(**neutral, **ignored), self.text())

    def test_impossible_requests_leave_others_alone(self):
        alone = self.complete(max_tokens=24, logprobs=3)
        bad = [
            {"temperature": 1e9},
            {"logit_bias": {"999999999": 1}},
            {"stop_token_ids": [-1]},
            {"allowed_token_ids": [10**7]},
            {"prompt_logprobs": 1000},
            {"dry_multiplier": -1},
            {"min_tokens": 99, "max_tokens": 1},
        ]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            good = [pool.submit(self.complete, max_tokens=24, logprobs=3) for _ in range(3)]
            for fields in bad:
                body = json.dumps({"model": "demo", "prompt": PROMPT, **fields}).encode()
                status, _, answer = self.server.http("POST", "/v1/completions", body)
                self.assertEqual(status, 400)
                self.assertIn(next(iter(fields)), answer["error"]["param"])
            for future in good:
                got = future.result().choices[0]
                self.assertEqual(got.logprobs, alone.choices[0].logprobs)
