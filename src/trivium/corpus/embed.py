"""Which embedder: by a word, a folder or a URL; and a cache, so that no text is embedded twice on one machine."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from trivium.corpus.base import Embedder
from trivium.corpus.endpoint import EndpointEmbedder
from trivium.corpus.local import LocalEmbedder, MiniLM
from trivium.errors import CorruptError, InputError

Progress = Callable[[int, int], None]
_STEP = 512


def open_embedder(where: str, model: str = "", key: str = "", progress: Progress | None = None) -> CachedEmbedder:
    """`where` is "minilm", the path of a sentence-transformers folder, or the URL of an OpenAI-compatible server
    (then `model` names the model there); cached in `cache_folder()`. Raises InputError saying what is missing and how
    to get it."""
    if where == "minilm":
        return CachedEmbedder(MiniLM(), progress=progress)
    if "://" in where:
        if not model:
            raise InputError(f"{where} may serve many models: name one")
        return CachedEmbedder(EndpointEmbedder(where, model, key), progress=progress)
    if not Path(where).is_dir():
        raise InputError(f"{where} is no embedder: give minilm, a sentence-transformers folder, or a URL")
    return CachedEmbedder(LocalEmbedder(where), progress=progress)


def cache_folder() -> Path:
    """$TRIVIUM_CACHE, else ~/.cache/trivium. InputError where nobody knows the home folder."""
    if named := os.environ.get("TRIVIUM_CACHE"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "trivium"
    except RuntimeError as error:
        raise InputError("there is no home folder to keep vectors in: set TRIVIUM_CACHE to a folder") from error


class CachedEmbedder:
    """An embedder whose corpus vectors are kept on disk by a digest of its name and the text, so that indexing a
    folder again costs only what changed in it, and a killed run loses at most 512 texts. Queries pass through: a
    corpus keeps its last ones itself.

    `progress(done, total)` is told after each 512 new texts. Delete the file to be rid of the cache.
    """

    def __init__(self, embedder: Embedder, folder: str | Path | None = None, progress: Progress | None = None) -> None:
        self.embedder, self.name, self._progress = embedder, embedder.name, progress
        self.path = Path(folder or cache_folder()) / "vectors.sqlite"

    @property
    def dim(self) -> int:
        return self.embedder.dim

    def embed_query(self, query: str) -> np.ndarray:
        return self.embedder.embed_query(query)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [len(texts), dim], unit norm. Raises CorruptError where the cache file is none of ours, InputError where it
        cannot be opened or written."""
        keys = [self._key(text) for text in texts]
        with self._open() as database:
            size = self.dim * np.dtype(np.float32).itemsize  # another length is of another model that had this name
            known = {key: vector for key, vector in _known(database, keys).items() if len(vector) == size}
            missing = sorted(
                {key: text for key, text in zip(keys, texts, strict=True) if key not in known}.items(), key=_length
            )
            for start in range(0, len(missing), _STEP):
                part = missing[start : start + _STEP]
                vectors = self.embedder.embed([text for _, text in part]).astype(np.float32)
                new = {key: vector.tobytes() for (key, _), vector in zip(part, vectors, strict=True)}
                with database:
                    database.executemany("insert or replace into vectors values (?, ?)", new.items())
                known.update(new)
                if self._progress:
                    self._progress(start + len(part), len(missing))
        flat = np.frombuffer(b"".join(known[key] for key in keys), np.float32)
        return flat.reshape(len(texts), self.dim)

    def _key(self, text: str) -> bytes:
        where = getattr(self.embedder, "url", "")  # two servers may call two models alike
        return hashlib.blake2b(f"{self.name}{where}\0{text}".encode(), digest_size=16).digest()

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the vector cache {self.path} cannot be used: {error}") from error
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as database:
                database.execute("create table if not exists vectors (key blob primary key, vector blob) without rowid")
                yield database
        except sqlite3.OperationalError as error:  # locked, full, not ours to write
            raise InputError(f"the vector cache {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptError(f"the vector cache {self.path} is no cache ({error}): delete it") from error


def _known(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    vectors: dict[bytes, bytes] = {}
    for start in range(0, len(keys), _STEP):
        part = keys[start : start + _STEP]
        marks = ",".join("?" * len(part))
        vectors.update(database.execute(f"select key, vector from vectors where key in ({marks})", part))
    return vectors


def _length(item: tuple[bytes, str]) -> int:
    return len(item[1])
