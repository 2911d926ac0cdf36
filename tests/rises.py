"""Exit 1 unless the demo shows what it claims: `python -m tests.rises RUN`. RL above SFT in F1 and recall, sampled and greedy,
each 95% interval above zero, and pruning alive. For CI."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAIRS = {"sampled": "rl_minus_sft", "greedy": "rl_greedy_minus_sft_greedy"}
CLAIMS = ("f1", "output_recall")
ALIVE = 0.2  # the least share of held-out episodes that prune: the perfect script's is a half


def main(run: str) -> int:
    summary = json.loads((Path(run) / "summary.json").read_text())
    lows = []
    for how, pair in PAIRS.items():
        for name in CLAIMS:
            mean, low, high = summary["paired"][pair][name]
            print(f"RL - SFT, {how:8} {name:14} {mean:+.3f}  [{low:+.3f}, {high:+.3f}]")
            lows.append(low)
    pruning = summary["rl_greedy"]["prune_rate"]
    print(f"episodes that prune, greedy: {pruning:.2f}")
    return 0 if min(lows) > 0 and pruning > ALIVE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
