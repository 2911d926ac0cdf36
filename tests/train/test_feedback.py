"""Textual feedback: which turns are hinted, what the teacher sees, parity with a plain computation, and split invariance."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from torch.nn.functional import kl_div
from transformers import AutoModelForCausalLM

from tests.train.house import gradients, learner, recut
from tests.train.house import record as record_logprobs
from trivium.errors import InputError
from trivium.harness import Harness, ToolError, Window, tool
from trivium.nn import Network
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Branch, Point, Prune, Task
from trivium.train import CISPO, SFT, Batch, Feedback, Group, Learner, Turn, lesson

TASK = Task("t", "Add one and two.")
HINT = "Give a number."


@tool
def add(scene, number: int) -> str:
    """Add a number."""
    if number > 9:
        raise ToolError("too large")
    return f"{number} added"


def hint(turn: Turn) -> str:
    return HINT if any(each.error for each in turn.calls) else ""


WRONG, RIGHT = call(("add", {"number": "one"})), call(("add", {"number": 1}))
SCRIPTS = (
    [WRONG, RIGHT, say("3")],
    [RIGHT, call(("add", {"number": 2}), ("add", {"number": 99})), WRONG, say("3")],
    [RIGHT, say("3")],
)


def lived(renderer, script, sample: int = 0):
    harness = Harness([add], Window(3000), "Add.", specs=False)
    return asyncio.run(harness.run(TASK, Scripted(script, renderer, "agent"), sample=sample))


@pytest.fixture(scope="module")
def network(tiny_model):
    return Network.load(tiny_model, dtype=torch.float64)


@pytest.fixture(scope="module")
def episodes(renderer, network):
    made = [lived(renderer, script, number) for number, script in enumerate(SCRIPTS)]
    record_logprobs(network, made, noise=0.2)
    return made


def dull(episodes) -> Batch:
    """A batch whose rewards are all equal: nothing but the feedback teaches."""
    return Batch([Group("t", list(episodes), [0.5] * len(episodes))])


def with_feedback(renderer, weight: float = 1.0, of=hint):
    return dataclasses.replace(CISPO(), feedback=Feedback(of, renderer, weight))


def test_only_turns_that_went_wrong_are_hinted(renderer, episodes):
    feedback = Feedback(hint, renderer)
    turns = [feedback.of(episode, {"agent"}) for episode in episodes]
    assert [len(each) for each in turns] == [1, 2, 0]
    said = [renderer.decode(each.student[-each.learned :]) for episode in turns for each in episode]
    assert '"number": "one"' in said[0] and '"number": 99' in said[1] and '"number": "one"' in said[2]
    assert feedback.of(episodes[0], {"somebody else"}) == [], "frozen means frozen"


def test_the_teacher_sees_the_hint_and_the_same_reply(renderer, episodes):
    (turn,) = Feedback(hint, renderer).of(episodes[0], {"agent"})
    student, teacher = renderer.decode(turn.student), renderer.decode(turn.teacher)
    assert student == renderer.decode(episodes[0].agent.segments[0].tokens[: len(turn.student)])
    assert teacher == student.replace("two.<|im_end|>", f"two.\n{HINT}<|im_end|>") and HINT not in student
    assert turn.student[-turn.learned :] == turn.teacher[-turn.learned :]


def test_a_hint_stands_behind_the_last_result(renderer, episodes):
    _, turn = Feedback(hint, renderer).of(episodes[1], {"agent"})
    assert f"</tool_response>\n{HINT}<|im_end|>\n<|im_start|>assistant\n" in renderer.decode(turn.teacher)


def test_the_last_reply_can_be_hinted_too(renderer, episodes):
    def late(turn: Turn) -> str:
        return "Say it in words." if turn.last and not turn.calls else ""

    for episode in episodes:
        (turn,) = Feedback(late, renderer).of(episode, {"agent"})
        assert renderer.decode(turn.student[-turn.learned :]).startswith("3")


def test_a_branch_hints_its_own_turns_alone(renderer, episodes):
    """It has copies of its parent's calls before its own, and what it carried over is not its own."""
    whole = episodes[1].agent
    second = whole.segments[0].sampled()[1]
    branch = recut(episodes[1], [second.start])
    branch.threads[0].segments = branch.threads[0].segments[1:]
    branch.ops = [Branch(author="harness", parent="t/1", snapshot="", at=Point(branch.agent.id, 0, 0), turn=1)]
    assert len(branch.agent.calls) == 4 and len(branch.agent.segments) == 1
    assert Feedback(hint, renderer).of(branch, {"agent"}) == Feedback(hint, renderer).of(episodes[1], {"agent"})


def test_a_hinted_turn_is_a_lesson_of_its_own(renderer, episodes, network):
    (turn,) = Feedback(hint, renderer).of(episodes[0], {"agent"})
    each = lesson(episodes[0], turn)
    (span,) = each.agent.segments[0].sampled()
    assert each.agent.segments[0].tokens == turn.teacher and span.stop - span.start == turn.learned
    learner = Learner(network, SFT(), 0.0, policies={"agent"})
    assert learner.learn(Batch.imitate([each])).metrics["tokens_trained"] == turn.learned


def test_parity_with_a_plain_computation(renderer, network, episodes, tiny_model):
    """Loss and gradient as transformers and torch's kl_div have them, one turn after the other."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    turns = [turn for episode in episodes for turn in Feedback(hint, renderer).of(episode, {"agent"})]
    total = torch.zeros((), dtype=torch.float64)
    for turn in turns:
        student, teacher = [
            plain(torch.tensor([row])).logits[0, -1 - turn.learned : -1].log_softmax(-1) for row in (turn.student, turn.teacher)
        ]
        total = total + kl_div(teacher.detach(), student, log_target=True, reduction="sum")
    sampled = sum(s.stop - s.start for e in episodes for s in e.agent.segments[0].sampled())
    (0.3 * total / sampled).backward()
    (ours,), metrics = gradients(learner(network, with_feedback(renderer, 0.3)), dull(episodes))
    for name, parameter in plain.named_parameters():
        if name in ours:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-6, atol=1e-12)
    assert metrics["feedback"] == pytest.approx(float(total.detach()) / sum(turn.learned for turn in turns))
    assert metrics["no_signal"] == 0 and metrics["episodes"] == 0


@pytest.mark.parametrize(
    ("cuts", "micro_tokens"), [([40], 1), ([130, 150, 170, 190], 10_000), (list(range(100, 500, 25)), 400)]
)
def test_split_invariance(renderer, network, episodes, cuts, micro_tokens):
    """Law 3: the same tokens under the same contexts as more segments, also where a reply is cut in two."""
    mixed = Batch([Group("t", list(episodes), [1.0, 0.0, 0.5])])
    fresh = Batch([Group("t", [recut(episode, cuts) for episode in episodes], [1.0, 0.0, 0.5])])
    whole, metrics = gradients(learner(network, with_feedback(renderer)), mixed)
    parts, others = gradients(learner(network, with_feedback(renderer), micro_tokens=micro_tokens), fresh)
    for name in whole[0]:
        scale = float(whole[0][name].abs().max())
        torch.testing.assert_close(parts[0][name], whole[0][name], rtol=1e-6, atol=scale * 1e-6 + 1e-12)
    assert others["feedback"] == pytest.approx(metrics["feedback"])
    without, _ = gradients(learner(network, CISPO()), mixed)
    assert any(not torch.allclose(without[0][name], whole[0][name], rtol=1e-3) for name in whole[0])


def test_it_pulls_the_policy_to_what_it_says_with_the_hint(renderer, tiny_model, episodes):
    student = learner(Network.load(tiny_model), with_feedback(renderer, 4.0))
    gaps = [student.learn(dull(episodes)).metrics["feedback"] for _ in range(12)]
    assert gaps[-1] < 0.5 * gaps[0]


def test_nothing_to_hint_is_no_signal(renderer, network, episodes):
    metrics = learner(network, with_feedback(renderer, of=lambda turn: "")).learn(dull(episodes)).metrics
    assert metrics["no_signal"] == 1 and "feedback" not in metrics


def test_a_pruned_view_is_hinted_as_it_was_seen(renderer, network):
    """The turn after a cut stands in another segment, and its hint behind what was left of the view."""
    from tests.laws.walks import pruning

    episode, _ = asyncio.run(pruning(renderer))
    assert any(isinstance(op, Prune) for op in episode.ops)
    every = Feedback(lambda turn: "Be brief.", renderer).of(episode, {"agent"})
    assert len(every) == episode.agent.turns
    views = [segment.tokens for segment in episode.agent.segments]
    assert all(any(each.student == view[: len(each.student)] for view in views) for each in every)


def test_a_weight_that_changes_nothing_is_refused(renderer):
    with pytest.raises(InputError, match="leave the term out"):
        Feedback(hint, renderer, 0.0)
