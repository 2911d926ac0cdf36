from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from trivium.viewer import learning_curve, learning_curves
from trivium.viewer.curve import series, smooth
from trivium.viewer.curves import COLOURS


@dataclass(frozen=True)
class Event:
    kind: str
    step: int
    metrics: dict[str, float]


def a_run(steps: int) -> list[Event]:
    names = (
        "reward",
        "prune_rate",
        "searches",
        "calls_per_turn",
        "format_valid",
        "clipped",
        "entropy",
        "grad_norm",
        "gap",
    )
    trained = [Event("rl", step, {name: 0.5 + 0.01 * step for name in names}) for step in range(1, steps + 1)]
    return trained + [Event("rl_eval", s, {"reward": 0.8, "f1": 0.5, "output_recall": 0.4}) for s in range(0, steps + 1, 5)]


SFT = {"sft": {"f1": 0.5, "output_recall": 0.4, "reward": math.nan}, "sft_greedy": {"f1": 0.6, "reward": None}}


@pytest.mark.parametrize(
    ("events", "summary"),
    [
        (a_run(20), SFT),
        (a_run(20), None),
        (a_run(1), SFT),
        ([Event("rl", 0, {}), Event("sft", 3, {"loss": 1.0})], {}),
        ([], {}),
        ([], SFT),
    ],
)
def test_the_picture_is_an_image_of_the_promised_size_whatever_is_known(tmp_path, events, summary):
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learning_curve(events, summary, tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.format == "PNG" and image.size == (1600, 900)
        assert len(np.unique(np.asarray(image.convert("L")))) > 10  # something is drawn
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_a_picture_shows_the_curve_and_where_rl_began(tmp_path):
    from PIL import Image

    def pixels(events, summary, colour: str) -> int:
        learning_curve(events, summary, tmp_path / "c.png")
        with Image.open(tmp_path / "c.png") as image:
            wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
            return int((np.asarray(image.convert("RGB")) == wanted).all(-1).sum())

    nothing, curve = pixels([], {}, "#c8553d"), pixels(a_run(20), {}, "#c8553d")
    assert nothing == 0 and curve > 500


def test_of_a_step_told_twice_the_last_one_counts_and_what_is_no_number_is_left_out():
    told = [("rl", 2, 0.1), ("rl", 1, 0.2), ("rl", 2, 0.3), ("rl", 3, math.nan), ("rl_eval", 4, 0.9)]
    steps, values = series([Event(kind, step, {"reward": value}) for kind, step, value in told], "rl", "reward")
    assert steps.tolist() == [1, 2] and values.tolist() == [0.2, 0.3]
    assert len(series([Event("rl", 1, {})], "rl", "reward")[0]) == 0


def test_smoothing_keeps_a_constant_and_halves_no_end():
    assert smooth(np.full(30, 0.7)).tolist() == pytest.approx([0.7] * 30)
    assert smooth(np.arange(7.0)).tolist() == [1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 5.0]


def test_the_picture_of_several_runs_has_a_colour_for_each_recipe(tmp_path):
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learning_curves({"A": [a_run(20), a_run(10)], "B (untrained)": [[]], "C": [a_run(1)]}, tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as image:
        assert image.size == (2000, 900)
        pixels = np.asarray(image.convert("RGB"))
    drawn = [int((pixels == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]).all(-1).sum()) for colour in COLOURS[:4]]
    assert drawn[0] > 500 and drawn[1] == 0 and drawn[2] > 50 and drawn[3] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["c.png"]


def test_a_legend_of_long_labels_stays_within_the_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("trivium.viewer.curves.save", lambda figure, path: drawn.append(figure))
    labels = [f"{letter} (model runs/demo-0/model-sft, sft_steps 0, steps 120, algorithm rft)" for letter in "ABCD"]
    learning_curves({label: [a_run(10)] for label in labels}, tmp_path / "c.png")
    drawn[0].draw_without_rendering()
    box, page = drawn[0].legends[0].get_window_extent(), drawn[0].bbox
    assert page.x0 <= box.x0 and box.x1 <= page.x1
