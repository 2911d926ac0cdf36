"""How a person reads a search episode, and which of its numbers: handed to the viewer, which knows no agent."""

from trivium.agents.search.citation import cited, counts_as, gold_of
from trivium.agents.search.reward import SearchReward
from trivium.viewer import Labels, Panels

LABELS = Labels(
    answer=lambda task: str(task.truth.get("answer", "")),
    gold=gold_of,
    document=counts_as,
    citations=cited,
    maxima={"reward": SearchReward().most},
)

PANELS = Panels(
    table=("f1", "output_recall", "trajectory_recall", "answer_found", "format_valid", "prune_rate", "prune_accuracy"),
    held_out=("reward", "f1", "output_recall"),
    behaviour=("prune_rate", "searches", "calls_per_turn", "format_valid"),
    arms=(
        ("reward", "f1", "trajectory_recall", "answer_found", "past_soft"),
        ("searches", "returned", "entropy", "prune_rate", "past_soft"),
    ),
    shares=frozenset({"prune_rate", "format_valid"}),
    titles={"searches": "searches per episode"},
    progress={"reward": "reward", "output_recall": "recall"},
)
