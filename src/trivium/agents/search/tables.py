"""The tables that a comparison of search runs has beside any agent's."""

from __future__ import annotations

from collections.abc import Iterator

from trivium.recipe.report import Numbers, Table, difference, mean, ratio, title

NAMES = {
    "bm25": "one BM25 search", "dense": "one dense search", "hybrid": "one hybrid search", "two_bm25": "two queries, BM25",
    "two_hybrid": "two queries, hybrid",
    "quoting": "the question and its first passage, hybrid",
}  # fmt: skip


def tables(recipe: Numbers) -> Iterator[Table]:
    """Relative gains, plain search, fused rollouts, pruning, and effort by hops."""
    if recipe["gains"]:
        yield _gains(recipe)
    for agent in recipe["plain"]:
        yield _plain(recipe, agent)
    if recipe["rollouts"]:
        yield _rollouts(recipe)
    yield _pruning(recipe)
    yield _hops(recipe)


def _gains(recipe: Numbers) -> Table:
    names = list(recipe["gains"])
    metrics = list(recipe["gains"][names[0]])
    report = {"output_recall": "x1.8", "f1": "x1.6", "answer_found": "x1.5"}
    rows = [(m, *(ratio(recipe["gains"][name][m]) for name in names), report[m]) for m in metrics]
    note = "Ratio of means on the same tasks, with its 95% interval; beside it the report's gain over its base."
    return Table(title(recipe, "relative gains"), note, ("metric", *names, "report"), rows)


def _plain(recipe: Numbers, agent: str) -> Table:
    plain = recipe["plain"][agent]
    metrics = list(plain["bm25"]["scores"])
    rows = [(agent, *(mean(recipe["policies"][agent][metric]) for metric in metrics))]
    for search, numbers in plain.items():
        rows.append((NAMES[search], *(mean(numbers["scores"][metric]) for metric in metrics)))
        rows.append((f"{agent} minus it", *(difference(numbers["agent minus"][metric]["all"]) for metric in metrics)))
    if "expert" in recipe["policies"]:
        rows.append(("perfect script", *(mean(recipe["policies"]["expert"][metric]) for metric in metrics)))
    note = f"Each search returns as many documents as {agent} returned on that task, and at least one."
    return Table(title(recipe, f"{agent} and what needs no training"), note, ("who", *metrics), rows)


def _rollouts(recipe: Numbers) -> Table:
    numbers = recipe["rollouts"]
    pairs = [(joint, other) for other in ("each", "greedy") for joint in ("fused", "uncut")]
    less = ("fused minus one", "uncut minus one", "fused minus greedy", "uncut minus greedy")
    rows = [
        (
            metric,
            *(mean(numbers[name][metric]) for name in ("rl_fused", "rl_uncut", "rl_each")),
            *(difference(numbers[f"rl_{a} minus rl_{b}"][metric]["all"]) for a, b in pairs),
        )
        for metric in numbers["rl_fused"]
    ]
    note = (
        "Rankings of sampled rollouts of rl fused by RRF (k = 60) and cut to their mean length, or uncut, beside the mean of "
        "what each is alone and beside the one greedy rollout; spent: tokens read or sampled."
    )
    return Table(title(recipe, "rollouts fused"), note, ("metric", "fused", "uncut", "one of them", *less), rows)


def _pruning(recipe: Numbers) -> Table:
    names = list(recipe["pruning"])
    measures = list(recipe["pruning"][names[0]])
    rows = [(measure, *(mean(recipe["pruning"][name][measure]) for name in names)) for measure in measures]
    note = (
        "error: share of pruned chunks that are gold; random_error: had as many been drawn from those in view; "
        "pruned_fitting: of the episodes in which nothing needed pruning; "
        "each: chunks a prune drops; streak: most prunes in a row."
    )
    return Table(title(recipe, "pruning"), note, ("measure", *names), rows)


def _hops(recipe: Numbers) -> Table:
    rows = []
    metrics = [name for name in next(iter(recipe["hops"]["rl"].values())) if name != "tasks"]
    for policy, by_hops in recipe["hops"].items():
        for hops, numbers in by_hops.items():
            rows.append((policy, hops, str(numbers["tasks"]), *(mean(numbers[metric]) for metric in metrics)))
    note = "The agent is not told how many hops a task has."
    return Table(title(recipe, "effort by hops"), note, ("policy", "hops", "tasks", *metrics), rows)
