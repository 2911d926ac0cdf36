"""What pruning was worth: how often it dropped gold, beside dropping as many chunks at random from the same states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from trivium.agents.search.citation import documents
from trivium.agents.search.reward import past_soft, summaries
from trivium.eval import Interval, mean_interval, ratio_interval
from trivium.harness import Window
from trivium.trace import Episode, Prune, Segment, Thread

NAN = float("nan")


def prune_measures(episode: Episode, window: Window) -> dict[str, float]:
    """What pruning did in one episode's agent thread, as scores that pool and pair like others.

    prune_rate      1 if it pruned
    prunes          how often
    prune_streak    the most prunes in a row, refused ones not counted
    prune_dropped   chunks that were pruned
    prune_wrong     those of them whose document is gold
    prune_random    how many gold ones a random choice of as many would have dropped: for each prune, of D chunks out of V
                    in view when it was decided of which G are gold, D G / V (the mean of the hypergeometric)
    past_soft       1 if the policy ever spoke with more than the soft threshold in view
    pruned_fitting  1 if it pruned although nothing needed it: with all that it pruned still in view, no turn would have been
                    refused a tool (hard threshold) and the end would have fitted the window; NaN where something did
    """
    thread, ops = episode.agent, _prunes(episode)
    gold = {ref for ref, doc in documents(thread, episode.task).items() if doc in episode.task.truth["gold"]}
    states = [(set(op.chunks), _in_view(thread.segments[op.before.segment])) for op in ops]
    return {
        "prune_rate": float(bool(ops)),
        "prunes": float(len(ops)),
        "prune_streak": float(_streak(thread) if ops else 0),  # one that keeps all is no error and no prune
        "prune_dropped": float(sum(len(dropped) for dropped, _ in states)),
        "prune_wrong": float(sum(len(dropped & gold) for dropped, _ in states)),
        "prune_random": sum(len(dropped) * len(gold & view) / len(view) for dropped, view in states),
        "past_soft": past_soft(thread, window),
        "pruned_fitting": float(bool(ops)) if _fits(episode, ops, window) else NAN,
    }


def prune_report(scores: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """What `prune_measures` of many episodes come to, with 95% intervals over episodes.

    error           share of pruned chunks that are gold          random_error   of those a random choice would have pruned
    ratio           error over random_error: 1 is no better than chance (Context-1's report gives an error of 0.06)
    prune_rate      share of episodes that prune                  past_soft      that spoke past the soft threshold
    pruned_fitting  share of the episodes that fit which prune all the same
    each            chunks a prune drops                          streak         most prunes in a row of an episode that prunes
    """
    dropped, wrong, chance = (scores[name] for name in ("prune_dropped", "prune_wrong", "prune_random"))
    return {
        "error": ratio_interval(wrong, dropped),
        "random_error": ratio_interval(chance, dropped),
        "ratio": ratio_interval(wrong, chance),
        "prune_rate": mean_interval(scores["prune_rate"]),
        "past_soft": mean_interval(scores["past_soft"]),
        "pruned_fitting": mean_interval(scores["pruned_fitting"]),
        "each": ratio_interval(dropped, scores["prunes"]),
        "streak": ratio_interval(scores["prune_streak"], scores["prune_rate"]),
    }


def _prunes(episode: Episode) -> list[Prune]:
    return [op for op in episode.ops if isinstance(op, Prune) and op.before.thread == episode.agent.id]


def _streak(thread: Thread) -> int:
    kinds = groupby(call.name == "prune_chunks" and not call.error for call in thread.calls)
    return max((len(list(row)) for pruning, row in kinds if pruning), default=0)


def _in_view(segment: Segment) -> set[str]:
    """The chunks a policy saw when it asked for the prune that ended this segment: those before its last words. Results
    of the same turn stand behind them and cannot be meant."""
    spoken_from = [span for span in segment.spans if span.kind == "sampled"][-1].start
    return {span.ref for span in segment.spans if span.kind == "chunk" and span.stop <= spoken_from}


def _fits(episode: Episode, ops: Sequence[Prune], window: Window) -> bool:
    """Whether the thread would have gone the same way with nothing pruned. What prune calls and their results took is not
    taken off, so this says no a little too often."""
    thread, written = episode.agent, {(point.segment, point.position) for point in summaries(episode)}
    acted = {call.turn for call in thread.calls if call.name != "prune_chunks"}
    first = min((call.turn for call in thread.calls), default=0)
    cuts = {op.before.segment: op for op in ops}
    turn, gone, used = first, 0, 0
    for number, segment in enumerate(thread.segments):
        for span in segment.sampled():
            if turn in acted and gone + span.stop > window.hard * window.budget:
                return False
            turn += (number, span.stop) not in written
        used = gone + len(segment.tokens)
        if number in cuts:
            gone += sum(s.stop - s.start for s in segment.spans if s.kind == "chunk" and s.ref in cuts[number].chunks)
    return used <= window.budget and not (thread.stop and thread.stop.reason == "window")
