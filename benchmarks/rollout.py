"""How fast an agentic workload is rolled out: trivium's engine against transformers' generate, turn by turn.

    python benchmarks/rollout.py --json                  nano and 25M; many minutes
    python benchmarks/rollout.py --quick --json          a small share of it, nano only
    python benchmarks/rollout.py --smollm2 ...           SmolLM2-135M (docs/models.md) in their place, 2 tasks (1 with --quick)
    python benchmarks/rollout.py --vllm-python PATH ...  beside it vLLM, by the interpreter at PATH (benchmarks/peers_vllm.py)

16 tasks x 8 rollouts of 4 to 8 turns on seeded random tokens: a system prompt of 120 that all share, a question of 60 to
160 that a group shares, replies of a forced length (16 to 40, by turn) and tool results of 100 to 300. Both sides sample
every reply token at temperature 1 and place the same tool tokens. Ours: two single-thread processes, half the tasks
each. Theirs: one left-padded batch of all live episodes a turn, the context prefilled anew (generate keeps nothing),
in the best of fp32 and bf16, two processes of one thread and one of two, as a probe of one turn measures. Ours runs in
fp32, where its logprobs are the learner's, then in bf16. Wall time of the slower process, after loading, a warm-up, and for
ours a first writing of the cache's memory, which an engine does once in its life. `speedup_vs_generate` is the smaller of the
models' speed-ups in episodes per minute, ours in fp32; `speedup_best_dtypes` the same with ours in its faster dtype too. CPU
seconds, which other load distorts less, stand beside.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

ASSETS = Path(__file__).parents[1] / "src" / "trivium" / "assets" / "nano"
CONTEXT = 3072
OURS = ("ours_float32", "ours_bfloat16")
WAYS = [(dtype, processes) for dtype in ("float32", "bfloat16") for processes in (2, 1)]


@dataclass(frozen=True)
class Plan:
    """One episode: its prompt, and for each turn the reply's length and the tool's tokens."""

    name: tuple[int, int]
    prompt: list[int]
    turns: list[tuple[int, list[int]]]


def workload(tasks: int, size: int = 8) -> list[Plan]:
    dice = random.Random(0)
    words = lambda rng, low, high: [rng.randrange(16, 4000) for _ in range(rng.randint(low, high))]  # noqa: E731
    system = words(dice, 120, 120)
    lengths = [dice.randint(16, 40) for _ in range(8)]
    prompts = [system + words(dice, 60, 160) for _ in range(tasks)]

    def plan(task: int, sample: int) -> Plan:
        rng = random.Random(f"{task}/{sample}")
        turns = [(lengths[turn], words(rng, 100, 300)) for turn in range(rng.randint(4, 8))]
        return Plan((task, sample), prompts[task], turns)

    return [plan(task, sample) for task in range(tasks) for sample in range(size)]


# --- the two sides, each in a process of its own: load, warm up, wait for the others, run


def ours(folder: str, plans: list[Plan], dtype: str, ready) -> dict[str, float]:
    import torch

    from trivium.nn import Network

    network = Network.load(folder, dtype=getattr(torch, dtype))
    asyncio.run(rolled(speaker(network, len(plans)), [Plan(p.name, p.prompt, p.turns[:1]) for p in plans[:2]]))
    engine = speaker(network, len(plans))
    for layer in (*engine.cache.keys, *engine.cache.values):
        layer.zero_()  # the system gives memory when it is first written: an engine's is, but for its first minute
    return timed(lambda: asyncio.run(rolled(engine, plans)), ready) | {
        "computed": engine.cache.computed,
        "reused": engine.cache.reused,
    }


def speaker(network, slots: int):
    """An engine that no token stops."""
    from trivium.engine import Engine

    return Engine(network, renderer=SimpleNamespace(stop_tokens=()), slots=slots, context=CONTEXT)


async def rolled(engine, plans: list[Plan]) -> None:
    """The plans by an engine, each at its own pace."""
    from trivium.policy import View
    from trivium.trace import Sampling

    async def live(plan: Plan) -> None:
        tokens = list(plan.prompt)
        for turn, (length, tool) in enumerate(plan.turns):
            reply = await engine.speak(View(tokens, (), (), (0, *plan.name, turn)), Sampling(max_tokens=length))
            tokens = [*tokens, *reply.tokens, *tool]

    await asyncio.gather(*(live(plan) for plan in plans))


def theirs(folder: str, plans: list[Plan], dtype: str, ready) -> dict[str, float]:
    import torch

    model, computed = peer(folder, dtype), 0

    def run() -> None:
        nonlocal computed
        computed = generated(model, plans)

    with torch.inference_mode():
        generated(model, [Plan(p.name, p.prompt, [(4, [])]) for p in plans[:2]])
        return timed(run, ready) | {"computed": computed, "reused": 0}


def peer(folder: str, dtype: str):
    """transformers' model, which no token stops."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    return model


def generated(model, plans: list[Plan]) -> int:
    """The plans by transformers' generate, turn by turn -> tokens computed."""
    import torch

    live, computed = [(plan, list(plan.prompt)) for plan in plans], 0
    for turn in range(max(len(plan.turns) for plan in plans)):
        live = [(plan, tokens) for plan, tokens in live if turn < len(plan.turns)]
        longest = max(len(tokens) for _, tokens in live)
        rows = torch.tensor([[0] * (longest - len(tokens)) + tokens for _, tokens in live], device=model.device)
        mask = torch.tensor([[0] * (longest - len(tokens)) + [1] * len(tokens) for _, tokens in live], device=model.device)
        length = live[0][0].turns[turn][0]
        out = model.generate(
            rows, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
            min_new_tokens=length, max_new_tokens=length,
        )  # fmt: skip
        assert out.shape[1] == longest + length
        computed += out.numel()
        said = out[:, longest:].tolist()
        live = [(plan, tokens + new + plan.turns[turn][1]) for (plan, tokens), new in zip(live, said, strict=True)]
    return computed


def continuous(folder: str, plans: list[Plan], dtype: str, ready) -> dict[str, float]:
    """transformers' continuous batching on the first turn of these plans."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    length = plans[0].turns[0][0]
    chosen = GenerationConfig(max_new_tokens=length, min_new_tokens=length, eos_token_id=-1, pad_token_id=0, do_sample=True)
    blocks = ContinuousBatchingConfig(num_blocks=256, page_size=32, max_batch_tokens=2048)

    def run() -> None:
        found = model.generate_batch(
            inputs=[plan.prompt for plan in plans], generation_config=chosen, continuous_batching_config=blocks, warmup=False,
            progress_bar=False,
        )  # fmt: skip
        assert sum(len(one.generated_tokens) for one in found.values()) == length * len(plans)

    return timed(run, ready)


def timed(run, ready) -> dict[str, float]:
    gc.collect()  # what loading left behind is not the workload's
    ready.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def together(side, folder: str, plans: list[Plan], dtype: str, processes: int) -> dict[str, float]:
    """The plans by `processes` processes that share two threads, each with whole groups of its own."""
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(processes), context.Queue()
    size = len(plans) // processes
    shares = [plans[n * size : (n + 1) * size] for n in range(processes)]
    workers = [
        context.Process(target=_work, args=(side, folder, share, dtype, 2 // processes, ready, answers)) for share in shares
    ]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=3600) for _ in workers]
    for worker in workers:
        worker.join()
    if broken := [one["error"] for one in found if "error" in one]:
        raise RuntimeError(broken[0])
    most = {"wall_s": max(one["wall_s"] for one in found)}
    return {key: sum(one[key] for one in found) for key in found[0]} | most


def _work(side, folder, share, dtype, threads, ready, answers) -> None:
    try:
        import torch
        from transformers.utils import logging

        logging.set_verbosity_error()
        torch.set_num_threads(threads)
        answers.put(side(folder, share, dtype, ready))
    except Exception as error:  # told by the parent
        ready.abort()
        answers.put({"error": f"{side.__name__}: {type(error).__name__}: {error}"})


# --- the measurements


def measure(folder: str, tasks: int, quick: bool, decode: bool) -> dict:
    plans = workload(tasks)
    probe = [Plan(p.name, p.prompt + p.turns[0][1] * 3, [(8, [])]) for p in plans]
    ways = {f"{dtype} x {n}": together(theirs, folder, probe, dtype, n)["wall_s"] for dtype, n in WAYS}
    best = min(ways, key=ways.get)
    dtype, processes = best.split(" x ")
    their = together(theirs, folder, plans, dtype, int(processes))
    said = sum(length for plan in plans for length, _ in plan.turns)
    found = {"episodes": len(plans), "sampled_tokens": said, "generate_probe_wall_s": ways, "generate_way": best}
    found["generate"] = their | {"episodes_per_minute": 60 * len(plans) / their["wall_s"]}
    for side in OURS[:1] if quick else OURS:
        mine = together(ours, folder, plans, side.removeprefix("ours_"), 2)
        found[side] = mine | {
            "episodes_per_minute": 60 * len(plans) / mine["wall_s"],
            "speedup": their["wall_s"] / mine["wall_s"],
            "speedup_cpu": their["cpu_s"] / mine["cpu_s"],
        }
    found["limit_float32"] = limit(folder, plans, found["ours_float32"])
    if decode:
        found["decode_64"] = decode_64(folder, quick)
    if not quick:
        found["continuous_batching_first_turn"] = first_turn(folder, plans[:16])
    return found


def decode_64(folder: str, quick: bool) -> dict[str, float]:
    """Sampled tokens per second with 64 contexts of 512 unshared tokens in one thread: n tokens less 4, on both sides."""
    new = 20 if quick else 52
    rng = random.Random(5)
    prompts = [[rng.randrange(16, 4000) for _ in range(512)] for _ in range(64)]
    plans = [[Plan((n, 0), prompt, [(length, [])]) for n, prompt in enumerate(prompts)] for length in (4, new)]

    def rate(side) -> float:
        few, many = (together(side, folder, two, "float32", 1)["cpu_s"] for two in plans)
        return 64 * (new - 4) / max(many - few, 1e-9)

    return {"ours_tokens_per_cpu_s": rate(ours), "generate_tokens_per_cpu_s": rate(theirs)}


def first_turn(folder: str, plans: list[Plan]) -> dict[str, float] | str:
    """Continuous batching and ours on one turn only: a share of the work, in one process of two threads, and in two of one."""
    short = [Plan(plan.name, plan.prompt, [(plan.turns[0][0], [])]) for plan in plans]
    try:
        peer = together(continuous, folder, short, "float32", 1)
    except RuntimeError as error:
        return f"not measured: {error}"
    mine = together(ours, folder, short, "float32", 2)
    return {"ours_wall_s": mine["wall_s"], "theirs_wall_s": peer["wall_s"], "speedup": peer["wall_s"] / mine["wall_s"]}


def limit(folder: str, plans: list[Plan], mine: dict[str, float]) -> dict[str, float]:
    """Seconds that two cores need at least: all computed tokens at the measured GEMM rate (the last layer's keys and values
    alone, but for those from which a token is drawn), and for every sampled token its whole context's keys and values once
    at the measured read rate (a shared prefix is read less often than that)."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    torch.set_num_threads(1)
    d, f, kv = config.hidden_size, config.intermediate_size, config.num_key_value_heads * config.head_dim
    own = 2 * d * config.num_attention_heads * config.head_dim + 3 * d * f  # beside keys and values, which others read
    gflops, gigabytes = rates(d, f)
    said = sum(length for plan in plans for length, _ in plan.turns)
    computed, layers = mine["computed"], config.num_hidden_layers
    flops = 2 * (computed * (layers * 2 * d * kv + (layers - 1) * own) + said * (own + d * config.vocab_size))
    read = 0
    for plan in plans:
        here = len(plan.prompt)
        for length, tool in plan.turns:
            read += length * (here + length // 2) * 2 * kv * config.num_hidden_layers * 4
            here += length + len(tool)
    least = (flops / gflops + read / gigabytes) / 1e9 / 2
    return {"gemm_gflops_1": gflops, "read_gbytes_1": gigabytes, "least_s": least, "share_of_limit": least / mine["wall_s"]}


def rates(d: int, f: int) -> tuple[float, float]:
    """One thread's best GFLOP/s of [1024, d] x [d, f], and GB/s of a sum over 256 MiB."""
    import torch

    from trivium.nn.linear import linear

    a, b, long = torch.randn(1024, d), torch.randn(f, d), torch.ones(2**26)

    def best(run) -> float:
        took = []
        for _ in range(8):
            start = time.perf_counter()
            run()
            took.append(time.perf_counter() - start)
        return min(took)

    fastest = min(best(lambda: a @ b.t()), best(lambda: linear(a, b)))
    return 2 * 1024 * d * f / fastest / 1e9, long.numel() * 4 / best(long.sum) / 1e9


def model_25m(folder: Path) -> str:
    from transformers import Qwen3Config

    from trivium.nn import Network

    config = Qwen3Config(
        vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    Network(config).save(folder)
    return str(folder)


def vllm(python: str, folder: str, tasks: int) -> dict | str:
    """vLLM's numbers, told by benchmarks/peers_vllm.py on its last line."""
    script = Path(__file__).with_name("peers_vllm.py")
    if not script.exists():
        return "not measured: there is no benchmarks/peers_vllm.py"
    done = subprocess.run(
        [python, str(script), "--model", folder, "--tasks", str(tasks), "--json"], capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if not done.returncode and lines else f"not measured: {done.stderr.strip()[-300:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--vllm-python")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2-135M in place of nano and 25M")
    parser.add_argument("--tasks", type=int, help="of 8 rollouts each (16; 2 with --quick; of SmolLM2 2 and 1)")
    arguments = parser.parse_args()
    tasks = arguments.tasks or (2 if arguments.quick else 16) // (1 if not arguments.smollm2 else 2 if arguments.quick else 8)
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments, tasks, Path(folder))
    show(found)
    if arguments.json:
        print(json.dumps(found))


def run(arguments, tasks: int, folder: Path) -> dict:
    import torch
    import transformers

    from trivium.recipe.bases import base_folder

    name, model = ("smollm2", base_folder("smollm2")) if arguments.smollm2 else ("nano", str(ASSETS))
    models = {name: measure(model, tasks, arguments.quick, decode=not arguments.quick)}
    if not (arguments.quick or arguments.smollm2):
        models["25M"] = measure(model_25m(folder / "25m"), tasks, False, decode=False)
    found = {"speedup_vs_generate": min(one[OURS[0]]["speedup"] for one in models.values()), "models": models}
    found["speedup_best_dtypes"] = min(max(one[side]["speedup"] for side in OURS if side in one) for one in models.values())
    if arguments.vllm_python:
        found["vllm"] = vllm(arguments.vllm_python, model, tasks)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__}
    return found | {"load": os.getloadavg(), "cores": os.cpu_count(), "versions": versions}


def show(found: dict) -> None:
    print(f"{'model':8}{'side':15}{'episodes/min':>14}{'wall s':>9}{'cpu s':>9}{'computed':>11}{'times':>8}{'by CPU':>8}")
    for name, one in found["models"].items():
        for side in ("generate", *OURS):
            if n := one.get(side):
                times = f"{n['speedup']:8.2f}{n['speedup_cpu']:8.2f}" if "speedup" in n else f" ({one['generate_way']})"
                print(
                    f"{name:8}{side:15}{n['episodes_per_minute']:14.1f}{n['wall_s']:9.1f}{n['cpu_s']:9.1f}{n['computed']:11}{times}"
                )
        least = one["limit_float32"]
        print(f"{name:8}limit in float32: {least['least_s']:.1f} s, share {least['share_of_limit']:.2f}")
        for key in ("decode_64", "continuous_batching_first_turn"):
            if key in one:
                print(f"{name:8}{key}: {one[key]}")
    print(f"the model that gains less: {found['speedup_vs_generate']:.2f} times in float32", end="")
    print(f", {found['speedup_best_dtypes']:.2f} in the faster dtype")
    print(f"vllm: {found.get('vllm', 'not asked for')}; load {found['load'][0]:.1f}; {found['versions']}")


if __name__ == "__main__":
    main()
