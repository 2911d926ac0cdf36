"""vLLM in process on the workload of benchmarks/rollout.py, with prefix caching; run by the interpreter that has vLLM.

    PYTHON benchmarks/peers_vllm.py --model FOLDER --tasks 16 --json        rollout.py's own workload
    PYTHON benchmarks/peers_vllm.py --workload FILE --json                  any other

FILE holds {"model": folder, "episodes": [{"prompt": [token, ...], "turns": [{"reply": length, "tool": [token, ...]}, ...]}]}.
Every episode is live at once and goes on by itself: when its reply is whole, the tool's tokens are placed and the next turn
asked for, while the others speak. Reply tokens are sampled at temperature 1, to the forced length. As rollout.py does for
generate, it runs in float32 and in bfloat16, by two processes of one thread (half the episodes each) and by one of two;
the fastest counts, all are told. Wall time of the slower process, after loading and a warm-up; eager, for compiling needs
a compiler and pays little in a model this small. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

Episode = dict
CONTEXT = 3072
WAYS = [(dtype, processes) for dtype in ("float32", "bfloat16") for processes in (2, 1)]
QUIET = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}


def workload(arguments) -> tuple[str, list[Episode]]:
    """The model's folder, and the episodes."""
    if arguments.workload:
        read = json.loads(Path(arguments.workload).read_text())
        return arguments.model or read["model"], read["episodes"]
    from rollout import workload as plans

    made = plans(arguments.tasks)
    turns = [[{"reply": length, "tool": tool} for length, tool in plan.turns] for plan in made]
    return arguments.model, [{"prompt": plan.prompt, "turns": each} for plan, each in zip(made, turns, strict=True)]


def run(engine, episodes: list[Episode]) -> dict[str, int]:
    """All of them at once; what was sampled, and what the prompts of all turns held and the cache had of that."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    tokens = [list(episode["prompt"]) for episode in episodes]
    seen = {"sampled_tokens": 0, "prompt_tokens": 0, "cached_tokens": 0}

    def ask(number: int, turn: int) -> None:
        length = episodes[number]["turns"][turn]["reply"]
        sampling = SamplingParams(
            temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,  # no seed: on a CPU, 0.32 dies of one when it splits a prompt
        )  # fmt: skip
        engine.add_request(f"{number}/{turn}", {"prompt_token_ids": tokens[number]}, sampling)

    for number in range(len(episodes)):
        ask(number, 0)
    while engine.has_unfinished_requests():
        for answer in engine.step():
            number, turn = map(int, answer.request_id.split("/"))
            here, said = episodes[number]["turns"][turn], answer.outputs[0].token_ids
            assert len(said) == here["reply"], f"{len(said)} tokens where {here['reply']} were forced"
            seen["sampled_tokens"] += len(said)
            seen["prompt_tokens"] += len(tokens[number])
            seen["cached_tokens"] += answer.num_cached_tokens or 0
            tokens[number] += [*said, *here["tool"]]
            if turn + 1 < len(episodes[number]["turns"]):
                ask(number, turn + 1)
    return seen


def work(model: str, episodes: list[Episode], dtype: str, ready, answers) -> None:
    """One process: load, warm up, wait for the others, run."""
    try:
        from vllm import EngineArgs, LLMEngine

        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model,
                dtype=dtype,
                max_model_len=CONTEXT,
                max_num_seqs=len(episodes),
                max_num_batched_tokens=4096,
                enable_prefix_caching=True,
                enforce_eager=True,
                logprobs_mode="processed_logprobs",
                disable_log_stats=True,
            )  # fmt: skip
        )
        run(engine, [{"prompt": e["prompt"][:60], "turns": [{"reply": 8, "tool": []}]} for e in episodes[:4]])
        engine.reset_prefix_cache()
        ready.wait()
        wall, cpu = time.perf_counter(), time.process_time()
        seen = run(engine, episodes)
        answers.put({**seen, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu})
    except Exception as error:  # told by the parent
        ready.abort()
        answers.put({"error": f"{type(error).__name__}: {error}"})


def together(model: str, episodes: list[Episode], dtype: str, processes: int) -> dict[str, float]:
    """The episodes by `processes` processes that share two threads."""
    os.environ["OMP_NUM_THREADS"] = str(2 // processes)  # read by the children's OpenMP when it is loaded
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(processes), context.Queue()
    size = -(-len(episodes) // processes)
    shares = [episodes[n * size : (n + 1) * size] for n in range(processes)]
    workers = [context.Process(target=work, args=(model, share, dtype, ready, answers)) for share in shares]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    if broken := [one["error"] for one in found if "error" in one]:
        raise RuntimeError(broken[0])
    return {key: sum(one[key] for one in found) for key in found[0]} | {"wall_s": max(one["wall_s"] for one in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--workload")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    model, episodes = workload(arguments)
    from importlib.metadata import version

    ways = {f"{dtype} x {n}": together(model, episodes, dtype, n) for dtype, n in WAYS}
    best = min(ways, key=lambda way: ways[way]["wall_s"])
    for way, one in ways.items():
        rate = 60 * len(episodes) / one["wall_s"]
        print(f"vLLM {way}: {rate:.1f} episodes/min, {one['wall_s']:.1f} s, {one['cpu_s']:.1f} CPU s")
    versions = {"vllm": version("vllm-cpu"), "torch": version("torch")}
    found = {"episodes": len(episodes), "way": best, **ways[best], "load": os.getloadavg(), "versions": versions}
    found["ways_wall_s"] = {way: one["wall_s"] for way, one in ways.items()}
    found["episodes_per_minute"] = 60 * len(episodes) / found["wall_s"]
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
