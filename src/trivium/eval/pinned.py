"""A pinned suite: tasks that stay what they were. Whatever changes in it makes it another suite, and says so."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from blake3 import blake3

import trivium.harness
from trivium import files
from trivium.errors import CorruptError, InputError
from trivium.eval.suite import Result, evaluate
from trivium.harness import Harness
from trivium.policy import Policy
from trivium.reward import AnyScorer, scorer_name
from trivium.reward.base import version
from trivium.trace import Sampling, Task


@dataclass(frozen=True, slots=True)
class PinnedSuite:
    """Tasks, the harness in which they are attempted, how attempts are sampled and who judges them. `data` are the files and
    folders that tools and judge read.

    What a sequential test needs of a suite is that its tasks come in no order of their own: they are attempted in one that
    `seed` draws.
    """

    name: str
    tasks: Sequence[Task]
    harness: Harness
    scorer: AnyScorer
    data: Sequence[Path] = ()
    sampling: Sampling = field(default_factory=Sampling)
    samples: int = 1
    seed: int = 0

    def manifest(self) -> dict[str, str]:
        """A digest of each part that a score depends on, but for the policy: the tasks with their truths; the harness by its
        settings and its code; the code of each tool; the judge by name, version and code; data; seeds and sampling.

        Code is the file that a tool or a judge is written in, not what that file imports: give what matters beyond it as
        `data`. InputError for data that are gone, and for a tool or a judge that is written in no file.
        """
        tasks = [[each.id, each.prompt, each.truth, each.messages, each.tools] for each in self.tasks]
        judge = [scorer_name(self.scorer), version(self.scorer), _code(self.scorer)]
        drawn = [self.seed, self.samples, asdict(self.sampling)]
        code = sorted(Path(trivium.harness.__file__).parent.glob("*.py"))
        parts = {
            "tasks": blake3(msgspec.msgpack.encode(tasks)).hexdigest(),
            "harness": self.harness.digest,
            "code of the harness": _digest([files.fingerprint(each) for each in code]),
            "judge": _digest(judge),
            "seeds and sampling": _digest(drawn),
        }
        tools = {f"tool {name}": _code(tool) for name, tool in self.harness.tools.items()}
        return parts | tools | {str(path): self._read(Path(path)) for path in self.data}

    def _read(self, path: Path) -> str:
        if not path.exists():
            raise InputError(f"suite {self.name} needs {path}, which is gone: bring it back")
        return files.fingerprint(path)

    @property
    def digest(self) -> str:
        """One digest of the manifest: results under different ones are of different suites."""
        return _digest(self.manifest())

    def pin(self, folder: str | Path) -> str:
        """Keep the manifest as `NAME.json` in `folder`, where there is none, and return its digest.

        Raises InputError, naming it, where a part is another than the one that was pinned; CorruptError for a torn file.
        """
        path, now = Path(folder) / f"{self.name}.json", self.manifest()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            files.swap(path, json.dumps(now, indent=1).encode() + b"\n")
        try:
            old = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except files.TORN as error:
            raise CorruptError(f"{path} is torn or no manifest: {error}") from error
        if changes := sorted(part for part in old.keys() | now.keys() if old.get(part) != now.get(part)):
            raise InputError(
                f"suite {self.name} has other {', '.join(changes)} than when it was pinned ({path}): it is another suite. "
                f"Bring back what it was, or give this one a name of its own, or remove that file to begin anew"
            )
        return _digest(now)

    async def measure(self, policy: Policy, first: int = 0, last: int | None = None) -> Result:
        """What `policy` scores on the tasks from `first` up to `last` of the drawn order. Raises as `evaluate`, `manifest`."""
        tasks = random.Random(self.seed).sample(list(self.tasks), len(self.tasks))[first:last]
        digest = self.digest  # before, so that data which change meanwhile are another suite's
        result, _ = await evaluate(
            self.harness, tasks, policy, self.scorer,
            sampling=self.sampling, samples=self.samples, seed=self.seed, prefix=self.name,
        )  # fmt: skip
        result.suite = digest
        return result


def _code(thing: object) -> str:
    """The fingerprint of the file that a tool or a judge is written in. InputError where there is none."""
    written = getattr(thing, "function", thing)
    written = written if inspect.isroutine(written) else type(written)
    try:
        path = inspect.getsourcefile(inspect.unwrap(written))
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise InputError(
            f"{getattr(thing, 'name', written.__name__)} is written in no file, so it cannot be pinned: put it in one"
        )
    return files.fingerprint(Path(path))


def _digest(parts: object) -> str:
    return blake3(json.dumps(parts, sort_keys=True).encode()).hexdigest()
