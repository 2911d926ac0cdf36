"""Pages of the web: from named hosts alone, each redirect asked again."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.coder.house import attempt, shown
from trivium.agents.coder.fetch import SHOWN
from trivium.harness import Window
from trivium.policy.scripted import call, say

PAGES = {"/": b"hello", "/long": b"x" * (SHOWN + 5)}


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        body = PAGES.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def host():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pages_of_a_named_host_and_of_no_other(renderer, host):
    port, denied = host.partition(":")[2], f"is not allowed; allowed are pages of {host}."
    urls = {
        f"http://{host}/": "hello",
        f"http://{host}/long": f"{'x' * SHOWN}\n[5 letters left out]",
        f"http://{host}/to//": "hello",
        f"http://{host}/none": f"Error: http://{host}/none answers 404.",
        f"http://{host}/to/http://localhost:{port}/": f"Error: 'http://localhost:{port}/' {denied}",
        f"http://localhost:{port}/": f"Error: 'http://localhost:{port}/' {denied}",
        f"http://{host}@localhost:{port}/": f"Error: 'http://{host}@localhost:{port}/' {denied}",
        "file:///etc/passwd": f"Error: 'file:///etc/passwd' {denied}",
        "http://[": f"Error: 'http://[' {denied}",
    }
    wide = Window(40_000, soft=0.9, hard=1.0, reply=300)
    script = [*(call(("fetch_url", {"url": url})) for url in urls), say("Done.")]
    episode = attempt(renderer, *script, window=wide, hosts=(host,))
    assert dict(zip(urls, shown(episode), strict=True)) == urls
    assert episode.agent.calls[3].fault == "provider"
