"""The skills of a training run over its tokens, as a table and a picture: `python -m bases.nano.curve RUN OUT`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SKILLS = ("query", "query2", "rec4", "rec8", "answer1", "hop4", "answer2", "keep4", "pages4")


def table(lines: list[dict]) -> str:
    """Markdown: one row per report; skills as exact match, greedy / at temperature 1."""
    head = ["step", "CPU-s", "tokens, M", "loss", "gold", "look", *SKILLS]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in lines:
        cells = [line["step"], line["cpu_s"], f"{line['tokens'] / 1e6:.1f}"]
        cells += [line.get(name, "") for name in ("loss", "gold", "look")]
        cells += [f"{line[s][0]:.2f} / {line[s][1]:.2f}" for s in SKILLS]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows) + "\n"


def picture(lines: list[dict], path: Path) -> None:
    """Greedy exact match of each skill over tokens, beside the next-token and line-probe losses."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), dpi=80)
    tokens = [line["tokens"] / 1e6 for line in lines]
    for skill in SKILLS:
        left.plot(tokens, [line[skill][0] for line in lines], label=skill)
    for loss in ("loss", "gold", "look"):
        right.plot(tokens, [line.get(loss) or float("nan") for line in lines], label=loss)
    left.set(xlabel="tokens, millions", ylabel="exact match, greedy", ylim=(0, 1.02))
    right.set(xlabel="tokens, millions", ylabel="loss (nats)", yscale="log")
    for axis in (left, right):
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("run", type=Path, help="the folder given to train's --out")
    p.add_argument("out", type=Path, help="where to write curve.md and curve.png")
    args = p.parse_args()
    lines = [json.loads(line.replace("NaN", "null")) for line in (args.run / "curve.jsonl").read_text().splitlines()]
    (args.out / "curve.md").write_text(table(lines))
    picture(lines, args.out / "curve.png")


if __name__ == "__main__":
    main()
