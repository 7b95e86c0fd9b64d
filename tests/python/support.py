"""Starts the real `tenon` binary on a free loopback port and talks to it with the OpenAI client."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

import openai

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = Path(os.environ.get("TENON_BINARY", ROOT / "target/ci/tenon"))
MODEL_DIR = Path(os.environ.get("TENON_MODEL_DIR", Path.home() / ".cache/tenon/models"))
SMOLLM2 = MODEL_DIR / "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = MODEL_DIR / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
ACME = ROOT / "target/guests/examples/acme.wasm"
ADMIN_KEY = "test-admin-key"
START_TIMEOUT_S = 120


class Server:
    """A running server; `stop()` ends it as SIGTERM does and returns its exit status."""

    def __init__(self, *args, env=None):
        # No compiled component or upload of one test may help another.
        self.home = tempfile.TemporaryDirectory(prefix="tenon-test-")
        command = [BINARY, "serve", *map(str, args), "--port", "0"]
        command += ["--cache-dir", f"{self.home.name}/components"]
        self.log = open(f"{self.home.name}/log", "wb")
        self.process = subprocess.Popen(
            [str(c) for c in command],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "TENON_ADMIN_KEY": ADMIN_KEY, **(env or {})},
        )
        self.lines = []
        self.url = self._wait_for_url()
        threading.Thread(target=self._drain, daemon=True).start()
        self._wait_for_health()

    def _wait_for_url(self):
        for line in self.process.stdout:
            self.lines.append(line.decode())
            found = re.search(r"http://127\.0\.0\.1:\d+", self.lines[-1])
            if found:
                return found.group(0)
        raise AssertionError(f"the server did not start: {self.logs()}")

    def _drain(self):
        for line in self.process.stdout:
            self.lines.append(line.decode())

    def _wait_for_health(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.logs()}")
            status, _, _ = self.http("GET", "/health")
            if status == 200:
                return
            time.sleep(0.02)
        raise AssertionError(f"not healthy after {START_TIMEOUT_S} s: {self.logs()}")

    def lines_until(self, start):
        """The start-up text, up to the line that starts so."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if any(line.startswith(start) for line in list(self.lines)):
                return list(self.lines)
            time.sleep(0.02)
        raise AssertionError(f"no line `{start}` in {self.lines}")

    def logs(self):
        # By its path: the server writes through the same description as `self.log`.
        return Path(self.log.name).read_text(errors="replace")

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def http(self, method, path, body=None, headers=None):
        """Plain HTTP: (status, headers, JSON or text)."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        try:
            # A server that refuses a body may answer before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.headers, decode(response)
        finally:
            connection.close()

    def admin(self, method, path, body=None):
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        if isinstance(body, bytes):
            headers["content-type"] = "application/wasm"
        return self.http(method, path, body, headers)

    def metric(self, name):
        """The sum of a metric's samples."""
        _, _, text = self.http("GET", "/metrics")
        pattern = re.compile(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([0-9.eE+-]+)$", re.M)
        found = pattern.findall(text)
        assert found, f"no metric {name} in\n{text}"
        return sum(map(float, found))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self.log.close()
            self.home.cleanup()


def decode(response):
    text = response.read().decode()
    if response.headers.get_content_type() == "application/json":
        return json.loads(text)
    return text


@contextlib.contextmanager
def script(header, *replies):
    """A script file for `--scripted`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for line in [header, *replies]:
            file.write(json.dumps(line) + "\n")
        file.flush()
        yield file.name


class ErrorCase(unittest.TestCase):
    """Can look at error bodies."""

    def assert_error(self, response, status, param=None, says=""):
        """An OpenAI error body: all four keys, a message that says what is wrong."""
        code, headers, body = response
        self.assertEqual(code, status, body)
        self.assertEqual(headers.get_content_type(), "application/json")
        self.assertEqual(set(body["error"]), {"message", "type", "param", "code"}, body)
        self.assertIn(says, body["error"]["message"])
        if param is not None:
            self.assertEqual(body["error"]["param"], param, body)


class ServerCase(ErrorCase):
    """One server for all tests of a class: `start()` gives its arguments."""

    @classmethod
    def start(cls, stack):
        raise NotImplementedError

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.server = Server(*cls.start(cls.stack))
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.stack.close()

    def assert_same_answer(self, one, other):
        """Equal but for the prefix cache: the second of two requests finds the first one's prompt."""
        for answer in (one, other):
            answer["usage"].prompt_tokens_details.cached_tokens = 0
        self.assertEqual(one, other)


def tool(name, **properties):
    """An OpenAI function tool whose properties all are strings."""
    schema = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def fold(stream):
    """A streamed chat answer's first choice, folded as clients do it."""
    folded = {"reasoning": None, "content": None, "tool_calls": [], "finish": None, "usage": None}
    for chunk in stream:
        if chunk.usage:
            folded["usage"] = chunk.usage
        for choice in chunk.choices:
            if choice.index != 0:
                continue
            delta = choice.delta
            if delta.content is not None:
                folded["content"] = (folded["content"] or "") + delta.content
            reasoning = getattr(delta, "reasoning", None)
            if reasoning is not None:
                folded["reasoning"] = (folded["reasoning"] or "") + reasoning
            for call in delta.tool_calls or []:
                if call.index == len(folded["tool_calls"]):
                    assert call.id and call.function.name, call
                    folded["tool_calls"].append({"name": call.function.name, "arguments": ""})
                folded["tool_calls"][call.index]["arguments"] += call.function.arguments or ""
            if choice.finish_reason:
                assert folded["finish"] is None, "two finish reasons"
                folded["finish"] = choice.finish_reason
    return folded


def whole(completion):
    """A chat answer that was not streamed, in the shape of `fold`."""
    choice = completion.choices[0]
    message = choice.message
    return {
        "reasoning": getattr(message, "reasoning", None),
        "content": message.content,
        "tool_calls": [
            {"name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or []
        ],
        "finish": choice.finish_reason,
        "usage": completion.usage,
    }
