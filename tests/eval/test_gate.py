"""The gate: what it decides, and that its errors are those it states."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import InputError
from trivium.eval import Gate, Result, refuse_weights
from trivium.eval.betting import log_evidence, lower_bound, upper_bound

ERROR = 0.05
GATE = Gate(("questions",), {"code": 0.1})


def drawn(rng: np.random.Generator, shape: tuple[int, int], mean: float, spread: float) -> np.ndarray:
    """Paired differences of tasks that are right or wrong: `spread` of them differ at all, with this mean."""
    more, less = (spread + mean) / 2, (spread - mean) / 2
    dice = rng.random(shape)
    return np.where(dice < more, 1.0, np.where(dice < more + less, -1.0, 0.0))


def result(policy: str, scores: list[float], unscored: int = 0) -> Result:
    return Result(policy, [f"t{n}" for n in range(len(scores))], {"reward": scores}, episodes_unscored=unscored)


def decided(candidate: list[float], incumbent: list[float], code: float = 0.5):
    """The decision on the target's scores; where it is guarded the candidate has `code` throughout, and the incumbent 0.5."""
    return GATE.decide(
        {"questions": result("new", candidate), "code": result("new", [code] * 60)},
        {"questions": result("old", incumbent), "code": result("old", [0.5] * 60)},
    )


# --- the statistics


@given(st.lists(st.floats(-1, 1), max_size=12), st.floats(-0.9, 0.9), st.floats(0, 0.5))
@settings(max_examples=60, deadline=None)
def test_evidence_is_what_the_formula_says_and_falls_in_the_bound(differences, bound, more):
    sizes = [j / (21 * (1 + bound)) for j in range(1, 21)]
    wealth = sum(math.prod(1 + size * (each - bound) for each in differences) for size in sizes) / 20
    assert log_evidence(differences, bound) == pytest.approx(math.log(wealth), abs=1e-9)
    assert log_evidence(differences, bound + more * (1 - bound)) <= log_evidence(differences, bound) + 1e-9
    assert log_evidence(differences[::-1], bound) == pytest.approx(log_evidence(differences, bound), abs=1e-9)


@given(st.floats(-0.99, 1), st.floats(0.01, 0.99))
@settings(max_examples=40, deadline=None)
def test_a_factor_has_a_mean_of_one_at_its_bound(bound, share):
    """The supermartingale, exactly, for the worst difference of mean `bound`: -1 or 1."""
    up = (1 + bound) / 2
    assert up * math.exp(log_evidence([1.0], bound)) + (1 - up) * math.exp(log_evidence([-1.0], bound)) == pytest.approx(1)


@pytest.mark.parametrize("spread", [1.0, 0.2])
def test_a_look_after_every_task_keeps_the_error(spread):
    """500 candidates that are no better, 300 looks each: a test for one look would promote a third of them."""
    differences = drawn(np.random.default_rng(0), (500, 300), 0.0, spread)
    sizes = np.arange(1, 21) / 21
    wealth = np.exp(np.log1p(differences[..., None] * sizes).cumsum(axis=1)).mean(axis=-1)  # [candidates, tasks]
    assert math.log(wealth[3, -1]) == pytest.approx(log_evidence(differences[3].tolist(), 0.0))
    assert (wealth.max(axis=1) >= 1 / ERROR).mean() <= ERROR
    counts = np.arange(1, 301)
    means = differences.cumsum(axis=1) / counts
    deviation = np.sqrt(np.maximum((differences**2).cumsum(axis=1) / counts - means**2, 1e-9) / counts)
    assert ((means > 1.645 * deviation)[:, 20:]).any(axis=1).mean() > 4 * ERROR


def test_the_bounds_hold_the_mean_and_close_in():
    differences = drawn(np.random.default_rng(1), (60, 400), 0.1, 0.3)
    misses = [lower_bound(row, ERROR) > 0.1 or upper_bound(row, ERROR) < 0.1 for row in differences]
    assert sum(misses) <= 2 * ERROR * len(misses)
    widths = [upper_bound(differences[0][:n], ERROR) - lower_bound(differences[0][:n], ERROR) for n in (1, 10, 100, 400)]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.3


def test_of_nothing_nothing_is_known():
    assert (lower_bound([], ERROR), upper_bound([], ERROR)) == (-1, 1)


# --- what it decides


def test_better_on_the_target_and_no_worse_where_guarded_is_promoted():
    decision = decided([1.0] * 40, [0.5] * 40)
    assert decision.verdict == "promote"
    assert decision.evidence["questions"].passes and decision.evidence["code"].mean == 0


def test_better_on_the_target_and_worse_where_guarded_is_rejected_by_name():
    decision = decided([1.0] * 40, [0.5] * 40, code=0.0)
    assert decision.verdict == "reject" and "code" in decision.reason and "questions" not in decision.reason


def test_no_difference_is_held_however_many_tasks():
    assert decided([0.5] * 500, [0.5] * 500).verdict == "hold"


def test_few_tasks_are_held():
    decision = decided([1.0] * 3, [0.0] * 3)
    assert decision.verdict == "hold" and "better on questions" in decision.reason


def test_a_decision_is_one_sentence_and_json():
    decision = decided([1.0] * 40, [0.5] * 40)
    assert "\n" not in decision.reason
    assert json.loads(json.dumps(decision.as_json()))["evidence"]["code"]["tasks"] == 60


# --- what is no number


def test_a_candidate_with_nan_is_rejected_by_name():
    decision = decided([1.0] * 39 + [math.nan], [0.5] * 40)
    assert decision.verdict == "reject" and "t39" in decision.reason and "questions" in decision.reason


def test_a_candidate_without_the_score_is_rejected():
    empty = Result("new", ["t0"], {"other": [1.0]})
    decision = GATE.decide({"questions": empty, "code": empty}, {"questions": result("o", [0.0]), "code": result("o", [0.0])})
    assert decision.verdict == "reject" and "t0" in decision.reason


def test_a_score_that_nobody_gives_is_a_name_misspelt_and_no_verdict():
    one = {"questions": Result("x", ["t0"], {"f1": [1.0], "recall": [1.0]}), "code": Result("x", ["t0"], {"f1": [1.0]})}
    with pytest.raises(InputError, match="has a score 'reward': there are f1, recall"):
        GATE.decide(one, one)


def test_what_no_scorer_could_judge_is_held_and_not_left_out():
    unscored = result("new", [1.0] * 39 + [math.nan], unscored=1)
    code = result("x", [0.5] * 40)
    decision = GATE.decide({"questions": unscored, "code": code}, {"questions": result("old", [0.5] * 40), "code": code})
    assert decision.verdict == "hold" and "1 attempts of the candidate" in decision.reason


def test_an_incumbent_with_nan_is_held():
    assert decided([1.0] * 40, [math.nan] + [0.5] * 39).verdict == "hold"


def test_scores_too_far_apart_are_an_error():
    with pytest.raises(InputError, match="questions differ by more than 1"):
        decided([3.0] * 4, [0.5] * 4)


@pytest.mark.parametrize(
    "score, says",
    [("reward", "is from -0.2 to 1.3"), ("rewards", "is given to no attempt"), ("recall", "is no number for some tasks")],
)
def test_a_score_that_no_gate_compares_is_told_before_anything_is_learned(score, says):
    scores = {"f1": [0.0, 1.0], "precision": [0.5, 0.5], "reward": [-0.2, 1.3], "recall": [math.nan, 0.5]}
    with pytest.raises(InputError, match=f"'{score}' on questions {says}; .*0 to 1: f1, precision$"):
        Gate(("questions",), score=score).check("questions", Result("old", ["t0", "t1"], scores))
    Gate(("questions",), score="f1").check("questions", Result("old", ["t0", "t1"], scores))
    with pytest.raises(InputError, match="and there is none$"):
        Gate(("questions",)).check("questions", result("old", [math.nan, math.inf]))


def test_a_suite_that_was_not_measured_is_an_error():
    with pytest.raises(InputError, match="suite code, on which the incumbent was not measured"):
        both = {"questions": result("a", [1.0])}
        GATE.decide(both | {"code": result("a", [1.0])}, both)


def test_results_of_other_tasks_are_not_compared():
    with pytest.raises(InputError, match="different tasks"):
        decided([1.0] * 4, [1.0] * 5)


def test_without_a_target_it_only_keeps_harm_away():
    guard, old = Gate(guarded={"questions": 0.1}), {"questions": result("old", [0.5] * 200)}
    verdicts = [guard.decide({"questions": result("new", [value] * 200)}, old).verdict for value in (0.5, 0.42, 0.2)]
    assert verdicts == ["promote", "hold", "reject"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"targets": (), "guarded": {}}, "without a suite"),
        ({"targets": ("a",), "guarded": {"a": 0.1}}, "suite a is a target and guarded"),
        ({"targets": ("a",), "guarded": {"b": 0.0}}, "margin of suite b"),
        ({"targets": ("a",), "error": 0.7}, "error must be between"),
    ],
)
def test_a_gate_that_could_not_decide_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        Gate(**options)


# --- weights


def test_weights_with_nan_are_rejected_by_the_name_of_the_tensor(tmp_path):
    import torch
    from safetensors.torch import save_file

    weights = {"a.weight": torch.ones(3, dtype=torch.bfloat16), "b.weight": torch.tensor([1.0, math.nan])}
    save_file(weights, tmp_path / "model.safetensors")
    decision = refuse_weights(tmp_path)
    assert decision and decision.verdict == "reject" and "b.weight" in decision.reason
    save_file({**weights, "b.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    assert refuse_weights(tmp_path) is None


def test_weights_that_are_torn_or_gone_are_rejected(tmp_path):
    assert "no *.safetensors" in refuse_weights(tmp_path).reason
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    assert "torn" in refuse_weights(tmp_path).reason
