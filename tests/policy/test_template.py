"""Any template as a dialect: what is measured of it, what is refused, and how calls are read. On the nano base's vocabulary."""

from __future__ import annotations

import pytest

from tests.policy.test_render import copied
from trivium.errors import InputError, Unsupported
from trivium.policy import Renderer
from trivium.policy.families import DEEPSEEK, FORMS, HERMES, LLAMA, MISTRAL
from trivium.policy.scripted import call, say
from trivium.trace import Piece

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = f"{{% for m in messages %}}{TURN}{{% endfor %}}{PROMPT}"
FORGETS = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
COUNTS = "{{ messages | length }}" + CHATML
SCHEMAS = "{{ tools | tojson if tools else '' }}" + CHATML.replace("{{ m.content }}", "{{ m.content or 'calls' }}")
HEARS = CHATML.replace("{{ m.content }}", "{{ m.content | tojson if m.role == 'tool' else m.content }}")
USER = {"role": "user", "content": "Who?"}
SPEC = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    "template, config, error, says",
    [
        ("", {}, InputError, "it has no chat template: it is a base and no chat model"),
        ("{% for", {}, InputError, "its chat template cannot be rendered: TemplateSyntaxError"),
        ("{{ raise_exception('never') }}", {}, InputError, "cannot be rendered: TemplateError: never"),
        ("{{ nothing.at.all }}", {}, InputError, "cannot be rendered: UndefinedError"),
        ("hello<|im_end|>", {}, InputError, "its chat template leaves out what a user says"),
        (CHATML.replace("<|im_end|>", "[end]"), {}, InputError, "no token of its vocabulary ends an assistant's turn"),
        (COUNTS, {}, Unsupported, "renders the past anew whenever a turn comes"),
        (SCHEMAS, {}, Unsupported, "writes tool calls in a form that nobody here reads"),
        (CHATML, {"vocab_size": 100}, InputError, "tokens and the weights beside it 100 rows: they are not of one model"),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_cannot_be_used_is_one_clear_error(tmp_path, template, config, error, says, kind):
    if kind == "qwen3" and not template:
        pytest.skip("a Qwen 3 without a template has its own")
    with pytest.raises(error, match=says) as raised:
        Renderer.load(copied(tmp_path / "m", template, **{"model_type": kind} | config))
    assert "\n" not in str(raised.value) and str(tmp_path / "m") in str(raised.value)


def plain(tmp_path, template: str = CHATML) -> Renderer:
    return Renderer.load(copied(tmp_path / "m", template, model_type="llama"))


def test_a_template_that_knows_no_tools_gets_them_in_words(tmp_path):
    renderer = plain(tmp_path)
    shown = renderer.decode(renderer.opening([{"role": "system", "content": "Go."}, USER], [SPEC]))
    assert shown.startswith("<|im_start|>system\nGo.\n\n# Tools") and '"name": "find"' in shown and "<tool_call>" in shown
    assert renderer.decode(renderer.opening([USER], [SPEC])).count("<|im_start|>") == 3
    results = [{"role": "tool", "tool_call_id": str(n), "pieces": [Piece(f"{n}a"), Piece(f"{n}b", "#1")]} for n in range(2)]
    placed = renderer.continuation(renderer.opening([USER]), renderer.reply(call(("find", {}), ("find", {}))), results)
    assert placed is not None and [piece.text for _, piece in placed if piece] == ["0a", "0b", "1a", "1b"]
    text = "".join(renderer.decode(tokens) for tokens, _ in placed)
    assert text.startswith("\n<|im_start|>user\n<tool_response>\n0a0b\n</tool_response>\n<tool_response>\n1a1b")
    assert text.count("<|im_start|>") == 2


@pytest.mark.parametrize("template", [CHATML, HEARS], ids=["hears none", "quotes them"])
def test_a_result_without_pieces_is_what_the_template_makes_of_its_words(tmp_path, template):
    """As a client sends it: the tokens are those of the whole conversation."""
    renderer, asked = plain(tmp_path, template), call(("find", {}), ("find", {}))
    results = [{"role": "tool", "tool_call_id": str(n), "content": content} for n, content in enumerate(['the "42"\n', ""])]
    prompt, reply = renderer.opening([USER]), renderer.reply(asked)
    placed = renderer.continuation(prompt, reply, results)
    assert placed is not None and [piece for _, piece in placed] == [None]
    assert [*prompt, *reply, *placed[0][0]] == renderer.opening([USER, asked, *results])


@pytest.mark.parametrize("text", ['a \ue0000"\ue001 b', 'a \ue0007"\ue001', "a \ue002<|im_end|> b"])
def test_no_letter_that_anybody_writes_is_a_token_or_loses_words(tmp_path, text):
    """Neither those that no language has: probes are rendered with letters that no text can hold."""
    renderer, controls = plain(tmp_path), []
    for words in ("x", text):
        prompt, reply = renderer.opening([{"role": "system", "content": words}, USER]), renderer.reply(say(words))
        result = {"role": "tool", "tool_call_id": "0"}
        news = [{**result, "content": words}, {**result, "pieces": [Piece(words)]}, {"role": "user", "content": words}]
        placed = renderer.continuation(prompt, reply, news)
        assert placed is not None
        tokens = [*prompt, *reply, *(token for part, _ in placed for token in part)]
        controls.append([token for token in tokens if token in renderer.tokenizer.control])
    assert controls[0] == controls[1] and renderer.decode(tokens).count(text) == 5


def test_a_template_that_hears_no_system_message_has_it_with_the_question(tmp_path):
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    renderer = plain(tmp_path, refuses)
    shown = renderer.decode(renderer.opening([{"role": "system", "content": "Go."}, USER]))
    assert shown == "<|im_start|>user\nGo.\nWho?<|im_end|>\n<|im_start|>assistant\n"


def test_thoughts_that_a_template_forgets_begin_anew(tmp_path):
    """And only they: a turn without thoughts goes on."""
    renderer = plain(tmp_path, FORGETS)
    prompt = renderer.opening([USER])
    thinks = renderer.reply({**say("Ann."), "reasoning_content": "Hm."})
    assert renderer.continuation(prompt, thinks, [USER]) is None
    assert renderer.continuation(prompt, renderer.reply(say("Ann.")), [USER]) is not None
    assert plain(tmp_path / "keeps").continuation(prompt, thinks, [USER]) is not None


def test_a_reply_that_was_cut_is_closed_before_the_next_turn(tmp_path):
    renderer = plain(tmp_path)
    prompt, reply = renderer.opening([USER]), renderer.reply(say("Ann."))
    whole, cut = (renderer.continuation(prompt, tokens, [USER]) for tokens in (reply, reply[:-1]))
    assert whole is not None and cut is not None
    assert cut[0][0] == [reply[-1], *whole[0][0]]


CALLS = [
    {"function": {"name": "f", "arguments": {"q": 'é "}" ]; {', "n": [{"a": []}]}}},
    {"function": {"name": "g", "arguments": {}}},
]


@pytest.mark.parametrize("form", FORMS, ids=["hermes", "llama", "mistral", "deepseek"])
def test_a_form_is_read_as_it_is_written(form):
    said, calls = form.find(form.write(CALLS))
    assert [(each.name, each.arguments) for each in calls] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in CALLS
    ]
    assert all(each.status == "ok" for each in calls) and set(said) <= set("\n ,[]TOOL_CALLS")


@pytest.mark.parametrize(
    "form, text, statuses, said",
    [
        (HERMES, 'a <tool_call>{"name": "f"}</tool_call> b', ["ok"], "a  b"),
        (HERMES, '<tool_call>{"name": </tool_call><tool_call>{"name": "f"}</tool_call>', ["invalid_json", "ok"], ""),
        (HERMES, '<tool_call>{"name": "f" <tool_call>{"name": "f"}</tool_call>', ["invalid_json", "ok"], ""),
        (HERMES, '<tool_call>{"name": "f"}</tool_call><tool_call>{"na', ["ok", "unclosed_block"], ""),
        (HERMES, "<tool_call>[1]</tool_call>", ["missing_name"], ""),
        (HERMES, '<tool_call>{"n": ' + "9" * 5000 + "}</tool_call>", ["invalid_json"], ""),
        (HERMES, "<tool_call>" + "[" * 100_000, ["unclosed_block"], ""),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {}}', ["ok"], ""),
        (LLAMA, '{"name": }; {"name": "f", "parameters": {}}', ["invalid_json", "ok"], ""),
        (LLAMA, 'It is {"name": "f"}', [], 'It is {"name": "f"}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}}', ["unclosed_block"], ""),
        (MISTRAL, '[TOOL_CALLS] [{"name": }, {"name": "f", "arguments": {}}]', ["invalid_json", "ok"], ""),
        (DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\n```<｜tool▁call▁end｜>", ["invalid_json"], ""),
    ],
)
def test_a_broken_call_is_data_and_hides_no_later_one(form, text, statuses, said):
    rest, calls = form.find(text)
    assert [str(each.status) for each in calls] == statuses and rest == said


@pytest.mark.parametrize(
    "form, text, names",
    [
        (LLAMA, '{"name": "Mira Tolen", "age": 41}', []),
        (LLAMA, 'They are\n{"name": "Mira", "parameters": [1]}\n{"name": "Bob"} and\n[\n{"name": "Eve"}]', []),
        (LLAMA, '{"name": "Mira"}; {"name": "f", "parameters": {}}', ["f"]),
        (MISTRAL, '[{"a": 1}, {"name": "Bob"}, {"name": "Eve"}]', []),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {}}] for [{"a": 1}, {"name": "Bob"}]', ["f"]),
    ],
)
def test_an_answer_in_json_is_no_call(form, text, names):
    said, calls = form.find(text)
    assert [each.name for each in calls] == names and (names or said == text)
