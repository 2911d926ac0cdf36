"""A real server of the OpenAI chat API on the loopback, which says what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = dict | int


def calls(*asked: tuple[str, str]) -> dict:
    """A message that calls tools, as the API has it: arguments are a JSON string, sound or not."""
    made = [
        {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(asked)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def says(text: str) -> dict:
    return {"role": "assistant", "content": text}


class Server(ThreadingHTTPServer):
    """Answers with `script` in order: a message, or a status to refuse with; or with what a function says to each request's
    body. `asked` keeps those bodies."""

    def __init__(self, *script: Answer | Callable[[dict], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.asked, self.keys, self.counts = list(script), [], [], True
        self.daemon_threads = True

    def answer(self, body: dict) -> Answer:
        self.asked.append(body)
        if not self.script:
            return says("#1")
        return self.script[0](body) if callable(self.script[0]) else self.script.pop(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept alive, as real servers keep them
    server: Server

    def do_POST(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        answer = self.server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status = answer if isinstance(answer, int) else 200
        body = {"error": {"message": f"status {status}"}} if isinstance(answer, int) else _completion(answer)
        if not self.server.counts and "usage" in body:
            body["usage"] = None if self.server.counts is False else self.server.counts
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


def _completion(message: dict) -> dict:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
