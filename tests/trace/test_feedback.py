"""Feedback in a store: once, however often it is sent; late and out of order; of its own episode alone; in older stores too."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.test_store import OLD_BYTES, episode, old_store
from trivium.errors import InputError
from trivium.trace import Feedback, Store, in_order

VERSION_2 = """
    CREATE TABLE episodes (seq INTEGER PRIMARY KEY AUTOINCREMENT, id VARCHAR NOT NULL, task VARCHAR, data BLOB NOT NULL,
        began FLOAT, ended FLOAT, deployment VARCHAR, session VARCHAR, account VARCHAR, UNIQUE (id));
    CREATE TABLE pins (name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name));
    CREATE TABLE scores (seq INTEGER PRIMARY KEY AUTOINCREMENT, episode VARCHAR, name VARCHAR, value FLOAT, scorer VARCHAR,
        version VARCHAR, thread VARCHAR, time FLOAT);
    INSERT INTO pins VALUES ('schema', '2');
    INSERT INTO scores VALUES (1, 'e/0', 'f1', 0.5, 'x', '1', '', 9.0);
"""

FACTS = [
    Feedback("a", "e/0", "vote", 1.0, time=3.0),
    Feedback("b", "e/0", "vote", -1.0, time=1.0),
    Feedback("c", "e/0", "edit", text="what it has become", original="what it was", time=2.0),
    Feedback("d", "e/1", "outcome", 0.25, name="merged", time=9e6),
    Feedback("e", "e/1", "follow_up", text="and now?", time=2.0),
    Feedback("f", "e/0", "accept", 0.0, time=1.0),
]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store.db")
    store.write([episode("e/0"), episode("e/1"), episode("e/ann", account="ann")])
    return store


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_it_is_kept_once_whatever_comes_when_and_how_often(data):
    """At most once and order independence: any shuffle, with any repeats, in any portions, leaves the same."""
    store = Store("sqlite://")
    store.write([episode("e/0"), episode("e/1")])
    sent = data.draw(st.permutations(FACTS + data.draw(st.lists(st.sampled_from(FACTS), max_size=8))))
    new = 0
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        new, sent = new + store.listen(sent[:size]), sent[size:]
    assert new == len(FACTS) == len(store.tail_feedback())
    for id in ("e/0", "e/1"):
        assert store.feedback(id) == in_order(each for each in FACTS if each.episode == id)


def test_it_comes_back_in_the_order_in_which_it_happened(store):
    store.listen(FACTS)
    assert [each.id for each in store.feedback("e/0")] == ["b", "f", "c", "a"]
    assert [each.id for each in in_order([*FACTS, *FACTS])] == ["b", "f", "c", "e", "a", "d"]
    assert store.feedback("e/ann") == store.feedback("nobody") == []


def test_who_keeps_the_last_number_hears_everything_once(store):
    seen, after = [], 0
    for part in (FACTS[:2], FACTS[1:5], FACTS):
        store.listen(part)
        while numbered := store.tail_feedback(after, 2):
            after, seen = numbered[-1][0], [*seen, *(each.id for _, each in numbered)]
    assert seen == ["a", "b", "c", "d", "e", "f"]


def test_where_no_time_is_given_the_store_writes_down_when_it_came(store):
    said = Feedback("k", "e/0", "vote", 1.0)
    assert store.listen([said]) == 1 and store.listen([said]) == 0
    (kept,) = store.feedback("e/0")
    assert kept.time > 1e9 and replace(kept, time=0.0) == said


@pytest.mark.parametrize("change", [{"value": 0.5}, {"kind": "accept"}, {"name": "thumb"}, {"episode": "e/1"}, {"time": 5.0}])
def test_an_id_that_says_something_else_is_an_error_and_changes_nothing(store, change):
    store.listen(FACTS[:1])
    with pytest.raises(InputError, match="feedback 'a' was given before and said something else"):
        store.listen([FACTS[1], replace(FACTS[0], **change)])
    assert [each.id for _, each in store.tail_feedback()] == ["a"]


def test_unknown_and_somebody_elses_episodes_are_named(store):
    with pytest.raises(InputError, match="has no episode e/2"):
        store.listen([FACTS[0], Feedback("k", "e/2", "vote")])
    with pytest.raises(InputError, match="episode e/ann is not bob's"):
        store.listen([Feedback("k", "e/ann", "vote", account="bob")])
    assert store.tail_feedback() == []
    assert store.listen([Feedback("k", "e/ann", "vote"), Feedback("k", "e/0", "vote")]) == 2  # an id is its account's own
    assert store.feedback("e/ann")[0].account == "ann"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kind": "smile"}, "its kind is one of vote, edit"),
        ({"value": float("nan")}, "finite numbers"),
        ({"time": -1.0}, "finite numbers"),
        ({"value": 2.0}, "a vote goes from -1 to 1"),
        ({"kind": "show", "value": 0.5}, "the value of show is 1 or 0"),
        ({"text": "words"}, "vote has a value, and no text"),
        ({"kind": "outcome"}, "an outcome has a name"),
        ({"id": ""}, "needs an id of its own"),
    ],
)
def test_what_nobody_can_have_done_is_said(wrong, told):
    with pytest.raises(InputError, match=told):
        Feedback(**{"id": "k", "episode": "e/0", "kind": "vote", **wrong})


def test_it_goes_with_its_episode(store):
    from trivium.trace.schema import EPISODES

    store.listen(FACTS)
    with store.writing() as connection:
        assert store.delete(connection, EPISODES.c.id == "e/0") == 1
    assert {each.episode for _, each in store.tail_feedback()} == {"e/1"}


def test_a_store_that_is_written_to_is_read_whole(tmp_path):
    """A reader beside a writer sees each fact once, in order, and never half of a transaction."""
    path = tmp_path / "store.db"
    store = Store(path)
    store.write([episode("e/0")])
    pairs = [[Feedback(f"{number}{side}", "e/0", "vote", time=1.0 + number) for side in "ab"] for number in range(60)]
    writer = threading.Thread(target=lambda: [store.listen(pair) for pair in pairs])
    writer.start()
    reader, after, seen = Store(path, readonly=True), 0, []
    while len(seen) < 120:
        assert writer.is_alive() or len(reader.tail_feedback()) == 120
        numbered = reader.tail_feedback(after)
        assert len(numbered) % 2 == 0
        after, seen = (numbered[-1][0] if numbered else after), [*seen, *(each for _, each in numbered)]
    writer.join()
    assert seen == [each for pair in pairs for each in pair]


def test_older_stores_are_read_as_they_are_and_brought_up_to_date_by_who_writes(tmp_path):
    newer = tmp_path / "two.db"
    with closing(sqlite3.connect(newer)) as file, file:
        file.executescript(VERSION_2)
        file.execute("INSERT INTO episodes (id, task, data, account) VALUES ('e/0', 't', ?, 'ann')", (OLD_BYTES,))
    for path, account in ((old_store(tmp_path / "one.db"), ""), (newer, "ann")):
        reader = Store(path, readonly=True)
        assert reader.feedback("e/0") == reader.tail_feedback() == []
        with pytest.raises(InputError, match="readonly=True"):
            reader.listen(FACTS[:1])
        store = Store(path)
        assert store.listen([FACTS[0], Feedback("k", "e/0", "vote")]) == 2
        assert [each.account for each in store.feedback("e/0")] == [account] * 2
        assert store.scores("e/0")[0].value == 0.5
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("SELECT value FROM pins WHERE name = 'schema'").fetchone() == ("3",)


def test_a_reader_for_an_account_hears_of_its_own_episodes_alone(tmp_path):
    store = Store(tmp_path / "store.db")
    store.write([episode("e/0", account="bob"), episode("e/1", account="ann/u")])
    store.listen([Feedback("k", "e/0", "vote"), Feedback("k", "e/1", "vote")])
    reader = Store(tmp_path / "store.db", readonly=True, account="ann")
    assert [each.episode for _, each in reader.tail_feedback()] == ["e/1"] and reader.feedback("e/0") == []
