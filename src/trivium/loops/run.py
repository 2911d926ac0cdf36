"""A run's folder: what was asked, what happened, and where to go on.

runs/demo/
  recipe.json        the recipe's fields; going on with other fields is refused
  inputs.json        digests of weights, questions and documents; going on with others is refused
  metrics.jsonl      one event a line
  episodes.db        the store: every episode of training and evaluation, with its scores
  checkpoints/       the learner's last good states
  teacher.json       how many episodes the teacher gave, and how many passed the filter
  teacher-tokens-N.json  what worker N's teacher behind an endpoint has used
  tensorboard/       with --track, the events once more
  results/           one JSON per evaluation, with per-task scores
  model-sft/         the weights after the warm-up as a Hugging Face folder;  model/  the trained ones
  compare.db         what `eval --compare` attempted;  compare-plain-*.json  its plain searches
  summary.json       the table;  curve.png  the picture
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trivium import files
from trivium.errors import CorruptError, InputError


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a loop: `kind` (sft, rl, or rl_eval for a look at held-out tasks), the step, its numbers."""

    kind: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)


class Run:
    """One run's folder, new or to be gone on with. Nothing in it is ever half-written (law 9)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._held: int | None = None

    @classmethod
    def begin(cls, folder: str | Path, recipe: dict[str, Any]) -> Run:
        """A run with this recipe: a new one, or the one already there if it has the same. It is the caller's alone until it
        is closed or its process ends: InputError if another one trains there. Raises as `check` does."""
        run = cls(folder)
        run.check(recipe)
        run.folder.mkdir(parents=True, exist_ok=True)
        run._hold()
        try:
            run.check(recipe)  # again: another may have begun meanwhile
            if not (run.folder / "recipe.json").exists():
                write_json(run.folder / "recipe.json", recipe)
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Let others go on with it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _hold(self) -> None:
        """Keep others from writing here, where the file system has locks: on the folder, which nothing replaces. InputError."""
        self._held = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InputError(f"{self.folder} is being trained by another process: let it end, or stop it") from error
        except OSError:
            return  # a file system without locks

    def check(self, recipe: dict[str, Any]) -> None:
        """Raises InputError if the folder holds something else, or a run whose recipe differs (naming the field)."""
        if file := next((place for place in (self.folder, *self.folder.parents) if place.is_file()), None):
            raise InputError(f"{file} is a file: give a folder with --out")
        if (self.folder / "recipe.json").exists():
            self._same(recipe)
        elif self.folder.exists() and not all(files.is_staged(path.name, "recipe.json") for path in self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and no run: give another folder with --out")

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """A run that is there. InputError if it is none."""
        run = cls(folder)
        if not (run.folder / "recipe.json").is_file():
            raise InputError(f"{run.folder} is no run: no recipe.json there (make one with `trivium train search`)")
        run.recipe()
        return run

    def recipe(self) -> dict[str, Any]:
        """Its fields. CorruptError if the file is torn or holds something else."""
        kept = read_json(self.folder / "recipe.json")
        if not isinstance(kept, dict):
            raise CorruptError(f"{self.folder / 'recipe.json'} holds no recipe")
        return kept

    def _same(self, recipe: dict[str, Any]) -> None:
        old = self.recipe()
        wanted = json.loads(json.dumps(recipe))
        if new := sorted(wanted.keys() - old.keys()):
            raise InputError(
                f"{self.folder} was begun by an older Trivium, which knew no {new[0]}: give another folder with --out"
            )
        if other := [name for name in sorted(wanted.keys() | old.keys()) if old.get(name) != wanted.get(name)]:
            told = ", ".join(f"{name}={old.get(name)!r}, not {wanted.get(name)!r}" for name in other)
            raise InputError(
                f"{self.folder} was begun with {told}: go on with the same recipe, or give another folder with --out"
            )

    def pin(self, inputs: dict[str, str]) -> None:
        """Keep the digests of what the run was begun with. InputError, naming it, where one is another now: results of before
        would be paired with others."""
        if not (self.folder / "inputs.json").exists():
            write_json(self.folder / "inputs.json", inputs)
        if changed := self.changed(inputs):
            raise InputError(
                f"{self.folder} was begun with other {changed[0]} than there are now: bring them back, "
                f"or give another folder with --out"
            )

    def changed(self, inputs: Mapping[str, str]) -> list[str]:
        """Which of these are others than those that the run was begun with; none where it kept no digests."""
        path = self.folder / "inputs.json"
        old = read_json(path) if path.exists() else inputs
        return [name for name, digest in inputs.items() if not isinstance(old, dict) or old.get(name) != digest]

    @property
    def finished(self) -> bool:
        """Whether training came to its end: the summary is what it writes last."""
        return (self.folder / "summary.json").is_file()

    def model(self) -> Path:
        """The trained weights. InputError while training has not ended."""
        model = self.folder / "model"
        if not self.finished or not model.is_dir():
            raise InputError(f"{self.folder} has no trained model yet: finish it with the command that began it")
        return model

    def export(self, folder: str | Path) -> Path:
        """A copy of the trained weights in `folder`, which must be new or empty; it appears whole or not at all."""
        model, folder = self.model(), Path(folder)
        _check_weights(model)
        with files.new_folder(folder) as made:
            shutil.copytree(model, made, dirs_exist_ok=True)
        return folder

    def log(self, event: Event) -> None:
        """Append one event, flushed before we go on."""
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(_line(event))

    def events(self) -> list[Event]:
        """All events so far. A last line torn by a kill is left out; any other bad line is a CorruptError by number."""
        return list(self._events())

    def _events(self) -> Iterator[Event]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                yield Event(**json.loads(line))
            except (json.JSONDecodeError, TypeError) as error:
                if number < len(lines):
                    raise CorruptError(f"{path}, line {number} is no event: {error}") from error

    def forget_after(self, kind: str, step: int) -> None:
        """Drop events of `kind` (and evaluations of it) beyond `step`: the run goes on from there and repeats them. A torn
        last line goes too, before the next event is written behind it."""
        path = self.folder / "metrics.jsonl"
        kept = [event for event in self.events() if event.kind not in (kind, f"{kind}_eval") or event.step <= step]
        text = "".join(map(_line, kept))
        if path.exists() and path.read_text(errors="replace") != text:
            write_text(path, text)

    def result(self, name: str) -> Path:
        """Where the evaluation `name` is kept."""
        (self.folder / "results").mkdir(exist_ok=True)
        return self.folder / "results" / f"{name}.json"


def _check_weights(model: Path) -> None:
    """CorruptError for a folder without weights, or with a torn file of them."""
    kept = sorted(model.glob("*.safetensors"))
    if not kept:
        raise CorruptError(f"{model} has lost its weights: no *.safetensors there")
    for file in kept:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise CorruptError(f"{file} is torn: {error}") from error


def _line(event: Event) -> str:
    return json.dumps(_finite(asdict(event))) + "\n"


def _finite(value: Any) -> Any:
    """NaN and infinity as null: JSON has neither, and other readers of these files refuse them."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """The file whole or not at all; what is no finite number is null."""
    write_text(path, json.dumps(_finite(value), indent=1) + "\n")


def read_json(path: Path) -> Any:
    """CorruptError naming the file if it is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} is torn or no JSON: {error}") from error


def write_text(path: Path, text: str) -> None:
    """The whole file or the old one, whatever kills us between."""
    files.swap(path, text.encode())
