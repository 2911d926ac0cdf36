"""The page of an episode, as HTML: what came in, what was dropped, who spoke it, and nothing that a text could smuggle in."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.laws import walks
from trivium.agents.search.labels import LABELS
from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Score, Store, Task, critical_steps
from trivium.trace.schema import EPISODES
from trivium.viewer.page import Index, Query, beside_page, curves, episode_page, lanes, sheet


def words(html: str) -> str:
    """The text of a page, without style and script."""
    text = re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text)


def test_a_prune_is_seen_on_the_strip_at_the_text_and_between_the_segments(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    page = sheet(episode, {"f1": 0.5, "reward": 0.83}, renderer.decode, LABELS)
    life = page.lives[0]
    assert len(life.strips) == len(episode.agent.segments) > 1
    gone = {part.title.split(",")[0].removeprefix("chunk ") for part in life.strips[0].parts if part.gone}
    assert gone == set(episode.ops[0].chunks)
    fates = {block.ref: block.fate for block in life.strips[0].blocks if block.kind == "chunk"}
    assert {ref for ref, fate in fates.items() if fate == "pruned before segment 2"} == gone and set(fates) > gone
    assert page.scores[0][0] == "reward" and life.strips[1].cut.startswith("pruned #1 ")
    html = episode_page(page)
    assert "★ gold" in html and "pruned before segment 2" in html and "0.83 of 2 reward" in words(html)


def test_every_new_token_stands_on_the_page_once(renderer):
    """Law 2 on the page: the blocks of a thread, each where it was new, are what the policy saw and said."""
    for walk in (walks.pruning, walks.summarizing):
        episode, _ = asyncio.run(walk(renderer))
        for thread, life in zip(episode.threads, sheet(episode, {}, renderer.decode).lives, strict=True):
            for segment, strip in zip(thread.segments, life.strips, strict=True):
                new = renderer.decode(segment.tokens[segment.carried :])
                assert "".join(block.text or "".join(t.text for t in block.tokens) for block in strip.blocks) == new


def test_a_sampled_token_has_its_logprob_and_its_version(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    segment = episode.agent.segments[0]
    span = segment.sampled()[0]
    tokens = [block for block in sheet(episode, {}, renderer.decode).lives[0].strips[0].blocks if block.kind == "sampled"][
        0
    ].tokens
    assert [token.logprob for token in tokens] == segment.logprobs[span.start : span.stop]
    assert all(0 <= token.surprise <= 1 for token in tokens) and tokens[0].version == segment.versions[0].version


def test_letters_of_several_tokens_are_shown_whole(renderer):
    task = Task("t", "?")
    episode = asyncio.run(Harness([], Window(400)).run(task, Scripted([say("Zürich ☃ 数")], renderer, "agent")))
    html = episode_page(sheet(episode, {}, renderer.decode))
    assert "ü" in html and "☃" in html and "数" in html and "�" not in html


def test_sub_agents_are_lanes_and_the_longest_is_critical(renderer):
    episode, _ = asyncio.run(walks.spawning(renderer))
    agent, *others = lanes(episode)
    assert [lane.thread for lane in (agent, *others)] == [thread.id for thread in episode.threads]
    longest = max(others, key=lambda lane: lane.size)
    assert agent.critical and [lane for lane in others if lane.critical] == [longest]
    assert agent.stop == critical_steps(episode) == agent.size + longest.size
    assert all(bar.start >= agent.bars[0].size for lane in others for bar in lane.bars)
    assert f"Lanes: {agent.stop} critical steps" in words(episode_page(sheet(episode, {})))


class Addresses(HTMLParser):
    """Every address that a page names, and every element."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src", "action")]


def test_what_a_policy_wrote_is_text_and_never_markup(renderer):
    evil = "</pre><script>alert(1)</script><img src=http://evil.test/x>"
    script = [call(walks.search(evil)), say(evil)]
    episode = asyncio.run(
        Harness([walks.search_corpus], Window(4000)).run(Task("t", evil, {"answer": evil}), Scripted(script, renderer, "agent"))
    )
    reader = Addresses()
    reader.feed(episode_page(sheet(episode, {"reward": 1.0}, renderer.decode)))
    assert reader.tags.count("script") == 1 and "img" not in reader.tags
    assert all(address.startswith(("#", "data:")) for address in reader.addresses), reader.addresses


def test_side_by_side_has_a_column_for_each(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    html = beside_page("t", [("base", sheet(episode, {})), ("RL", sheet(episode, {}))])
    assert html.count("<article") == 2 and "--columns:2" in html


def test_curves_of_a_run_without_numbers_say_so():
    assert "no numbers yet" in curves([])


@pytest.fixture
def store(tmp_path, renderer):
    store = Store(tmp_path / "episodes.db")
    for at, reward in enumerate([0.2, 0.9, 0.5]):
        task = Task(f"t{at}", f"Where is thing {at}?", {"hops": at})
        episode = asyncio.run(Harness([], Window(400)).run(task, Scripted([say("here")], renderer, "agent")))
        id = f"eval/rl/t{at}/0" if at else "rl/0/t0/0"
        store.write([replace(episode, id=id)], [Score(id, "reward", reward, "test")])
    store.score([Score("rl/0/t0/0", "reward", 7.0, "later"), Score("rl/0/t0/0", "liked", 1.0, "later")])
    yield store
    store.close()


def ids(index: Index, **query) -> list[str]:
    return [entry.task for entry in index.find(Query(**query))]


def test_an_index_finds_by_words_conditions_stage_and_order(store):
    index = Index(store)
    assert index.refresh(60) and len(index) == 3 and index.stages() == ["rl/", "eval/rl/"]
    assert ids(index) == ["t0", "t1", "t2"]
    assert ids(index, text="THING 2") == ["t2"] and ids(index, text="here") == ["t0", "t1", "t2"]
    assert ids(index, where=("reward>0.3", "hops<2")) == ["t1"]
    assert ids(index, prefix="eval/", order="reward") == ["t1", "t2"] and ids(index, order="-reward") == ["t0", "t2", "t1"]
    assert ids(index, order="liked") == ["t0", "t1", "t2"], "those without the number come last"
    assert index.neighbours("eval/rl/t1/0", Query()) == ("rl/0/t0/0", "eval/rl/t2/0")
    with pytest.raises(InputError, match="no episode has a f9"):
        index.find(Query(where=("f9<1",)))


def test_an_index_reads_what_came_since_and_nothing_twice(store, renderer):
    index = Index(store)
    index.refresh(60)
    episode = asyncio.run(Harness([], Window(400)).run(Task("t3", "New?"), Scripted([say("yes")], renderer, "agent")))
    store.write([replace(episode, id="late")], [Score("late", "reward", 1.0, "test")])
    store.score([Score("eval/rl/t1/0", "kept", 0.5, "user")])
    assert index.refresh(60) and ids(index, text="new?") == ["t3"] and ids(index, where=("kept=0.5",)) == ["t1"]
    assert index.find(Query(text="late"))[0].reward == 1.0


def test_an_index_forgets_what_was_deleted_also_where_as_much_came_since(store, renderer):
    index = Index(store)
    index.refresh(60)
    episode = asyncio.run(Harness([], Window(400)).run(Task("t3", "New?"), Scripted([say("yes")], renderer, "agent")))
    with store.writing() as connection:
        store.delete(connection, EPISODES.c.id == "eval/rl/t1/0")
    store.write([replace(episode, id="late")])
    assert index.refresh(60) and ids(index) == ["t0", "t2", "t3"] and not ids(index, text="thing 1")
    assert ids(index, where=("reward>0.3",)) == ["t2"], "the scores of the others are still there"
