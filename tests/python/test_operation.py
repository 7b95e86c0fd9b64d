"""What an operator relies on: disconnects, overload, drain, keys, bad files, the command line."""

import contextlib
import json
import http.client
import os
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

from support import (
    ACME, ADMIN_KEY, BINARY, ROOT, SMOLLM2, ErrorCase, Server, ServerCase, script,
)

HEADER = {"step_ms": 5}
LONG = {"text": "word " * 400}


def ask(**more):
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 2000,
        **more,
    }


def until(check, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def open_stream(server):
    """A streamed request whose connection the caller closes."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    headers = {"content-type": "application/json"}
    body = json.dumps(ask(stream=True))
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    assert response.status == 200
    response.read(64)
    return connection


class Overload(ServerCase):
    @classmethod
    def start(cls, stack):
        path = stack.enter_context(script(HEADER, LONG))
        return ["--scripted", path, "--max-num-seqs", "2", "--max-queued-requests", "2"]

    def test_disconnect_frees_blocks(self):
        connection = open_stream(self.server)
        until(lambda: self.server.metric("vllm:num_requests_running") == 1)
        self.assertGreater(self.server.metric("vllm:kv_cache_usage_perc"), 0)
        connection.close()
        until(lambda: self.server.metric("vllm:num_requests_running") == 0, 3)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_full_queue_is_429(self):
        streams = [open_stream(self.server) for _ in range(2)]
        results = []

        def post():
            results.append(self.server.http("POST", "/v1/chat/completions", ask(max_tokens=1)))

        threads = [threading.Thread(target=post) for _ in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: any(r[0] == 429 for r in results))
        for stream in streams:
            stream.close()
        for thread in threads:
            thread.join(60)
        refused = [r for r in results if r[0] == 429]
        self.assert_error(refused[0], 429, says="queue")
        self.assertIsNotNone(refused[0][1]["retry-after"])
        self.assertEqual({r[0] for r in results}, {200, 429})

    def test_more_than_ever_fits_is_400(self):
        """To try again later, as a 429 says, would never help."""
        for path, body, param in [
            ("completions", {"prompt": ["a"] * 5}, "prompt"),
            ("completions", {"prompt": "a", "n": 5}, "n"),
            ("completions", {"prompt": ["a"] * 3, "n": 2}, "n"),
            ("chat/completions", ask(n=5), "n"),
        ]:
            response = self.server.http("POST", f"/v1/{path}", {**body, "max_tokens": 1})
            self.assert_error(response, 400, param)


class Connections(unittest.TestCase):
    def test_idle_ones_do_not_shut_others_out(self):
        """The usual limit of open files is far below what the server takes."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(script(HEADER, {"text": "hi"}))
            resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
            try:
                server = Server("--scripted", path)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            stack.callback(server.stop)
            address = urlsplit(server.url)
            for _ in range(160):
                idle = socket.create_connection((address.hostname, address.port), timeout=10)
                stack.callback(idle.close)
            connection = http.client.HTTPConnection(address.netloc, timeout=10)
            stack.callback(connection.close)
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)


class Drain(unittest.TestCase):
    def test_sigterm_finishes_what_runs(self):
        with script(HEADER, {"text": "x" * 150}) as path:
            server = Server("--scripted", path)
            result = {}

            def post():
                result["answer"] = server.http("POST", "/v1/chat/completions", ask())

            thread = threading.Thread(target=post)
            thread.start()
            until(lambda: server.metric("vllm:num_requests_running") == 1)
            server.process.send_signal(signal.SIGTERM)
            thread.join(60)
            status, _, body = result["answer"]
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["message"]["content"], "x" * 150)
            self.assertEqual(server.stop(), 0)


class Stuck(ErrorCase):
    """A step that does not end: its requests do, and so does the server."""

    # The warm-up is a step as well.
    STEP_S = 9

    def serve(self, *args):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        header = {"step_ms": 1000 * self.STEP_S}
        path = stack.enter_context(script(header, {"text": "ab"}))
        server = Server("--scripted", path, "--shutdown-timeout", 1, *args)
        stack.callback(server.stop)
        return server

    def stop(self, server):
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(60)
        return status, time.monotonic() - begin

    def test_a_server_that_failed_ends_at_once_and_says_so(self):
        server = self.serve("--stall-timeout", 1)
        response = server.http("POST", "/v1/chat/completions", ask(max_tokens=2))
        self.assert_error(response, 500, says="no progress")
        status, _, body = server.http("GET", "/health")
        self.assertEqual((status, body), (503, {"status": "failed"}))
        status, seconds = self.stop(server)
        self.assertEqual(status, 1, server.logs())
        self.assertLess(seconds, 4)
        self.assertIn("error: the engine stopped: no progress", server.logs())

    def test_the_end_does_not_wait_for_a_step(self):
        server = self.serve("--stall-timeout", 0)
        results = []

        def post():
            results.append(server.http("POST", "/v1/chat/completions", ask(max_tokens=2)))

        thread = threading.Thread(target=post)
        thread.start()
        until(lambda: server.metric("vllm:num_requests_waiting") > 0)
        status, seconds = self.stop(server)
        thread.join(60)
        self.assert_error(results[0], 503)
        self.assertEqual(status, 1, server.logs())
        # One second for the request, five for the engine.
        self.assertLess(seconds, self.STEP_S - 1)
        self.assertIn("error: the engine did not end within", server.logs())


class Logs(unittest.TestCase):
    def test_logs_are_json_lines_when_not_on_a_terminal(self):
        with script(HEADER, {"text": "hi"}) as path:
            server = Server("--scripted", path)
            try:
                server.lines_until("ready")
                until(lambda: "ready" in server.logs())
                records = [json.loads(line) for line in server.logs().splitlines()]
            finally:
                server.stop()
        [ready] = [record for record in records if record["message"] == "ready"]
        self.assertEqual((ready["level"], ready["model"]), ("INFO", "scripted"))


class Keys(unittest.TestCase):
    def test_api_and_admin_keys(self):
        with script(HEADER, {"text": "hi"}) as path:
            server = Server("--scripted", path, "--api-key", "k1")
            try:
                self.assertEqual(server.http("GET", "/v1/models")[0], 401)
                self.assertEqual(server.http("GET", "/health")[0], 200)
                key = {"authorization": "Bearer k1"}
                self.assertEqual(server.http("GET", "/v1/models", headers=key)[0], 200)
                self.assertEqual(server.http("GET", "/v1/extensions", headers=key)[0], 401)
                self.assertEqual(server.admin("GET", "/v1/extensions")[0], 200)
            finally:
                server.stop()

    def test_no_admin_key_is_403_and_names_the_flag(self):
        with script(HEADER, {"text": "hi"}) as path:
            server = Server("--scripted", path, env={"TENON_ADMIN_KEY": ""})
            try:
                status, _, body = server.http("GET", "/v1/extensions")
                self.assertEqual(status, 403)
                self.assertIn("--admin-key", body["error"]["message"])
            finally:
                server.stop()


class BadUploads(ServerCase):
    @classmethod
    def start(cls, stack):
        return ["--scripted", stack.enter_context(script(HEADER, {"text": "hi"}))]

    def refuse(self, body, says):
        status, _, answer = self.server.admin("POST", "/v1/extensions?name=bad", body)
        self.assertEqual(status, 422, answer)
        self.assertTrue(answer["reasons"], answer)
        self.assertIn(says, " ".join(answer["reasons"]))

    def test_hostile_files(self):
        acme = ACME.read_bytes()
        self.refuse(b"not wasm at all", "")
        self.refuse(acme[: len(acme) // 2], "")
        self.refuse(b"\0asm\x01\0\0\0", "")
        self.assert_error(self.server.admin("POST", "/v1/extensions?name=bad", b""), 400)
        status, _, _ = self.server.http("POST", "/v1/chat/completions", ask(max_tokens=2))
        self.assertEqual(status, 200)

    def test_aliases_change_nothing(self):
        """A delete by what a component calls itself would hit an upload of another name."""
        acme = ACME.read_bytes()
        for name in ["one", "acme"]:
            status, _, _ = self.server.admin("POST", f"/v1/extensions?name={name}", acme)
            self.assertEqual(status, 201)
        digest = {"digest": self.server.admin("GET", "/v1/extensions/acme")[2]["digest"]}
        self.assertEqual(self.server.admin("DELETE", "/v1/extensions/acme")[0], 200)
        self.assert_error(self.server.admin("DELETE", "/v1/extensions/acme"), 404, says="one")
        self.assert_error(self.server.admin("POST", "/v1/extensions/acme/rollback"), 404)
        self.assert_error(self.server.admin("POST", "/v1/extensions/acme/activate", digest), 404)
        self.assert_error(self.server.admin("DELETE", "/v1/extensions/hermes"), 409)
        self.assertEqual(self.server.admin("GET", "/v1/extensions/one")[2]["name"], "one")
        self.assertEqual(self.server.admin("DELETE", "/v1/extensions/one")[0], 200)

    def test_bind_names_the_model(self):
        path = "/v1/extensions/hermes/bind"
        response = self.server.admin("PUT", path, {"model": "other"})
        self.assert_error(response, 404, "model", "other")

    def test_playground(self):
        body = {"text": 'Hi.<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
                "tools": [{"type": "function", "function": {"name": "f"}}], "cuts": [5]}
        status, _, answer = self.server.admin("POST", "/v1/extensions/hermes/parse", body)
        self.assertEqual(status, 200, answer)
        self.assertIn("f", json.dumps(answer))


class DataDir(ErrorCase):
    """Uploads and bindings over restarts of the server."""

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.script = self.stack.enter_context(script(HEADER, {"text": "hi"}))
        self.data = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    def serve(self, *args):
        server = Server("--scripted", self.script, "--data-dir", self.data, *args)
        self.stack.callback(server.stop)
        return server

    def bound(self, server):
        return server.admin("GET", "/v1/extensions/acme")[2]["bound"]

    def upload(self, server):
        status, _, _ = server.admin("POST", "/v1/extensions?name=acme", ACME.read_bytes())
        self.assertEqual(status, 201)

    def test_a_binding_outlives_the_server(self):
        server = self.serve()
        self.upload(server)
        self.assertEqual(server.admin("PUT", "/v1/extensions/acme/bind", {})[0], 200)
        server.stop()
        server = self.serve()
        self.assertEqual(self.bound(server), ["scripted"])
        self.assert_error(server.admin("DELETE", "/v1/extensions/acme"), 409, says="scripted")
        server.stop()
        # A server of another model does not serve `scripted`, so it cannot bind it elsewhere.
        server = self.serve("--served-model-name", "other")
        self.assertEqual(self.bound(server), [])
        self.assertEqual(server.admin("DELETE", "/v1/extensions/acme")[0], 200)

    def test_damaged_upload_is_left_out_and_can_be_replaced(self):
        server = self.serve()
        self.upload(server)
        self.assertEqual(server.admin("PUT", "/v1/extensions/acme/bind", {})[0], 200)
        server.stop()
        [blob] = (self.data / "blobs").iterdir()
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        server = self.serve()
        self.assertIn("left out", server.logs())
        self.assertEqual(server.admin("GET", "/v1/extensions/acme")[0], 404)
        self.upload(server)
        self.assertEqual(self.bound(server), ["scripted"])
        server.stop()
        blob.write_bytes(b"")
        server = self.serve()
        self.assertEqual(server.admin("DELETE", "/v1/extensions/acme")[0], 200)
        self.upload(server)

    def test_a_version_that_is_not_admitted_does_not_become_current(self):
        server = self.serve()
        self.upload(server)
        [old] = (self.data / "blobs").iterdir()
        # Another digest, the same parser: a custom section more.
        newer = ACME.read_bytes() + b"\x00\x02\x01x"
        status, _, record = server.admin("POST", "/v1/extensions?name=acme", newer)
        self.assertEqual(status, 201, record)
        old.write_bytes(b"damaged")
        body = {"digest": f"sha256:{old.name}"}
        for path, body in [("rollback", None), ("activate", body)]:
            status, _, answer = server.admin("POST", f"/v1/extensions/acme/{path}", body)
            self.assertGreaterEqual(status, 400, answer)
        server.stop()
        server = self.serve()
        self.assertNotIn("left out", server.logs())
        _, _, kept = server.admin("GET", "/v1/extensions/acme")
        self.assertEqual(kept["digest"], record["digest"])


def tenon(*args, timeout=300, **more):
    command = [str(a) for a in (BINARY, *args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)


class CommandLine(unittest.TestCase):
    def test_doctor(self):
        done = tenon("doctor", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertIn("hermes", report["built_in_parsers"])
        self.assertTrue(report["sandbox"].startswith("ok"), report)

    def test_bad_files_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = Path(folder) / "bad.gguf"
            bad.write_bytes(SMOLLM2.read_bytes()[:100_000] if SMOLLM2.exists() else b"GGUF")
            for path in [bad, Path(folder) / "none.gguf", Path(folder)]:
                done = tenon("serve", path)
                self.assertEqual(done.returncode, 1)
                self.assertIn(str(path), done.stderr)
                self.assertNotIn("panicked", done.stderr)

    def test_a_pipe_is_no_model(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "pipe.gguf"
            os.mkfifo(pipe)
            done = tenon("serve", pipe, timeout=20)
            self.assertEqual(done.returncode, 1)
            self.assertIn("not a plain file", done.stderr)
            self.assertEqual(done.stderr.count("not a plain file"), 1, done.stderr)

    def test_impossible_sizes_are_refused(self):
        with script(HEADER, {"text": "hi"}) as path:
            for flag, value in [
                ("--kv-cache-memory-bytes", 2**64 - 1),
                ("--kv-cache-memory-bytes", 0),
                ("--block-size", 2**64 - 1),
                ("--output-workers", 100_000),
                ("--api-key", ""),
            ]:
                done = tenon("serve", "--scripted", path, "--port", "0", flag, value, timeout=20)
                self.assertIn(done.returncode, (1, 2))
                self.assertIn(flag, done.stderr)
                self.assertNotIn("panicked", done.stderr)

    def test_a_script_takes_the_template_of_the_flag(self):
        with script(HEADER, {"text": "hi"}) as path:
            done = tenon("serve", "--scripted", path, "--chat-template", "none.jinja", timeout=20)
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.jinja", done.stderr)

    def test_no_home_needs_a_cache_directory(self):
        env = {key: value for key, value in os.environ.items() if key != "HOME"}
        with script(HEADER, {"text": "hi"}) as path:
            done = tenon("serve", "--scripted", path, "--port", "0", env=env)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--cache-dir", done.stderr)

    def test_extension_test(self):
        cases = ROOT / "tests/cases/formats.jsonl"
        done = tenon("extension", "test", "llama3_json", "--cases", cases)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout.strip().splitlines()[-1], r"^\d+ passed, 0 failed$")
        done = tenon("extension", "test", ACME, "--cases", cases, "--family", "hermes")
        self.assertEqual(done.returncode, 1, "another format's cases must fail")
        self.assertRegex(done.stdout.strip().splitlines()[-1], r"^\d+ passed, [1-9]\d* failed$")

    def test_push_and_list(self):
        with script(HEADER, {"text": "hi"}) as path:
            server = Server("--scripted", path)
            try:
                where = ["--url", server.url, "--admin-key", ADMIN_KEY]
                done = tenon("extension", "push", ACME, "--name", "acme", *where)
                self.assertEqual(done.returncode, 0, done.stderr)
                done = tenon("extension", "list", *where)
                self.assertIn("acme", done.stdout)
                self.assertIn("hermes", done.stdout)
                done = tenon("extension", "push", ROOT / "README.md", *where)
                self.assertEqual(done.returncode, 1)
                self.assertIn("component", done.stderr)
                for name in ["a b", "a#b", "a&name=b", ""]:
                    done = tenon("extension", "push", ACME, "--name", name, *where)
                    self.assertEqual(done.returncode, 1, name)
                    self.assertIn("no extension name", done.stderr)
                where[-1] = "two\nlines"
                done = tenon("extension", "list", *where)
                self.assertEqual(done.returncode, 1)
                self.assertIn("--admin-key", done.stderr)
            finally:
                server.stop()

    def test_build_the_example(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "acme.wasm"
            done = tenon("extension", "build", ROOT / "examples/acme-parser", "-o", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            cases = ROOT / "examples/acme-parser/cases.jsonl"
            done = tenon("extension", "test", out, "--cases", cases)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_cases_find_their_parsers(self):
        # All built-in parsers in one go: each must be found by its family, in one sandbox.
        cases = ROOT / "tests/cases/formats.jsonl"
        done = tenon("extension", "test", "--cases", cases)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "350 passed, 0 failed")

    def test_run_one_prompt(self):
        done = tenon("run", SMOLLM2, "-p", "Who wrote Hamlet?", "--temperature", "0",
                     "--max-tokens", "24")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Shakespeare", done.stdout)

    def test_run_tells_a_script_what_failed(self):
        lines = f"hi\n{'a ' * 20_000}\n"
        done = tenon("run", SMOLLM2, "--temperature", "0", "--max-tokens", "2", input=lines)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout)
        self.assertIn("1 messages have no answer", done.stderr)


if __name__ == "__main__":
    unittest.main()
