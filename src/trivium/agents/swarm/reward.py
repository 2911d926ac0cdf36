"""What an orchestrator's episode was worth: its table, and what its critical steps cost; which assignments were truly done."""

from __future__ import annotations

from dataclasses import dataclass

from trivium.reward import assigned, table_score
from trivium.tasks.proof import mentions
from trivium.trace import Episode, Spawn, critical_steps

FLOOR = 0.01
"""What an episode that finished is worth at least: more than any that did not, as in Context-1's report."""


@dataclass(frozen=True, slots=True)
class SwarmScore:
    """r_perf = max(floor, item F1 * (1 - price * critical steps / budget)), 0 for an episode that did not finish.

    The report has critical steps as a budget and in no reward. Here the budget is one too (`Limits(critical=)`); the price says
    besides that of two ways to the same table the shorter is better, which is all that speaks against splitting a task that
    one search answers. It is a share of F1, so that a bad table is still worth less than a middling one. Each score stands
    there a second time with the task's kind before it, as `wide/item_f1`.
    """

    budget: int
    price: float = 0.4

    async def __call__(self, episode: Episode) -> dict[str, float]:
        scores = dict(await table_score(episode))
        steps, split = critical_steps(episode), float(bool(assigned(episode)))
        finished = bool(episode.agent.stop) and episode.agent.stop.reason == "finished"
        reward = max(FLOOR, scores.pop("reward") * (1 - self.price * steps / self.budget)) if finished else 0.0
        kind = episode.task.truth["kind"]
        shown = {"item_f1": scores["item_f1"], "split": split, "steps": float(steps), "assigned": float(len(assigned(episode)))}
        scores |= {"finished": float(finished), "split": split}
        return {"reward": reward, **scores, **{f"{kind}/{name}": value for name, value in shown.items()}}

    @property
    def version(self) -> str:
        return f"budget={self.budget} price={self.price:g}"


def truly_done(episode: Episode) -> list[bool]:
    """Of each assignment, in order, whether what came back states a cell of the table that none before it stated. One that
    returned something else, or the same again, was not done, however well its call ended."""
    links, stated, done = episode.task.truth["links"], set(), []
    reports = _reports(episode)
    for child in assigned(episode):
        text = reports.get(child, "")
        new = {
            number
            for number, link in enumerate(links)
            if number not in stated and mentions(text, link["subject"]) and mentions(text, link["object"])
        }
        stated |= new
        done.append(bool(new))
    return done


def _reports(episode: Episode) -> dict[str, str]:
    """What each thread that the agent began brought back, as the agent saw it; nothing where its call failed."""
    shown = {call.id: "" if call.error else "".join(piece.text for piece in call.pieces) for call in episode.agent.calls}
    return {op.child: shown[op.call] for op in episode.ops if isinstance(op, Spawn) and op.call in shown}
