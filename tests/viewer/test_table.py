from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from trivium.viewer import summary_table

METRICS = (
    "f1", "output_recall", "trajectory_recall", "answer_found", "format_valid", "prune_rate", "prune_accuracy",
)  # fmt: skip

GREEN, RED = "\x1b[32m", "\x1b[31m"


@pytest.fixture
def summary() -> dict:
    policies = ["base", "sft", "sft_greedy", "rl", "rl_greedy", "expert"]
    means = {policy: dict.fromkeys(METRICS, 0.125 * number) for number, policy in enumerate(policies, 1)}
    means["base"]["prune_accuracy"] = math.nan
    means["sft"]["prune_accuracy"] = None
    intervals = {policy: {name: [m, m - 0.02, m + 0.04] for name, m in of.items() if m} for policy, of in means.items()}
    intervals["base"]["prune_accuracy"] = [math.nan] * 3
    clear, unclear, worse = [0.25, 0.125, 0.375], [0.25, -0.125, 0.5], [-0.25, -0.375, -0.125]
    paired = {"rl_minus_sft": {"f1": clear, "output_recall": unclear, "prune_rate": worse}}
    return {**means, "intervals": intervals, "paired": paired}


def shown(summary: dict, width: int) -> str:
    console = Console(record=True, width=width, force_terminal=True, color_system="standard", file=io.StringIO())
    console.print(summary_table(summary, METRICS))
    return console.export_text(styles=True)


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_and_colours_only_what_is_clear(summary, width):
    summary["paired"]["rl_greedy_minus_sft_greedy"] = summary["paired"]["rl_minus_sft"]
    text = shown(summary, width)
    assert "…" not in text
    assert coloured(text, GREEN) == {"+.250", "[+.125, +.375]"}
    assert coloured(text, RED) == {"-.250", "[-.375, -.125]"}
    assert text.count("[-.125, +.500]") == 2


def coloured(text: str, colour: str) -> set[str]:
    return set(re.findall(rf"{re.escape(colour)} *([^\x1b]+?) *\x1b", text))


def cells(summary: dict) -> dict[str, list[str]]:
    """Column -> its cells, lines joined."""
    columns = summary_table(summary, METRICS).columns
    return {str(c.header).replace("\n", " "): [str(cell).replace("\n", " ").strip() for cell in c.cells] for c in columns}


def test_a_mean_has_half_its_interval_and_what_is_unknown_is_a_dash(summary):
    columns = cells(summary)
    assert list(columns) == ["metric", "base", "SFT", "SFT greedy", "RL", "RL greedy", "expert", "RL − SFT"]
    rows = {name.replace(" ", "_"): row for name, *row in zip(*columns.values(), strict=True)}
    assert list(rows) == list(METRICS)
    means = [".125 ±.030", ".250 ±.030", ".375 ±.030", ".500 ±.030", ".625 ±.030", ".750 ±.030"]
    assert rows["f1"] == [*means, "+.250 [+.125, +.375]"]
    assert rows["output_recall"][-1] == "+.250 [-.125, +.500]"
    assert rows["prune_accuracy"][:2] == ["–", "–"] and rows["prune_accuracy"][-1] == "–"


def test_policies_that_were_not_run_have_no_column():
    columns = cells({"sft": {"f1": 1.0}})
    assert list(columns) == ["metric", "before"] and columns["before"][0] == "1.000"
    assert "metric" in shown({}, 80)


def test_without_names_every_number_has_a_row_and_the_reward_stands_first(summary):
    summary["rl"]["reward"] = 1.0
    names = [text.plain if hasattr(text, "plain") else str(text) for text in summary_table(summary).columns[0].cells]
    assert names[0] == "reward" and [name.replace(" ", "_") for name in names[1:]] == sorted(METRICS)


def test_without_a_warm_up_rl_is_compared_with_what_was_before(summary):
    del summary["base"]
    header = " ".join(str(column.header).replace("\n", " ") for column in summary_table(summary).columns)
    assert "before before greedy" in header and "RL − before" in header and "SFT" not in header


def test_names_of_one_word_are_whole_beside_wide_differences():
    names, wide = ("broken_calls", "unfinished", "simple/split"), [-2.672, -3.367, -2.008]
    policies = dict.fromkeys(("sft", "sft_greedy", "rl", "rl_greedy", "expert"), dict.fromkeys(names, 3.273))
    paired = dict.fromkeys(("rl_minus_sft", "rl_greedy_minus_sft_greedy"), dict.fromkeys(names, wide))
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(summary_table({**policies, "paired": paired}, names))
    text = console.export_text()
    assert "…" not in text and "unfinished" in text and text.count("[-3.367, -2.008]") == 6
