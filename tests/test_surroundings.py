"""What surrounds a command (environment variables, a home, pipes, addresses) and cannot be used costs one clear line."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws.walks import pruning
from trivium.corpus import EndpointEmbedder, HashEmbedder
from trivium.corpus.embed import CachedEmbedder, cache_folder
from trivium.errors import InputError, PolicyError
from trivium.harness import read_usage
from trivium.policy import Endpoint, View
from trivium.policy.vllm import Vllm
from trivium.trace import Sampling, Store


@pytest.mark.parametrize("name", ["ALL_PROXY", "HTTPS_PROXY", "http_proxy"])
@pytest.mark.parametrize("proxy", ["socks://localhost:9", "ftp://localhost:9"])
def test_a_proxy_that_cannot_be_used_is_one_line(renderer, monkeypatch, name, proxy):
    pytest.importorskip("openai")
    monkeypatch.setenv(name, proxy)
    policy = Endpoint("http://127.0.0.1:9/v1", "m", renderer)
    with pytest.raises(InputError, match=f"a proxy that cannot be used .*{proxy}.*: unset ALL_PROXY"):
        asyncio.run(policy.speak(View([1], [], [], ()), Sampling()))
    assert policy.spent == 0


@pytest.mark.parametrize("url", ["foo", "http://[bad", "http://exa\nmple", "http://\ud800/", ""])
def test_what_is_no_address_is_said_so(renderer, url):
    pytest.importorskip("openai")
    with pytest.raises(PolicyError, match="no vLLM answers"):
        Vllm(url, renderer=renderer)
    with pytest.raises(PolicyError, match="^endpoint at"):
        asyncio.run(Endpoint(url, "m", renderer, retries=0).speak(View([1], [], [], ()), Sampling()))
    with pytest.raises(InputError, match="gave no embeddings .*: check the URL, the model m and the key"):
        EndpointEmbedder(url, "m").embed(["x"])


def test_without_a_home_the_cache_needs_a_name(monkeypatch, tmp_path):
    def unknown(uid: int):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("TRIVIUM_CACHE", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(InputError, match="no home folder to keep vectors in: set TRIVIUM_CACHE"):
        CachedEmbedder(HashEmbedder())
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    assert CachedEmbedder(HashEmbedder()).path == tmp_path / "vectors.sqlite"


def test_the_cache_is_in_the_home_folder_where_nothing_else_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRIVIUM_CACHE", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "trivium"


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_has_read_enough_is_no_error(renderer, tmp_path, lines):
    episode, _ = asyncio.run(pruning(renderer))
    store = Store(tmp_path / "episodes.db")
    store.write([episode])
    command = [sys.executable, "-m", "trivium", "show", str(tmp_path / "episodes.db")]
    environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(Path("src").resolve())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as shown:
        assert shown.stdout and shown.stderr
        if not lines:  # gone before the first word
            shown.stdout.close()
        else:
            assert shown.stdout.readline()
            shown.stdout.close()
        assert shown.stderr.read() == b""
    assert shown.returncode == 0


def test_a_usage_line_that_no_harness_wrote_is_none():
    ours = "a\n[Token usage: 14,203/32,768]\nb [Token usage: 0/640] Prune or answer."
    assert read_usage(ours) == [(14203, 32768), (0, 640)]
    for number in ("9" * 5000, ",", ",5", "", "-5", "1.5"):
        assert read_usage(f"[Token usage: {number}/640] [Token usage: 5/{number}]") == []
