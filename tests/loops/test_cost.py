"""What steps cost is CPU time: of all ranks, and of nothing else."""

import asyncio
import time

from trivium.fleet import launch
from trivium.loops import Event, timed

WORK = 0.2


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


async def steps(count: int):
    for step in range(count):
        spin(WORK)
        await asyncio.sleep(2 * WORK)
        yield Event("rl", step + 1, {"reward": 1.0})


async def costs(events) -> list[float]:
    found = []
    async for event in events:
        assert event.metrics["reward"] == 1.0
        found.append(event.metrics["cpu_seconds"])
        spin(WORK)  # the caller's own work is not the step's
    return found


def test_a_step_costs_what_it_computed_and_not_what_it_waited_for():
    for cost in asyncio.run(costs(timed(steps(3)))):
        assert WORK <= cost < 2 * WORK


def two_ranks(rank, folder):
    found = asyncio.run(costs(timed(steps(2), rank)))
    (folder / str(rank.number)).write_text(repr(found))


def test_every_ranks_work_counts_and_every_rank_is_told_the_same(tmp_path):
    launch(two_ranks, 2, tmp_path)
    one, other = ((tmp_path / name).read_text() for name in "01")
    assert one == other and all(cost >= 2 * WORK for cost in eval(one))
