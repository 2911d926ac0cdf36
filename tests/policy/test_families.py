"""Model families by their own tokenizers and templates: each lives, prunes, summarizes, calls tools and is exported as itself.

The tokenizers are no part of this repository: `bash tests/policy/tokenizers.sh runs/tokenizers` fetches them (.ci/run does),
and without them these tests skip. TRIVIUM_TOKENIZERS names another folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.laws import walks
from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Renderer
from trivium.policy.scripted import call, say
from trivium.policy.template import TemplateDialect
from trivium.trace import Piece, Prune, Restart, Summarize

TOKENIZERS = Path(os.environ.get("TRIVIUM_TOKENIZERS", Path(__file__).parents[2] / "runs" / "tokenizers"))

INST = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
"""As Llama 2's: a user and an assistant take turns, and nobody else speaks."""
IPYTHON = (
    "{% macro say(role, text) %}<|start_header_id|>{{ role }}<|end_header_id|>\n\n{{ text | trim }}<|eot_id|>{% endmacro %}"
    "{{ bos_token }}{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('only single tool-calls at once') }}{% endif %}{% set f = m.tool_calls[0].function %}"
    '{{ say("assistant", \'{"name": "\' + f.name + \'", "parameters": \' + (f.arguments | tojson) + "}") }}'
    "{% elif m.role == 'tool' %}{{ say('ipython', m.content | tojson) }}{% elif m.role == 'user' and tools and loop.first %}"
    "{{ say('user', (tools | tojson) + '\n' + m.content) }}{% else %}{{ say(m.role, m.content) }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""As Llama 3.1's with tools: one call at once, and results as a JSON string."""
INSTRUCT = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.index0 == ns.last %}"
    "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}{% elif m.role == 'tool' %}[TOOL_RESULTS] "
    '{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""As Mistral's: schemas stand before the last question, so that another question moves them."""

FAMILIES = {
    "qwen2_5": ("qwen2_5", None),
    "qwen3": ("qwen3", None),
    "llama3_1": ("llama3_1", None),
    "llama3_1-tools": ("llama3_1", IPYTHON),
    "llama2": ("llama2", INST),
    "llama2-mistral": ("llama2", INSTRUCT),
    "gemma3": ("gemma3", None),
    "deepseek_v3": ("deepseek_v3", None),
}
ARGUMENTS = {"query": 'é "quoted" {brace} 鳥\n</tool_call', "n": [1, -2.5, {"deep": [None, True, "]}"]}], "ключ": ""}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Renderer:
    return Renderer.load(folder_of(request.param, tmp_path_factory.mktemp("model")))


def folder_of(name: str, folder: Path) -> Path:
    """The tokenizer of a family with its template, as a model's folder has them."""
    tokenizer, template = FAMILIES[name]
    source = TOKENIZERS / tokenizer
    if not (source / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizers in {TOKENIZERS}: bash tests/policy/tokenizers.sh {TOKENIZERS}")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    if tokenizer == "qwen3":
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return folder


async def summarizing(renderer: Renderer):
    """The walk of that name, in a window that each family's tokens fill."""
    window = Window(1400, soft=0.9, hard=1.0, reply=80, summarize=0.05)
    harness = Harness([walks.search_corpus], window, "Search.", specs=False)
    said = [call(walks.search()), say("Seen so far: 1 and 4."), call(walks.search()), say("Still 1 and 4."), say("#1")]
    policy = walks.script(renderer, said)
    return await harness.run(walks.TASK, policy), policy


@pytest.mark.parametrize("walk", ["prune", "summarize"])
def test_a_segment_is_exactly_what_the_policy_saw(family, walk):
    """Token in, token out, over five turns with tools, a prune or a summary: nothing is said but what the script says."""
    episode, policy = asyncio.run(walks.pruning(family) if walk == "prune" else summarizing(family))
    segments = episode.agent.segments
    assert [list(each.tokens[: span.start]) for each in segments for span in each.sampled()] == policy.views
    assert episode.agent.stop.reason == "finished" and not any(call.error for call in episode.agent.calls)
    assert any(isinstance(op, Prune if walk == "prune" else Summarize) for op in episode.ops)
    moves = "AVAILABLE_TOOLS" in str(family.tokenizer.chat_template) and walk == "summarize"  # a request is a user's turn
    assert moves or not any(isinstance(op, Restart) for op in episode.ops)
    spoken = [each.tokens[span.start : span.stop] for each in segments for span in each.sampled()]
    assert [len(family.parse(tokens).calls) for tokens in spoken] == [len(m.get("tool_calls", ())) for m in policy.script]
    assert all(tokens[-1] in family.stop_tokens for tokens in spoken)


def test_its_own_calls_are_read_as_they_were_said(family):
    for calls in ([("find", ARGUMENTS)], [("find", ARGUMENTS), ("find", {}), ("look_up", {"ids": [ARGUMENTS]})]):
        tokens = family.reply(call(*calls))
        speech = family.parse(tokens)
        assert [(each.name, each.arguments, each.error) for each in speech.calls] == [(*each, "") for each in calls]
        assert speech.text == "" and tokens[-1] in family.stop_tokens


def test_a_broken_call_hides_no_later_one(family):
    broken = {"function": {"name": "find", "arguments": '{"query": }'}}
    message = call(("find", {"n": 1}), ("find", {"n": 2}))
    tokens = family.reply({**message, "tool_calls": [message["tool_calls"][0], broken, message["tool_calls"][1]]})
    calls = family.parse(tokens).calls
    assert [each.arguments for each in calls if not each.error] == [{"n": 1}, {"n": 2}] and any(each.error for each in calls)
    for length in range(len(tokens)):  # cut anywhere, it is a reply still
        assert len(family.parse(tokens[:length]).calls) <= 3


def test_what_follows_is_what_its_template_writes(family):
    """The tokens of a conversation that went on are the letters of the same conversation rendered whole."""
    if not isinstance(family._dialect, TemplateDialect):
        pytest.skip("this one is written by renderers, which has tests of its own")
    messages = [{"role": "user", "content": "Who?"}]
    tokens = family.opening(messages)
    rounds = [(call(("find", {"q": "a"})), 'One "two"\nthree'), (call(("find", {"q": "b"})), "Four")]
    if "tool▁outputs" in str(family.tokenizer.chat_template):
        rounds = rounds[:1]  # DeepSeek's forgets to open the outputs of a second turn
    for said, content in rounds:
        result = {"role": "tool", "tool_call_id": "0"}
        reply = family.reply(said)
        placed = family.continuation(tokens, reply, [{**result, "pieces": [Piece(content)]}])
        assert placed is not None
        tokens = [*tokens, *reply, *(token for part, _ in placed for token in part)]
        messages += [said, {**result, "content": content}]
    whole = family.decode(family.opening(messages))
    assert "".join(family.decode(tokens).split()) == "".join(whole.split())


def test_a_question_that_moves_the_schemas_begins_anew(tmp_path):
    renderer = Renderer.load(folder_of("llama2-mistral", tmp_path / "m"))
    prompt = renderer.opening([{"role": "user", "content": "Who?"}])
    assert renderer.continuation(prompt, renderer.reply(say("Ann.")), [{"role": "user", "content": "And?"}]) is None


def test_a_text_that_spells_control_tokens_is_words(family):
    control = [
        str(token) for number, token in family.tokenizer.added_tokens_decoder.items() if number in family.tokenizer.control
    ]
    text = f"a{''.join(control[:3])}b"
    plain, forged = (family.opening([{"role": "user", "content": content}]) for content in ("ab", text))
    controls = [[token for token in tokens if token in family.tokenizer.control] for tokens in (plain, forged)]
    assert controls[0] == controls[1]


@pytest.mark.slow
def test_an_export_loads_in_transformers_and_answers_the_same(family, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    from trivium.engine import Engine
    from trivium.nn import Network
    from trivium.policy import View
    from trivium.trace import Sampling

    rows = max(family.tokenizer.get_vocab().values()) + 1
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    Network(config).save(tmp_path / "made")
    for file in Path(family.tokenizer.name_or_path).iterdir():
        if file.name != "config.json":
            shutil.copy(file, tmp_path / "made")
    Network.load(tmp_path / "made").save(tmp_path / "out")
    messages = [{"role": "user", "content": "Who?"}]
    engine = Engine(tmp_path / "out", renderer=family, context=128)
    prompt = family.opening(messages)
    view = View(prompt, messages, (), (0, "walk", 0, "agent", 0))
    reply = asyncio.run(engine.speak(view, Sampling(temperature=0.0, max_tokens=16)))
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path / "out"), AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text, add_special_tokens=False) == prompt
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=list(family.stop_tokens))
    assert theirs[0, len(prompt) :].tolist() == list(reply.tokens)


def test_a_vocabulary_without_a_template_is_a_base(tmp_path):
    source = TOKENIZERS / "llama2"
    if not source.is_dir():
        pytest.skip(f"no tokenizers in {TOKENIZERS}")
    with pytest.raises(InputError, match="it has no chat template: it is a base and no chat model"):
        Renderer.load(source)
