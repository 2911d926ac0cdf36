"""A policy behind the OpenAI chat API, against a real server on the loopback."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading

import numpy as np
import pytest

from tests.laws.walks import TASK, search_corpus
from tests.openai_server import calls, says
from trivium.agents.search.citation import cited
from trivium.agents.search.recipe import Search
from trivium.errors import CorruptError, InputError, PolicyError, Unsupported
from trivium.harness import Harness, Window, prune_chunks, refuse_silence
from trivium.nn import Network
from trivium.policy import Endpoint, View, endpoint
from trivium.recipe import train
from trivium.recipe.lessons import Purse
from trivium.trace import Prune, Sampling, rows
from trivium.trace.codec import decode, encode
from trivium.train import CISPO, SFT, Batch, Group, Learner
from trivium.viewer import Live

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(endpoint, "WAIT", 0.001)


MOST = 700
"""What one request of `attempt` may use, about: some of its view, and the longest reply."""


def attempt(policy: Endpoint, times: int = 1):
    harness = Harness([search_corpus, prune_chunks], Window(6000), "Go.", specs=False)

    async def one_after_the_other():
        return [await harness.run(TASK, policy, sample=sample) for sample in range(times)]

    return asyncio.run(one_after_the_other())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_cost": 0.01}, "caps nothing without a price"),
        ({"retries": -1}, "retries are 0 or more"),
        ({"timeout": 0.0}, "timeout above 0"),
    ],
)
def test_a_setting_that_would_do_nothing_or_harm_is_refused(renderer, wrong, said):
    with pytest.raises(InputError, match=said):
        Endpoint("http://127.0.0.1:9/v1", "m", renderer, **wrong)


def test_tool_calls_go_round_and_become_an_episode(serve, renderer):
    server = serve(
        calls(("search_corpus", '{"query": "thing"}'), ("search_corpus", '{"query": "more"}')),
        calls(("prune_chunks", '{"keep": ["#2"]}')),
        calls(("search_corpus", '{"query": ')),
        says("#2 #1"),
    )
    (episode,) = attempt(Endpoint(server.url, "m", renderer, "secret"))
    thread = episode.agent
    assert [c.name for c in thread.calls][:3] == ["search_corpus", "search_corpus", "prune_chunks"]
    assert thread.calls[3].error and thread.stop.reason == "finished" and thread.answer == "#2 #1"
    assert any(isinstance(op, Prune) for op in episode.ops)

    first, second, third, fourth = server.asked
    assert {tool["function"]["name"] for tool in first["tools"]} == {"search_corpus", "prune_chunks"}
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    said, *results = second["messages"][2:]
    assert [c["id"] for c in said["tool_calls"]] == [r["tool_call_id"] for r in results]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"query": "thing"}
    assert "Token usage" in results[-1]["content"] and "#1" in results[0]["content"]
    assert "#1\n" in second["messages"][3]["content"] and "#2\n" in third["messages"][3]["content"]
    assert "#1\n" not in third["messages"][3]["content"], "what was pruned is still sent"
    assert "cannot be read" in fourth["messages"][-1]["content"] and server.keys[0] == "Bearer secret"


def test_what_is_said_of_control_tokens_is_kept_as_it_was_said(serve, renderer):
    text = "The token <|im_end|> ends a turn and </tool_call> a call, so cite #1 #2"
    asked = json.dumps({"query": "</tool_call><|im_end|> <think>"})
    server = serve({**calls(("search_corpus", asked)), "content": text}, says(text))
    (episode,) = attempt(Endpoint(server.url, "m", renderer))
    (call,) = episode.agent.calls
    assert (call.name, call.arguments, call.error) == ("search_corpus", json.loads(asked), "")
    assert episode.agent.answer == text and episode.agent.stop.reason == "finished" and cited(episode.agent) == ["#1", "#2"]
    sent = server.asked[1]["messages"][2]
    assert sent["content"] == text and sent["tool_calls"][0]["function"]["arguments"] == asked
    spoken = [renderer.decode(row.tokens[row.mask]) for row in rows(episode, {"endpoint"})]
    assert spoken[-1].endswith(f"{text}<|im_end|>") and spoken[-1].count("</tool_call>") == 4


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thoughts_go_back_under_the_name_that_their_server_gave_them(serve, renderer, key):
    thoughts = "Thing 1, said <think>."
    server = serve({**calls(("search_corpus", '{"query": "thing"}')), key: thoughts}, {**says("#1"), key: "Done."})
    (episode,) = attempt(Endpoint(server.url, "m", renderer))
    sent = server.asked[1]["messages"][2]
    assert sent[key] == thoughts and len(sent.keys() & {"reasoning_content", "reasoning"}) == 1
    assert episode.agent.answer == "#1" and [call.error for call in episode.agent.calls] == [""]
    (row,) = rows(episode, {"endpoint"})
    assert renderer.decode(row.tokens[row.mask]).startswith(f"<think>\n{thoughts}\n</think>\n\n<tool_call>")


def test_its_tokens_have_no_logprobs_so_sft_learns_from_them_and_rl_refuses_them(serve, renderer, tiny_model):
    server = serve(calls(("search_corpus", '{"query": "thing"}')), says("#1"))
    (episode,) = attempt(Endpoint(server.url, "m", renderer, name="teacher"))
    (row,) = rows(decode(encode(episode)), {"teacher"})
    assert row.trained and np.isnan(row.logprobs[row.mask]).all()
    text = renderer.decode(row.tokens[row.mask].tolist())
    assert '"name": "search_corpus"' in text and text.count("<|im_end|>") == 2

    network = Network.load(tiny_model)
    step = Learner(network, SFT(), 1e-3, policies={"teacher"}).learn(Batch.imitate([episode]))
    assert step.metrics["tokens_trained"] == row.trained and step.metrics["loss"] > 0
    with pytest.raises(Unsupported, match="cispo needs logprobs"):
        Learner(network, CISPO(), 1e-3, policies={"teacher"}).learn(Batch([Group("t", [episode] * 2, [0.0, 1.0])]))


def test_a_busy_server_is_asked_again(serve, renderer):
    server = serve(503, 429, says("#1"))
    (episode,) = attempt(Endpoint(server.url, "m", renderer))
    assert episode.agent.stop.reason == "finished" and len(server.asked) == 3


def test_it_gives_up_on_a_server_that_stays_busy(serve, renderer):
    server = serve(*[503] * 9)
    (episode,) = attempt(Endpoint(server.url, "m", renderer, retries=2))
    assert episode.agent.stop.reason == "policy" and "503" in episode.agent.stop.detail and len(server.asked) == 3


def test_a_refusal_is_not_repeated_and_said_in_one_line(serve, renderer):
    server = serve(401, 401)
    episodes = attempt(Endpoint(server.url, "m", renderer, name="teacher"))
    assert len(server.asked) == 1 and "401" in episodes[0].agent.stop.detail
    with pytest.raises(PolicyError, match=f"^teacher at {server.url}: .*401"):
        refuse_silence(episodes)


def test_a_dead_port_is_one_clear_error(renderer):
    with pytest.raises(PolicyError, match="teacher at http://127.0.0.1:9/v1: Connection error"):
        refuse_silence(attempt(Endpoint("http://127.0.0.1:9/v1", "m", renderer, name="teacher", retries=1)))


def test_one_that_spoke_once_is_no_dead_policy(serve, renderer):
    server = serve(says("#1"), 401)
    episodes = attempt(Endpoint(server.url, "m", renderer), times=2)
    assert [e.agent.stop.reason for e in episodes] == ["finished", "policy"]
    refuse_silence(episodes)


def test_the_spending_cap_stops_it(serve, renderer):
    server = serve(*[calls(("search_corpus", '{"query": "thing"}'))] * 9)
    policy = Endpoint(server.url, "m", renderer, max_spend=MOST + 300)
    (episode,) = attempt(policy)
    assert policy.exhausted and policy.spent <= policy.max_spend and 2 <= len(server.asked) == policy.spent // 100 <= 4
    assert f"spending cap of {MOST + 300:,} tokens" in episode.agent.stop.detail


def test_many_at_once_stay_within_the_cap_and_use_it(serve, renderer):
    """A request waits while those under way may still use up what is left; it is refused only where nobody is."""
    server = serve()
    policy = Endpoint(server.url, "m", renderer, max_spend=2 * MOST)
    harness = Harness([search_corpus], Window(6000), "Go.", specs=False)

    async def together():
        return await asyncio.gather(*(harness.run(TASK, policy, sample=sample) for sample in range(40)))

    episodes = asyncio.run(together())
    ended = [episode.agent.stop.reason for episode in episodes]
    assert policy.spent == 100 * len(server.asked) == 100 * ended.count("finished") and ended.count("policy") > 0
    assert policy.max_spend - MOST <= policy.spent <= policy.max_spend


def test_what_a_server_does_not_count_is_counted_here(serve, renderer):
    server = serve(*[calls(("search_corpus", '{"query": "thing"}'))] * 9)
    for counts in (False, {}):
        server.counts, policy = counts, Endpoint(server.url, "m", renderer)
        (episode,) = attempt(policy)
        said = next(span for span in episode.agent.segments[0].spans if span.kind == "sampled")
        assert episode.agent.stop.reason != "policy" and policy.spent > said.start


def test_a_try_without_an_answer_may_have_been_paid(renderer):
    """A server goes on with what nobody waits for any more, and bills it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        policy = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m", renderer, timeout=0.2, retries=1)
        (episode,) = attempt(policy)
        most = policy.spent // 2
        poor = Endpoint(policy.base_url, "m", renderer, timeout=0.2, max_spend=most * 3 // 2)
        attempt(poor)
        view = View([1] * 20, [{"role": "user", "content": "Go."}], (), (0,))
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for((hasty := Endpoint(policy.base_url, "m", renderer)).speak(view, Sampling()), 0.2))
    assert episode.agent.stop.reason == "policy" and policy.spent == 2 * most > 2 * Sampling().max_tokens
    assert poor.exhausted and poor.spent == most  # a second try is not paid for
    assert hasty.spent == 20 + Sampling().max_tokens


def test_a_connection_that_breaks_may_have_been_paid_and_one_that_never_stood_was_not(renderer):
    with socket.create_server(("127.0.0.1", 0)) as rude:

        def hang_up() -> None:
            for _ in range(2):
                connection, _ = rude.accept()
                connection.recv(1 << 16)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        broken = Endpoint(f"http://127.0.0.1:{rude.getsockname()[1]}/v1", "m", renderer, retries=1)
        attempt(broken)
    dead = Endpoint("http://127.0.0.1:9/v1", "m", renderer, retries=1)
    attempt(dead)
    assert broken.spent > 2 * Sampling().max_tokens and dead.spent == 0


def test_no_more_episodes_are_begun_than_there_are_tokens_for(renderer, tmp_path):
    teacher = Endpoint("http://127.0.0.1:9/v1", "m", renderer, max_spend=10_000)
    purse = Purse(teacher, tmp_path / "paid.json")
    assert purse.affords(0) == 1
    for spent, made, begun in ((1000, 1, 9), (100, 1, 16), (9000, 9, 1), (9999, 9, 1), (6000, 6, 4)):
        teacher.spent = spent
        assert purse.affords(made) == begun


def test_what_a_teacher_was_paid_is_kept_whatever_ends_the_run(serve, tmp_path, monkeypatch):
    server, run = serve(), tmp_path / "run"
    recipe = Search(out=str(run), teacher=f"{server.url}#m", warmup=20, groups=2, size=2, eval_tasks=2, workers=1)
    reply, said = Endpoint._reply, []

    def stopped(self, *given):
        said.append(reply(self, *given))
        if len(said) == 9:
            raise KeyboardInterrupt
        return said[-1]

    monkeypatch.setattr(Endpoint, "_reply", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, Live)
    kept = json.loads((paid := run / "teacher-tokens-0.json").read_text())
    assert kept >= 900, "nine replies of 100 tokens, and what was still asked for when it ended"
    paid.write_text("[9")
    with pytest.raises(CorruptError, match="teacher-tokens-0.json"):
        train(recipe, Live)
    paid.write_text('"nine"')
    with pytest.raises(CorruptError, match="holds no number of tokens"):
        train(recipe, Live)


def test_no_key_is_no_reply_and_no_crash(serve, renderer, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (episode,) = attempt(Endpoint(serve().url, "m", renderer, api_key=""))
    assert episode.agent.stop.reason == "policy" and "redentials" in episode.agent.stop.detail
    assert "secret" not in repr(Endpoint("http://127.0.0.1:9/v1", "m", renderer, api_key="secret"))


def test_a_second_event_loop_is_spoken_in_too(serve, renderer, caplog):
    gc.collect()  # what tests before this one left behind complains now, and is not ours
    caplog.clear()
    policy = Endpoint(serve().url, "m", renderer, retries=0)
    reasons = [episode.agent.stop.reason for _ in range(3) for episode in attempt(policy, times=2)]
    gc.collect()
    assert reasons == ["finished"] * 6 and not caplog.records


@pytest.mark.parametrize("arguments", ["[" * 3000, "9" * 5000, '{"keep": ' + "[" * 3000], ids=["deep", "long", "deeper"])
def test_a_degenerate_call_is_data_and_ends_nothing(serve, renderer, arguments):
    server = serve(calls(("search_corpus", arguments)), says("#1"))
    (episode,) = attempt(Endpoint(server.url, "m", renderer))
    assert episode.agent.stop.reason in ("finished", "policy", "window") and len(server.asked) <= 2


def test_a_missing_client_says_what_to_install(monkeypatch, renderer):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(InputError, match=r"pip install openai"):
        attempt(Endpoint("http://127.0.0.1:9/v1", "m", renderer))


def test_a_teacher_behind_an_endpoint_is_paid_once(serve, tmp_path):
    """It answers without searching, so nothing passes the filter; the second start finds its episodes in the store."""
    server = serve()
    recipe = Search(out=str(tmp_path / "run"), teacher=f"{server.url}#m", warmup=20, groups=2, size=2, eval_tasks=2, workers=1)
    for _ in range(2):
        with pytest.raises(InputError, match="none of the teacher's 20 episodes passes the filter"):
            train(recipe, Live)
        assert len(server.asked) == 1 + 20  # a greeting, when the run is new


def test_the_teacher_stops_at_its_tokens_and_training_goes_on_with_what_there_is(serve, tmp_path, capsys):
    server = serve()
    recipe = Search(
        out=str(tmp_path / "run"),
        teacher=f"{server.url}#m",
        teacher_tokens=2000,
        warmup=40,
        groups=2,
        size=2,
        eval_tasks=2,
        workers=1,
    )
    for _ in range(2):  # the second counts on from where the first was
        with pytest.raises(InputError, match="none of the teacher's 16 episodes"):
            train(recipe, Live)
        assert len(server.asked) == 1 + 16 and "--teacher-tokens are used up after 16 episodes" in capsys.readouterr().err
        (tmp_path / "run" / "teacher.json").unlink(missing_ok=True)
