"""`trivium rollback RUN`, as a person meets it."""

from __future__ import annotations

import sys

import pytest

from trivium import cli
from trivium.loops import Deployments


def told(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trivium", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


@pytest.fixture
def run(tmp_path) -> Deployments:
    deployments = Deployments(tmp_path)
    for version in (1, 2):
        (tmp_path / f"model-{version}").mkdir()
        (tmp_path / f"model-{version}" / "model.safetensors").write_bytes(bytes([version]))
    deployments.begin(deployments.release(1, tmp_path / "model-1"))
    deployments.promote(deployments.release(2, tmp_path / "model-2"), "better")
    return deployments


def test_a_person_goes_back_and_says_why(run, capsys, monkeypatch):
    code, out, _ = told(capsys, monkeypatch, "rollback", str(run.folder), "--reason", "it is rude")
    assert code == 0 and "version 1 is served to all" in out and "it is rude" in out
    assert run.read().withdrawn == (2,)


def test_where_there_is_nothing_to_go_back_to_one_line_says_so(run, capsys, monkeypatch):
    run.rollback("once")
    code, _, err = told(capsys, monkeypatch, "rollback", str(run.folder))
    assert code == 2 and err.count("\n") == 1 and "no earlier one to go back to" in err
    code, _, err = told(capsys, monkeypatch, "rollback", str(run.folder / "model-1"))
    assert code == 2 and "has no deployment" in err
    for name in ("none", "deployment.json"):
        code, _, err = told(capsys, monkeypatch, "rollback", str(run.folder / name))
        assert code == 2 and err == f"trivium: there is no folder {run.folder / name}: name that of a run\n"
