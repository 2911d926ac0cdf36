"""How many bytes a version takes on its way: deltas of real RL steps against the full bf16 checkpoint.

python benchmarks/sync.py --json --model runs/demo/model-sft
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path

import torch
import zstandard
from transformers import AutoConfig

from trivium import CISPO, AdamW, Batch, Engine, Harness, Learner, Limits, Network, Plan, Sampling, Window, publish, rollouts
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.tools import BRIEF
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.nn.network import digest
from trivium.policy import Renderer
from trivium.tasks.world import World
from trivium.weights import Publisher, Subscriber
from trivium.weights.delta import State, _bits, encode

ENCODINGS = ("gaps_and_steps_planes", "index_and_value", "xor", "xor_planes", "full_planes")
SHAPE = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 1408,
}  # fmt: skip


def big() -> Network:
    """25M parameters at random, with the nano tokenizer's vocabulary."""
    config = AutoConfig.from_pretrained(NANO)
    config.layer_types = None
    for name, value in SHAPE.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    return Network(config)


@dataclass(frozen=True, slots=True)
class Setting:
    """One learner on its way: its network, where its reward comes from, and how far it is followed."""

    name: str
    network: Network
    engine: Network
    objective: CISPO
    lr: float
    scorer: Callable[[int], object]
    size: int
    tokens: int


def settings(model: str) -> list[Setting]:
    return [
        Setting("25M, random weights, learning rate 1e-6, rewarded for an arbitrary property (a random network solves nothing)",
                big(), big(), CISPO(), 1e-6, lambda step: arbitrary, 2, 48),
        Setting(f"nano from {Path(model).name}, the demo's learning rate 4e-4, the demo's reward",
                Network.load(model), Network.load(model), CISPO(eps=0.1), 4e-4, lambda step: SearchReward(beta=4.0), 4, 64),
    ]  # fmt: skip


async def arbitrary(episode) -> dict[str, float]:
    """What a random network's episodes differ in."""
    tokens = [t for thread in episode.threads for segment in thread.segments for t in segment.tokens]
    return {"reward": (len(set(tokens)) % 17) / 17}


async def run(setting: Setting, steps: int) -> dict:
    """Publish after each step until `steps` of them had a signal, or ten times as many were taken."""
    print(setting.name)
    world, renderer = World.make(seed=0), Renderer.load(NANO)
    corpus = Corpus.build(world.documents)
    harness = Harness(search_tools(corpus), Window(640, soft=0.5, hard=0.85), BRIEF, Limits(turns=4), specs=False)
    engine = Engine(setting.engine, renderer=renderer, context=640, slots=4 * setting.size)
    learner = Learner(setting.network, setting.objective, lr=setting.lr, optimizer=AdamW(substeps=2))
    probe = renderer.encode("a few words whose logprobs must agree after every update")
    publish(learner.network, 0, engine, probe)
    source = rollouts(
        harness, world.tasks(64, hops=(1, 2)), engine, setting.scorer,
        Plan(groups=4, size=setting.size, steps=10 * steps, sampling=Sampling(max_tokens=setting.tokens)),
    )  # fmt: skip
    rows, encodings = [], []
    with tempfile.TemporaryDirectory() as folder:
        publisher, subscriber = Publisher(folder, every=1000, dtype=torch.bfloat16), Subscriber(folder)
        publisher.publish(learner.network, 0, probe)
        subscriber.sync()
        async for groups, _ in source:
            before = rounded(publisher, learner.network)
            step = await learner.step(Batch(groups))
            rows.append(sent(publisher, subscriber, learner, probe, before) | {"no_signal": step.metrics["no_signal"]})
            publish(learner.network, step.version, engine, probe)
            print("{version:3d} {kind:5s} {share:8.3%} of bf16, {changed:8.3%} changed, publish {publish_s:.2f} s, "
                  "load {load_s:.2f} s, no signal {no_signal:.0f}".format(**rows[-1]), flush=True)  # fmt: skip
            if len(encodings) < 3 and not step.metrics["no_signal"]:
                encodings.append(compare(before, rounded(publisher, learner.network)))
            if sum(not row["no_signal"] for row in rows) == steps:
                break
    return summary(setting, rows, encodings)


def rounded(publisher: Publisher, network: Network) -> State:
    return publisher.rounded({name: tensor.clone() for name, tensor in network.state().items()})


def sent(publisher: Publisher, subscriber: Subscriber, learner: Learner, probe: list[int], before: State) -> dict:
    """One version on its way. Publishing counts the probe's logprobs and the encoding, loading the check of the digest."""
    start = time.perf_counter()
    entry = publisher.publish(learner.network, learner.version, probe)
    middle = time.perf_counter()
    got = subscriber.sync()
    end = time.perf_counter()
    after = rounded(publisher, learner.network)
    assert got.digest == digest(after), f"version {entry.version} arrived as something else"
    values = sum(tensor.numel() for tensor in after.values())
    changed = sum(int((_bits(after[k]) != _bits(before[k])).sum()) for k in after)
    return {
        "version": entry.version, "kind": "full" if entry.base is None else "delta", "bytes": entry.size,
        "share": entry.size / (2 * values), "changed": changed / values,
        "publish_s": middle - start, "load_s": end - middle,
    }  # fmt: skip


def summary(setting: Setting, rows: list[dict], encodings: list[dict]) -> dict:
    """Means over the steps with a signal: one without changes nothing, and would flatter them. None where there is none."""
    learned = [row for row in rows if not row["no_signal"]]
    parameters = sum(tensor.numel() for tensor in setting.network.state().values())
    return {
        "name": setting.name, "lr": setting.lr, "parameters": parameters, "full_bf16_bytes": 2 * parameters,
        **means(learned, ("share", "changed", "publish_s", "load_s")),
        "encodings": means(encodings, ENCODINGS), "learned": len(learned), "versions": rows,
    }  # fmt: skip


def means(rows: list[dict], keys: tuple[str, ...]) -> dict[str, float | None]:
    return {key: sum(row[key] for row in rows) / len(rows) if rows else None for key in keys}


def compare(old: State, new: State) -> dict[str, float]:
    """The encodings that were tried, each as a share of the full bf16 checkpoint."""

    def zstd(data: bytes) -> int:
        return len(zstandard.ZstdCompressor(level=3).compress(data))

    a = torch.cat([old[k].flatten().view(torch.int16) for k in sorted(old)]).numpy()
    b = torch.cat([new[k].flatten().view(torch.int16) for k in sorted(new)]).numpy()
    xor, places = a ^ b, (a != b).nonzero()[0]
    planes = xor.view("u1").reshape(-1, 2).T.tobytes()
    sizes = {
        "gaps_and_steps_planes": len(encode(new, old)),
        "index_and_value": zstd(places.astype("u4").tobytes() + b[places].tobytes()),
        "xor": zstd(xor.tobytes()),
        "xor_planes": zstd(planes),
        "full_planes": len(encode(new)),
    }
    return {name: sizes[name] / (2 * a.size) for name in ENCODINGS}


def chain(network: Network, versions: int) -> bool:
    """Exact over a chain: each version's bits are those that were published, for one who follows and one who joins late."""
    state = {name: t.clone() for name, t in network.state().items()}
    with tempfile.TemporaryDirectory() as folder:
        publisher, subscriber = Publisher(folder, every=25, dtype=torch.bfloat16), Subscriber(folder)
        for version in range(1, versions + 1):
            torch.manual_seed(version)
            state = {name: t + 1e-6 * torch.randn(t.shape).sign() for name, t in state.items()}
            publisher.send(state, version)
            wanted = digest(publisher.rounded(state))
            if subscriber.sync().digest != wanted or (version % 10 == 0 and Subscriber(folder).sync().digest != wanted):
                return False
    return True


def table(large: dict, demo: dict) -> None:
    def cell(share: float | None) -> str:
        return "no signal" if share is None else f"{share:.2%}"

    print(f"\n{'share of the bf16 checkpoint':34s}{'25M, 1e-6':>12s}{'nano, 4e-4':>12s}")
    for name in ("share", "changed"):
        print(f"{'mean ' + name:34s}{cell(large[name]):>12s}{cell(demo[name]):>12s}")
    for name in ENCODINGS:
        print(f"{'first steps, ' + name:34s}{cell(large['encodings'][name]):>12s}{cell(demo['encodings'][name]):>12s}")
    print(f"{'steps with a signal':34s}{large['learned']:>12d}{demo['learned']:>12d}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one step of each with a signal, a chain of ten versions")
    parser.add_argument("--model", default=str(NANO), help="what the demo's steps begin with: the model-sft of a run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    large, demo = (asyncio.run(run(setting, 1 if options.quick else 20)) for setting in settings(options.model))
    versions = 10 if options.quick else 50
    exact = chain(Network.load(NANO), versions)
    table(large, demo)
    print(f"chain of {versions} versions exact for a follower and for latecomers: {exact}")
    result = {
        "delta_share": large["share"], "delta_share_demo": demo["share"], "exact": exact, "chain": versions,
        "quick": options.quick, "large": large, "demo": demo, "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in ("torch", "obstore", "zstandard", "blake3")},
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))
    if not exact:
        raise SystemExit("a version arrived as something else")


if __name__ == "__main__":
    main()
