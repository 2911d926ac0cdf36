"""LoRA: only adapters learn, and what leaves the network is an ordinary network's."""

from __future__ import annotations

import pytest
import torch

from tests.train.house import config, groups, learner, network, record
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.nn import Network, Packed, lora, shard
from trivium.nn.network import digest
from trivium.train import CISPO, SFT, Batch, Checkpoints
from trivium.train.learner import Learner
from trivium.weights import Publisher, Subscriber, publish

pytest.importorskip("peft", reason="LoRA needs peft: pip install peft")


def adapted(seed: int = 0, **changes) -> Network:
    return lora(Network(config(**changes), seed=seed), rank=4)


def batch() -> Batch:
    made = Batch(groups())
    record(network(dtype=torch.float32), [e for g in made.groups for e in g.episodes], noise=0.1)
    return made


def student(net: Network, lr: float = 1e-2) -> Learner:
    return Learner(net, SFT(), lr)


@torch.no_grad()
def said(net: Network) -> torch.Tensor:
    tokens, view = torch.arange(12), Packed([12])
    return net.logprobs(net.hidden(tokens, view.positions, view)[:-1], tokens[1:])[0]


@pytest.mark.parametrize("tied", [True, False])
def test_fresh_adapters_change_nothing(tied):
    plain, net = Network(config(tie_word_embeddings=tied)), adapted(tie_word_embeddings=tied)
    assert list(net.state()) == list(plain.state())
    assert net.digest() == plain.digest()
    assert torch.equal(said(net), said(plain))


def test_only_adapters_learn_and_the_loss_falls():
    net, made = adapted(), batch()
    before = {name: value.clone() for name, value in net.own_state().items()}
    one = student(net)
    losses = [one.learn(made).metrics["loss"] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]
    for name, value in net.own_state().items():
        assert torch.equal(value, before[name]) != (".lora_" in name), name
    assert {key.rpartition("|")[0] for key in one.optimizer_state()} == {name for name in before if ".lora_" in name}


def test_the_adapters_gradients_are_those_of_the_merged_weights():
    """d/dA of the loss is scale * B' dW, d/dB is scale * dW A', with dW from an ordinary network of the merged weights."""
    net = lora(network(), rank=4)
    layer = net.model.model.layers[0].self_attn.q_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight, generator=torch.Generator().manual_seed(0))
    plain = network()
    plain.load_state(net.state())
    tokens, view = torch.arange(12), Packed([12])
    for each in (net, plain):
        each.logprobs(each.hidden(tokens, view.positions, view)[:-1], tokens[1:])[0].sum().backward()
    assert all(p.grad is None for p in net.parameters() if not p.requires_grad)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    whole, scale = plain.model.model.layers[0].self_attn.q_proj.weight.grad, 2.0
    torch.testing.assert_close(a.grad, scale * b.detach().T @ whole)
    torch.testing.assert_close(b.grad, scale * whole @ a.detach().T)


def moved(net: Network) -> Network:
    """As after learning: B is 0 no more."""
    for name, value in net.own_state().items():
        if ".lora_B" in name:
            torch.nn.init.normal_(value, std=0.1, generator=torch.Generator().manual_seed(0))
    return net


def test_what_is_published_says_what_the_learner_says(tiny_model, renderer):
    net = moved(lora(Network.load(tiny_model), rank=4))
    engine = Engine(tiny_model, renderer=renderer, slots=1)
    assert net.digest() != engine.digest()
    assert publish(net, 1, engine, list(range(12))) < 1e-4
    assert engine.digest() == net.digest()


def test_it_travels_and_is_saved_as_an_ordinary_network(tmp_path):
    net = moved(adapted())
    publisher = Publisher(tmp_path / "versions", dtype=torch.bfloat16)
    publisher.publish(net, 1, list(range(12)))
    assert Subscriber(tmp_path / "versions").sync().digest == digest(publisher.rounded(net.state()))
    net.save(tmp_path / "saved")
    saved = Network.load(tmp_path / "saved")
    assert saved.digest() == net.digest()
    assert list(saved.state()) == list(net.state())
    torch.testing.assert_close(said(saved), said(net), rtol=0, atol=1e-4)


def test_a_step_of_rl_on_adapters_reaches_an_engine_as_a_delta(renderer, tmp_path):
    """The adapters learn, what they stand on does not, and the engine, which knows no adapters, speaks with their sum."""
    net, engine = adapted(), Engine(Network(config(), seed=0), renderer=renderer, slots=1, context=64)
    publisher, subscriber = Publisher(tmp_path), Subscriber(tmp_path)
    publisher.publish(net, 1, range(12))
    subscriber.deliver(engine)
    before, one = engine.digest(), Learner(net, CISPO(), 1e-2)
    assert one.learn(batch()).metrics["grad_norm"] > 0
    assert publisher.publish(net, 2, range(12)).base == 1
    assert subscriber.deliver(engine) < 1e-4
    assert engine.digest() == net.digest() != before and engine.version == 2


def test_a_resumed_run_is_the_same_run(tmp_path):
    first, second, kept = student(adapted()), student(adapted(seed=5)), Checkpoints(tmp_path)
    first.learn(batch())
    kept.save(first)
    kept.load(second)
    for one in (first, second):
        one.learn(batch())
    assert all(torch.equal(value, second.network.own_state()[name]) for name, value in first.network.own_state().items())


def test_a_checkpoint_of_another_alpha_is_refused(tmp_path):
    kept, one = Checkpoints(tmp_path), student(lora(network(dtype=torch.float32), rank=4, alpha=64.0))
    before = one.network.digest()
    kept.save(student(lora(network(dtype=torch.float32), rank=4, alpha=8.0)))
    with pytest.raises(InputError, match="of adapters with alpha 8, the network's have 64"):
        kept.load(one)
    assert one.network.digest() == before


def test_a_checkpoint_without_adapters_is_refused(tmp_path):
    kept, one = Checkpoints(tmp_path), student(adapted())
    before = one.network.digest()
    kept.save(learner(network(dtype=torch.float32), CISPO()))
    with pytest.raises(InputError, match="one side only"):
        kept.load(one)
    assert one.network.digest() == before


def test_what_it_cannot_do_is_refused():
    net = adapted()
    with pytest.raises(InputError, match="without adapters"):
        lora(net)
    with pytest.raises(InputError, match="at least 1"):
        lora(network(), rank=0)
    with pytest.raises(InputError, match="adapters"):
        shard(net)


def test_adapters_that_cannot_learn_are_refused():
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="learn nothing"):
            lora(network(), alpha=alpha)
    net = network(dtype=torch.float32)
    one = student(net)
    lora(net)
    with pytest.raises(InputError, match=r"lora\(\) comes before Learner\(\)"):
        one.learn(batch())


def test_a_plain_copy_still_has_its_tokenizers_folder(tiny_model, tmp_path):
    lora(Network.load(tiny_model)).plain().save(tmp_path / "net")
    assert {file.name for file in (tmp_path / "net").glob("tokenizer*")} == {
        file.name for file in tiny_model.glob("tokenizer*")
    }
