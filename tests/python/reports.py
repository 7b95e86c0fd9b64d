"""What the tests of reported bugs share: the cases, and requests without a client's help."""

import contextlib
import http.client
import json
import re
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from support import ROOT, ServerCase, decode

CASES = {
    found["id"]: found
    for line in (ROOT / "tests/cases/served_reports.jsonl").read_text().splitlines()
    for found in [json.loads(line)]
}
# What a case is about that is not there yet.
NOT_YET = {
    "ap-018": "`/v1/responses`",
    "en-010": "adapters; of its salts: `another_salt_finds_nothing`",
    "so-008": "speculation",
    "so-010": "speculation",
    "so-011": "speculation",
    "so-012": "speculation",
    "so-013": "speculation",
    "us-006": "a downloader",
}
CANARY = {"messages": [{"role": "user", "content": "still there?"}], "max_tokens": 3}


def case(name):
    """What is asked and what is expected."""
    return CASES[name]["input"], CASES[name]["expected"]


class ReportCase(ServerCase):
    """Raw HTTP against one server that serves the model `scripted`."""

    def post(self, path, request):
        return self.server.http("POST", f"/v1/{path}", {"model": "scripted", **request})

    def ok(self, path, request):
        """The body of a 200."""
        status, _, body = self.post(path, request)
        self.assertEqual(status, 200, (request, body))
        return body

    def stream(self, path, request):
        """The chunks of a stream."""
        status, headers, text = self.post(path, {**request, "stream": True})
        self.assertEqual(status, 200, text)
        self.assertEqual(headers.get_content_type(), "text/event-stream")
        *chunks, done, rest = text.split("\n\n")
        self.assertEqual((done, rest), ("data: [DONE]", ""))
        return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]

    def refused(self, path, request, param=None):
        """The error of a 400."""
        response = self.post(path, request)
        self.assert_error(response, 400, param)
        error = response[2]["error"]
        self.assertEqual(error["type"], "invalid_request_error")
        return error

    def assert_canary(self):
        """The server still answers."""
        answer = self.ok("chat/completions", CANARY)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)

    @contextlib.contextmanager
    def beside(self, path, request):
        """A request that runs meanwhile; its `answer` is there at the end."""
        result = {}
        thread = threading.Thread(target=lambda: result.update(answer=self.post(path, request)))
        thread.start()
        try:
            yield result
        finally:
            thread.join(60)

    def rss_mb(self):
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def flood(self, path, request, num_requests, num_connections):
        """All answers with their seconds, and the most sequences that the server ever had."""
        body = json.dumps({"model": "scripted", **request})
        headers = {"content-type": "application/json"}
        answers = []
        most = 0

        def send():
            connection = http.client.HTTPConnection(urlsplit(self.server.url).netloc, timeout=60)
            with contextlib.closing(connection):
                for _ in range(num_requests // num_connections):
                    begin = time.monotonic()
                    connection.request("POST", f"/v1/{path}", body, headers)
                    response = connection.getresponse()
                    found = response.status, response.headers, decode(response)
                    answers.append((found, time.monotonic() - begin))

        threads = [threading.Thread(target=send) for _ in range(num_connections)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            # Of one page: between two, some may begin.
            _, _, page = self.server.http("GET", "/metrics")
            counts = re.findall(r"^vllm:num_requests_(?:running|waiting){.*} (\d+)$", page, re.M)
            most = max(most, sum(map(int, counts)))
        for thread in threads:
            thread.join()
        return answers, most
