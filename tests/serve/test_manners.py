"""Production manners: keys, limits, sizes, time-outs, numbers, log lines and a graceful end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serve.house import adding, connect, options, serving, until
from trivium.errors import InputError
from trivium.policy import Reply, Scripted
from trivium.policy.scripted import say
from trivium.serve import keys
from trivium.serve.errors import ApiError
from trivium.serve.keys import Key, Keyring
from trivium.serve.limits import Gate
from trivium.serve.manners import Lines
from trivium.serve.options import Options
from trivium.serve.service import Service

BODY = {"model": "script", "messages": [{"role": "user", "content": "hi"}]}


class Held:
    """Speaks when it is told to."""

    def __init__(self, renderer) -> None:
        self.name, self.renderer, self.version, self.go, self.asked = "held", renderer, 0, threading.Event(), 0

    async def speak(self, view, sampling) -> Reply:
        self.asked += 1
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        return Reply(message=say("At last."))


@pytest.fixture
def held(renderer):
    return Held(renderer)


@pytest.fixture
def ring(tmp_path):
    """Keys in a file, and what they are."""
    path = tmp_path / "keys.json"
    tokens = {name: keys.add(path, name, **limits) for name, limits in LIMITS.items()}
    return str(path), tokens


LIMITS = {
    "ann": {"consent": True, "per_minute": 0, "concurrent": 0},
    "slow": {"consent": False, "per_minute": 2, "concurrent": 0},
    "one": {"consent": False, "per_minute": 0, "concurrent": 1},
}


def serve(tmp_path, renderer, held=None, **changes):
    models = {"script": Scripted(adding, renderer)} | ({"held": held} if held else {})
    return serving(Service(models, options(tmp_path, **changes)))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_without_a_key_nothing_is_told(tmp_path, renderer, ring):
    path, tokens = ring
    assert not any(token in open(path).read() for token in tokens.values())
    with serve(tmp_path, renderer, keys=path) as url, httpx.Client(base_url=url) as http:
        for headers in ({}, bearer("tv-forged"), {"x-api-key": "tv-forged"}, {"Authorization": tokens["ann"]}):
            assert http.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 401
            assert http.get("/v1/models", headers=headers).status_code == 401
        for headers in (bearer(tokens["ann"]), {"x-api-key": tokens["ann"]}):
            assert http.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
        assert http.get("/healthz").json() == {"status": "ok"}
        assert "ann" not in http.get("/metrics").text


def test_limits_of_a_key_are_told_with_the_time_to_come_again(tmp_path, renderer, ring, held):
    path, tokens = ring
    with serve(tmp_path, renderer, held, keys=path) as url, httpx.Client(base_url=url, timeout=60) as http:
        answers = [http.post("/v1/chat/completions", json=BODY, headers=bearer(tokens["slow"])) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30 and "2 requests a minute" in answers[2].text
        waiting = threading.Thread(
            target=httpx.post,
            args=(f"{url}/v1/chat/completions",),
            kwargs={"json": {**BODY, "model": "held"}, "headers": bearer(tokens["one"]), "timeout": 60},
        )
        waiting.start()
        until(lambda: held.asked)
        second = http.post("/v1/chat/completions", json=BODY, headers=bearer(tokens["one"]))
        assert second.status_code == 429 and second.headers["retry-after"]
        assert http.post("/v1/chat/completions", json=BODY, headers=bearer(tokens["ann"])).status_code == 200
        held.go.set()
        waiting.join()
        assert http.post("/v1/chat/completions", json=BODY, headers=bearer(tokens["one"])).status_code == 200


def test_a_full_server_says_so_at_once(tmp_path, renderer, held):
    with serve(tmp_path, renderer, held, concurrent=1) as url, httpx.Client(base_url=url, timeout=60) as http:
        waiting = threading.Thread(
            target=httpx.post, args=(f"{url}/v1/chat/completions",), kwargs={"json": {**BODY, "model": "held"}, "timeout": 60}
        )
        waiting.start()
        until(lambda: held.asked)
        refused = http.post("/v1/messages", json={**BODY, "max_tokens": 5})
        assert refused.status_code == 429 and refused.json()["error"]["type"] == "rate_limit_error"
        held.go.set()
        waiting.join()


def test_requests_of_a_minute_come_back_one_by_one():
    now = [0.0]
    gate, key = Gate(10, lambda: now[0]), Key("a", "", per_minute=60)
    for _ in range(60):
        with gate.admit(key):
            pass
    with pytest.raises(ApiError) as refused, gate.admit(key):
        pass
    assert refused.value.after == 1
    now[0] = 1.0
    with gate.admit(key):
        pass
    with pytest.raises(ApiError), gate.admit(key):
        pass


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(tmp_path, renderer):
    with serve(tmp_path, renderer, body=1000) as url, httpx.Client(base_url=url) as http:
        large = json.dumps({**BODY, "user": "x" * 2000}).encode()
        for content in (large, iter([large])):
            refused = http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == 413 and "1,000 bytes" in refused.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


def test_a_request_that_does_not_come_is_given_up(tmp_path, renderer):
    with serve(tmp_path, renderer, stall=0.2) as url, connect(url) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert sock.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_reply_that_takes_too_long_is_an_error_whole_or_streamed(tmp_path, renderer, held):
    with serve(tmp_path, renderer, held, seconds=0.2) as url, httpx.Client(base_url=url, timeout=60) as http:
        late = http.post("/v1/chat/completions", json={**BODY, "model": "held"})
        assert late.status_code == 504 and "0.2 seconds" in late.json()["error"]["message"]
        streamed = http.post("/v1/messages", json={**BODY, "model": "held", "max_tokens": 5, "stream": True})
        assert streamed.text.count("event: error") == 1 and "message_stop" not in streamed.text


def test_asked_to_end_it_lets_a_reply_finish(tmp_path, renderer, held):
    service = Service({"held": held}, options(tmp_path))
    answers: list[httpx.Response] = []
    with serving(service) as url:
        body = {**BODY, "model": "held"}
        waiting = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60))
        )
        waiting.start()
        until(lambda: held.asked)
        threading.Timer(0.3, held.go.set).start()
    waiting.join()
    assert answers[0].status_code == 200 and answers[0].json()["choices"][0]["message"]["content"] == "At last."


def test_what_prometheus_reads_counts_what_happened(tmp_path, renderer):
    with serve(tmp_path, renderer) as url, httpx.Client(base_url=url) as http:
        http.post("/v1/chat/completions", json=BODY)
        http.post("/v1/chat/completions", json={**BODY, "model": "gone"})
        text = http.get("/metrics").text
    assert 'trivium_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'trivium_requests_total{route="/v1/chat/completions",status="404"} 1.0' in text
    assert "trivium_capture_seconds_count 1.0" in text and "trivium_active 1.0" in text


def test_a_log_line_is_json_and_says_nothing_of_what_was_said(tmp_path, renderer, caplog, ring):
    path, tokens = ring
    caplog.set_level(logging.INFO, "trivium.serve")
    with serve(tmp_path, renderer, keys=path) as url, httpx.Client(base_url=url) as http:
        answer = http.post("/v1/chat/completions", json=BODY, headers=bearer(tokens["ann"]))
    record = next(record for record in caplog.records if record.getMessage() == "request")
    line = Lines().format(record)
    told = json.loads(line)
    assert (told["route"], told["key"], told["status"]) == ("/v1/chat/completions", "ann", 200)
    assert told["request"] == answer.headers["x-request-id"] and "Hello" not in line and tokens["ann"] not in line


def test_others_are_not_let_in_without_keys():
    with pytest.raises(InputError, match="give --keys too"):
        Options(host="0.0.0.0")
    Options(host="0.0.0.0", keys="keys.json")
    Options(host="::1")


@pytest.mark.parametrize("text", ["[", '{"a": 1}', '[{"name": "a/b", "digest": ""}]', '[{"name": "a"}]'])
def test_a_file_that_holds_no_keys_is_named(tmp_path, text):
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(InputError):
        Keyring.load(str(path))


def test_keys_that_are_made_at_once_are_all_kept(tmp_path):
    path, names = tmp_path / "keys.json", [f"key{number}" for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        tokens = list(pool.map(lambda name: keys.add(path, name, **LIMITS["ann"]), names))
    ring = Keyring.load(str(path))
    assert [ring.find(token).name for token in tokens] == names


@pytest.mark.parametrize("file, name", [("", "ann"), ("..", "ann"), ("none/keys.json", "ann"), ("keys.json", "a name")])
def test_what_can_be_no_key_leaves_nothing(tmp_path, monkeypatch, file, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, FileNotFoundError)):
        keys.add(Path(file), name, **LIMITS["ann"])
    assert not list(tmp_path.iterdir())


def test_two_keys_of_one_name_are_refused(tmp_path):
    keys.add(tmp_path / "keys.json", "ann", **LIMITS["ann"])
    with pytest.raises(InputError, match="ann"):
        keys.add(tmp_path / "keys.json", "ann", **LIMITS["ann"])
