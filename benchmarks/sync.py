"""How many bytes a version takes on its way: deltas of real RL steps against the full bf16 checkpoint.

python benchmarks/sync.py --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from importlib.metadata import version as installed

import torch
import zstandard
from transformers import AutoConfig

from trivium import CISPO, Batch, Engine, Harness, Learner, Limits, Network, Sampling, Window, publish, rollouts
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.recipe import EPSILON, NANO
from trivium.agents.search.tools import BRIEF
from trivium.corpus import Corpus
from trivium.nn.network import digest
from trivium.policy import Renderer
from trivium.tasks.world import World, corpus_documents
from trivium.weights import Publisher, Subscriber
from trivium.weights.delta import State, _bits, encode

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


def full_bytes(state: State) -> int:
    """Of the uncompressed bf16 checkpoint: two a value."""
    return sum(2 * tensor.numel() for tensor in state.values())


async def run(network: Network, lr: float, steps: int, size: int, reward_of_length: bool) -> dict:
    """Publish after each of `steps` steps; the bytes of each, and how long it took to publish and to load."""
    world, renderer = World.make(seed=0), Renderer.load(NANO)
    corpus = Corpus.build(corpus_documents(world.documents))
    harness = Harness(search_tools(corpus), Window(640, soft=0.5, hard=0.85), BRIEF, Limits(turns=4), specs=False)
    engine = Engine(big() if reward_of_length else NANO, renderer=renderer, context=640, slots=4 * size)
    learner = Learner(network, CISPO() if reward_of_length else CISPO(eps=EPSILON), lr=lr, substeps=2)
    probe = renderer.encode("a few words whose logprobs must agree after every update")
    publish(network, 0, engine, probe)

    async def length(episode) -> dict[str, float]:
        """What a random network differs in."""
        tokens = [t for thread in episode.threads for segment in thread.segments for t in segment.tokens]
        return {"reward": (len(set(tokens)) % 17) / 17}

    scorer = (lambda step: length) if reward_of_length else (lambda step: SearchReward(beta=4.0))
    source = rollouts(
        harness, world.tasks(64, hops=(1, 2)), engine, scorer=scorer, groups=4, size=size, steps=10 * steps,
        sampling=Sampling(max_tokens=48 if reward_of_length else 64),
    )  # fmt: skip
    rows, encodings = [], []
    with tempfile.TemporaryDirectory() as folder:
        publisher, subscriber = Publisher(folder, every=1000, dtype=torch.bfloat16), Subscriber(folder)
        publisher.publish(network, 0, probe)
        subscriber.sync()
        async for groups, _ in source:
            before = publisher.rounded({name: t.clone() for name, t in network.state().items()})
            step = await learner.step(Batch(groups))
            start = time.perf_counter()
            entry = publisher.publish(learner.network, step.version, probe)
            sent = time.perf_counter()
            got = subscriber.sync()
            loaded = time.perf_counter()
            assert got.digest == digest(publisher.rounded(network.state()))
            publish(learner.network, step.version, engine, probe)
            after = publisher.rounded(network.state())
            changed = sum(int((_bits(after[k]) != _bits(before[k])).sum()) for k in after)
            rows.append({
                "version": entry.version, "kind": "full" if entry.base is None else "delta", "bytes": entry.size,
                "share": entry.size / full_bytes(after), "changed": changed / (full_bytes(after) // 2),
                "no_signal": step.metrics["no_signal"], "publish_s": sent - start, "load_s": loaded - sent,
            })  # fmt: skip
            print("{version:3d} {kind:5s} {share:8.3%} of bf16, {changed:8.3%} changed, publish {publish_s:.2f} s, "
                  "load {load_s:.2f} s, no signal {no_signal:.0f}".format(**rows[-1]), flush=True)  # fmt: skip
            if len(encodings) < 3 and not step.metrics["no_signal"]:
                encodings.append(compare(before, after))
            if sum(not row["no_signal"] for row in rows) == steps:
                break
    # a step without a signal changes nothing: it would flatter the mean
    learned = [row for row in rows if not row["no_signal"]]
    mean = {key: sum(row[key] for row in learned) / len(learned) for key in ("share", "changed", "publish_s", "load_s")}
    table = {key: sum(found[key] for found in encodings) / len(encodings) for key in encodings[0]} if encodings else {}
    parameters = full_bytes(network.state()) // 2
    return {
        "lr": lr,
        "parameters": parameters,
        "full_bf16_bytes": 2 * parameters,
        **mean,
        "encodings": table,
        "learned": len(learned),
        "versions": rows,
    }


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
        "full": len(encode(new)),
    }
    return {name: size / (2 * a.size) for name, size in sizes.items()}


def chain(network: Network, versions: int = 50) -> bool:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two steps of each, a chain of nano")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = 2 if options.quick else 20
    print("25M, random weights, learning rate 1e-6, rewarded for the number of different tokens (a random network fails tasks)")
    large = asyncio.run(run(big(), 1e-6, steps, 2, True))
    print("nano, the demo's learning rate 4e-4, the demo's reward")
    demo = asyncio.run(run(Network.load(NANO), 4e-4, steps, 4, False))
    exact = chain(Network.load(NANO))
    print("encodings, share of bf16 at 25M:", large["encodings"], "nano:", demo["encodings"])
    print(f"mean share {large['share']:.3%} (25M), {demo['share']:.3%} (nano); 50 versions exact: {exact}")
    result = {
        "delta_share": large["share"], "delta_share_demo": demo["share"], "exact_50": exact, "large": large, "demo": demo,
        "load_average": os.getloadavg(), "python": platform.python_version(),
        "versions": {name: installed(name) for name in ("torch", "obstore", "zstandard", "blake3")},
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
