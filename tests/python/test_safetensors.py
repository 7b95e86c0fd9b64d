"""A safetensors directory served by the real binary: a small llama with seeded random weights."""

import json
import random
import struct
import tempfile
from pathlib import Path

from support import ServerCase

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2
SPECIALS = ["<|im_start|>", "<|im_end|>"]
VOCAB = 256 + len(SPECIALS)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shapes():
    """Name to shape, as Hugging Face writes a llama."""
    head_dim = HIDDEN // HEADS
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.self_attn.q_proj.weight", [HIDDEN, HIDDEN]
        yield f"{name}.self_attn.k_proj.weight", [KV_HEADS * head_dim, HIDDEN]
        yield f"{name}.self_attn.v_proj.weight", [KV_HEADS * head_dim, HIDDEN]
        yield f"{name}.self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield f"{name}.mlp.gate_proj.weight", [FEED_FORWARD, HIDDEN]
        yield f"{name}.mlp.up_proj.weight", [FEED_FORWARD, HIDDEN]
        yield f"{name}.mlp.down_proj.weight", [HIDDEN, FEED_FORWARD]
        yield f"{name}.input_layernorm.weight", [HIDDEN]
        yield f"{name}.post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def bf16(value):
    return struct.pack("<f", value)[2:]


def write_weights(path):
    rng = random.Random(7)
    header, data = {}, bytearray()
    for name, shape in shapes():
        begin = len(data)
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        for _ in range(size):
            data += bf16(1.0 if len(shape) == 1 else rng.gauss(0, 0.2))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def byte_level_alphabet():
    """The printable stand-ins of GPT-2's byte-level vocabularies, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def write_checkpoint(folder, max_len=512):
    write_weights(folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    added = [
        {"id": 256 + i, "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, text in enumerate(SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {char: byte for byte, char in byte_level_alphabet().items()},
            "merges": [],
        },
    }
    tokenizer_config = {"eos_token": SPECIALS[1], "chat_template": TEMPLATE}
    for name, content in [
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
    ]:
        (folder / name).write_text(json.dumps(content))


class Safetensors(ServerCase):
    @classmethod
    def start(cls, stack):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_checkpoint(folder)
        return [folder, "--served-model-name", "tiny", "--dtype", "float32"]

    def test_chat_and_completions(self):
        [model] = self.client.models.list().data
        self.assertEqual((model.id, model.max_model_len), ("tiny", 512))
        request = {"model": "tiny", "max_tokens": 12, "temperature": 0, "logprobs": True}
        extra = {"extra_body": {"ignore_eos": True}}
        messages = [{"role": "user", "content": "Grüße"}]
        answers = [
            self.client.chat.completions.create(messages=messages, **request, **extra)
            for _ in range(2)
        ]
        tokens = [[t.token for t in a.choices[0].logprobs.content] for a in answers]
        self.assertEqual(len(tokens[0]), 12)
        self.assertEqual(tokens[0], tokens[1], "greedy output is the same, cached or not")
        self.assertEqual(answers[0].choices[0].finish_reason, "length")
        # The template, in byte tokens: every byte one token, every special token one.
        prompt = "<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n"
        specials = sum(prompt.count(s) for s in SPECIALS)
        plain = prompt
        for special in SPECIALS:
            plain = plain.replace(special, "")
        expected = specials + len(plain.encode())
        self.assertEqual(answers[0].usage.prompt_tokens, expected)
