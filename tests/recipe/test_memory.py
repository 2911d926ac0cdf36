"""What a run takes of memory: counted on the network, predicted in parts, cut to what there is, refused before it is begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from trivium.errors import InputError
from trivium.nn import Network, lora
from trivium.recipe import memory
from trivium.recipe.memory import GIB, Fit, Load, Size, activations, available, fitting, need

SMOL = Size(
    parameters=134_515_008, learning=134_515_008, layers=30, heads=9, cached=384, hidden=576, vocabulary=49_152, token=47_063
)
"""SmolLM2-135M, as `Size.of` finds it."""


def config(**changes) -> LlamaConfig:
    sizes = dict(
        vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaConfig(**{**sizes, **changes})


def test_what_a_token_leaves_behind_grows_with_width_and_depth_and_is_less_when_computed_again():
    one, deep, wide = Network(config()), Network(config(num_hidden_layers=8)), Network(config(intermediate_size=384))
    each = Size.of(one).token
    # by hand, in floats: four of the MLP's width, queries twice and their product, keys and values twice, two norms of three
    assert each == pytest.approx(4 * (4 * 192 + 3 * 64 + 4 * 32 + 6 * 64), rel=0.25)
    assert Size.of(deep).token == pytest.approx(each, rel=0.1)
    assert Size.of(wide).token - each == pytest.approx(4 * 4 * 192, rel=0.1)
    one.recompute(True)
    kept = memory.left_behind(one) / 4
    assert kept < each / 2


def test_adapters_learn_little():
    full = Size.of(Network(config()))
    pytest.importorskip("peft", reason="adapters need peft")
    small = Size.of(lora(Network(config()), 2))
    assert small.learning < small.parameters / 10 and small.parameters > full.parameters
    less, more = need(small, Load(512), Fit()), need(full, Load(512), Fit())
    assert less.optimizer < more.optimizer / 10 and less.checkpoint < more.checkpoint


@pytest.mark.parametrize(
    "tokens, recompute, measured",
    [(1910, False, 4.36), (3830, False, 7.0), (1910, True, 1.06), (3830, True, 2.2), (7990, True, 4.7)],
)
def test_activations_of_a_model_of_135m_are_predicted_within_half(tokens, recompute, measured):
    """Measured in a process of its own each: the most that it ever had, less what it had before and one gradient."""
    predicted = activations(SMOL, tokens, 950, recompute) / GIB
    assert measured / 1.5 < predicted < 1.5 * measured


def test_the_parts_add_up_and_each_says_what_it_is_for():
    load, fit = Load(context=1024), Fit(slots=32)
    alone = need(SMOL, load, fit)
    assert alone.weights == 2 * 4 * SMOL.parameters and alone.optimizer == 3 * 4 * SMOL.parameters
    assert need(SMOL, replace(load, reference=True), fit).weights == 3 * 4 * SMOL.parameters
    assert need(SMOL, replace(load, workers=2), fit).optimizer == 5 * 4 * SMOL.parameters
    assert need(SMOL, load, replace(fit, slots=64)).cache == 2 * alone.cache
    assert alone.total > alone.weights + alone.optimizer + alone.cache + alone.activations
    assert "activations" in str(alone) and "keys and values" in str(alone)


def test_a_pass_of_8192_tokens_where_it_fits_and_the_fastest_way_that_fits_below():
    load = Load(context=1024)
    rooms = [64, 20, 16, 12, 9, 8, 7]
    ways = [fitting(SMOL, load, 48, room * GIB) for room in rooms]
    assert ways[0] == Fit(8192, False, 48)
    assert all(need(SMOL, load, way).total <= room * GIB for way, room in zip(ways, rooms, strict=True))
    again = [way.recompute for way in ways]
    assert again == sorted(again) and again[-1]
    slots = [way.slots for way in ways]
    assert slots == sorted(slots, reverse=True)


def test_what_fits_nowhere_is_one_sentence_with_its_parts():
    with pytest.raises(InputError, match=r"does not fit into memory: each of 2 workers needs .* GiB \(libraries .*--workers"):
        fitting(SMOL, Load(context=1024, workers=2), 48, 2 * GIB)
    with pytest.raises(InputError, match="does not fit"):
        memory.check(SMOL, Load(context=1024), Fit(), 4 * GIB)


def group(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")
    return folder


def test_a_control_groups_limit_is_the_memory_there_is(tmp_path):
    group(tmp_path / "a" / "b", memory__max="max", memory__current=5, memory__stat="inactive_file 1")
    group_of = tmp_path / "cgroup"
    group_of.write_text("0::/a/b\n")
    alone = available(tmp_path, group_of)
    assert alone > 1000  # the machine's own
    (tmp_path / "a" / "memory.max").write_text("1000\n")  # of the group above
    (tmp_path / "a" / "memory.current").write_text("400\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 300\ninactive_file 100\n")
    assert available(tmp_path, group_of) == 700


def test_a_control_group_of_the_first_kind(tmp_path):
    files = {"memory__limit_in_bytes": 2000, "memory__usage_in_bytes": 1500, "memory__stat": "total_inactive_file 250"}
    group(tmp_path / "memory" / "job", **files)
    (tmp_path / "cgroup").write_text("9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/other\n")
    assert available(tmp_path, tmp_path / "cgroup") == 750
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere/job\n")  # a container: its own group stands at the root
    for name, value in files.items():
        (tmp_path / "memory" / name.replace("__", ".")).write_text(f"{value}\n")
    assert available(tmp_path, tmp_path / "cgroup") == 750


def test_an_engine_speaks_for_as_many_as_fit(monkeypatch):
    network = Network(config())
    size = Size.of(network)
    assert memory.fitting_slots(network, 1024, 64) == 64
    room = memory.cache(size, 20, 1024) + memory.speaking(size)
    monkeypatch.setattr(memory, "available", lambda: room / 0.95)
    assert memory.fitting_slots(network, 1024, 64) == 16
    monkeypatch.setattr(memory, "available", lambda: 0)
    with pytest.raises(InputError, match="does not fit into memory: to speak in a window of 1024 tokens"):
        memory.fitting_slots(network, 1024, 64)
