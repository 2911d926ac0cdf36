"""The deployment record: a change is one transaction, and an alarm wins wherever it comes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading

import pytest

from trivium import files
from trivium.errors import CorruptError, InputError
from trivium.loops import Deployments, Release, Withdrawn


@pytest.fixture
def house(tmp_path) -> Deployments:
    """A run with four versions, of which the first is served."""
    deployments = Deployments(tmp_path)
    for version in range(1, 5):
        (tmp_path / f"model-{version}").mkdir()
        (tmp_path / f"model-{version}" / "model.safetensors").write_bytes(bytes([version]) * 100)
    deployments.begin(release(deployments, 1))
    return deployments


def release(deployments: Deployments, version: int) -> Release:
    return deployments.release(version, deployments.folder / f"model-{version}")


def promoted(deployments: Deployments, *versions: int) -> None:
    for version in versions:
        deployments.promote(release(deployments, version), "better")


def test_a_candidate_is_tried_promoted_and_rolled_back(house):
    second = release(house, 2)
    assert house.canary(second, 0.1, "passed").share == 0.1
    now = house.promote(second, "people are content")
    assert (now.incumbent, now.candidate, now.share, now.previous) == (second, None, 0.0, (release(house, 1),))
    now = house.rollback("it is rude")
    assert now.incumbent.version == 1 and now.withdrawn == (2,)
    assert [change.verb for change in now.changes] == ["begin", "canary", "promote", "withdraw"]
    assert house.read() == now and now.reason == "it is rude"


def test_what_was_done_already_changes_nothing(house):
    """A loop that was killed says it again."""
    second = release(house, 2)
    for change in (
        lambda: house.begin(second),
        lambda: house.canary(second, 0.2, "x"),
        lambda: house.promote(second, "x"),
        lambda: house.withdraw(2, "x"),
    ):
        once = change()
        assert change() == once == house.read()


def test_rollback_ends_a_canary_first(house):
    promoted(house, 2)
    house.canary(release(house, 3), 0.5, "passed")
    assert house.rollback("a person").incumbent.version == 2
    assert house.rollback("a person").incumbent.version == 1
    before = house.path.read_bytes()
    with pytest.raises(InputError, match="no earlier one"):
        house.rollback("a person")
    assert house.path.read_bytes() == before


def test_two_candidates_at_once_are_refused(house):
    house.canary(release(house, 2), 0.5, "passed")
    for change in (lambda: house.canary(release(house, 3), 0.5, "x"), lambda: house.promote(release(house, 3), "x")):
        with pytest.raises(InputError, match="version 2 is tried out already"):
            change()


# --- alarms


def test_an_alarm_before_a_promotion_wins(house):
    house.withdraw(2, "marked by a detector")
    for change in (lambda: house.canary(release(house, 2), 0.5, "x"), lambda: house.promote(release(house, 2), "x")):
        with pytest.raises(Withdrawn, match="withdrawn .marked by a detector."):
            change()


def test_an_alarm_in_the_middle_of_a_promotion_wins(house, monkeypatch):
    """It comes while the candidate's weights are read once more."""
    house.canary(second := release(house, 2), 0.5, "passed")
    honest = files.fingerprint

    def alarmed(path):
        Deployments(house.folder).withdraw(2, "the canary is worse")
        return honest(path)

    monkeypatch.setattr(files, "fingerprint", alarmed)
    with pytest.raises(Withdrawn, match="the canary is worse"):
        house.promote(second, "people are content")
    assert (house.read().incumbent.version, house.read().candidate) == (1, None)


def test_an_alarm_after_a_promotion_wins(house):
    promoted(house, 2)
    assert house.withdraw(2, "late").incumbent.version == 1


def test_an_alarm_wins_a_race(house):
    house.canary(second := release(house, 2), 0.5, "passed")

    def promote():
        try:
            Deployments(house.folder).promote(second, "x")
        except Withdrawn:
            pass

    for turn in range(2, 10):
        racers = [threading.Thread(target=promote), threading.Thread(target=house.withdraw, args=(2, "alarm"))]
        for each in racers if turn % 2 else racers[::-1]:
            each.start()
        for each in racers:
            each.join(60)
        assert house.read().incumbent.version == 1 and house.read().candidate is None


def test_nobody_goes_back_to_what_an_alarm_was_about(house):
    promoted(house, 2, 3)
    house.withdraw(2, "found later")
    assert house.withdraw(3, "worse").incumbent.version == 1


def test_a_candidate_goes_with_the_incumbent_that_it_was_made_from(house):
    promoted(house, 2)
    house.canary(release(house, 3), 0.5, "passed")
    now = house.withdraw(2, "worse")
    assert (now.incumbent.version, now.candidate, now.withdrawn) == (1, None, (2, 3))
    with pytest.raises(Withdrawn):
        house.promote(release(house, 3), "people are content")


# --- what is gone or torn


def test_an_incumbent_that_is_gone_is_named(house):
    shutil.rmtree(house.folder / "model-1")
    with pytest.raises(InputError, match="version 1 .* is gone"):
        house.canary(release(house, 2), 0.5, "passed")


def test_rollback_passes_over_what_is_gone(house):
    promoted(house, 2, 3, 4)
    shutil.rmtree(house.folder / "model-3")
    (house.folder / "model-2" / "model.safetensors").write_bytes(b"other")
    assert house.rollback("worse").incumbent.version == 1


def test_weights_that_changed_since_they_were_released_are_not_promoted(house):
    second = release(house, 2)
    (house.folder / "model-2" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(CorruptError, match="other weights"):
        house.promote(second, "x")


def test_no_record_and_a_torn_one(tmp_path):
    with pytest.raises(InputError, match="has no deployment"):
        Deployments(tmp_path).rollback("x")
    for torn in (b"{", b'{"share": "\xff", "incumbent": {"model": "\xff"}}'):
        (tmp_path / "deployment.json").write_bytes(torn)
        with pytest.raises(CorruptError, match="no deployment record"):
            Deployments(tmp_path).read()


def test_a_model_outside_of_the_run_may_be_served(house, tmp_path_factory):
    model = tmp_path_factory.mktemp("elsewhere")
    (model / "model.safetensors").write_bytes(b"x")
    house.promote(elsewhere := house.release(9, model), "x")
    assert house.model(elsewhere) == model


# --- kills


def _promote_and_die(folder: str, step: int) -> None:
    """Ends the process at its `step`-th chance: before and after each thing that touches the disk."""
    left = iter(range(step, -1, -1))

    def dying(function):
        def called(*args, **kwargs):
            next(left, None) or os._exit(9)
            result = function(*args, **kwargs)
            next(left, None) or os._exit(9)
            return result

        return called

    house = Deployments(folder)
    second = release(house, 2)
    for module, name in ((files, "fingerprint"), (os, "open"), (files, "write"), (os, "fsync"), (os, "replace")):
        setattr(module, name, dying(getattr(module, name)))
    house.promote(second, "better")
    os._exit(0)


def test_a_promotion_killed_at_any_step_is_whole_or_was_none(house):
    """And said again it is done, once."""
    begun, seen, step, second = house.path.read_bytes(), set(), 0, release(house, 2)
    while True:
        house.path.write_bytes(begun)
        process = multiprocessing.get_context("fork").Process(target=_promote_and_die, args=(str(house.folder), step))
        process.start()
        process.join(60)
        seen.add(house.read().incumbent.version)
        assert [change.verb for change in house.promote(second, "better").changes] == ["begin", "promote"]
        if process.exitcode == 0:
            break
        assert process.exitcode == 9
        step += 1
    assert step >= 10 and seen == {1, 2}
