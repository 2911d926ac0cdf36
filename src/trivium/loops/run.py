"""A run's folder: its recipe, what happened, and where to go on.

runs/demo/
  recipe.json        the recipe's fields; a run does not go on with other fields
  memory.json        how each worker computes: it fitted into the memory that there was
  inputs.json        digests of weights, questions and documents; a run does not go on with others
  metrics.jsonl      one event a line
  episodes.db        the store: every episode of training and evaluation, with its scores
  checkpoints/       the learner's last good states
  teacher.json       how many episodes the teacher gave, and how many lessons the warm-up takes from them
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
    """Something that happened in a loop: its `kind` (sft, rl, or rl_eval for a look at held-out tasks), step and numbers."""

    kind: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)


class Run:
    """One run's folder, new or resumed. Nothing in it is ever half-written (law 9)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock: int | None = None

    @classmethod
    def begin(cls, folder: str | Path, recipe: dict[str, Any]) -> Run:
        """A run with this recipe: a new one, or the one already there if it has the same.

        It is the caller's alone until it is closed or its process ends. Raises InputError if another process trains there, and
        as `check` does.
        """
        run = cls(folder)
        run.check(recipe)
        run.folder.mkdir(parents=True, exist_ok=True)
        run.acquire()
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
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def acquire(self) -> None:
        """Lock the folder, where the file system has locks, to keep others from writing here. InputError if another has it."""
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InputError(f"{self.folder} is being trained by another process: let it end, or stop it") from error
        except OSError:
            return  # a file system without locks

    def check(self, recipe: dict[str, Any]) -> None:
        """Raise InputError if the folder holds something else, or a run whose recipe differs, naming the field."""
        if file := next((place for place in (self.folder, *self.folder.parents) if place.is_file()), None):
            raise InputError(f"{file} is a file: give a folder with --out")
        if (self.folder / "recipe.json").exists():
            self._compare(recipe)
        elif self.folder.exists() and not all(files.is_temporary(path.name, "recipe.json") for path in self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and no run: give another folder with --out")

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in a folder. InputError if there is none."""
        run = cls(folder)
        if not (run.folder / "recipe.json").is_file():
            raise InputError(f"{run.folder} is no run: no recipe.json there (make one with `trivium train search`)")
        run.recipe()
        return run

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields. CorruptError if the file is torn or holds something else."""
        fields = read_json(self.folder / "recipe.json")
        if not isinstance(fields, dict):
            raise CorruptError(f"{self.folder / 'recipe.json'} holds no recipe")
        return fields

    def _compare(self, recipe: dict[str, Any]) -> None:
        """Raise InputError if this run's recipe is another one."""
        old = self.recipe()
        new = json.loads(json.dumps(recipe))
        if names := sorted(new.keys() - old.keys()):
            raise InputError(
                f"{self.folder} was begun by an older Trivium, which knew no {names[0]}: give another folder with --out"
            )
        if names := [name for name in sorted(new.keys() | old.keys()) if old.get(name) != new.get(name)]:
            differences = ", ".join(f"{name}={old.get(name)!r}, not {new.get(name)!r}" for name in names)
            raise InputError(
                f"{self.folder} was begun with {differences}: go on with the same recipe, or give another folder with --out"
            )

    def pin(self, inputs: dict[str, str]) -> None:
        """Keep the digests of the run's inputs. InputError, naming it, where one has changed since the run began: results on
        other inputs would be paired with these."""
        if not (self.folder / "inputs.json").exists():
            write_json(self.folder / "inputs.json", inputs)
        if changes := self.changes(inputs):
            raise InputError(
                f"{self.folder} was begun with other {changes[0]} than there are now: bring them back, "
                f"or give another folder with --out"
            )

    def changes(self, inputs: Mapping[str, str]) -> list[str]:
        """The names of those inputs that are others than when the run began; none where it has no digests."""
        path = self.folder / "inputs.json"
        old = read_json(path) if path.exists() else inputs
        return [name for name, digest in inputs.items() if not isinstance(old, dict) or old.get(name) != digest]

    @property
    def finished(self) -> bool:
        """Whether training came to its end. It writes the summary last."""
        return (self.folder / "summary.json").is_file()

    def model(self) -> Path:
        """The folder of the trained weights. InputError while training has not ended."""
        model = self.folder / "model"
        if not self.finished or not model.is_dir():
            raise InputError(f"{self.folder} has no trained model yet: finish it with the command that began it")
        return model

    def export(self, folder: str | Path) -> Path:
        """Copy the trained weights to `folder`, which must be new or empty. It appears whole or not at all.

        Raises InputError where it is neither, and as `model` does; CorruptError for torn weights.
        """
        model, folder = self.model(), Path(folder)
        _check_weights(model)
        with files.new_folder(folder) as new:
            shutil.copytree(model, new, dirs_exist_ok=True)
        return folder

    def log(self, event: Event) -> None:
        """Append one event, and flush it."""
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(_line(event))

    def events(self) -> list[Event]:
        """All events so far. A last line torn by a kill is left out. Raises CorruptError, with its number, for any other."""
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
        last line goes too, so that the next event begins on a line of its own."""
        path = self.folder / "metrics.jsonl"
        events = [event for event in self.events() if event.kind not in (kind, f"{kind}_eval") or event.step <= step]
        text = "".join(map(_line, events))
        if path.exists() and path.read_text(errors="replace") != text:
            write_text(path, text)

    def result(self, name: str) -> Path:
        """The file of the evaluation `name`."""
        (self.folder / "results").mkdir(exist_ok=True)
        return self.folder / "results" / f"{name}.json"


def _check_weights(model: Path) -> None:
    """Raise CorruptError for a folder without weights, or with a torn file of them."""
    weights = sorted(model.glob("*.safetensors"))
    if not weights:
        raise CorruptError(f"{model} has lost its weights: no *.safetensors there")
    for file in weights:
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
    """Write a file of JSON, whole or not at all. A number that is not finite is null."""
    write_text(path, json.dumps(_finite(value), indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The content of a file of JSON. CorruptError naming the file if it is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} is torn or no JSON: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file. It is the whole new one or the old one, whatever kills us between."""
    files.swap(path, text.encode())
