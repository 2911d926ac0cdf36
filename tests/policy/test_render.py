"""Which dialect a model speaks, and what it would have sampled to say a message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trivium.agents.search.recipe import NANO
from trivium.errors import InputError, Unsupported
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import say


def copied(folder: Path, template: str | None = None, **config) -> Path:
    """The nano base under another template (none where it is empty), or another configuration."""
    shutil.copytree(NANO, folder)
    kept = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(kept | config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
        if not template:
            (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_a_folder_with_the_template_of_a_qwen_3_is_taken_for_one(tmp_path, kind):
    ours, theirs = Renderer.load(copied(tmp_path / "m", model_type=kind)), Renderer.load(NANO)
    assert ours.opening([{"role": "user", "content": "hi"}]) == theirs.opening([{"role": "user", "content": "hi"}])


FOREIGN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} [/end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize("template, kind", [(FOREIGN, "qwen3"), ("", "llama")])
def test_a_template_that_nobody_knows_is_one_clear_error(tmp_path, template, kind):
    """And not another model's template, without a word."""
    with pytest.raises(Unsupported, match=r"no dialect is known for '.*/m'"):
        Renderer.load(copied(tmp_path / "m", template, model_type=kind))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nVarholm"},
        {"role": "assistant", "content": "Varholm", "reasoning_content": "hmm"},
    ],
)
def test_what_a_model_thought_is_a_part_of_what_it_said(message):
    renderer = Renderer.load(NANO)
    said = renderer.decode(renderer.reply(message))
    assert "hmm" in said and "Varholm" in said and renderer.decode(renderer.reply(say("Varholm"))).startswith("Varholm")


def test_a_script_holds_what_the_assistant_said_and_nothing_else():
    log = [{"role": "user", "content": "Where?"}, say("Varholm")]
    with pytest.raises(InputError, match="a script is what the assistant said, and not the 'user'"):
        Scripted(log, Renderer.load(NANO))
