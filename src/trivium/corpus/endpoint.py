"""An embedder behind a URL: any server that speaks OpenAI's /embeddings."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cached_property
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from trivium.errors import TRANSIENT, InputError

_TRIES = 4


class EndpointEmbedder:
    """Asks `url`/embeddings for the vectors of `model`, `batch` texts at a time; what the server sends is made unit
    length.

    A refusal that may pass (429, 5xx, a lost connection) is tried again three times, after 1, 2 and 4 seconds.
    """

    def __init__(self, url: str, model: str, key: str = "", batch: int = 64, timeout: float = 60.0) -> None:
        self.url, self.model, self.batch = url.rstrip("/") + "/embeddings", model, batch
        self.name = f"endpoint-{model}"
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = timeout

    @cached_property
    def dim(self) -> int:
        """Asks the server once: the length of the vector of a word."""
        return len(self.embed_query("length"))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [len(texts), dim], unit norm. Raises InputError where the server cannot be reached, refuses, or
        answers nonsense."""
        parts = [self._ask(list(texts[start : start + self.batch])) for start in range(0, len(texts), self.batch)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), np.float32)

    def embed_query(self, query: str) -> np.ndarray:
        return self._ask([query])[0]

    def _ask(self, texts: list[str]) -> np.ndarray:
        answer = self._post({"model": self.model, "input": texts, "encoding_format": "float"})
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], np.float32)
            if vectors.shape[:1] != (len(texts),) or vectors.ndim != 2:
                raise ValueError(f"{len(rows)} vectors for {len(texts)} texts")
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not (np.isfinite(lengths) & (lengths > 0)).all():
                raise ValueError("a vector of no length")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.url} answered no embeddings ({error}): check that it serves {self.model}") from error
        return vectors / lengths

    def _post(self, body: dict) -> Any:
        for tried in range(_TRIES):
            if tried:
                time.sleep(2.0 ** (tried - 1))
            try:
                with urlopen(Request(self.url, json.dumps(body).encode(), self._headers), timeout=self._timeout) as response:
                    return json.load(response)
            except HTTPError as error:
                reason = f"{error.code} {_said(error)}".strip()
                if error.code not in TRANSIENT:
                    break
            except (OSError, HTTPException) as error:
                reason = str(error)
            except ValueError as error:  # else what is no URL, or no key
                reason = f"no JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
                break
        raise InputError(f"{self.url} gave no embeddings ({reason}): check the URL, the model {self.model} and the key")


def _said(error: HTTPError) -> str:
    """The beginning of what a server says beside a status, empty where that never comes."""
    try:
        return error.read(200).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
