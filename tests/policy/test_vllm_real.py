"""A real vLLM server on the CPU (`make slow`): TRIVIUM_VLLM_PYTHON is the interpreter that has it (make_vllm.sh makes one)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from trivium import CISPO, Batch, Engine, Group, Harness, Learner, Limits, Network, Sampling, Window, publish
from trivium.agents.search import search_tools
from trivium.agents.search.tools import BRIEF
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.errors import LawError, PolicyError, Unsupported
from trivium.nn import Packed
from trivium.policy import View
from trivium.policy.vllm import Vllm, command
from trivium.recipe.verbs import export
from trivium.tasks.world import World
from trivium.weights.publish import TOLERANCE

PYTHON = os.environ.get("TRIVIUM_VLLM_PYTHON")
NEAR = 1e-4  # nats; 3e-5 is the largest gap seen, also between our engine and our learner
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="TRIVIUM_VLLM_PYTHON names no interpreter with vLLM (tests/policy/make_vllm.sh)"),
]


@contextmanager
def serving(model: Path, log: Path, worker: str = ""):
    """The URL of a vLLM that serves `model`, from when it is healthy until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words, needs = command(model, python=PYTHON, port=port)
    words += [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "32",
        "--no-enable-chunked-prefill",
    ]
    if worker:
        words[words.index("trivium_vllm.Worker")] = worker
        needs["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    environment = {**os.environ, **needs, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as file:
        server = subprocess.Popen(words, env=environment, stdout=file, stderr=file)
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 900
        while not _healthy(url):
            assert server.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-3000:]
            time.sleep(1)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """What `trivium export` writes of a run whose weights are the nano model's, moved a little."""
    run = tmp_path_factory.mktemp("run")
    network = moved(Network.load(NANO), 0.001)
    network.save(run / "model")
    (run / "recipe.json").write_text("{}")
    (run / "summary.json").write_text("{}")
    export(run, run / "exported")
    return run / "exported"


@pytest.fixture(scope="module")
def url(exported, tmp_path_factory):
    with serving(exported, tmp_path_factory.mktemp("log") / "vllm.log") as url:
        yield url


def moved(network: Network, share: float, seed: int = 0) -> Network:
    """Every matrix by a share of its spread."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in network.parameters():
            tensor += torch.randn_like(tensor) * tensor.std() * share
    return network


@torch.inference_mode()
def logprobs(network: Network, prompt: list[int], said: list[int], warm: float = 1.0) -> torch.Tensor:
    run, packed = torch.tensor([*prompt, *said]), Packed([len(prompt) + len(said)])
    return network.logprobs(network.hidden(run, packed.positions, packed)[:-1], run[1:], warm)[0][len(prompt) - 1 :]


def gap(reply, wanted: torch.Tensor) -> float:
    return (torch.tensor(reply.logprobs) - wanted).abs().max().item()


def spoken(url: str) -> float:
    """Tokens that the server ever sampled."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def question(policy, number: int) -> list[int]:
    return policy.renderer.opening([{"role": "user", "content": f"Who wrote the book number {number}?"}])


def test_it_says_what_our_engine_says_and_its_logprobs_are_the_learners(url, exported):
    policy, engine, network = Vllm(url), Engine(exported), Network.load(exported)
    assert policy.digest() == network.digest()

    async def ask(speaker, number: int, sampling: Sampling):
        return await speaker.speak(View(question(policy, number), (), (), (0, "real", number)), sampling)

    for temperature in (0.0, 0.7, 1.0):
        sampling = Sampling(temperature=temperature, max_tokens=40)
        for number in range(4):
            reply = asyncio.run(ask(policy, number, sampling))
            wanted = logprobs(network, question(policy, number), reply.tokens, temperature or 1.0)
            assert gap(reply, wanted) < NEAR
            assert asyncio.run(ask(policy, number, sampling)).tokens == reply.tokens, "one seed, two replies"
            if temperature == 0:
                assert list(asyncio.run(ask(engine, number, sampling)).tokens) == list(reply.tokens)


def test_episodes_are_learned_from_and_the_new_weights_spoken(url, exported):
    """One step of RL through it: every law of an update holds, and what is then said is the learner's."""
    world, policy, learner = World.make(seed=0), Vllm(url), Learner(Network.load(exported), CISPO(), lr=2e-4)
    publish(learner.network, 0, policy, question(policy, 0))
    corpus = Corpus.build(world.documents)
    harness = Harness(search_tools(corpus), Window(1024, soft=0.5, hard=0.85), BRIEF, Limits(turns=4), specs=False)
    (task,) = world.tasks(1, hops=(3,))

    async def attempts():
        return await asyncio.gather(
            *(harness.run(task, policy, sample=n, sampling=Sampling(temperature=1.5, max_tokens=64)) for n in range(4))
        )

    episodes = asyncio.run(attempts())
    assert any(call.name == "search_corpus" for episode in episodes for call in episode.agent.calls)
    step = learner.learn(Batch([Group(task.id, episodes, [1.0, 0.0, 0.5, 0.0])]))
    assert step.metrics["gap_max"] < NEAR, "the logprobs on the trace are not the learner's"
    before = policy.logprobs(question(policy, 0))
    assert publish(learner.network, 1, policy, question(policy, 0)) < TOLERANCE
    assert policy.digest() == learner.network.digest()
    assert (policy.logprobs(question(policy, 0)) - before).abs().max() > NEAR


def test_an_update_in_mid_reply_is_exact_for_every_token(url, exported):
    policy, old, new = Vllm(url), Network.load(exported), moved(Network.load(exported), 0.02, seed=1)
    policy.load(old.state(), 5)
    policy.renderer.stop_tokens = (0,)  # so that replies are long

    before = spoken(url)

    async def overtaken():
        ask = lambda n: policy.speak(View(question(policy, n), (), (), (0, "mid", n)), Sampling(max_tokens=400))  # noqa: E731
        replies = [asyncio.create_task(ask(n)) for n in range(6)]
        while spoken(url) < before + 60:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(policy.load, new.state(), 6)
        return await asyncio.gather(*replies)

    replies = asyncio.run(overtaken())
    for number, reply in enumerate(replies):
        versions, prompt = torch.tensor(reply.versions), question(policy, number)
        both = [logprobs(network, prompt, reply.tokens) for network in (old, new)]
        assert gap(reply, torch.where(versions == 5, *both)) < NEAR
    assert {version for reply in replies for version in reply.versions} == {5, 6}


def test_a_server_that_packs_its_weights_is_refused_and_would_serve_old_ones(exported, tmp_path, monkeypatch):
    """The trap: sprung here with a worker that turns packing on again."""
    with serving(exported, tmp_path / "vllm.log", worker="packed_worker.Worker") as url:
        with pytest.raises(Unsupported, match="computes model.embed_tokens and .* other layers with packed"):
            Vllm(url)
        asked = Vllm._worker
        monkeypatch.setattr(
            Vllm, "_worker", lambda *words, **missing: {**asked(*words, **missing), **({"stale": []} if missing else {})}
        )
        policy = Vllm(url)
        new, probe = moved(Network.load(exported), 0.05, seed=2), question(policy, 0)
        with pytest.raises((LawError, PolicyError)) as refused:
            publish(new, 1, policy, probe)
        print(f"\nwithout the check at start: {refused.value}")
