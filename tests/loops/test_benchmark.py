"""The claim of benchmarks/async_loop.py, on the simulated clock: the same numbers on every machine."""

from __future__ import annotations

from benchmarks.async_loop import simulated


def test_a_lag_of_one_version_learns_from_1_8_times_as_many_episodes_a_second():
    rows = simulated(60)
    assert rows["0"]["episodes_overtaken"] == 0 and rows["1"]["speedup"] >= 1.8
    assert rows["1"]["speedup"] < rows["4"]["speedup"] < rows["ideal"]["speedup"]
    assert [rows[lag]["staleness_max"] for lag in ("0", "1", "4")] == [0, 1, 4]
    assert all(row["episodes_overtaken"] < 0.005 * row["steps"] * 128 for lag, row in rows.items() if lag != "ideal")
