"""Exit 1 unless RL raised a run's held-out score above SFT's: `python -m tests.rises RUN`. For CI's short demo."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(run: str) -> int:
    paired = json.loads((Path(run) / "summary.json").read_text())["paired"]["rl_minus_sft"]
    for name in ("reward", "f1", "output_recall"):
        mean, low, high = paired[name]
        print(f"{name:15} RL - SFT {mean:+.3f}  [{low:+.3f}, {high:+.3f}]")
    return 0 if all(paired[name][0] > 0 for name in ("reward", "f1")) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
