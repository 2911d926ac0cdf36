"""What a search episode was worth (after Context-1's report). Reads the whole episode, pruned chunks included (law 6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from trivium.agents.search.citation import cited, documents, handles
from trivium.agents.search.retrieval import f_beta, precision, recall, streak_penalty
from trivium.errors import InputError
from trivium.harness import Window
from trivium.reward import effort_penalty, turn_penalty
from trivium.tasks.proof import mentions, normal_form
from trivium.trace import Episode, Piece, Point, Prune, Summarize, Task, Thread

FLOOR = 0.01
"""ε of Context-1's report, illegible there; 0.01 as a third-party rebuild has it."""

_CALL = re.compile(r"</?tool_call>")

LEAST = 2
"""Turns that no answer does without: a search and the answer. Only those beyond are effort, so that the third, which is all
that a prune without need costs, is the dearest."""


@dataclass(frozen=True, slots=True)
class SearchReward:
    """r = clamp(0.7 F_β + 0.3 r_traj + 1.0 r_fa - p_prune - p_turn - p_effort, ε, r_pre), r_pre the sum before penalties.

    An episode that did not finish (window, turns, a cut answer) is worth 0, less than any that did. The weights of r_traj,
    r_fa and p_prune are the report's; a term is left out (0) only to see what it is for. p_turn begins at half of `turns`,
    the most that a harness allows: the report's 64 of 128. p_effort, `effort` times the penalty of Composer 2's report on
    the turns beyond LEAST, is no part of Context-1's reward. With a `window`, `past_soft` is reported beside it.
    """

    beta: float = 4.0
    trajectory: float = 0.3
    answer: float = 1.0
    pruning: float = 1.0
    turns: int = 128
    effort: float = 0.0
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.turns < 2:
            raise InputError(f"a reward prices the later half of at least 2 turns, not of {self.turns}")

    @property
    def version(self) -> str:
        """The terms in which it differs from the report's reward, such as "beta=2.5 turns=10"; "1" where it does in none."""
        terms = [(each.name, getattr(self, each.name), each.default) for each in fields(self) if each.name != "window"]
        return " ".join(f"{name}={value:g}" for name, value, default in terms if value != default) or "1"

    @property
    def most(self) -> float:
        """What a perfect episode is worth: everything found and returned, nothing else, without a penalty."""
        return 0.7 + self.trajectory + self.answer

    async def __call__(self, episode: Episode) -> dict[str, float]:
        gold, thread = episode.task.truth["gold"], episode.agent
        returned, shown = returned_documents(episode), shown_documents(episode)
        beside = measures(episode, returned)
        parts = {
            "f_beta": f_beta(named_by_answer(episode), gold, self.beta),
            "trajectory_recall": recall(shown, gold),
            "answer_found": float(answer_found(episode)),
            "prune_penalty": streak_penalty(call.name == "prune_chunks" for call in thread.calls),
            "turn_penalty": turn_penalty(beside["turns"], self.turns // 2, self.turns),
            "effort_penalty": self.effort * effort_penalty(max(0.0, beside["turns"] - LEAST)),
        }
        before = 0.7 * parts["f_beta"] + self.trajectory * parts["trajectory_recall"] + self.answer * parts["answer_found"]
        penalty = self.pruning * parts["prune_penalty"] + parts["turn_penalty"] + parts["effort_penalty"]
        after = max(FLOOR, min(before, before - penalty))
        reward = after if thread.stop and thread.stop.reason == "finished" else 0.0
        if self.window:
            beside["past_soft"] = past_soft(thread, self.window)
        return {"reward": reward, **parts, **beside}


def measures(episode: Episode, returned: list[str]) -> dict[str, float]:
    """What is reported beside the reward; the turns and calls of a branch are its parent's and then its own. `prune_accuracy`
    is there only where something was pruned."""
    gold, thread = episode.task.truth["gold"], episode.agent
    turns = episode.inherited + thread.turns - len(summaries(episode))
    numbers = {
        **of_ranking(returned, gold),
        "format_valid": valid_turns(thread) / max(1, turns),
        "turns": float(turns),
        "calls_per_turn": len(thread.calls) / max(1, turns),
        "searches": float(sum(call.name == "search_corpus" for call in thread.calls)),
        "tokens": float(max(len(segment.tokens) for segment in thread.segments)),
        "finished": float(bool(thread.stop) and thread.stop.reason == "finished"),
    }
    dropped = [ref for op in episode.ops if isinstance(op, Prune) and op.before.thread == thread.id for ref in op.chunks]
    numbers["prune_rate"] = float(bool(dropped))
    if dropped:
        known = documents(thread, episode.task)
        numbers["prune_accuracy"] = sum(known[ref] not in gold for ref in dropped) / len(dropped)
    return numbers


def of_ranking(docs: Sequence[str], gold: Sequence[str]) -> dict[str, float]:
    """What returned documents are worth, whoever returned them."""
    numbers = {"f1": f_beta(docs, gold), "output_recall": recall(docs, gold), "precision": precision(docs, gold)}
    return {**numbers, "returned": float(len(docs))}


def past_soft(thread: Thread, window: Window) -> float:
    """1 if the policy ever spoke with more than the soft threshold in view."""
    spoken_at = [span.start for segment in thread.segments for span in segment.sampled()]
    return float(any(at > window.soft * window.budget for at in spoken_at))


def summaries(episode: Episode) -> list[Point]:
    """Where the agent's summaries end: each is a second reply of its turn, and no turn of its own."""
    return [op.before for op in episode.ops if isinstance(op, Summarize) and op.before.thread == episode.agent.id]


def returned_documents(episode: Episode) -> list[str]:
    """The documents of the answer, best first, each once; handles that were never shown name none."""
    known = documents(episode.agent, episode.task)
    return list(dict.fromkeys(known[ref] for ref in cited(episode.agent) if ref in known))


def named_by_answer(episode: Episode) -> list[str]:
    """The same, with each handle that was never shown as a document of its own, which is not gold. Where such a handle cost
    nothing, a policy learned to guess a fourth one before it was shown any (docs/learning.md, "Answers of four")."""
    known = documents(episode.agent, episode.task)
    return list(dict.fromkeys(known.get(ref, f"never shown: {ref}") for ref in cited(episode.agent)))


def shown_documents(episode: Episode) -> set[str]:
    """Every document of which a chunk was seen at any time."""
    return set(documents(episode.agent, episode.task).values())


def answer_found(episode: Episode) -> bool:
    """Whether a returned chunk states the answer. The report says "a retrieved chunk" (3.5) and also "final answer
    found" (3.1); we read it as returned, since that is what the caller gets. No passage states a yes or a no: there all
    gold must be returned."""
    refs = set(cited(episode.agent))
    pieces = [piece for piece in episode.agent.passages if piece.ref in refs]
    return answers(episode.task, returned_documents(episode), any(shows(piece, episode.task) for piece in pieces))


def answers(task: Task, returned: list[str], stated: bool) -> bool:
    """Whether these documents, of whose passages one states the answer or none, answer the task."""
    if normal_form(task.truth.get("answer", "")) in ("yes", "no", ""):
        return recall(returned, task.truth["gold"]) == 1.0
    return stated


def states(text: str, task: Task) -> bool:
    """Whether a passage holds the task's answer as whole words, as a task's proof reads them."""
    return mentions(text, task.truth.get("answer", ""))


def shows(piece: Piece, task: Task) -> bool:
    """Whether a passage that was shown states the answer; the number of its handle is ours, and states nothing."""
    return states(piece.shown, task)


def valid_turns(thread: Thread) -> int:
    """Turns that were parsed and executed without any error; an answer is valid when it cites, and only what was shown, and
    holds no half of a tool call."""
    failed = {call.turn for call in thread.calls if call.error}
    acted = {call.turn for call in thread.calls}
    refs, known = cited(thread), handles(thread)
    finished = bool(thread.stop) and thread.stop.reason == "finished" and not _CALL.search(thread.answer)
    return len(acted - failed) + (finished and bool(refs) and all(ref in known for ref in refs))
