"""The network: transformers' own numbers through our attention, weights in and out, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DogeConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3MoeConfig,
)

from tests.train.house import config, network
from trivium.assets import NANO
from trivium.engine import Engine
from trivium.errors import CorruptError, InputError, Unsupported
from trivium.nn import Network, Packed
from trivium.nn.logprobs import CHUNK, logprobs
from trivium.policy import Renderer

TINY = dict(
    vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2,
)  # fmt: skip


SLIDING = [
    MistralConfig(**TINY, sliding_window=9),
    Gemma3TextConfig(**TINY, head_dim=16, sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
]


@pytest.mark.parametrize("made", [config(), LlamaConfig(**TINY), *SLIDING], ids=["qwen3", "llama", "mistral", "gemma3"])
def test_packed_gives_what_transformers_gives_each_sequence_alone(made, tmp_path):
    net = Network(made, seed=1)
    net.save(tmp_path / "net")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "net", attn_implementation="sdpa")
    view, tokens = Packed([5, 1, 9]), torch.arange(15)
    with torch.no_grad():
        ours = net.logits(net.hidden(tokens, view.positions, view))
        alone = torch.cat([theirs(part[None]).logits[0] for part in tokens.split(view.lengths)])
    torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-5)


MIXTURE = Qwen3MoeConfig(**TINY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16)


@pytest.mark.parametrize("made", [config(), LlamaConfig(**TINY), MIXTURE], ids=["qwen3", "llama", "mixture"])
@pytest.mark.parametrize("places", [[9, 2, 5, 5], []], ids=["some, one twice", "none"])
def test_who_is_asked_for_alone_has_the_states_and_gradients_of_a_whole_pass(made, places):
    net, view, tokens, at = Network(made, seed=1), Packed([6, 4]), torch.arange(10), torch.tensor(places, dtype=torch.int64)
    computed, last = [], net.model.base_model.layers[-1]
    for part in (last.self_attn.q_proj, last.self_attn.k_proj, last.self_attn.o_proj, last.mlp):
        part.register_forward_hook(lambda part, args, out: computed.append(args[0].shape[1]))
    torch.manual_seed(0)
    upstream = torch.randn(len(at), 32)
    found = []
    for hidden in (net.hidden(tokens, view.positions, view)[at], net.hidden(tokens, view.positions, view, at)):
        net.zero_grad(set_to_none=False)
        (hidden * upstream).sum().backward()
        found.append([hidden, *(weight.grad.clone() for weight in net.parameters() if weight.grad is not None)])
    assert computed == [10, 10, 10, 10, len(set(places)), 10, len(set(places)), len(set(places))]
    for whole, asked in zip(*found, strict=True):
        torch.testing.assert_close(asked, whole, rtol=1e-4, atol=1e-4)


def test_a_batch_is_a_run_of_each_row():
    class Batched(Packed):
        def attend(self, layer, q, k, v, scaling):
            rows = [super(Batched, self).attend(layer, *(x[i : i + 1] for x in (q, k, v)), scaling) for i in range(len(q))]
            return torch.cat(rows)

    net, tokens, view = network(), torch.arange(12).view(2, 6), Packed([6])
    together = net.hidden(tokens, view.positions.expand(2, 6), Batched([6]))
    assert torch.allclose(together[1], net.hidden(tokens[1], view.positions, view))


def test_nothing_leaks_between_sequences():
    net, view = network(dtype=torch.float32), Packed([4, 6, 3])
    tokens = torch.arange(13)
    other = tokens.clone()
    other[:4], other[10:] = 50, 51
    with torch.no_grad():
        one, two = (net.hidden(x, view.positions, view) for x in (tokens, other))
    assert torch.equal(one[4:10], two[4:10])
    assert not torch.equal(one[:4], two[:4])


def test_logprobs_equal_the_naive_ones_with_gradients():
    torch.manual_seed(0)
    tokens = CHUNK["cpu"] + 7
    hidden = torch.randn(tokens, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(31, 8, dtype=torch.float64, requires_grad=True)
    targets, upstream = torch.randint(31, (tokens,)), torch.randn(tokens, dtype=torch.float64)
    heat = torch.rand(tokens, dtype=torch.float64) + 0.5
    ours, entropy = logprobs(hidden, weight, targets, heat)
    table = ((hidden @ weight.T) / heat[:, None]).log_softmax(-1)
    theirs = table.gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1).detach())
    assert not entropy.requires_grad
    mine = torch.autograd.grad((ours * upstream).sum(), (hidden, weight))
    naive = torch.autograd.grad((theirs * upstream).sum(), (hidden, weight))
    torch.testing.assert_close(mine, naive)


def test_logprobs_gradient_by_finite_differences():
    torch.manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(7, (5,))
    assert torch.autograd.gradcheck(lambda h, w: logprobs(h, w, targets, 0.7)[0], (hidden, weight))


def test_seed_makes_the_weights_and_leaves_the_global_stream():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, third = network(0), network(0), network(1)
    assert torch.equal(torch.rand(1), expected)
    assert first.digest() == second.digest() != third.digest()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_save_and_load(tmp_path, tiny_model, dtype):
    net = Network.load(tiny_model)
    net.save(tmp_path / "a", dtype)
    again = Network.load(tmp_path / "a")
    expected = {name: value.to(dtype or value.dtype).float() for name, value in net.state().items()}
    assert all(torch.equal(expected[name], value) for name, value in again.state().items())
    assert "lm_head.weight" not in net.state()
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == ("bfloat16" if dtype else "float32")
    with pytest.raises(InputError, match="not empty"):
        net.save(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_is_no_folder_to_save_in(tmp_path, tiny_model):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        Network.load(tiny_model).save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_load_state_takes_all_or_nothing():
    net, other = network(0), network(1)
    before, state = net.digest(), dict(other.state())
    with pytest.raises(InputError, match="q_norm"):
        net.load_state({**state, "model.layers.0.self_attn.q_norm.weight": torch.zeros(3)})
    with pytest.raises(InputError, match="norm.weight"):
        net.load_state({name: value for name, value in state.items() if name != "model.norm.weight"})
    assert net.digest() == before
    net.load_state(state)
    assert net.digest() == other.digest()


def test_missing_weights_are_an_error_and_no_random_numbers(tmp_path):
    network().save(tmp_path / "net")
    file = tmp_path / "net" / "model.safetensors"
    weights = load_file(file)
    del weights["model.norm.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CorruptError, match="model.norm.weight"):
        Network.load(tmp_path / "net")


@pytest.mark.parametrize("name, harm", [("model.safetensors", b""), ("model.safetensors", b"torn"), ("config.json", b"{")])
def test_a_torn_file_is_an_error_that_names_the_folder(tmp_path, name, harm):
    network().save(tmp_path / "net")
    (tmp_path / "net" / name).write_bytes(harm)
    with pytest.raises(CorruptError, match="net does not load"):
        Network.load(tmp_path / "net")


@pytest.mark.parametrize("harm", [{"hidden_size": "32"}, {"num_attention_heads": 0}, {"model_type": 5}, 5, []], ids=str)
def test_a_config_that_is_none_is_an_error_that_names_the_folder(tmp_path, harm):
    network().save(tmp_path / "net")
    file = tmp_path / "net" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **harm} if isinstance(harm, dict) else harm))
    with pytest.raises(CorruptError, match="net does not load"):
        Network.load(tmp_path / "net")


def test_weights_that_are_no_numbers_are_named(tmp_path):
    network().save(tmp_path / "net")
    file = tmp_path / "net" / "model.safetensors"
    save_file({name: torch.full_like(value, torch.nan) for name, value in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(CorruptError, match="NaN"):
        Network.load(tmp_path / "net")


def test_one_number_that_is_none_is_named(tmp_path):
    """Of a token that no first look at the network says."""
    network().save(tmp_path / "net")
    file = tmp_path / "net" / "model.safetensors"
    weights = load_file(file)
    next(value for name, value in weights.items() if "embed" in name)[30, 5] = torch.nan
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CorruptError, match="NaN"):
        Network.load(tmp_path / "net")


def test_a_full_disk_is_an_oserror_and_leaves_no_folder(tmp_path, monkeypatch):
    net = network()

    def full(*_, **__):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(net.model, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        net.save(tmp_path / "net")
    assert not list(tmp_path.iterdir())


LATENT = DeepseekV3Config(
    **TINY, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=8, q_lora_rank=8,
    kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
)  # fmt: skip


def test_no_network_there(tmp_path):
    with pytest.raises(InputError, match="no config.json"):
        Network.load(tmp_path)


@pytest.mark.parametrize(
    "made, named",
    [
        (config(layer_types=["full_attention", "linear_attention"]), "linear_attention"),
        (Gemma2Config(**TINY, head_dim=16, layer_types=["full_attention"] * 2), "softcap"),
        (GptOssConfig(**TINY, head_dim=16, num_local_experts=2, layer_types=["full_attention"] * 2), "s_aux"),
        (DogeConfig(**TINY), "weighs its keys"),
        (LATENT, r"\[8, 16\] numbers a head"),
    ],
    ids=["linear", "softcap", "sinks", "bias", "latent"],
)
def test_what_is_refused_by_name(made, named):
    with pytest.raises(Unsupported, match=named):
        Network(made)


@pytest.mark.parametrize("made", SLIDING, ids=["mistral", "gemma3"])
def test_a_context_beyond_what_a_sliding_layer_sees_is_refused_by_name(made):
    net = Network(made)
    with pytest.raises(Unsupported, match="sliding_attention layers that see 9 tokens"):
        net.hidden(torch.arange(10), torch.arange(10), Packed([10]))
    with pytest.raises(Unsupported, match="context of 10 tokens is longer than sliding_attention layers see"):
        Engine(net, renderer=Renderer.load(NANO), context=10)
    assert Engine(net, renderer=Renderer.load(NANO), context=9).network.reach == 9 and network().reach is None


def test_places_are_asked_for_in_a_run():
    tokens = torch.arange(12).view(2, 6)
    with pytest.raises(InputError, match="in one run of tokens"):
        network().hidden(tokens, tokens, Packed([6]), torch.tensor([1]))


def test_a_forward_without_a_view_is_refused():
    with pytest.raises(Unsupported, match="view"):
        network().model(torch.arange(3)[None])


def test_positions_start_again_in_each_sequence():
    """RoPE sees only differences, so no logit would tell; a long pack would still leave the range of positions."""
    assert Packed([3, 1, 2]).positions.tolist() == [0, 1, 2, 0, 0, 1]


def test_others_may_read_what_is_saved(tmp_path):
    network().save(tmp_path / "net")
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "net").iterdir()} == {0o644}


def test_a_name_is_looked_up_in_the_cache_and_fetched_from_nowhere(tiny_model, tmp_path):
    """A folder's name mistyped is a name that a stranger may have on the hub."""
    cached = tmp_path / "home" / "hub" / "models--some--net"
    shutil.copytree(tiny_model, cached / "snapshots" / "0f")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0f")
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        away = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        away |= {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
        code = """
from trivium.errors import InputError
from trivium.nn import Network
from trivium.policy import Renderer
print(len(Network.load("some/net").state()), Renderer.load("some/net").stop_tokens != ())
for load in (Network.load, Renderer.load):
    try:
        load("runs/modle")
    except InputError as error:
        print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=away, timeout=120)
        hub.shutdown()
    assert not [path for path in asked if "modle" in path or "net" in path]
    assert done.stdout.count("runs/modle") >= 2 and "hf download runs/modle" in done.stdout, done.stderr
    assert done.stdout.startswith(f"{len(Network.load(tiny_model).state())} True")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_other_rows_turn_are_refused(kind):
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32, **factors}
    with pytest.raises(Unsupported, match=f"llama has {kind} RoPE"):
        Network(LlamaConfig(**TINY, max_position_embeddings=32, rope_parameters=rope))
