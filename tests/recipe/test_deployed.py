"""A run's deployment record as a server follows it: first the run's own model, then what the record says, checked."""

from __future__ import annotations

import shutil

import pytest

from trivium.errors import CorruptError, InputError
from trivium.loops import Run
from trivium.loops.deploy import Deployments
from trivium.policy import Scripted
from trivium.recipe.deployed import RunRecord
from trivium.recipe.live import alone
from trivium.serve.following import Deployed
from trivium.serve.routing import Wanted


@pytest.fixture
def run(tmp_path):
    for name in ("model", "versions/1", "versions/2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_text(name)
    return tmp_path


@pytest.fixture
def record(run, renderer):
    return RunRecord(
        Deployments(run), run / "model", lambda model, version: Scripted([], renderer, name=f"{model.name} {version}")
    )


def spoken(deployed: Deployed) -> list[tuple[str, str]]:
    return [(lane.deployment, lane.policy.name) for lane in deployed.route.lanes]


def test_a_server_follows_a_run_from_its_own_model_to_a_rollback(run, record):
    deployed = Deployed(record)
    assert spoken(deployed) == [("", "model 0")]
    deployments = record.deployments
    first, second, third = (
        deployments.release(version, run / name) for version, name in enumerate(("model", "versions/1", "versions/2"))
    )
    deployments.begin(first)
    deployments.canary(second, 0.25, "tried")
    assert deployed.look() == [] and spoken(deployed) == [("0", "model 0"), ("1", "1 1")]
    assert (deployed.route.share, record.wanted()) == (0.25, Wanted("0", "1", 0.25))
    lane = deployed.route.canary
    deployments.promote(second, "better")
    assert deployed.look() == [] and deployed.route.lanes == [lane]  # loaded once
    deployments.canary(third, 0.5, "tried")
    deployed.look()
    deployments.withdraw(third.version, "an alarm")
    assert deployed.look() == [] and spoken(deployed) == [("1", "1 1")]
    deployments.rollback("a person asked")
    assert deployed.look() == [] and spoken(deployed) == [("0", "model 0")]


def test_weights_that_are_gone_or_changed_serve_nobody(run, record):
    deployments = record.deployments
    deployments.begin(deployments.release(0, run / "model"))
    deployments.canary(deployments.release(1, run / "versions/1"), 0.5, "tried")
    (run / "versions/1/weights").write_text("other")
    deployed = Deployed(record)
    (fault,) = deployed.look()
    assert "other weights than when it was released" in fault and spoken(deployed) == [("0", "model 0")]
    with pytest.raises(InputError, match="not deployed any more"):
        record.load("7")
    shutil.rmtree(run / "model")
    with pytest.raises((InputError, CorruptError), match="is gone"):
        Deployed(record)


def test_two_do_not_learn_on_one_run_at_once(trivium, tmp_path):
    begun = Run.begin(tmp_path / "run", {"seed": 0})
    code, _, error = trivium("live", tmp_path / "run")
    assert code == 2 and "is being trained by another process: let it end, or stop it" in error
    begun.close()
    with alone(str(tmp_path / "run")), pytest.raises(InputError, match="by another process"), alone(str(tmp_path / "run")):
        pass
    Run.begin(tmp_path / "run", {"seed": 0}).close()
