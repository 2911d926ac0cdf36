"""How fast an agentic workload is rolled out on a CUDA device: trivium's engine against transformers' generate, turn by turn.

    python benchmarks/device.py --json             nano and 25M, in float32 and bfloat16; some minutes
    python benchmarks/device.py --quick --json     nano in float32

The 128 episodes of benchmarks/rollout.py by one process a side, the device to itself: the first round compiles kernels and
records graphs, the one measured comes after it. `speedup_vs_generate` is the smallest quotient of two walls in one dtype.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from rollout import ASSETS, Plan, generated, model_25m, peer, rolled, speaker, workload

from trivium.nn import Network


def ours(folder: str, plans: list[Plan], dtype: str) -> dict[str, float]:
    engine = speaker(Network.load(folder, getattr(torch, dtype), "cuda"), len(plans))

    def run() -> None:
        engine.clear()
        asyncio.run(rolled(engine, plans))

    return twice(run)


@torch.inference_mode()
def theirs(folder: str, plans: list[Plan], dtype: str) -> dict[str, float]:
    model = peer(folder, dtype).to("cuda")
    return twice(lambda: generated(model, plans))


def twice(run: Callable[[], object]) -> dict[str, float]:
    took = []
    for _ in range(2):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return {"first_s": took[0], "wall_s": took[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device here, and this measures nothing else")
    transformers.utils.logging.set_verbosity_error()
    plans, rows = workload(16), []
    with tempfile.TemporaryDirectory() as folder:
        models = {"nano": str(ASSETS)} | ({} if arguments.quick else {"25M": model_25m(Path(folder) / "25m")})
        for name, model in models.items():
            for dtype in ("float32",) if arguments.quick else ("float32", "bfloat16"):
                sides = {"ours": ours(model, plans, dtype), "generate": theirs(model, plans, dtype)}
                rows.append({"model": name, "dtype": dtype, **sides})
                shown = ", ".join(f"{side} {t['wall_s']:.2f} s (first {t['first_s']:.1f})" for side, t in sides.items())
                print(f"{name} {dtype}: {shown}", flush=True)
    least = min(row["generate"]["wall_s"] / row["ours"]["wall_s"] for row in rows)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    device = torch.cuda.get_device_name()
    print(f"speed-up over generate: {least:.2f} at least, on one {device}; {versions}")
    if arguments.json:
        print(json.dumps({"speedup_vs_generate": least, "rows": rows, "device": device, "versions": versions}))


if __name__ == "__main__":
    main()
