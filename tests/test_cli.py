"""The command line as a person meets it: what every verb promises, and one clear line for every mistake."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from trivium import cli
from trivium.assets import NANO
from trivium.trace import Store

TINY = "--warmup 48 --sft-steps 4 --steps 1 --groups 2 --size 3 --eval-tasks 4 --workers 1 --track".split()
POLICIES = ("base", "sft", "sft_greedy", "rl", "rl_greedy")
METRICS = {"f1", "output_recall", "trajectory_recall", "answer_found", "format_valid", "prune_rate", "prune_accuracy"}
QUESTION = "Who leads Brennix Holt?"


def trivium(*words: str | Path) -> subprocess.CompletedProcess:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "trivium", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env={**os.environ, "COLUMNS": "120"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """One tiny run, trained by the command; nobody may change it."""
    out = tmp_path_factory.mktemp("cli") / "run"
    done = trivium("train", "search", "--out", out, *TINY)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "output" in done.stdout and "read on: trivium show" in done.stdout
    return out


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """A run of one's own, to break."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def docs(tmp_path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "holt.md").write_text("# Brennix Holt\nBrennix Holt is led by Mira Tolen. \x1b[2JThe firm makes pumps.\n")
    (folder / "oster.txt").write_text("Varnholm lies in the Oster valley.\n")
    return folder


# --- what each verb does


def test_training_writes_what_it_promises(trained):
    summary = json.loads((trained / "summary.json").read_text(), parse_constant=_no_number)
    assert all(METRICS <= summary[policy].keys() for policy in POLICIES)
    assert summary["paired"].keys() == {"rl_minus_sft", "rl_greedy_minus_sft_greedy"}
    for differences in summary["paired"].values():
        assert differences.keys() >= METRICS and all(len(interval) == 3 for interval in differences.values())
    assert json.loads((trained / "agent.json").read_text())["name"] == "Search"
    kinds = [json.loads(line, parse_constant=_no_number)["kind"] for line in (trained / "metrics.jsonl").open()]
    assert kinds == ["sft"] * 4 + ["rl_eval", "rl", "rl_eval"]
    assert {path.stem for path in (trained / "results").iterdir()} == {*POLICIES, "expert"}
    assert json.loads((trained / "recipe.json").read_text())["sft_steps"] == 4
    assert list((trained / "tensorboard").glob("events.out.tfevents.*"))
    assert (trained / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (trained / "model" / "model.safetensors").is_file() and (trained / "model" / "tokenizer.json").is_file()


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_a_finished_run_started_again_trains_nothing(copied, capsys):
    before = _contents(copied)
    code, out, err = told(capsys, "train", "search", "--out", copied, *TINY)
    assert code == 0 and "warm-up" not in out, err
    after = _contents(copied)
    changed = {name for name in before if before[name] != after.get(name)}
    assert {name for name in changed if not name.startswith("tensorboard/")} <= {"curve.png"}


def _contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("episodes.db-")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_dry_run_tells_and_writes_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = told(capsys, "train", "search", "--dry-run", *TINY)
    assert code == 0, err
    numbers = {line.split()[0]: line for line in out.splitlines()}
    assert "GiB" in numbers["memory"] and "M to learn from" in numbers["tokens"] and "minutes" in numbers["time"]
    assert "1 hop: documents of" in numbers["need"] and "4 hops: documents of" in out
    assert not list(tmp_path.iterdir())


def test_eval_measures_with_intervals(trained, capsys):
    code, out, err = told(capsys, "eval", "search", trained, "--tasks", "3")
    assert code == 0, err
    assert "3 questions" in out and "output_recall" in out and "[" in out


def test_eval_says_what_rollouts_and_pruning_are_worth(trained, capsys):
    code, out, err = told(capsys, "eval", "search", trained, "--tasks", "2", "--rollouts", "2", "--no-prune")
    assert code == 0, err
    assert "2 rollouts fused" in out and "fused, minus one of them" in out and "with pruning disabled" in out


def test_an_agent_that_has_no_prunes_has_none_refused(trained, capsys, tmp_path):
    bare = shutil.copytree(trained, tmp_path / "bare")
    kept = json.loads((bare / "recipe.json").read_text())
    (bare / "recipe.json").write_text(json.dumps(kept | {"without": "pruning"}))
    refused(
        capsys,
        "trained --without pruning, so there is nothing that --no-prune could refuse",
        "eval",
        "search",
        bare,
        "--tasks",
        "2",
        "--no-prune",
    )


@pytest.mark.parametrize("verb", ["eval", "eval search"])
def test_eval_compares_runs_and_writes_what_it_says(trained, capsys, tmp_path, verb):
    """On the tasks that the run was measured on itself, so that only the base by most likely token is attempted."""
    files = ["--json", tmp_path / "claim.json", "--out", tmp_path / "claim.md", "--plot", tmp_path / "claim.png"]
    code, out, err = told(capsys, *verb.split(), "--compare", trained, "--tasks", "4", "--workers", "1", *files)
    assert code == 0, err
    page = (tmp_path / "claim.md").read_text()
    assert "A: every policy" in out and "## A: rl_greedy minus sft_greedy" in page
    assert "| one hybrid search |" in page and "| perfect script |" in page
    numbers = json.loads((tmp_path / "claim.json").read_text(), parse_constant=_no_number)
    own = json.loads((trained / "results" / "rl.json").read_text())
    assert numbers["recipes"][0]["policies"]["rl"]["f1"][0] == pytest.approx(sum(own["scores"]["f1"]) / 4)
    assert numbers["command"].startswith(f"trivium {verb} --compare run ") and numbers["versions"]["torch"]
    assert str(trained.parent) not in page and (tmp_path / "claim.png").read_bytes()[:4] == b"\x89PNG"


def test_a_model_that_is_warm_already_goes_straight_to_rl(trained, tmp_path, capsys):
    warm = ["--model", trained / "model-sft", *TINY[:2], "--sft-steps", "0", *TINY[4:-1]]
    code, out, err = told(capsys, "train", "search", "--out", tmp_path / "run", *warm)
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "base" not in summary and "expert" in summary
    assert summary["sft"] == json.loads((trained / "summary.json").read_text())["sft"]


def test_what_is_exported_loads_in_transformers_and_is_ours(trained, tmp_path, capsys):
    folder = tmp_path / "[bold] deep" / "folder"
    code, out, err = told(capsys, "export", trained, folder)
    assert code == 0 and str(folder) in out
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trivium.nn import Network, Packed

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = torch.tensor(tokenizer.encode("Brennix Holt is led by Mira Tolen."))
    theirs = AutoModelForCausalLM.from_pretrained(folder)(tokens[None]).logits[0]
    network, view = Network.load(trained / "model"), Packed([len(tokens)])
    ours = network.logits(network.hidden(tokens, view.positions, view))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_ask_streams_what_it_does_and_ends_in_documents_or_says_that_there_is_none(trained, docs):
    done = trivium("ask", trained, QUESTION, "--corpus", docs)
    assert done.returncode == 0 and all(line.startswith("embed ") for line in done.stderr.splitlines()), done.stderr
    assert "→ " in done.stdout and " turns, " in done.stdout
    assert "no document was returned" in done.stdout or ("1. " in done.stdout and "“" in done.stdout)
    assert "\x1b" not in done.stdout, "a document drove the terminal"
    assert "learned about generated worlds, not from documents such as these" in done.stdout
    at = next(line for line in done.stdout.splitlines() if "plain search finds" in line).index("plain search finds")
    assert any(line.startswith("1.") and line[at:].startswith("holt.md") for line in done.stdout.splitlines()), done.stdout


def test_rollouts_of_a_question_are_marked_and_fused(trained, docs):
    done = trivium("ask", trained, QUESTION, "--corpus", docs, "--rollouts", "2")
    assert done.returncode == 0 and all(line.startswith("embed ") for line in done.stderr.splitlines()), done.stderr
    assert "1 → " in done.stdout and "2 → " in done.stdout and done.stdout.count(" turns, ") == 2


def test_show_reads_a_run(trained, capsys):
    code, out, err = told(capsys, "show", trained, "--count", "1")
    assert code == 0 and "RL" in out and "gold documents" in out and "curve.png" in out
    assert "teacher" in told(capsys, "show", trained, "--episode", "teacher/", "--count", "1")[1]
    refused(capsys, "in two ways", "show", trained, "--episode", "teacher/", "--policy", "sft")
    refused(capsys, "--policy base, sft, sft_greedy, rl, rl_greedy, expert", "show", trained, "--policy", "greedy")


def test_show_reads_a_store_of_ones_own(copied, tmp_path, capsys):
    store = shutil.copy(copied / "episodes.db", tmp_path / "mine.db")
    code, out, err = told(capsys, "show", store, "--episode", "rl/0/", "--count", "2")
    assert code == 0 and out.count("truth: gold: ") == 2 and "curve.png" not in out
    assert "eval/base/" in told(capsys, "show", store, "--count", "1")[1]  # in the order written
    refused(capsys, "is a store and no run", "show", store, "--policy", "rl")
    refused(capsys, "there are --episode teacher/, rl/", "show", store, "--episode", "ask/")
    opened = Store(tmp_path / "named.db")
    (first,) = Store(store).select(prefix="rl/0/", limit=1)
    opened.write([dataclasses.replace(first, id="mine/7")])
    refused(capsys, "the first is called mine/7", "show", tmp_path / "named.db", "--episode", "rl/")
    Store(tmp_path / "empty.db")
    refused(capsys, "there is none yet", "show", tmp_path / "empty.db")


def test_a_terminal_without_arrows_is_no_reason_to_stop(trained, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = trivium("show", trained, "--count", "1")
    assert done.returncode == 0 and "gold documents" in done.stdout, done.stderr


def test_an_unfinished_run_can_be_read_and_not_asked(copied, docs, tmp_path, capsys):
    (copied / "summary.json").unlink()
    assert told(capsys, "show", copied, "--policy", "sft")[0] == 0
    refused(capsys, "has no trained model yet", "ask", copied, QUESTION, "--corpus", docs)
    refused(capsys, "has no trained model yet", "export", copied, tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    "verb, teaches",
    [
        ("", "ask RUN"),
        ("", "coder, swarm"),
        ("train", "questions that the teacher answers"),
        ("eval", "RUN"),
        ("train search", "questions that the teacher answers"),
        ("eval search", "RUN"),
        ("eval --compare", "RUN [RUN ...]"),
        ("show", "RUN"),
        ("tasks", "QUESTIONS"),
        ("export", "FOLDER"),
        ("ask", "QUESTION"),
        ("serve", "the address to listen on"),
        ("live", "episodes"),
    ],
)
def test_help_teaches(capsys, verb, teaches):
    code, out, _ = told(capsys, *verb.split(), "--help")
    assert code == 0 and teaches in out and "STR STR" not in out and "options options" not in out


# --- what goes wrong: status 2, one line, nothing made


def told(capsys, *words: str | Path) -> tuple[int, str, str]:
    """Status, stdout and stderr of the command, in this process: the mistakes are many and torch is slow to load."""
    capsys.readouterr()
    before, sys.argv = sys.argv, ["trivium", *map(str, words)]
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(capsys, why: str, *words: str | Path, begun: bool = False) -> None:
    """One line, behind those that say what a run is about to do where it had `begun`."""
    code, _, err = told(capsys, *words)
    *before, line = err.splitlines()
    assert code == 2 and line.startswith("trivium: ") and bool(before) == begun, err
    assert why in line, err


@pytest.mark.parametrize(
    "words, why",
    [
        ("fly", "no verb 'fly'"),
        ("train", "the name of an agent"),
        ("train cook", "there is no agent 'cook'; there are coder, search, swarm, and your own"),
        ("train nowhere.py", "there is no file"),
        ("eval nowhere.py run", "there is no file"),
        ("train search --steps -2", "--steps must be at least 0, not -2"),
        ("train search --groups -2", "--groups must be at least 1"),
        ("train search --size 1", "--size must be at least 2"),
        ("train search --seed -1", "--seed must be"),
        ("train search --lr -0.1", "--lr must be between 0 and 1"),
        ("train search --algorithm grpo --cap 3", "--cap would change nothing: it is CISPO's alone"),
        ("train search --teacher-tokens 9", "--teacher-tokens would change nothing: it is for a --teacher"),
        ("train search --sft-steps 0 --sft-lr 0.01", "--sft-lr would change nothing"),
        ("train search --corpus nowhere --sft-steps 0 --warmup 9", "--warmup would change nothing"),
        ("eval search nowhere --greedy --seed 3", "--seed would change nothing"),
        ("train search --sft-steps 0 --teacher http://x/v1#m", "--teacher would change nothing"),
        ("train search --steps 0 --lr 0.01", "--lr would change nothing: --steps 0 has no RL"),
        ("train coder --steps 0 --max-lag 2", "--max-lag would change nothing: --steps 0 has no RL"),
        ("live nowhere --candidate . --cycles 3", "--cycles would change nothing: a --candidate was made elsewhere"),
        ("train search --cap nan", "--cap must be at least 1, not nan"),
        ("train search --cap inf", "--cap must be at least 1, not inf"),
        ("train search --warmup 1 --groups 1 --steps 1 --workers 1 --skew 0.75", "--skew 0.75 parts the questions in two"),
        ("train search --groups 1 --workers 2", "cannot be shared by --workers 2"),
        ("train search --eval-tasks 1 --workers 2", "--eval-tasks 1 cannot be shared by --workers 2"),
        ("train search --teacher http://x/v1", "names no model: write URL#MODEL"),
        ("train search --teacher http://x/v1#m --without blunders", "only the scripted teacher of generated worlds"),
        ("train search --window 120 --workers 1", "the window holds 120"),
        ("train search --window 40 --workers 1", "a window of 40 tokens"),
        ("train coder --window 5120 --workers 1 --sandbox local-unsafe --dry-run", "longer than this model's 4096"),
        ("train search --model no/such-model --workers 1", "no/such-model"),
        ("train swarm --price 7", "--price is a share, from 0 to 1, not 7"),
        ("train search --corpus nowhere --workers 1", "does not exist"),
        ("show nowhere", "is no run"),
        ("show nowhere --count 0", "--count must be"),
        ("eval search nowhere --tasks -1", "--tasks must be"),
        ("eval search nowhere --rollouts 0", "--rollouts must be"),
        ("eval search nowhere --split train", "--split train is of a --corpus"),
        ("eval search --compare nowhere --split train", "--split train is of a --corpus"),
        ("eval --compare nowhere", "is no run"),
        ("eval search --compare nowhere", "is no run"),
        ("eval --compare", "nothing to compare"),
        ("eval search --compare nowhere --json .", "it is a folder"),
        ("export nowhere/x file", "is no run"),
        ("eval search --compare nowhere --tasks -1", "--tasks must be"),
        ("eval search --compare nowhere --json no/such/file.json", "its folder does not exist"),
        ("ask nowhere  --corpus .", "is no run"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, monkeypatch, tmp_path, words, why):
    monkeypatch.chdir(tmp_path)
    asked = ["ask", "nowhere", "who?", "--corpus", "."] if words.startswith("ask") else words.split()
    refused(capsys, why, *asked)
    assert not list(tmp_path.iterdir()), "a refused start left something behind"


def test_a_window_longer_than_the_models_context_is_told_before_the_warm_up(capsys, tmp_path):
    run = ("train", "search", "--out", tmp_path / "run", "--window", "5120", "--workers", "1")
    refused(capsys, "the context of 5120 tokens is none, or longer than this model's 4096", *run, begun=True)
    assert not (tmp_path / "run").exists()


def test_options_may_stand_before_the_run(trained):
    assert cli._agent(["--tasks", "1", str(trained)]) == cli._agent([str(trained), "--tasks", "1"])


def test_documents_that_cannot_be_read(capsys, trained, tmp_path, docs):
    def ask(corpus: Path, why: str) -> None:
        refused(capsys, why, "ask", trained, QUESTION, "--corpus", corpus)

    (tmp_path / "empty").mkdir()
    ask(tmp_path / "empty", "holds no document")
    ask(tmp_path / "nowhere", "does not exist")
    (docs / "picture.txt").write_bytes(b"\xff\xfe\x00")
    ask(docs, "picture.txt is no UTF-8 text")
    (tmp_path / "bad.jsonl").write_text('{"_id": "1", "text": "fine"}\n{"_id": "2", oops\n')
    ask(tmp_path / "bad.jsonl", "bad.jsonl:2 is no JSON")
    refused(capsys, "the question is empty", "ask", trained, " ", "--corpus", docs)
    refused(capsys, "--corpus is empty", "ask", trained, QUESTION, "--corpus", "")


@pytest.mark.slow
def test_a_finished_run_stands_alone(tmp_path, docs, monkeypatch, capsys):
    """Its model came by a relative path, held a folder of its own, and is gone: all that is asked of the run, it has."""
    model = shutil.copytree(NANO, tmp_path / "mine")
    shutil.copytree(NANO, model / "tokenizer_old")
    monkeypatch.chdir(tmp_path)
    code, _, err = told(capsys, "train", "search", "--model", "mine", "--out", "run", *TINY[:-1])
    assert code == 0, err
    shutil.rmtree(model)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run, before = tmp_path / "run", _contents(tmp_path / "run")
    assert told(capsys, "show", run, "--count", "1")[0] == 0 and _contents(run) == before, "reading writes nothing"
    for words in (
        ["eval", run, "--tasks", "2"],
        ["eval", "--compare", run, "--tasks", "4", "--workers", "1"],
        ["ask", run, QUESTION, "--corpus", docs],
        ["export", run, "exported"],
    ):
        code, _, err = told(capsys, *words)
        assert code == 0, (words, err)


def test_a_missing_split_of_real_questions(capsys, trained, tmp_path):
    beir, out = tmp_path / "beir", tmp_path / "out"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text('{"_id": "d", "title": "A", "text": "a text"}\n')
    (beir / "queries.jsonl").write_text('{"_id": "q", "text": "what?"}\n')
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    refused(capsys, "train.tsv does not exist", "train", "search", "--corpus", beir, "--out", out, "--workers", "1")
    refused(capsys, "dev.tsv does not exist", "eval", "search", trained, "--corpus", beir, "--split", "dev")
    assert not out.exists()


def test_a_model_without_weights_is_one_line_also_from_two_workers(trained, tmp_path):
    bare = shutil.copytree(trained / "model", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    done = trivium("train", "search", "--out", tmp_path / "out", "--model", bare, "--workers", "2")
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and line.startswith("trivium: ") and "Traceback" not in done.stderr, done.stderr
    assert str(bare) in line and "model.safetensors" in line and not (tmp_path / "out").exists()


def test_folders_that_are_not_ours_stay_as_they_are(capsys, trained, tmp_path):
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("years of work")
    refused(capsys, "is not empty and no run", "train", "search", "--out", foreign, *TINY)
    refused(capsys, "is not empty", "export", trained, foreign)
    for out in (foreign / "chapter.tex", foreign / "chapter.tex" / "run"):
        refused(capsys, "chapter.tex is a file", "train", "search", "--out", out, *TINY)
    refused(capsys, "was begun with sft_steps=4, not 5", "train", "search", "--out", trained, *TINY, "--sft-steps", "5")
    other = ("--sft-steps", "5", "--seed", "3")
    refused(capsys, "seed=0, not 3, sft_steps=4, not 5", "train", "search", "--out", trained, *TINY, *other)
    assert [path.name for path in foreign.iterdir()] == ["chapter.tex"]


def test_a_torn_recipe_or_store_is_named(capsys, copied):
    (copied / "episodes.db").write_text("garbage")
    refused(capsys, "is no episode store", "show", copied)
    (copied / "recipe.json").write_text('{"model": "na')
    refused(capsys, "recipe.json is torn", "train", "search", "--out", copied, *TINY)
    (copied / "recipe.json").write_text("[]")
    refused(capsys, "recipe.json holds no recipe", "show", copied)


@pytest.mark.parametrize("harm", [{"window": "wide"}, {"algorithm": "foo"}, {"cap": None}], ids=str)
def test_a_recipe_with_a_wrong_field_is_named(capsys, copied, docs, harm):
    recipe = json.loads((copied / "recipe.json").read_text())
    (copied / "recipe.json").write_text(json.dumps(recipe | harm))
    refused(capsys, f"$.{next(iter(harm))}", "ask", copied, QUESTION, "--corpus", docs)


def test_a_summary_or_a_result_that_is_none_is_named(capsys, copied):
    (copied / "summary.json").write_text("[]")
    refused(capsys, "summary of this run is torn", "show", copied)
    (copied / "results" / "rl.json").write_text("{}")
    code, _, err = told(capsys, "train", "search", "--out", copied, *TINY)
    *progress, last = err.splitlines()
    assert code == 2 and last.startswith("trivium: ") and "rl.json holds no result" in last
    assert all(" elapsed" in line for line in progress), err


@pytest.mark.parametrize("harm", [None, b"torn"], ids=["lost", "torn"])
def test_weights_that_are_lost_or_torn_are_not_exported(capsys, copied, tmp_path, harm):
    weights = copied / "model" / "model.safetensors"
    weights.unlink() if harm is None else weights.write_bytes(harm)
    refused(capsys, "has lost its weights" if harm is None else "is torn", "export", copied, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_trains_can_be_read(capsys, copied):
    for gone in ("summary.json", "results/rl.json", "results/rl_greedy.json"):
        (copied / gone).unlink()
    with sqlite3.connect(copied / "episodes.db") as store:
        store.execute("delete from episodes where id like 'eval/rl%'")
    code, out, err = told(capsys, "show", copied, "--count", "1")
    assert code == 0 and "rl/0/" in out, err


def test_metrics_torn_in_the_middle_are_named_by_line(capsys, copied):
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    lines[2] = lines[2][:20]
    torn = "\n".join(lines) + "\n"
    (copied / "metrics.jsonl").write_text(torn)
    refused(capsys, "line 3 is no event", "train", "search", "--out", copied, *TINY)
    assert (copied / "metrics.jsonl").read_text() == torn


def test_a_torn_checkpoint_is_told_and_the_one_before_goes_on_to_the_same_end(capsys, copied):
    """Also a last line of metrics that a kill tore: it goes, and the next event does not follow on the same line."""
    summary, events = (copied / "summary.json").read_text(), (copied / "metrics.jsonl").read_text()
    for gone in ("summary.json", "results/rl.json", "results/rl_greedy.json"):
        (copied / gone).unlink()
    newest = sorted((copied / "checkpoints").iterdir())[-1]
    (newest / "weights.safetensors").write_bytes((newest / "weights.safetensors").read_bytes()[:1000])
    (copied / "metrics.jsonl").write_text(events[:-30])
    code, out, err = told(capsys, "train", "search", "--out", copied, *TINY)
    assert code == 0, err
    assert "is torn: weights.safetensors" in err and "going on from the one before" in err
    assert (copied / "summary.json").read_text() == summary
    again = [json.loads(line) for line in (copied / "metrics.jsonl").open()]
    assert [(e["kind"], e["step"]) for e in again] == [(e["kind"], e["step"]) for e in map(json.loads, events.splitlines())]


def test_no_good_checkpoint_is_an_error_and_not_a_new_beginning(capsys, copied):
    for folder in (copied / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    refused(capsys, "is torn: state.json", "train", "search", "--out", copied, *TINY)


def test_an_evaluation_still_owed_is_made_with_the_weights_of_its_stage(capsys, copied, trained):
    """Killed between the last step of the warm-up and its evaluation: what speaks then is not the base."""
    kept = sorted((copied / "checkpoints").iterdir())
    shutil.rmtree(kept[-1])
    for name in ("sft", "sft_greedy", "rl", "rl_greedy"):
        (copied / "results" / f"{name}.json").unlink()
    (copied / "summary.json").unlink()
    assert told(capsys, "train", "search", "--out", copied, *TINY)[0] == 0
    for name in ("sft", "rl"):
        assert (copied / "results" / f"{name}.json").read_text() == (trained / "results" / f"{name}.json").read_text()


def test_a_result_that_was_lost_is_made_again_with_the_weights_of_then(capsys, copied, trained):
    lost = ("base", "sft", "sft_greedy", "expert")
    for name in lost:
        (copied / "results" / f"{name}.json").unlink()
    assert told(capsys, "train", "search", "--out", copied, *TINY)[0] == 0
    for name in lost:
        assert (copied / "results" / f"{name}.json").read_text() == (trained / "results" / f"{name}.json").read_text()


def test_a_dead_teacher_is_one_line(capsys, monkeypatch, tmp_path):
    from trivium.policy import endpoint

    monkeypatch.setattr(endpoint, "WAIT", 0.01)
    teacher = ["--teacher", "http://127.0.0.1:9/v1#any"]
    refused(capsys, "127.0.0.1:9", "train", "search", "--out", tmp_path / "run", *TINY, *teacher, begun=True)
    assert not (tmp_path / "run").exists()


def test_a_score_that_no_gate_compares_is_refused_before_a_turn_waits(capsys, copied):
    """The default is one that a turn can be judged by; then too little was said to it."""
    for score in ("reward", "rewards"):
        refused(capsys, f"'{score}' on heldout", "live", copied, "--score", score, "--patience", "0.1")
    assert not (copied / "live" / "suites").exists(), "what is refused pins no suite"
    refused(capsys, "there are 0 (none came)", "live", copied, "--patience", "0.1", begun=True)
