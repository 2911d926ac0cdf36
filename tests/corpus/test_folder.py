"""The index on disk: the same answers, never half-written, one clear error for whatever is torn or wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trivium.corpus import Corpus, Document, HashEmbedder, folder
from trivium.errors import CorruptError, InputError


def documents(word: str, count: int = 30) -> list[Document]:
    return [Document(f"{word}{n}", f"{word} {n}", f"{word} lies in valley {n % 7} é") for n in range(count)]


def test_a_reopened_index_answers_as_the_one_in_memory(tmp_path):
    embedder = HashEmbedder()
    memory = Corpus.build(documents("holt"), embedder=embedder)
    Corpus.build(documents("holt"), tmp_path / "deep" / "index", embedder)
    opened = Corpus.open(tmp_path / "deep" / "index", HashEmbedder())
    assert list(opened) == list(memory) and opened.digest == memory.digest
    for query in ("holt valley 3", "é", "who is"):
        assert opened.search(query, 20, exclude=["holt4:0"]) == memory.search(query, 20, exclude=["holt4:0"])
    assert opened.grep("é$", limit=3) == memory.grep("é$", limit=3)
    assert isinstance(opened.index.vectors.base, np.memmap), "vectors are to be memory-mapped"
    assert not opened.index.vectors.flags.writeable


def test_titles_alone_make_an_index(tmp_path):
    Corpus.build([Document("a", "Only a title", "")], tmp_path / "i")
    assert Corpus.open(tmp_path / "i").search("title")[0].chunk.text == ""


def test_the_digest_tells_corpora_apart():
    texts = [("a", "xy"), ("a", "x y"), ("b", "xy")]
    assert len({Corpus.build([Document(name, "", text)]).digest for name, text in texts}) == 3


def test_the_wrong_embedder_is_refused(tmp_path):
    Corpus.build(documents("holt"), tmp_path / "i", HashEmbedder(16))
    for wrong in (None, HashEmbedder(32)):
        with pytest.raises(InputError, match="with the embedder hash-16"):
            Corpus.open(tmp_path / "i", wrong)


def test_an_embedder_that_breaks_its_promise_is_refused():
    class Long(HashEmbedder):
        def embed(self, texts):
            return super().embed(texts) * 2

    with pytest.raises(InputError, match=r"length 2\.0"):
        Corpus.build(documents("holt"), embedder=Long())


def test_every_torn_file_is_one_clear_error(tmp_path):
    Corpus.build(documents("holt"), tmp_path / "i", HashEmbedder())
    files = [p for p in (tmp_path / "i").rglob("*") if p.is_file() and p.name != "LOCK"]
    assert len(files) == 10
    for file in files:
        whole = file.read_bytes()
        flipped = bytes([*whole[:-1], whole[-1] ^ 1])
        for torn in (whole[: len(whole) // 2], b"", None) + ((flipped,) if file.suffix == ".npy" else ()):
            file.unlink()
            if torn is not None:
                file.write_bytes(torn)
            missing_door = file.name == "CURRENT" and torn is None
            with pytest.raises(InputError if missing_door else CorruptError, match="holds no index|torn"):
                Corpus.open(tmp_path / "i", HashEmbedder())
            file.write_bytes(whole)
    for file, nonsense in (("CURRENT", b"\xff\xfe"), ("g-*/meta.json", b'{"schema": 1, "files": ["text"]}')):
        file = next((tmp_path / "i").glob(file))
        whole = file.read_bytes()
        file.write_bytes(nonsense)
        with pytest.raises(CorruptError, match="torn"):
            Corpus.open(tmp_path / "i", HashEmbedder())
        file.write_bytes(whole)
    assert len(Corpus.open(tmp_path / "i", HashEmbedder())) == 30


def test_another_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SCHEMA", 99)
    Corpus.build(documents("holt"), tmp_path / "i")
    monkeypatch.undo()
    with pytest.raises(CorruptError, match="schema 99, not 1"):
        Corpus.open(tmp_path / "i")


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="already holds something else \\(thesis.tex\\)"):
        Corpus.build(documents("holt"), tmp_path)
    with pytest.raises(InputError, match="is a file"):
        Corpus.build(documents("holt"), tmp_path / "thesis.tex")
    with pytest.raises(InputError, match="holds no index"):
        Corpus.open(tmp_path)
    with pytest.raises(InputError, match="holds no index"):
        Corpus.open(tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    mine = tmp_path / "drive" / "g-thesis"
    mine.mkdir(parents=True)
    with pytest.raises(InputError, match="already holds something else \\(g-thesis\\)"):
        Corpus.build(documents("holt"), mine.parent)
    Corpus.build(documents("holt"), tmp_path / "i")
    mine = mine.rename(tmp_path / "i" / mine.name)
    with pytest.raises(InputError, match="g-thesis"):
        Corpus.build(documents("holt"), tmp_path / "i")
    assert mine.is_dir(), "put beside an index, and not the index' to remove"


@pytest.mark.parametrize("steps", range(11))
def test_a_kill_at_any_step_of_a_build_leaves_the_old_index(tmp_path, steps):
    Corpus.build(documents("old"), tmp_path / "i", HashEmbedder())
    child = os.fork()
    if child == 0:
        die_after(steps)
        Corpus.build(documents("new"), tmp_path / "i", HashEmbedder())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert next(iter(Corpus.open(tmp_path / "i", HashEmbedder()))).doc_id == "old0"
    Corpus.build(documents("new"), tmp_path / "i", HashEmbedder())
    assert next(iter(Corpus.open(tmp_path / "i", HashEmbedder()))).doc_id == "new0"
    assert len(list((tmp_path / "i").glob("g-*"))) == 1, "a killed build's leftovers are to be removed"


def die_after(steps: int) -> None:
    """Kill this process in the middle of the step after `steps` files (8 arrays, meta.json, what CURRENT will hold) and before
    the rename."""
    done = 0

    def dying(write):
        def stepped(path: Path, *content):
            nonlocal done
            if done == steps:
                path.write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return write(path, *content)

        return stepped

    folder._write_array, folder.files.write = dying(folder._write_array), dying(folder.files.write)
    folder.files.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)


READER = """
import sys
from trivium.corpus import Corpus, HashEmbedder
seen = set()
for _ in range(60):
    corpus = Corpus.open(sys.argv[1], HashEmbedder())
    hits = corpus.search("valley 3", 5)
    names = {hit.chunk.title.split()[0] for hit in hits} | {corpus.grep("valley")[0].title.split()[0]}
    assert len(hits) == 5 and len(names) == 1, names
    seen |= names
print(*sorted(seen))
"""


def test_many_processes_read_while_one_builds(tmp_path):
    path = tmp_path / "i"
    Corpus.build(documents("aa"), path, HashEmbedder())
    before = Corpus.open(path, HashEmbedder())
    expected = before.search("valley 3", 5)
    readers = [subprocess.Popen([sys.executable, "-c", READER, path], stdout=subprocess.PIPE) for _ in range(3)]
    builds = 0
    while any(reader.poll() is None for reader in readers):
        Corpus.build(documents("bb" if builds % 2 == 0 else "aa"), path, HashEmbedder())
        builds += 1
    assert [reader.returncode for reader in readers] == [0, 0, 0]
    assert {name for reader in readers for name in reader.communicate()[0].decode().split()} == {"aa", "bb"}
    assert before.search("valley 3", 5) == expected, "an open index outlives its replacement"


def test_builders_take_turns(tmp_path):
    children = []
    for word in ("aa", "bb", "cc"):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                for _ in range(8):
                    Corpus.build(documents(word), tmp_path / "i")
            except BaseException:
                os._exit(1)
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len(Corpus.open(tmp_path / "i")) == 30
    assert len(list((tmp_path / "i").glob("g-*"))) == 1
