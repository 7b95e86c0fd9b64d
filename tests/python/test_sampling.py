"""What masks the sampler, with a real model and its tokenizer: allowed tokens and bad words."""

from support import SMOLLM2, ServerCase

PROMPT = "The capital of France is"


class Masks(ServerCase):
    @classmethod
    def start(cls, stack):
        return [SMOLLM2, "--served-model-name", "demo"]

    def complete(self, max_tokens=24, **fields):
        answer = self.client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=max_tokens, temperature=0, extra_body=fields
        )
        return answer.choices[0].text

    def test_a_bad_word_does_not_come_behind_a_space_either(self):
        self.assertIn(" Paris", self.complete())
        without = self.complete(bad_words=["Paris"])
        self.assertNotIn("Paris", without)
        # White space in front of the word does not count.
        self.assertEqual(self.complete(bad_words=[" Paris"]), without)

    def test_a_bad_word_of_several_tokens_is_cut_at_its_last(self):
        whole = self.complete()
        words = whole.split()[:3]
        without = self.complete(bad_words=[" ".join(words)])
        self.assertNotIn(" ".join(words), without)
        self.assertEqual(without.split()[:2], words[:2])

    def test_what_the_model_would_not_say_changes_nothing(self):
        self.assertEqual(self.complete(bad_words=["xylophone"]), self.complete())

    def test_only_allowed_tokens_come(self):
        once = self.complete(allowed_token_ids=[300], max_tokens=1)
        self.assertEqual(self.complete(allowed_token_ids=[300], max_tokens=4), 4 * once)
        both = {self.complete(allowed_token_ids=[i], max_tokens=1) for i in (300, 301)}
        self.assertEqual(len(both), 2)
        self.assertIn(self.complete(allowed_token_ids=[300, 301], max_tokens=1), both)

    def test_errors(self):
        def post(**fields):
            body = {"model": "demo", "prompt": PROMPT, **fields}
            return self.server.http("POST", "/v1/completions", body)

        self.assert_error(post(allowed_token_ids=[]), 400, "allowed_token_ids")
        self.assert_error(post(allowed_token_ids=[10**7]), 400, "allowed_token_ids[0]")
        self.assert_error(post(bad_words=["ok", ""]), 400, "bad_words[1]")
