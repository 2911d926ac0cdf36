"""What a sandbox costs: made and ended, first command, fork, snapshot, steps of edit and test; beside bubblewrap, a cold pytest
and `cp -a` in the same run.

python benchmarks/sandbox.py --json
python benchmarks/sandbox.py --alive 1000      # so many at once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from trivium.sandbox import Ns, Provider, Sandbox

MODULE = "def add(a, b):\n    return a + b + {number} - {number}\n"
TEST = "from maths import add\n\ndef test_add():\n    assert add(2, 3) == 5\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
PYTEST = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def image(folder: Path, files: int) -> Path:
    """A project of a module, a test of it, and so many more files of 1 kB."""
    (folder / "data").mkdir(parents=True)
    (folder / "maths.py").write_text(MODULE.format(number=0))
    (folder / "test_maths.py").write_text(TEST)
    for number in range(files):
        (folder / "data" / f"{number}.txt").write_text("x" * 1024)
    return folder


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds of each of so many runs, one at a time."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        took.append((time.perf_counter() - began) * 1e3)
    return took


def peer(argv: list[str], times: int, cwd: Path) -> list[float]:
    """The same of a program."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def cycles(providers: list[Provider], source: str, each: int) -> float:
    """Sandboxes made and ended a second, by one worker for each provider."""

    async def work(provider: Provider) -> None:
        for _ in range(each):
            (box,) = await provider.create(source)
            await box.close()

    began = time.perf_counter()
    await asyncio.gather(*(work(provider) for provider in providers))
    return each * len(providers) / (time.perf_counter() - began)


async def steps(boxes: list[Sandbox], each: int) -> float:
    """Steps a second, each a changed module and a run of its two tests, by one worker for each sandbox."""

    async def work(box: Sandbox) -> None:
        for number in range(each):
            await box.write({"maths.py": MODULE.format(number=number).encode()})
            result = await box.exec(PYTEST)
            assert result.code == 0, result.output

    began = time.perf_counter()
    await asyncio.gather(*(work(box) for box in boxes))
    return each * len(boxes) / (time.perf_counter() - began)


async def measure(times: int, files: int, top: Path) -> dict[str, float]:
    """The numbers of `Ns`: a small project, but snapshots and forks of so many files."""
    source, large, providers = str(image(top / "small", 10)), str(image(top / "image", files)), [Ns(), Ns()]
    try:
        firsts = [box for provider in providers for box in await provider.create(source)]
        (full,) = await providers[0].create(large)
        one = providers[0]

        async def first() -> None:
            (box,) = await one.create(source)
            await box.exec(["true"])
            made.append(box)

        async def fork() -> None:
            made.extend(await one.create(point))

        made: list[Sandbox] = []
        commands = await timed(first, times)
        snapshots = await timed(full.snapshot, min(times, 60))
        point = await full.snapshot()
        forks = await timed(fork, times)
        for box in made:
            await box.close()
        return {
            "create_destroy_per_s": await cycles(providers, source, times),
            "first_command_ms_p50": statistics.median(commands),
            "fork_ms_p50": statistics.median(forks),
            "snapshot_ms_p50": statistics.median(snapshots),
            "pytest_steps_per_s": await steps(firsts, max(3, times // 10)),
        }
    finally:
        for provider in providers:
            await provider.close()


def peers(times: int, top: Path) -> dict[str, float]:
    """What others take for the like, on the same image."""
    folder, copies = top / "small", iter(range(10**6))
    bwrap = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "true"]
    pytest = peer([sys.executable, *PYTEST[1:]], max(3, times // 10), folder)
    copied = [
        peer(["cp", "-a", str(top / "image"), str(top / f"copy{next(copies)}")], 1, top)[0] for _ in range(max(3, times // 10))
    ]
    return {
        "bubblewrap_true_ms_p50": statistics.median(peer(bwrap, times, top)),
        "cold_pytest_per_s": 1e3 / statistics.median(pytest),
        "cp_a_ms_p50": statistics.median(copied),
    }


async def alive(count: int, top: Path) -> dict[str, float]:
    """So many sandboxes alive at once, and the seconds that it took to make them."""
    source, provider = str(image(top / "many", 10)), Ns()
    try:
        await provider.create(source)
        began = time.perf_counter()
        boxes = await provider.create(source, n=count)
        seconds = time.perf_counter() - began
        assert (await boxes[-1].exec(["true"])).code == 0
        return {"alive": count, "alive_made_s": seconds}
    finally:
        await provider.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="of each measurement")
    parser.add_argument("--files", type=int, default=1000, help="of 1 kB, in what is snapshot, forked and copied")
    parser.add_argument("--alive", type=int, default=0, help="sandboxes to have at once")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="trivium-bench-"))
    try:
        numbers = {"load_before": os.getloadavg()[0]} | asyncio.run(measure(args.times, args.files, top))
        numbers |= peers(args.times, top) | (asyncio.run(alive(args.alive, top)) if args.alive else {})
        numbers |= {"load_after": os.getloadavg()[0], "cores": os.cpu_count() or 0}
    finally:
        shutil.rmtree(top)
    rounded = {name: round(value, 2) for name, value in numbers.items()}
    print(json.dumps(rounded) if args.json else "\n".join(f"{name:24} {value}" for name, value in rounded.items()))


if __name__ == "__main__":
    main()
