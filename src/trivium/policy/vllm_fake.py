"""A vLLM server that is none: the endpoints that `Vllm` uses, on a port of its own, with a bigram table for a network.

The table follows from the digest of the weights, so that new weights speak otherwise and a test can say what they should
have said. It can lie as real servers do, lack options, be busy, and be slow enough for an update in mid-reply.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import numpy as np
from blake3 import blake3

if TYPE_CHECKING:
    import torch


def bigrams(digest: str, tokens: Sequence[int], vocabulary: int) -> np.ndarray:
    """What weights of this digest say after each of `tokens`: logits float64 [len, vocabulary]."""
    keys = [int.from_bytes(blake3(f"{digest} {token}".encode()).digest(length=16), "little") for token in tokens]
    return np.stack([np.random.Generator(np.random.Philox(key=key)).normal(size=vocabulary) for key in keys])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class FakeVllm:
    """`with FakeVllm(folder, state) as fake: Vllm(fake.url)`. `folder` is told as the model's; `step` are seconds a token;
    after `rests` tokens it pauses by itself, so that an update comes in mid-reply.

    `lacks` names what it was started without: "dev", "extension", "scale-out", "versions", "processed", "whole". `lies`:
    "reload" (reports the new digest, serves the old weights), "digest" (holds others than it was given), "packed" (layers
    that do not follow their weights), "logprobs" (one too few), "ends" (a reply ends before its end). `fails` are statuses to
    answer the next requests for a reply with ("abort": aborted by somebody). `requests` keeps those, `spoken` counts
    tokens, `most` is how many requests were in flight at once.
    """

    def __init__(
        self,
        folder: str | Path,
        state: dict[str, torch.Tensor],
        *,
        vocabulary: int = 64,
        step: float = 0.0,
        rests: int = 0,
        lacks: Collection[str] = (),
        lies: Collection[str] = (),
        fails: Sequence[int | str] = (),
    ) -> None:
        from trivium.policy.vllm_server.trivium_vllm import digest

        self.folder, self.vocabulary, self.step, self.rests = str(folder), vocabulary, step, rests
        self.lacks, self.lies, self.fails, self.requests, self.calls, self.label = lacks, lies, list(fails), [], [], "default"
        self.spoken = self.most = 0
        self.digest = self.speaks = digest(state)
        self._flying, self._lock, self._running = 0, threading.Lock(), threading.Event()
        self._running.set()
        self._server = _Server(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def __enter__(self) -> FakeVllm:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._running.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of the answer to one request."""
        if path == "/inference/v1/generate":
            return self._generate(body)
        if "dev" in self.lacks:
            return 404, {"detail": "Not Found"}
        self.calls.append(body.get("method", path))
        return getattr(self, path.strip("/"))(body)

    def is_paused(self, body) -> tuple[int, Any]:
        return 200, {"is_paused": self.paused}

    def weight_info(self, body) -> tuple[int, Any]:
        return 200, {"weight_version": self.label}

    def update_weight_version(self, body) -> tuple[int, Any]:
        self.label = body["new_version"]
        return 200, {"success": True}

    def reset_prefix_cache(self, body) -> tuple[int, Any]:
        return 200, {"success": True}

    def pause(self, body) -> tuple[int, Any]:
        with self._lock:
            self._running.clear()
        return 200, {"status": "paused"}

    def resume(self, body) -> tuple[int, Any]:
        self._running.set()
        return 200, {"status": "resumed"}

    def collective_rpc(self, body) -> tuple[int, Any]:
        if "extension" in self.lacks:
            return 500, {"error": f"no method {body['method']}"}
        try:
            return 200, {"results": [getattr(self, body["method"])(*body["args"])]}
        except Exception as error:
            return 200, {"results": [{"error": f"{type(error).__name__}: {error}"}]}

    def trivium_serves(self) -> dict:
        mode = "raw_logprobs" if "processed" in self.lacks else "processed_logprobs"
        stale = ["model.layers.0.mlp.down_proj"] if "packed" in self.lies else []
        answer = {"folder": self.folder, "logprobs": mode, "dtype": "float32", "context": 2048, "workers": 1}
        return {**answer, "dies": "whole" in self.lacks, "stale": stale}

    def trivium_load(self, path: str) -> dict:
        from safetensors.torch import load_file

        from trivium.policy.vllm_server.trivium_vllm import digest, widened

        self.digest = digest(widened(load_file(path), "float32"))
        if "reload" not in self.lies:
            self.speaks = self.digest
        return self.trivium_digest()

    def trivium_digest(self) -> dict:
        return {"digest": "0" * 64 if "digest" in self.lies else self.digest}

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        if "scale-out" in self.lacks:
            return 403, {"error": {"message": "Scale-out endpoints are disabled."}}
        sampling = body["sampling_params"]
        if "prompt_logprobs" not in sampling and body["token_ids"] != [0]:
            self.requests.append(body)
            status = self.fails[0] if self.fails else "none"
            if isinstance(status, int):
                del self.fails[0]
                return status, {"error": {"message": "busy"}}
        with self._lock:
            self._flying += 1
            self.most = max(self.most, self._flying)
        try:
            return 200, self._reply(body["token_ids"], sampling)
        finally:
            with self._lock:
                self._flying -= 1

    def _reply(self, prompt: Sequence[int], sampling: dict[str, Any]) -> dict[str, Any]:
        dice, warm = np.random.default_rng(sampling.get("seed", 0)), sampling.get("temperature", 1.0) or 1.0
        tokens, logprobs, labels, scores = [], [], [], None
        while len(tokens) < sampling["max_tokens"] and not (tokens and tokens[-1] in sampling.get("stop_token_ids", ())):
            self._running.wait()
            with self._lock:
                if not self._running.is_set():
                    continue
                if "prompt_logprobs" in sampling:
                    scores = self._scores(prompt)
                chances = log_softmax(bigrams(self.speaks, [(*prompt, *tokens)[-1]], self.vocabulary)[0] / warm)
                greedy = sampling.get("temperature") == 0
                tokens.append(int(chances.argmax()) if greedy else int(dice.choice(self.vocabulary, p=np.exp(chances))))
                logprobs.append(float(chances[tokens[-1]]))
                labels.append(self.label)
                self.spoken += 1
                if self.spoken == self.rests:
                    self._running.clear()
            time.sleep(self.step)
        return {"choices": [self._choice(tokens, logprobs, labels)], "prompt_logprobs": scores}

    def _scores(self, tokens: Sequence[int]) -> list[dict | None]:
        chances = log_softmax(bigrams(self.speaks, tokens[:-1], self.vocabulary))
        return [None, *({str(token): {"logprob": float(chances[n, token])}} for n, token in enumerate(tokens[1:]))]

    def _choice(self, tokens: list[int], logprobs: list[float], labels: list[str]) -> dict[str, Any]:
        starts = [n for n in range(len(labels)) if n == 0 or labels[n] != labels[n - 1]]
        ends = [*starts[1:], len(labels)]
        spans = [{"version": labels[start], "start": start, "end": end} for start, end in zip(starts, ends, strict=True)]
        content = [{"token_id": token, "logprob": logprob} for token, logprob in zip(tokens, logprobs, strict=True)]
        ended = "abort" if self.fails[:1] == ["abort"] and self.fails.pop(0) else "length"
        return {
            "token_ids": tokens[: -1 if "ends" in self.lies else None],
            "logprobs": {"content": content[: -1 if {"logprobs", "ends"} & {*self.lies} else None]},
            "weight_versions": None if "versions" in self.lacks else _cut(spans) if "ends" in self.lies else spans,
            "finish_reason": ended,
        }


def _cut(spans: list[dict]) -> list[dict]:
    """One token less."""
    return [*spans[:-1], {**spans[-1], "end": spans[-1]["end"] - 1}]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeVllm) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # ty: ignore[incompatible-mutable-override] it serves no other

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._answer(json.loads(self.rfile.read(length) or b"{}") or {})

    def _answer(self, body: dict) -> None:
        status, content = self.server.fake.answer(urlparse(self.path).path, body)
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client left
            self.close_connection = True

    def log_message(self, format: str, *_: Any) -> None:
        pass
