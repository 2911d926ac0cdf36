"""A nano model that has learned the search agent's tools: what benchmarks of the training step and of the loop begin with."""

from __future__ import annotations

from pathlib import Path


def warm(folder: Path, steps: int = 48, without: str = "nothing") -> str:
    """The search recipe's warm-up in short (12 teacher's episodes and 32 rows of learning for each of `steps`), by one
    process: the model's folder. `without` is the recipe's own."""
    from trivium.agents.search.recipe import Search
    from trivium.recipe import train
    from trivium.recipe.watcher import Silent

    out = folder / "warm-up"
    chosen = Search(str(out), without=without, warmup=12 * steps, sft_steps=steps, steps=0, eval_tasks=4, workers=1)
    train(chosen, Silent)
    return str(out / "model-sft")
