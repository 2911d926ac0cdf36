"""Weights that change under traffic: no request fails, and each token knows the version that drew it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

pytest.importorskip("obstore")

from tests.serve.house import options, sealed, serving, until
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.nn import Network, Packed
from trivium.serve import following
from trivium.serve.service import Service
from trivium.trace import rows
from trivium.weights import Publisher


def moved(network: Network, version: int) -> Network:
    """Its weights as an optimizer might have moved them."""
    generator = torch.Generator().manual_seed(version)
    state = {name: t + 0.02 * torch.randn(t.shape, generator=generator) for name, t in network.state().items()}
    network.load_state(state)
    return network


def test_weights_are_swapped_without_a_failed_request(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "EVERY", 0.01)
    engine = Engine(tiny_model, slots=8, context=512, name="tiny")
    service = Service({"tiny": engine}, options(tmp_path, follow=str(tmp_path / "weights")))
    publisher, network = Publisher(str(tmp_path / "weights")), Network.load(tiny_model)
    probe = list(engine.renderer.encode("a probe of some letters"))
    statuses: list[int] = []
    over = threading.Event()

    def traffic(url: str, number: int) -> None:
        while not over.is_set():
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"hi {number}"}], "max_tokens": 40}
            statuses.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code)

    with serving(service) as url, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(traffic, url, number) for number in range(4)]
        try:
            until(lambda: len(statuses) >= 4)
            for version in (1, 2, 3):
                publisher.publish(moved(network, version), version, probe)
                until(lambda version=version: engine.version == version)
                told = len(statuses)
                until(lambda told=told: len(statuses) >= told + 8)
        finally:
            over.set()
        for each in asking:
            each.result()
        assert set(statuses) == {200}
        assert 'trivium_swaps_total{outcome="taken"} 3.0' in httpx.get(f"{url}/metrics").text
    check_versions(service, network)


@torch.inference_mode()
def check_versions(service: Service, last: Network) -> None:
    """All versions spoke, and the last one's replies have the logprobs that its learner gives them."""
    spoken = [row for episode in sealed(service) for row in rows(episode, ["tiny"])]
    assert {int(version) for row in spoken for version in row.versions[row.mask]} == {0, 1, 2, 3}
    row = next(row for row in reversed(spoken) if set(row.versions[row.mask].tolist()) == {3})
    run, view = torch.tensor(row.tokens.tolist()), Packed([len(row.tokens)])
    learned = last.logprobs(last.hidden(run, view.positions, view)[:-1], run[1:])[0]
    mask = torch.tensor(row.mask[1:])
    assert (learned[mask] - torch.tensor(row.logprobs)[1:][mask]).abs().max() < 1e-3


def test_torn_weights_are_refused_and_the_last_good_ones_speak(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "EVERY", 0.01)
    engine = Engine(tiny_model, slots=2, context=512, name="tiny")
    service = Service({"tiny": engine}, options(tmp_path, follow=str(tmp_path / "weights")))
    publisher, network = Publisher(str(tmp_path / "weights")), Network.load(tiny_model)
    entry = publisher.publish(moved(network, 1), 1, list(engine.renderer.encode("a probe")))
    (tmp_path / "weights" / entry.name).write_bytes(b"torn")
    with serving(service) as url:
        until(lambda: 'outcome="refused"' in httpx.get(f"{url}/metrics").text)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        assert engine.version == 0


def test_a_url_of_weights_that_cannot_be_opened_is_an_error_at_start(tiny_model, tmp_path):
    engine = Engine(tiny_model, slots=2, context=512, name="tiny")
    with pytest.raises(InputError, match="names no folder of this machine"):
        Service({"tiny": engine}, options(tmp_path, follow="file://a/b"))
