"""What a chunk is shown and searched as, and the embedder that ships as a fake."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.corpus import Chunk, HashEmbedder


def test_a_chunk_is_read_on_one_line_and_searched_with_its_title():
    chunk = Chunk("d:0", "d", "Brennix  Holt", "Led by\n\tMira  Tolen.\n", 0)
    assert chunk.line == "Brennix Holt: Led by Mira Tolen."
    assert chunk.searched == "Brennix  Holt\nLed by\n\tMira  Tolen.\n"
    bare = Chunk("d:0", "d", "", "Led by\nMira.", 0)
    assert bare.line == "Led by Mira." and bare.searched == "Led by\nMira."


def test_equal_words_are_equal_to_the_fake_embedder_and_others_are_not():
    fake = HashEmbedder(32)
    one, same, other = fake.embed(["the leading bridge", "Bridges, the lead", "a river"])
    assert np.allclose(one, same) and abs(one @ other) < 0.7
    assert np.allclose(np.linalg.norm([one, other], axis=1), 1) and fake.embed_query("a river").dtype == np.float32
    assert fake.embed([]).shape == (0, 32) and fake.embed([""]).shape == (1, 32) and fake.name == "hash-32"
    assert HashEmbedder().dim == 64
    # of several words it is their sum, at unit length
    summed = fake.embed_query("bridge") + fake.embed_query("river")
    assert fake.embed_query("river bridge") @ (summed / np.linalg.norm(summed)) == pytest.approx(1, abs=0.05)
