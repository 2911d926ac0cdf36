from __future__ import annotations

import asyncio
import copy
import io
import re
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console, RenderableType

from tests.laws import walks
from trivium.agents.search.labels import LABELS
from trivium.errors import InputError
from trivium.harness import Harness, Limits, Window, prune_chunks
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Prune, Restart, Task
from trivium.viewer import Labels, legend, reading
from trivium.viewer.episodes import episode_panel as any_panel
from trivium.viewer.episodes import side_by_side as any_columns

episode_panel, side_by_side = partial(any_panel, labels=LABELS), partial(any_columns, labels=LABELS)


def shown(what: RenderableType, width: int = 110, styles: bool = False) -> str:
    console = Console(
        record=True, width=width, force_terminal=True, color_system="standard" if styles else None, file=io.StringIO()
    )
    console.print(what)
    return console.export_text(styles=styles)


def has(text: str, *lines: str) -> None:
    """Each of `lines` stands in a line of `text`, and they stand in this order."""
    at = 0
    for line in lines:
        assert line in text[at:], f"{line!r} is missing, or stands before the one above it, in\n{text}"
        at = text.index(line, at) + len(line)


def test_a_pruning_episode_shows_what_was_searched_dropped_and_returned(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    text = shown(episode_panel(episode, renderer.decode, {"reward": 0.83, "prune_accuracy": float("nan")}))
    has(
        text,
        "Which documents speak of thing 1?",
        "truth: fact number 4",
        "turn 1 ",
        "search_corpus thing",
        "  #1 Doc 0: fact number 0 about thing 0.",
        "★ #2 Doc 1: fact number 1 about thing 1.",
        "turn 2 ",
        "★ #5 Doc 4",
        "turn 3 ",
        "prune_chunks keep=[#2, #5]",
        "Prune dropped #1 #3 #4 #6 #7 #8",
        "turn 4 ",
        "#12 Doc 11",
        "Prune dropped ★ #5",
        "turn 5 ",
        "agent answers: #2 #9",
        "★ #2 Doc 1",
        "  #9 Doc 8",
        "★ doc1  returned",
        "★ doc4  pruned, not returned",
        "reward 0.83",
        "prune_accuracy –",
        "agent v0, 5 turns, finished",
    )


def test_gold_that_was_dropped_is_red(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    prunes = [line for line in shown(episode_panel(episode), styles=True).splitlines() if "dropped" in line]
    red = ["".join(re.findall(r"\x1b\[1;31m([^\x1b]*)", line)).strip() for line in prunes]
    assert red == ["", "★ #5"]


def test_a_turn_shows_how_full_the_view_was_as_the_usage_line_told_it(renderer):
    episode, watching = asyncio.run(walks.pruning(renderer))
    turns = reading.turns(episode, episode.agent)
    assert [turn.used for turn in turns[:-1]] == [len(view) for view in watching.views[1:]]
    assert [turn.peak > turn.used for turn in turns] == [False, False, True, True, False]
    assert turns[2].peak == episode.ops[0].before.position
    text = shown(episode_panel(episode, renderer.decode))
    has(text, f"░ {turns[0].used:,}/4,000", f"{turns[2].used:,}/4,000 (was {turns[2].peak:,})")
    assert f"{turns[0].used:,} tokens" in shown(episode_panel(episode))


def test_summaries_are_no_turns_of_their_own(renderer):
    episode, watching = asyncio.run(walks.summarizing(renderer))
    turns = reading.turns(episode, episode.agent)
    assert [turn.number for turn in turns] == [0, 1, 2]
    assert [turn.used for turn in turns[:-1]] == [len(watching.views[2]), len(watching.views[4])]
    text = shown(episode_panel(episode, renderer.decode))
    has(text, "turn 1", "Summarize", "Seen so far: 1 and 4.", "turn 2", "Still 1 and 4.", "turn 3", "3 turns, finished")
    assert "tokens\n" not in text and "Summarize, 22 tokens" in shown(episode_panel(episode))


def test_sub_agents_stand_inside_the_call_that_spawned_them(renderer):
    episode, _ = asyncio.run(walks.spawning(renderer))
    text = shown(episode_panel(episode))
    has(
        text,
        "assign_task agent=finder, prompt=Look 0",
        "╭─ Spawn frozen-finder (0.0.0/0)",
        "│   │   ★ #2 Doc 1",
        "│   │ frozen-finder answers: Found.",
        "Join: Found.",
        "prompt=Look 1",
        "Spawn frozen-reader",
        "Join: It is doc 1.",
        "★ doc1  seen by a sub-agent only",
        "★ doc4  never seen",
    )


def test_a_branch_names_its_parent_and_what_it_took_over(renderer):
    _, episode = asyncio.run(walks.branching(renderer))
    text = shown(episode_panel(episode))
    has(
        text,
        "Branch of walk/0 at walk/0@1",
        "turn 1 taken over from the parent",
        "★ #2",
        "turn 2 ",
        "Prune dropped",
        "turn 3",
    )


def test_a_restart_names_its_reason(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    episode.ops = [
        Restart(author="harness", before=op.before, after=op.after, reason="template") if isinstance(op, Prune) else op
        for op in episode.ops
    ]
    has(shown(episode_panel(episode)), "turn 3", "Restart (template)", "turn 4")


def test_errors_and_handles_never_shown_are_told(renderer):
    harness = Harness([walks.search_corpus, prune_chunks], Window(4000), limits=Limits(turns=3), specs=False)
    script = [call(("serch", {"query": " x"})), call(walks.search(), text="I look."), say("#1 #77")]
    episode = asyncio.run(harness.run(walks.TASK, Scripted(script, renderer)))
    text = shown(episode_panel(episode, renderer.decode))
    has(
        text, "serch x", "✗ there is no tool 'serch'", "turn 2", "I look.", "search_corpus", "script answers", "#77 never shown"
    )
    stopped = asyncio.run(harness.run(walks.TASK, Scripted([call(walks.search())] * 3, renderer)))
    has(shown(episode_panel(stopped)), "turn 3", "stopped: turns, 3 turns")


def test_no_word_of_a_policy_or_a_document_drives_the_terminal(renderer):
    harness = Harness([walks.search_corpus], Window(4000), specs=False)
    task = Task("evil", "[red]Which\x1b[2J?", {"gold": ["doc1"]})
    script = [call(("search_corpus", {"query": "\x1b[31m [bold]"}), ("\x1b[2Jx", {})), say("[/] #1")]
    episode = asyncio.run(harness.run(task, Scripted(script, renderer)))
    episode.agent.calls[0].arguments["query"] += "\ud800"  # JSON may hold it, and no terminal can print it
    text = shown(episode_panel(episode, renderer.decode))
    assert "\x1b" not in text and "\ud800" not in text
    has(text, "[red]Which�[2J?", "[bold]", "answers: [/] #1")


def test_documents_that_were_never_seen_have_their_text_and_a_score_its_maximum(renderer):
    episode, _ = asyncio.run(walks.spawning(renderer))
    labels = replace(LABELS, maxima={"reward": 2.0})
    text = shown(episode_panel(episode, None, {"reward": 1.5, "f1": 1.0}, labels=labels, texts={"doc4": "It is \x1b[2J four."}))
    has(text, "★ doc1  seen by a sub-agent only", "★ doc4  never seen", "It is �[2J four.", "reward 1.5 of 2", "f1 1")
    assert shown(legend(labels, [episode.task])).startswith("★ gold: a document that the task asks for")
    assert "the best reward there is: 2" in shown(legend(labels, [])) and "★" not in shown(legend(labels, []))
    assert shown(legend(Labels(), [episode.task])).strip() == ""


def test_scores_do_not_break_inside_a_name(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    scores = {f"a_score_called_{n}": n / 3 for n in range(20)}
    lines = shown(episode_panel(episode, None, scores), 80).splitlines()
    assert max(map(len, lines)) == 80
    for name, value in scores.items():
        assert sum(f"{name} {value:.3g}" in line for line in lines) == 1


def test_three_episodes_stand_side_by_side_where_there_is_room(renderer):
    first, second = asyncio.run(walks.branching(renderer))
    third, _ = asyncio.run(walks.pruning(renderer))
    columns, scores = [("base", first), ("SFT", second), ("RL", third)], {second.id: {"f1": 0.25, "reward": 1.5}}
    wide = shown(side_by_side(columns, 160, scores=scores), 160)
    assert any("base" in line and "SFT" in line and "RL" in line for line in wide.splitlines())
    has(wide, "reward 1.5", "f1 0.25", "Prune dropped ★ #5")
    narrow = shown(side_by_side(columns, 100, scores=scores), 100)
    has(narrow, "─ base ─", "3 turns, finished", "─ SFT ─", "reward 1.5", "f1 0.25", "─ RL ─", "5 turns, finished")
    with pytest.raises(InputError, match="not 4"):
        side_by_side(columns + columns[:1], 160)


def test_an_episode_that_never_spoke_and_knows_no_gold_is_shown(renderer):
    harness = Harness([walks.search_corpus], Window(4000), specs=False)
    episode = asyncio.run(harness.run(Task("t", "Who?"), Scripted([], renderer)))
    before = copy.deepcopy(episode)
    has(shown(episode_panel(episode, renderer.decode)), "Who?", "stopped: policy, the script of", "0 turns, policy")
    assert episode == before


@pytest.mark.parametrize(
    ("gold", "told"), [(["doc1:0"], "★ doc1:0  returned"), (42, ""), ("Paris", ""), ([["a", "b"]], ""), ([], "")]
)
def test_a_truth_of_ones_own_is_shown_or_left_out(renderer, gold, told):
    """Only a list of names is gold, whatever else a reward needs; a source that stands in it counts as it is."""
    task = Task("mine", "Which?", {"gold": gold})
    harness = Harness([walks.search_corpus], Window(4000), specs=False)
    episode = asyncio.run(harness.run(task, Scripted([call(walks.search()), say("#2")], renderer)))
    text = shown(episode_panel(episode))
    assert told in text and ("gold documents" in text) == bool(told)


def test_an_agent_that_hands_no_labels_has_its_truth_shown_as_it_stands(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    text = shown(any_panel(episode, renderer.decode))
    assert "★" not in text and "gold documents" not in text
    has(text, "truth: gold: ")
