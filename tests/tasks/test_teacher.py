"""The teacher speaks well-formed calls, errs as often as it is told, and without faults finds everything."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from house import Index, live
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.agents.search.teacher import Imperfection, Teacher, _fingerprint, with_chain
from trivium.agents.search.tools import BRIEF, QUOTES, search_tools
from trivium.corpus import Corpus, Document
from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Scripted, View
from trivium.tasks import World
from trivium.trace.episode import Task

WORLD = World.make(0, split="heldout")
INDEX = Index(WORLD)
TASKS = WORLD.tasks(120, hops=(1, 2, 3, 4), wide=0.1)
SHARES = st.floats(0, 1)
TOOLS = {"search_corpus": "query", "grep_corpus": "pattern", "prune_chunks": "keep"}


def episode(task: Task, how: Imperfection, seed: int = 0, budget: int = 512):
    teacher = Teacher(how, seed)
    return live(lambda messages: teacher.next(task, messages), task, INDEX, budget)


def page(title: str, *texts: str) -> dict:
    """The link of a real question: a page, and how its passages read."""
    lines = [_fingerprint(f"{title}: {text}") for text in texts]
    return {"subject": title, "keyword": "", "object": title, "doc": "", "lines": lines, "after": -1}


def calls(messages: list[dict]) -> list[list[dict]]:
    """The calls of each assistant turn."""
    said = [message for message in messages if message["role"] == "assistant"]
    return [[asked["function"] for asked in message.get("tool_calls", [])] for message in said]


@pytest.mark.parametrize("budget", [420, 512, 2000])
def test_the_perfect_script_finds_all_and_returns_nothing_else(budget):
    for task in TASKS:
        returned, seen, _ = episode(task, Imperfection.none(), budget=budget)
        assert returned == task.truth["gold"] and set(returned) <= seen


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(TASKS), st.builds(Imperfection, SHARES, SHARES, SHARES, SHARES, SHARES), st.integers(0, 99),
    st.integers(250, 900),
)  # fmt: skip
def test_whatever_its_faults_it_speaks_well_formed(task, how, seed, budget):
    returned, seen, messages = episode(task, how, seed, budget)
    assert json.loads(json.dumps(messages)) == messages
    for turn in calls(messages):
        for function in turn:
            ((argument, value),) = function["arguments"].items()
            assert TOOLS[function["name"]] == argument and value
            assert all(text.startswith(" ") and text.strip() for text in ([value] if isinstance(value, str) else value))
        assert len({json.dumps(function) for function in turn}) == len(turn)
        assert len(turn) == 1 or all(function["name"] != "prune_chunks" for function in turn)
    assert returned and set(returned) <= seen and len(set(returned)) == len(returned)


def test_it_forgets_in_its_most_likely_action():
    several = [task for task in TASKS if len(task.truth["gold"]) > 1]
    only_forget = replace(Imperfection.none(), forget=0.6)
    returned = [(task.truth["gold"], episode(task, only_forget, seed)[0]) for task in several for seed in range(5)]
    short = sum(got == gold[:-1] for gold, got in returned)
    assert all(got in (gold, gold[:-1]) for gold, got in returned)
    assert 0.54 < short / len(returned) < 0.66


def test_it_returns_too_much_in_its_most_likely_action():
    only_more = replace(Imperfection.none(), over_include=0.7)
    extra = [len(episode(task, only_more, seed)[0]) - len(task.truth["gold"]) for task in TASKS for seed in range(5)]
    assert set(extra) == {0, 1, 2}
    assert 0.62 < sum(map(bool, extra)) / len(extra) < 0.76


def test_it_prunes_past_half_and_keeps_what_it_found():
    pruned = 0
    for task in TASKS:
        _, _, messages = episode(task, Imperfection.none(), budget=360)
        found: list[str] = []
        for turn in calls(messages):
            keeps = [function["arguments"]["keep"] for function in turn if function["name"] == "prune_chunks"]
            assert all(keep[: len(found)] == found for keep in keeps)
            found, pruned = (keeps or [found])[0], pruned + len(keeps)
    assert pruned > 30
    roomy = [turn for task in TASKS for turn in calls(episode(task, Imperfection(), 0, 9000)[2])]
    assert not any(function["name"] == "prune_chunks" for turn in roomy for function in turn)


def test_wide_tasks_are_searched_in_parallel():
    for task in WORLD.tasks(20, wide=1.0):
        first, *_ = calls(episode(task, Imperfection.none())[2])
        assert [f["arguments"]["query"].strip().split()[0] for f in first] == [
            link["subject"].split()[0] for link in task.truth["chain"]
        ]


def test_sloppy_queries_are_followed_by_better_ones():
    how = replace(Imperfection.none(), sloppy_query=1.0)
    for task in TASKS:
        returned, _, messages = episode(task, how)
        assert returned == task.truth["gold"]
        assert task.prompt.startswith(calls(messages)[0][0]["arguments"]["query"].strip())


def test_equal_arguments_get_equal_words_and_samples_differ():
    task, view = TASKS[1], [{"role": "user", "content": TASKS[1].prompt}]
    said = [Teacher(Imperfection(), 7).next(task, view, sample) for sample in range(40)]
    assert said == [Teacher(Imperfection(), 7).next(task, view, sample) for sample in range(40)]
    assert len({json.dumps(message) for message in said}) > 1


def test_as_a_script_it_reads_task_and_sample_off_the_stream():
    teacher, task = Teacher(), TASKS[2]
    messages = [{"role": "user", "content": task.prompt}]
    view = View(tokens=(), messages=messages, tools=(), stream=(0, task.id, 5, "0", 0))
    assert teacher.script(TASKS)(view) == teacher.next(task, messages, sample=5)


def test_a_real_question_needs_pages_alone():
    """A chain whose links know only their pages, as one makes it for a BEIR folder."""
    task = TASKS[1]
    links = [page(*INDEX.lines[id].split(": ", 1)) for id in task.truth["gold"]]
    chain = [{**link, "after": number - 1} for number, link in enumerate(links)]
    bare = Task(task.id, task.prompt, task.truth | {"chain": chain})
    for seed in range(20):
        returned, _, messages = episode(bare, replace(Imperfection(), forget=0.0), seed)
        assert [id.rpartition(".")[0] for id in returned[:2]] == [id.rpartition(".")[0] for id in task.truth["gold"]]
        assert all(f["arguments"].get("query", "words").strip() for turn in calls(messages) for f in turn)


def test_of_a_real_question_it_asks_for_titles_only_where_they_stand():
    """A learner cannot copy a name that it does not see: first the question's own words, then what a page names."""
    pages = [page("Tall Oak", "an album made in Varn in May.", "an album made by the sea."), page("Varn (port)", "It is old.")]
    task = Task("q", "Where was the album made?", {"gold": ["a", "b"], "chain": pages})
    teacher, asked = Teacher(Imperfection.none()), {"role": "user", "content": task.prompt}

    def queries(*before: dict) -> list[str]:
        said = calls([teacher.next(task, [asked, *before])])
        return [function["arguments"]["query"].strip() for turn in said for function in turn]

    first = teacher.next(task, [asked])
    assert queries() == ["Where was the album made"]
    assert queries(first, {"role": "tool", "content": "Tall Oak: an album made in Varn in May. #1"}) == ["Varn"]
    silent = {"role": "tool", "content": "Tall Oak: an album made by the sea. #1"}
    assert queries(first, silent) == ["Where was the album made"]  # which pages on


@pytest.mark.parametrize("mark", ["a thought", "<think>", "<tool_call>"])
def test_it_knows_a_page_as_the_agent_reads_it(renderer, mark):
    """Control tokens are shown with a space inside; and of two pages that read alike each is gold for itself."""
    twin = f"In a chat template the marker {mark} begins what is not shown to people."
    pages = [Document("a", "Chat", twin), Document("b", "Chat", twin), Document("x", "Bread", "Bread is of flour and water.")]
    corpus = Corpus.build(pages)
    (task,) = with_chain([Task("q", "Which marker begins what is not shown?", {"gold": ["a", "b"], "answer": ""})], corpus)
    assert len(json.dumps(task.truth)) < 400, "no page is copied into the task"
    harness = Harness(search_tools(corpus, 3, quoting=True), Window(4000), BRIEF + QUOTES, specs=False)
    life = asyncio.run(harness.run(task, Scripted(Teacher(Imperfection.none()).script([task]), renderer)))
    found = {piece.ref: piece.source.partition(":")[0] for piece in life.agent.passages}
    assert [found[ref] for ref in life.agent.answer.split()] == ["a", "b"] and len(life.agent.calls) == 1


def test_where_queries_may_quote_it_does():
    """The question, then with each page found in the order of the lines, then with the first passage; and no loop."""
    pages = [page("Oak", "a tree."), page("Elm", "a tree."), page("Elm", "another one.")]
    task = Task("q", "Which trees?", {"gold": ["a", "b", "c"], "chain": pages})
    teacher = Teacher(Imperfection.none())
    messages = [{"role": "system", "content": BRIEF + QUOTES}, {"role": "user", "content": task.prompt}]

    def next_query(result: str) -> str:
        messages.extend([said := teacher.next(task, messages), {"role": "tool", "content": result}])
        return said["tool_calls"][0]["function"]["arguments"]["query"]

    assert next_query("Ash: a tree. #1\nElm: a tree. #2\nBeech: a tree. #3") == " #0"
    assert next_query("Oak: a tree. #4") == " #0 #2"
    assert next_query("Fir: a tree. #5") == " #0 #4"
    assert next_query("Elm: another one. #6") == " #0 #1"
    assert teacher.next(task, messages)["content"] == " #4 #2 #6"


def test_where_queries_may_quote_it_errs_by_a_search_and_a_few_lines_too_many():
    task = Task("q", "Which tree?", {"gold": ["a"], "chain": [page("Oak", "a tree.")]})
    messages = [{"role": "system", "content": BRIEF + QUOTES}, {"role": "user", "content": task.prompt}]
    first = Teacher(Imperfection.none()).next(task, messages)
    shown = "".join(f"{name}: a tree. #{n}\n" for n, name in enumerate(("Ash", "Oak", "Elm", "Fir", "Yew", "Bay"), 1))
    messages += [first, {"role": "tool", "content": shown}]
    assert Teacher(Imperfection.none()).next(task, messages)["content"] == " #2"
    more = calls([Teacher(replace(Imperfection.none(), two_calls=1.0)).next(task, messages)])
    assert more[0][0]["arguments"] == {"query": " #0 #2"}
    wide = Teacher(replace(Imperfection.none(), over_include=1.0))
    assert {wide.next(task, messages, n)["content"] for n in range(40)} == {
        " #2 #1", " #2 #1 #3", " #2 #1 #3 #4", " #2 #1 #3 #4 #5"
    }  # fmt: skip


def test_a_page_is_known_by_its_passages_and_not_by_its_title():
    """Of two pages of one title the other one is no gold."""
    documents = [
        Document("ny-1", "New York City", "It has five boroughs."),
        Document("ny-2", "New York City", "It never sleeps."),
    ]
    task = Task("q", "Which city never sleeps?", {"gold": ["ny-2"]})
    (task,) = with_chain([task], Corpus.build(documents))
    teacher, asked = Teacher(Imperfection.none()), {"role": "user", "content": task.prompt}
    shown = "New York City: It has five boroughs. #1\n"
    first = teacher.next(task, [asked])
    assert calls([teacher.next(task, [asked, first, {"role": "tool", "content": shown}])]) != [[]], "it looks on"
    shown += "New York City: It never sleeps. #2"
    assert teacher.next(task, [asked, first, {"role": "tool", "content": shown}])["content"] == " #2"


def test_a_task_without_a_chain_is_refused():
    with pytest.raises(InputError, match="no chain"):
        Teacher().next(Task("q", "Who?", {"gold": ["d"]}), [])


def test_it_lives_in_the_real_harness(renderer):
    """Through template, parser, tools and prunes: the perfect script returns all gold, with no failed call."""
    harness = Harness(search_tools(INDEX.corpus), Window(2600), prompt=BRIEF, specs=False)
    deep = WORLD.tasks(8, hops=(3, 4), seed=5, wide=0.25)
    script = Scripted(Teacher(Imperfection.none()).script(deep), renderer)
    prunes = 0
    for task in deep:
        life = asyncio.run(harness.run(task, script))
        sources = {piece.ref: piece.source for made in life.agent.calls for piece in made.pieces if piece.ref}
        assert life.agent.stop.reason == "finished" and not [made.error for made in life.agent.calls if made.error]
        assert [sources[handle].rpartition(":")[0] for handle in life.agent.answer.split()] == task.truth["gold"]
        prunes += sum(made.name == "prune_chunks" for made in life.agent.calls)
    assert prunes > 2
