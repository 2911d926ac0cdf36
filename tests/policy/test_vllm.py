"""A vLLM server as a policy, against the fake that ships. tests/policy/test_vllm_real.py has the real one."""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from functools import partial
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from tests.laws.walks import TASK, search_corpus
from trivium.errors import InputError, LawError, PolicyError, Unsupported
from trivium.harness import Harness, Window
from trivium.nn import Network
from trivium.nn.network import digest
from trivium.policy import View, vllm
from trivium.policy.vllm import Vllm, command
from trivium.policy.vllm_fake import FakeVllm, bigrams, log_softmax
from trivium.policy.vllm_server import trivium_vllm
from trivium.trace import Sampling, rows
from trivium.weights import Publisher, Subscriber
from trivium.weights.publish import deliver
from trivium.weights.store import Probe

WORDS = 64  # tokens that the fake's network knows; the byte tokenizer's stop tokens are none of them
PROBE = [3, 9, 9, 27, 4, 40]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(vllm, "WAIT", 0.001)


@pytest.fixture(scope="module")
def states(tiny_model) -> list[dict[str, torch.Tensor]]:
    """Two networks' weights."""
    old, new = Network.load(tiny_model), Network.load(tiny_model)
    new.load_state({name: tensor + 0.01 for name, tensor in old.state().items()})
    return [old.state(), new.state()]


@pytest.fixture
def serve(tiny_model, states):
    running = []

    def start(**options) -> FakeVllm:
        running.append(FakeVllm(tiny_model, states[0], **options).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def view(*stream, prompt=(5, 6, 7)) -> View:
    return View(list(prompt), (), (), stream or (0, "task", 0))


def said(policy: Vllm, sampling: Sampling, *stream) -> object:
    return asyncio.run(policy.speak(view(*stream), sampling))


def told(speaker: str, before: int, tokens, warm: float = 1.0) -> np.ndarray:
    """The logprobs of `tokens`, after `before`, under the weights of this digest."""
    logprobs = log_softmax(bigrams(speaker, [before, *tokens[:-1]], WORDS) / warm)
    return logprobs[range(len(tokens)), tokens]


def probe(state) -> Probe:
    return Probe(PROBE, told(digest(state), PROBE[0], PROBE[1:]).tolist())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_tokens_come_with_logprobs_at_the_sampling_temperature_and_a_version(serve, renderer, temperature):
    server = serve()
    reply = said(Vllm(server.url, renderer=renderer), Sampling(temperature=temperature, max_tokens=12))
    assert len(reply.tokens) == 12 and reply.versions == [0] * 12 and reply.kept == [1.0] * 12
    np.testing.assert_allclose(reply.logprobs, told(server.speaks, 7, reply.tokens, temperature or 1.0), atol=1e-12)


def test_equal_streams_say_the_same_and_others_do_not(serve, renderer):
    policy = Vllm(serve().url, renderer=renderer)
    replies = [said(policy, Sampling(max_tokens=8), *stream) for stream in [(0, "a", 1), (0, "a", 1), (0, "a", 2)]]
    assert replies[0] == replies[1] and replies[0].tokens != replies[2].tokens


def test_a_reply_ends_at_a_stop_token_of_the_renderer(serve, renderer, monkeypatch):
    server = serve(vocabulary=4)
    policy = Vllm(server.url, renderer=renderer)
    monkeypatch.setattr(renderer, "stop_tokens", (2, 3))
    reply = said(policy, Sampling(max_tokens=200))
    assert reply.tokens[-1] in (2, 3) and not {2, 3} & {*reply.tokens[:-1]} and len(reply.tokens) < 200
    assert server.requests[0]["sampling_params"]["ignore_eos"], "the end is the renderer's to say, not the model folder's"


def test_an_episode_is_rows_to_learn_from(serve, renderer):
    policy = Vllm(serve(vocabulary=len(renderer.tokenizer)).url, renderer=renderer)
    harness = Harness([search_corpus], Window(1500, reply=40), "Go.", specs=False)
    (row,) = rows(asyncio.run(harness.run(TASK, policy)), {"agent"})
    assert row.trained and np.isfinite(row.logprobs[row.mask]).all()


@pytest.mark.parametrize("option", ["top_k", "top_p"])
def test_truncation_is_refused_by_name(serve, renderer, option):
    policy = Vllm(serve().url, renderer=renderer)
    with pytest.raises(Unsupported, match=option):
        said(policy, Sampling(**{option: {"top_k": 5, "top_p": 0.9}[option]}))


def test_a_server_that_is_no_vllm_is_an_error_and_no_bug(serve, renderer, monkeypatch):
    policy = Vllm(serve().url, renderer=renderer)
    for answer in ({"text": "<html>a proxy's page</html>"}, {"json": {"choices": []}}, {"json": ["?"]}):
        request = httpx.Request("POST", policy.url)
        there = httpx.MockTransport(lambda _, answer=answer, request=request: httpx.Response(200, request=request, **answer))
        client = partial(httpx.AsyncClient, transport=there)
        monkeypatch.setattr(httpx, "AsyncClient", client)
        with pytest.raises(PolicyError, match="not as vLLM does"):
            said(policy, Sampling(max_tokens=2))
        monkeypatch.undo()


@pytest.mark.parametrize("body", [{}, [], {"results": []}, {"results": [None]}, None], ids=str)
def test_another_server_of_json_is_an_error_at_start(monkeypatch, renderer, body):
    there = httpx.MockTransport(lambda request: httpx.Response(200, json=body))
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=there))
    with pytest.raises(PolicyError, match="not as vLLM does"):
        Vllm("http://127.0.0.1:1", renderer=renderer)


@pytest.mark.parametrize(
    "lacks",
    [{"token_ids": ...}, {"logprobs": [-1, -1]}, {"logprobs": {"content": [{"logprob": -1.0}]}}, {"weight_versions": [{}]}],
    ids=str,
)
def test_half_a_reply_ends_one_thread_and_not_the_run(monkeypatch, serve, renderer, lacks):
    policy = Vllm(serve().url, renderer=renderer)
    content = [{"token_id": 5, "logprob": -1.0}]
    span = {"version": "0", "start": 0, "end": 1}
    choice = {"token_ids": [5], "logprobs": {"content": content}, "weight_versions": [span], "finish_reason": "length", **lacks}
    choice = {name: value for name, value in choice.items() if value is not ...}
    there = httpx.MockTransport(lambda request: httpx.Response(200, json={"choices": [choice]}))
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=there))
    with pytest.raises(PolicyError, match="not as vLLM does"):
        said(policy, Sampling(max_tokens=1))


def test_a_full_disk_is_an_oserror_and_leaves_nothing_behind(monkeypatch, serve, renderer, states, tmp_path):
    def full(*_, **__):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    policy = Vllm(serve().url, renderer=renderer, folder=tmp_path)
    with pytest.raises(OSError, match="No space left"):
        policy.load(states[1], 1)
    assert not list(tmp_path.iterdir()) and policy.version == 0


def test_what_does_not_fit_is_not_sent(serve, renderer):
    server = serve()
    with pytest.raises(PolicyError, match="3 tokens and a reply of 2046 do not fit the context of 2048"):
        said(Vllm(server.url, renderer=renderer), Sampling(max_tokens=2046))
    assert not server.requests


@pytest.mark.parametrize(
    ("lack", "named"),
    {
        "dev": "VLLM_SERVER_DEV_MODE=1",
        "extension": "--worker-extension-cls trivium_vllm.Worker",
        "scale-out": "--enable-scale-out",
        "processed": "--logprobs-mode processed_logprobs",
        "versions": "weight_versions",
        "whole": "--no-enable-chunked-prefill",
    }.items(),
)
def test_an_option_that_the_server_lacks_is_an_error_at_start(serve, renderer, lack, named):
    server = serve(lacks=[lack])
    with pytest.raises(Unsupported, match=f"{server.url} was started without .*{named}"):
        Vllm(server.url, renderer=renderer)


def test_the_command_names_every_option():
    words, environment = command("model", port=8001)
    assert {"--enable-scale-out", "processed_logprobs", "trivium_vllm.Worker", "8001", "model"} < {*words}
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert any((vllm.Path(path) / "trivium_vllm.py").is_file() for path in environment["PYTHONPATH"].split(":"))


def test_packed_layers_are_an_error_at_start(serve, renderer):
    with pytest.raises(Unsupported, match="computes model.layers.0.mlp.down_proj .* packed weights"):
        Vllm(serve(lies=["packed"]).url, renderer=renderer)


def test_a_dead_server_is_one_error_that_names_it(serve, renderer):
    with pytest.raises(PolicyError, match="no vLLM answers at http://127.0.0.1:9/"):
        Vllm("http://127.0.0.1:9", renderer=renderer)
    server = serve()
    policy = Vllm(server.url, renderer=renderer, retries=2)
    server.__exit__()
    with pytest.raises(PolicyError, match=f"vLLM at {server.url} did not answer 3 times, at last: ConnectError"):
        said(policy, Sampling(max_tokens=4))


def test_a_busy_server_is_asked_again_for_the_same(serve, renderer):
    server = serve(fails=[503, "abort", 429])
    calm = said(Vllm(serve().url, renderer=renderer), Sampling(max_tokens=6))
    assert said(Vllm(server.url, renderer=renderer), Sampling(max_tokens=6)) == calm
    assert len(server.requests) == 4 and all(body == server.requests[0] for body in server.requests)


def test_a_refusal_is_not_repeated(serve, renderer):
    server = serve(fails=[400, 400])
    with pytest.raises(PolicyError, match=f"{server.url} refused: 400"):
        said(Vllm(server.url, renderer=renderer), Sampling())
    assert len(server.requests) == 1


def test_requests_in_flight_are_bounded(serve, renderer):
    server = serve(step=0.002)
    policy = Vllm(server.url, renderer=renderer, slots=3)

    async def many():
        return await asyncio.gather(*(policy.speak(view(0, "t", n), Sampling(max_tokens=5)) for n in range(12)))

    assert len(asyncio.run(many())) == 12 and server.most == 3


@pytest.mark.parametrize(("lie", "match"), {"logprobs": "with 5 sound logprobs", "ends": "ended a reply after 5"}.items())
def test_a_reply_that_cannot_be_right_is_refused(serve, renderer, lie, match):
    policy = Vllm(serve(lies=[lie]).url, renderer=renderer)
    with pytest.raises(PolicyError, match=match):
        said(policy, Sampling(max_tokens=6))


# --- new weights


def test_new_weights_are_checked_and_spoken(serve, renderer, states, tmp_path):
    server = serve()
    policy = Vllm(server.url, renderer=renderer, folder=tmp_path)
    assert policy.digest() == digest(states[0])
    assert deliver(states[1], 8, policy, probe(states[1])) < 1e-6
    reply = said(policy, Sampling(max_tokens=6))
    assert policy.version == 8 and reply.versions == [8] * 6 and policy.digest() == digest(states[1])
    np.testing.assert_allclose(reply.logprobs, told(digest(states[1]), 7, reply.tokens), atol=1e-12)
    assert not server.paused and not [*tmp_path.iterdir()]
    order = ["/pause", "trivium_load", "/reset_prefix_cache", "/resume"]
    assert [call for call in server.calls if call in order][-4:] == order


def test_an_update_in_mid_reply_stamps_each_token_with_what_spoke_it(serve, renderer, states):
    server = serve(rests=30)
    policy = Vllm(server.url, renderer=renderer)

    async def overtaken():
        replies = [asyncio.create_task(policy.speak(view(0, "t", n), Sampling(max_tokens=40))) for n in range(4)]
        while not server.paused:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(policy.load, states[1], 3)
        return await asyncio.gather(*replies)

    replies = asyncio.run(overtaken())
    assert sum(reply.versions.count(0) for reply in replies) == 29  # and one token of the check at start
    for reply in replies:
        assert reply.versions == sorted(reply.versions)
        old, new = (told(digest(state), 7, reply.tokens) for state in states)
        np.testing.assert_allclose(reply.logprobs, np.where(np.array(reply.versions) == 3, new, old), atol=1e-12)


def test_a_server_that_goes_on_with_the_old_weights_is_refused(serve, renderer, states):
    policy = Vllm(serve(lies=["reload"]).url, renderer=renderer)
    with pytest.raises(LawError, match="version 8: the receiver's logprobs are .* from the learner's"):
        deliver(states[1], 8, policy, probe(states[1]))


def test_a_server_that_holds_other_weights_is_refused_and_not_left_paused(serve, renderer, states):
    server = serve(lies=["digest"])
    policy = Vllm(server.url, renderer=renderer)
    with pytest.raises(LawError, match=f"version 8 was published, but vLLM at {server.url} holds other weights"):
        policy.load(states[1], 8)
    assert not server.paused and policy.version == 0
    with pytest.raises(PolicyError, match=r"under weights that it calls '8\?', which nobody published"):
        said(policy, Sampling(max_tokens=4))
    server.lies = []
    policy.load(states[1], 8)
    assert said(policy, Sampling(max_tokens=4)).versions == [8] * 4


def test_a_torn_load_is_refused_and_the_next_one_heals_it(serve, renderer, states, monkeypatch):
    server = serve()
    policy = Vllm(server.url, renderer=renderer)

    def torn(path):
        server.digest = "half of it"
        raise OSError("the disk is gone")

    monkeypatch.setattr(server, "trivium_load", torn)
    with pytest.raises(PolicyError, match=f"{server.url} did not do trivium_load: OSError: the disk is gone"):
        policy.load(states[1], 8)
    assert not server.paused and server.label == "8?"
    assert Vllm(server.url, renderer=renderer).version == -1  # who comes now finds weights that nobody published
    monkeypatch.undo()
    policy.load(states[1], 8)
    assert server.label == "8"


def test_a_server_that_cannot_read_new_weights_goes_on_with_the_old_ones(serve, renderer, states, monkeypatch):
    server = serve()
    policy = Vllm(server.url, renderer=renderer)
    policy.load(states[1], 3)
    monkeypatch.setattr(server, "trivium_load", lambda path: 1 / 0)
    with pytest.raises(PolicyError, match=f"{server.url} did not do trivium_load: ZeroDivisionError"):
        policy.load(states[0], 4)
    assert not server.paused and said(policy, Sampling(max_tokens=4)).versions == [3] * 4


def test_new_weights_that_come_late_have_no_label(serve, renderer, states, monkeypatch):
    """The answer to a load is lost, and the load may go on: the old label could be a lie."""
    server = serve()
    policy = Vllm(server.url, renderer=renderer, timeout=1.0, retries=1)
    load = server.trivium_load
    monkeypatch.setattr(server, "trivium_load", lambda path: (time.sleep(1.5), load(path))[-1])
    with pytest.raises(PolicyError, match="collective_rpc"):
        policy.load(states[1], 8)
    assert server.label == "8?" and not server.paused


def test_a_pause_whose_answer_is_lost_ends(serve, renderer, states, monkeypatch):
    server = serve()
    policy = Vllm(server.url, renderer=renderer, timeout=1.0, retries=1)
    pause = server.pause
    monkeypatch.setattr(server, "pause", lambda body: (pause(body), time.sleep(1.5), (200, {}))[-1])
    with pytest.raises(PolicyError, match="/pause"):
        policy.load(states[1], 8)
    assert not server.paused and said(policy, Sampling(max_tokens=4)).versions == [0] * 4


def test_numbers_that_nobody_could_serve_by_are_refused(serve, renderer, tmp_path):
    server = serve()
    for wrong in ({"slots": 0}, {"retries": -1}, {"timeout": 0.0}):
        with pytest.raises(InputError, match="slots are 1 or more"):
            Vllm(server.url, renderer=renderer, **wrong)
    with pytest.raises(InputError, match="gone is no folder"):
        Vllm(server.url, renderer=renderer, folder=tmp_path / "gone")


def test_a_server_that_was_started_anew_is_given_its_weights_again(serve, renderer, states, tmp_path):
    server, publisher, subscriber = serve(), Publisher(tmp_path), Subscriber(tmp_path)
    policy = Vllm(server.url, renderer=renderer)
    publisher.send(states[1], 5)
    assert subscriber.deliver(policy) == 0.0 and subscriber.deliver(policy) is None
    server.label, server.digest, server.speaks = "default", digest(states[0]), digest(states[0])
    with pytest.raises(PolicyError, match="publish to it again"):
        said(policy, Sampling(max_tokens=4))
    assert subscriber.deliver(policy) == 0.0
    assert said(policy, Sampling(max_tokens=4)).versions == [5] * 4


def test_a_server_that_was_started_anew_is_noticed(serve, renderer, states):
    server = serve()
    policy = Vllm(server.url, renderer=renderer)
    policy.load(states[1], 2)
    server.label = "default"
    with pytest.raises(PolicyError, match="calls 'default', which nobody published: it was started anew"):
        said(policy, Sampling(max_tokens=4))


def test_a_server_that_a_killed_client_left_paused_is_resumed(serve, renderer):
    server = serve()
    server.pause({})
    Vllm(server.url, renderer=renderer)
    assert not server.paused


def test_a_later_client_takes_over_the_version(serve, renderer, states):
    server = serve()
    first = Vllm(server.url, renderer=renderer)
    first.load(states[1], 11)
    later = Vllm(server.url, renderer=renderer)
    assert later.version == 11
    first.load(states[0], 12)
    assert said(later, Sampling(max_tokens=3)).versions == [12] * 3, "the server's word, not the client's memory"


def test_bfloat16_may_be_published_to_a_float32_server_and_float64_may_not(serve, renderer, states):
    policy = Vllm(serve().url, renderer=renderer)
    half = {name: tensor.bfloat16() for name, tensor in states[1].items()}
    assert deliver(half, 1, policy, None) == 0.0
    with pytest.raises(Unsupported, match="is float64 and the server's weights are float32: publish float32"):
        policy.load({name: tensor.double() for name, tensor in half.items()}, 2)


def test_the_workers_digest_is_the_networks(states):
    assert trivium_vllm.digest(states[0]) == digest(states[0]) != digest(states[1])


# --- the worker's own checks, on layers like vLLM's


class Method:
    def apply(self, layer, x, bias):
        return torch.nn.functional.linear(x, layer.weight, bias)


class Packed(Method):
    """Computes with what the weight was when it was packed."""

    def __init__(self, layer):
        self.weight = layer.weight.clone()

    def apply(self, layer, x, bias):
        return torch.nn.functional.linear(x, self.weight, bias)


def test_a_layer_that_computes_with_a_packed_copy_is_found():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 4, bias=False) for name in ("sound", "packed", "gone")})
    before = model["sound"].weight.clone()
    for layer in model.values():
        layer.quant_method = Method()
    model["packed"].quant_method = Packed(model["packed"])
    model["gone"].weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    model["eight"] = torch.nn.Linear(8, 4, bias=False)
    model["eight"].weight = torch.nn.Parameter(model["sound"].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    model["eight"].quant_method = Method()
    assert trivium_vllm._stale(model) == ["packed", "gone", "eight"]
    assert torch.equal(model["sound"].weight, before)


def test_stacked_and_padded_weights_are_found_under_a_checkpoints_names():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"qkv_proj": torch.nn.Linear(4, 8, bias=False), "embed": torch.nn.Embedding(16, 4)})
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    holder = torch.nn.ModuleDict({"attn": model})
    holder.packed_modules_mapping = model.packed_modules_mapping
    shapes = {
        "attn.q_proj.weight": [4, 4],
        "attn.k_proj.weight": [2, 4],
        "attn.v_proj.weight": [2, 4],
        "attn.embed.weight": [9, 4],
    }
    held = trivium_vllm._held(holder, shapes)
    stacked = torch.cat([held[f"attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(stacked, model["qkv_proj"].weight) and torch.equal(held["attn.embed.weight"], model["embed"].weight[:9])
    with pytest.raises(ValueError, match="attn.embed.weight has shape"):
        trivium_vllm._held(holder, shapes | {"attn.embed.weight": [17, 4]})


def test_the_fake_is_a_distribution():
    assert math.isclose(np.exp(log_softmax(bigrams("x", [1, 2], 5))).sum(), 2)


def test_a_model_of_a_name_has_its_shapes_too(tiny_model, tmp_path):
    """Before the first update the server's weights are known by the names and shapes of what it was started with."""
    cached = tmp_path / "models--some--net"
    shutil.copytree(tiny_model, cached / "snapshots" / "0f")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0f")
    started = lambda model, fetched=None: SimpleNamespace(  # noqa: E731
        model_config=SimpleNamespace(model=model, revision=None), load_config=SimpleNamespace(download_dir=fetched)
    )
    wanted = {name: list(tensor.shape) for name, tensor in Network.load(tiny_model).state().items()}
    assert trivium_vllm._shapes(started(str(tiny_model))) == wanted
    assert trivium_vllm._shapes(started("some/net", str(tmp_path))) == wanted
    with pytest.raises(ValueError, match="holds no safetensors"):
        trivium_vllm._shapes(started(str(tmp_path)))
