"""From a publisher to a subscriber through a store: exact, late, torn, collected, killed, never waiting for ever."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import torch

from trivium.errors import CorruptError, InputError, LawError, Unsupported
from trivium.nn.network import digest
from trivium.policy import View
from trivium.trace import Sampling

pytest.importorskip("obstore")

from trivium.weights import Publisher, Subscriber, Unreachable, publish
from trivium.weights.delta import encode
from trivium.weights.publish import TOLERANCE_16_BITS
from trivium.weights.store import MANIFEST, Probe

_NAMES = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory://test{next(_NAMES)}"


@pytest.fixture(params=["memory", "folder"])
def place(request, url, tmp_path) -> str:
    return url if request.param == "memory" else str(tmp_path / "weights")


def states(count: int, size: int = 2000):
    """Weights as an optimizer moves them: a few bf16 values change at each version."""
    generator = torch.Generator().manual_seed(0)
    master = {"a.weight": 0.02 * torch.randn(size, generator=generator), "b": torch.randn(3, 5, generator=generator)}
    for _ in range(count):
        master = {k: t + 1e-6 * torch.randn(t.shape, generator=generator).sign() for k, t in master.items()}
        yield {name: tensor.bfloat16() for name, tensor in master.items()}


def test_fifty_versions_are_exact_for_followers_and_latecomers_and_those_who_skip(url):
    publisher, follower, skipper = Publisher(url, every=10), Subscriber(url), Subscriber(url)
    assert follower.sync() is None
    for version, state in enumerate(states(50), 1):
        entry = publisher.send(state, version)
        assert (entry.base is None) == (version % 10 == 1)
        assert follower.sync().digest == digest(state) == digest(follower.current.state)
        assert Subscriber(url).sync().digest == digest(state)
        if version % 7 == 0:
            assert skipper.sync().digest == digest(state)
    assert skipper.sync().version == 50


def test_a_follower_reads_deltas_only_and_nothing_when_there_is_no_news(url):
    publisher, follower = Publisher(url), Subscriber(url)
    read, fetch = [], follower.objects.fetch
    follower.objects.fetch = lambda entry: (read.append(entry.version), fetch(entry))[1]
    for version, state in enumerate(states(4), 1):
        publisher.send(state, version)
        follower.sync()
        follower.sync()
    assert read == [1, 2, 3, 4]


def test_a_larger_delta_is_sent_full_and_says_so(url):
    publisher = Publisher(url)
    first = {"w": torch.zeros(5000)}
    publisher.send({"w": torch.randn(5000, generator=torch.Generator().manual_seed(1))}, 1)
    entry = publisher.send(first, 2)
    assert entry.base is None and "would be larger" in entry.why


def test_no_version_is_larger_than_a_full_one_though_most_are_never_measured_against_it(url):
    publisher, state, kinds = Publisher(url, every=1000), torch.randn(5000, generator=torch.Generator().manual_seed(1)), []
    for version in range(1, 27):
        entry = publisher.send({"w": state}, version)
        assert entry.size <= len(encode({"w": state}))
        kinds.append("full" if entry.base is None else "delta")
        state = state.clone()
        state[(version - 1) * 200 : version * 200] = 0.0  # until nothing is left that a full one had to say
    assert kinds[:20] == ["full", *["delta"] * 19] and "full" in kinds[20:]


def test_what_no_kept_version_needs_is_collected(url):
    publisher = Publisher(url, every=4)
    for name in (f"00000001-{'0' * 16}.full", f"00000001-{'0' * 16}.delta.{'a' * 32}.part", f"manifest.json.{'b' * 32}.part"):
        publisher.objects.put(name, b"left by a killed publisher")
    for version, state in enumerate(states(11), 1):
        publisher.send(state, version)
        entries = publisher.objects.entries()
        assert set(publisher.objects.names()) == {MANIFEST, *(entry.name for entry in entries)}
        assert entries[0].base is None and {e.base for e in entries if e.base} <= {e.version for e in entries}
    assert [entry.version for entry in entries] == [5, 6, 7, 8, 9, 10, 11]


def test_what_others_keep_under_the_url_is_not_collected(place):
    publisher, theirs = Publisher(place), {"recipe.json", "00000001-notes.txt", "model.safetensors.part"}
    for name in theirs:
        publisher.objects.put(name, b"theirs")
    for version, state in enumerate(states(3), 1):
        publisher.send(state, version)
    assert theirs <= set(publisher.objects.names())


def test_a_path_that_is_no_folder_is_named_and_reading_makes_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file"):
        Subscriber(tmp_path / "file" / "weights")
    assert Subscriber(tmp_path / "mistyped").sync() is None
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("url", ["file://weights", "file://data/weights", "file:weights"])
def test_a_url_without_a_path_from_the_root_is_refused(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="file:///FOLDER"):
        Publisher(url)
    for sound in ("file:///tmp/a%20b#c", "file://localhost/tmp/a b#c"):
        assert Subscriber(sound).objects.storage.path == Path("/tmp/a b#c")
    with pytest.raises(InputError, match="finite"):
        Subscriber(tmp_path / "weights", seconds=math.inf)


def test_a_full_version_can_be_asked_for(url):
    publisher = Publisher(url)
    entries = [publisher.send(state, version, full=version == 3) for version, state in enumerate(states(4), 1)]
    assert [entry.base for entry in entries] == [None, 1, None, 3] and entries[2].why == "asked for"


@pytest.mark.parametrize("harm", [lambda d: d[:-3], lambda d: d[:9] + bytes([d[9] ^ 1]) + d[10:], lambda d: b""])
def test_a_torn_object_is_refused_and_the_old_weights_stay(url, harm):
    publisher, follower = Publisher(url), Subscriber(url)
    one, two = states(2)
    publisher.send(one, 1)
    follower.sync()
    entry = publisher.send(two, 2)
    good = publisher.objects.get(entry.name)
    publisher.objects.put(entry.name, harm(good))
    with pytest.raises(CorruptError, match="version 2.*torn"):
        follower.sync()
    assert follower.current.version == 1 and digest(follower.current.state) == digest(one)
    late = Subscriber(url).sync()
    assert late.version == 1 and "version 2" in late.refusal
    publisher.objects.put(entry.name, good)
    assert follower.sync().digest == digest(two)


def test_wrong_weights_with_a_right_checksum_and_a_missing_object_are_refused(url):
    publisher, follower = Publisher(url), Subscriber(url)
    one, two = states(2)
    publisher.send(one, 1)
    follower.sync()
    publisher.send(two, 2)
    entries = publisher.objects.entries()
    other = [entries[0], msgspec.structs.replace(entries[1], digest="0" * 64)]
    publisher.objects.put(MANIFEST, msgspec.json.encode(other))
    with pytest.raises(CorruptError, match="other weights"):
        follower.sync()
    publisher.objects.put(MANIFEST, msgspec.json.encode(entries))
    publisher.objects.delete([entries[1].name])
    with pytest.raises(CorruptError, match="gone"):
        follower.sync()
    for torn in (b"[{", b'[{"name": "\xff"}]'):
        publisher.objects.put(MANIFEST, torn)
        with pytest.raises(CorruptError, match="manifest"):
            follower.sync()
    assert follower.current.version == 1


def test_a_torn_delta_is_passed_by_a_later_full_one(url):
    publisher, follower = Publisher(url, every=3), Subscriber(url)
    all_states = list(states(4))
    publisher.send(all_states[0], 1)
    follower.sync()
    torn = publisher.send(all_states[1], 2)
    publisher.send(all_states[2], 3)
    publisher.send(all_states[3], 4)
    publisher.objects.put(torn.name, b"torn")
    found = follower.sync()
    assert found.version == 4 and found.digest == digest(all_states[3]) and not found.refusal


def test_a_resumed_publisher_goes_on_and_may_repeat_versions(url):
    follower, all_states = Subscriber(url), list(states(4))
    first = Publisher(url)
    for version in (1, 2, 3):
        first.send(all_states[version - 1], version)
    follower.sync()
    entry = Publisher(url).send(all_states[3], 2)
    assert entry.base is None and entry.why == "the first of this publisher"
    assert follower.sync().version == 2 and follower.current.digest == digest(all_states[3])


def test_waiting_ends(url):
    with pytest.raises(Unreachable, match="did not appear"):
        Subscriber(url).wait(1, seconds=0.3, every=0.1)


def test_waiting_in_vain_says_what_stood_in_the_way(url):
    Publisher(url).send(next(states(1)), 1)
    subscriber = Subscriber(url)

    def refused():
        raise Unreachable("403 Forbidden")

    subscriber.sync = refused
    with pytest.raises(Unreachable, match="version 1 did not appear .*: 403 Forbidden"):
        subscriber.wait(1, seconds=0.3, every=0.1)


def test_a_long_chain_ends_in_time_and_the_next_sync_goes_on_from_there(url):
    publisher, late = Publisher(url, every=100), Subscriber(url, seconds=0.5)
    for version, state in enumerate(states(30), 1):
        publisher.send(state, version)
    read, get = [], late.objects.storage.get

    def slow(name):
        time.sleep(0.05)
        read.append(name)
        return get(name)

    late.objects.storage.get = slow
    with pytest.raises(Unreachable, match="time"):
        late.sync()
    syncs = 1
    while late.current is None:
        syncs += 1
        with suppress(Unreachable):
            late.sync()
    assert late.current.digest == digest(state)
    assert len(read) < 31 + 3 * syncs  # of each sync again: the manifest, and what was cut off


def test_a_disk_that_hangs_is_given_up_and_waited_for(tmp_path):
    Publisher(tmp_path).send({"w": torch.ones(3)}, 1)
    follower, awake = Subscriber(tmp_path, seconds=0.3), threading.Event()
    get = follower.objects.storage.get
    follower.objects.storage.get = lambda name: (awake.wait(), get(name))[1]
    with pytest.raises(Unreachable, match="no answer in time"):
        follower.sync()
    with pytest.raises(Unreachable, match="earlier request is still under way"):
        follower.sync()
    with pytest.raises(Unreachable, match="did not appear"):
        follower.wait(1, seconds=0.3)
    awake.set()
    assert follower.wait(1, seconds=60).version == 1


def test_a_failed_publication_is_sent_again_and_one_whose_answer_was_lost_too(url):
    publisher, (one, two, three) = Publisher(url), states(3)
    publisher.send(one, 1)
    put, replace = publisher.objects.storage.put, publisher.objects.storage.replace

    def refuse(*_):
        raise OSError("refused")

    publisher.objects.storage.put = refuse
    with pytest.raises(Unreachable, match="refused"):
        publisher.send(two, 2)
    assert Subscriber(url).sync().version == 1
    publisher.objects.storage.put, publisher.objects.storage.replace = put, lambda *a: (replace(*a), refuse())
    with pytest.raises(Unreachable, match="refused"):
        publisher.send(two, 2)
    publisher.objects.storage.replace = replace
    assert publisher.send(two, 2).base == 1
    assert publisher.send(three, 3).base == 2
    assert Subscriber(url).sync().digest == digest(three)


def test_a_second_publisher_is_noticed_and_nothing_is_lost(place):
    all_states = list(states(4))
    first, second = Publisher(place), Publisher(place)
    first.send(all_states[0], 1)
    second.send(all_states[1], 2)
    for _ in range(2):
        with pytest.raises(InputError, match="another publisher writes there"):
            first.send(all_states[2], 3)
        assert Subscriber(place).sync().digest == digest(all_states[1])
    assert second.send(all_states[3], 3).base == 2
    assert Subscriber(place).sync().digest == digest(all_states[3])


@pytest.mark.parametrize("fresh", [True, False])
def test_two_at_the_same_moment_the_first_to_replace_the_manifest_wins(place, fresh):
    all_states = list(states(3))
    first, second = Publisher(place), Publisher(place)
    (second if fresh else first).send(all_states[0], 1)
    put = first.objects.put
    first.objects.put = lambda name, data: (put(name, data), second.send(all_states[1], 2))
    with pytest.raises(InputError, match="another publisher writes there"):
        first.send(all_states[2], 2)
    found = Subscriber(place).sync()
    assert found.digest == digest(all_states[1]) and not found.refusal
    second.send(all_states[2], 3)
    names = {MANIFEST, *(entry.name for entry in second.objects.entries())}
    assert set(second.objects.names()) == names


def test_calls_of_two_threads_take_turns(url):
    publisher = Publisher(url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: publisher.send(item[1], item[0]), enumerate(states(8), 1)))
    found = Subscriber(url).sync()
    assert found.digest in {digest(state) for state in states(8)} and not found.refusal


def test_a_receiver_gets_back_what_it_was_given_though_the_subscriber_read_on(url):
    publisher, subscriber, (one, two) = Publisher(url), Subscriber(url), states(2)
    publisher.send(one, 1)
    engine = Deaf()
    assert subscriber.deliver(engine) == 0.0
    publisher.send(two, 2)
    subscriber.wait(2, seconds=60)
    engine.deaf = {2}
    with pytest.raises(LawError, match="other weights"):
        subscriber.deliver(engine)
    assert engine.version == 1 and engine.digest() == digest(one) and subscriber.current.version == 1


def test_another_receiver_is_given_its_own_whatever_its_number_says(url):
    publisher, subscriber, (one, _) = Publisher(url), Subscriber(url), states(2)
    publisher.send(one, 1)
    first, second = Deaf(), Deaf()
    second.version = 1
    assert subscriber.deliver(first) == 0.0 and subscriber.deliver(first) is None
    assert subscriber.deliver(second) == 0.0 and second.digest() == digest(one)


class Deaf:
    """A receiver that says yes to every version, and takes all but those in `deaf`."""

    deaf, version, state = frozenset(), 0, {}

    def load(self, state, version):
        self.version = version
        self.state = self.state if version in self.deaf else state

    def digest(self):
        return digest(self.state)


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        options = {"endpoint": f"http://127.0.0.1:{mute.getsockname()[1]}", "region": "x", "access_key_id": "a",
                   "secret_access_key": "b"}  # fmt: skip
        with pytest.raises(Unreachable, match="could not read"):
            Subscriber("s3://bucket/x", seconds=0.5, options=options).sync()
        with pytest.raises(Unreachable):
            Publisher("s3://bucket/x", seconds=0.5, options=options).send({"w": torch.ones(1)}, 1)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_an_engine_gets_what_was_published_and_a_deaf_one_is_found_out(url, tiny_model, renderer, dtype):
    from trivium import Engine, Network

    learner, engine = Network.load(tiny_model), Engine(tiny_model, renderer=renderer)
    probe = list(range(20))
    publisher, subscriber = Publisher(url, dtype=dtype), Subscriber(url)
    publisher.publish(learner, 1, probe)
    assert subscriber.deliver(engine) < 1e-4 and engine.version == 1
    assert subscriber.deliver(engine) is None
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.mul_(1.05)
    publisher.publish(learner, 2, probe)
    honest, held = engine.load, engine.digest()
    engine.load = lambda state, version: None
    with pytest.raises(LawError, match="other weights"):
        subscriber.deliver(engine)
    assert engine.digest() == held and subscriber.current.version == 1
    engine.load = honest
    assert subscriber.deliver(engine) < 1e-4 and engine.version == 2


def test_an_engine_of_16_bits_takes_what_is_of_16_bits_and_refuses_to_round(url, tiny_model, renderer):
    from trivium import Engine, Network

    learner = Network.load(tiny_model)
    engine = Engine(Network.load(tiny_model, dtype=torch.bfloat16), renderer=renderer)
    held = engine.digest()
    with pytest.raises(Unsupported, match=r"holds torch.bfloat16 and .* is torch.float32.*Publisher\(dtype=torch.bfloat16\)"):
        publish(learner, 1, engine, range(20))
    assert engine.digest() == held and engine.version == 0
    Publisher(url, dtype=torch.bfloat16).publish(learner, 1, list(range(20)))
    assert Subscriber(url).deliver(engine) < TOLERANCE_16_BITS and engine.version == 1


def test_the_other_16_bits_are_rounding_too(url, tiny_model, renderer):
    from trivium import Engine, Network

    engine = Engine(Network.load(tiny_model, dtype=torch.float16), renderer=renderer)
    held = engine.digest()
    Publisher(url, dtype=torch.bfloat16).publish(Network.load(tiny_model), 1, list(range(20)))
    with pytest.raises(Unsupported, match="holds torch.float16 and .* is torch.bfloat16"):
        Subscriber(url).deliver(engine)
    assert engine.digest() == held and engine.version == 0


def test_at_a_wrong_first_version_an_engine_goes_on_with_its_own_weights(url, tiny_model, renderer):
    from trivium import Engine, Network

    engine, other = Engine(tiny_model, renderer=renderer), Network(Network.load(tiny_model).config, seed=1)
    held, probe = engine.digest(), list(range(20))
    subscriber, wrong = Subscriber(url), Probe(probe, [-1.0] * 19)
    Publisher(url).send(other.state(), 7, wrong)
    with pytest.raises(LawError, match="logprobs"):
        subscriber.deliver(engine)
    assert engine.digest() == held != other.digest()
    assert engine.version == 0 and subscriber.current is None


def test_no_token_is_of_a_version_that_is_refused_and_the_loop_goes_on(url, tiny_model, renderer):
    """While another thread loads it, checks it and takes it back, as in a server that follows."""
    from trivium import Engine, Network

    engine, other = Engine(tiny_model, renderer=renderer, context=512), Network(Network.load(tiny_model).config, seed=1)
    Publisher(url).send(other.state(), 7, Probe(list(range(20)), [-1.0] * 19))
    digest, looks = engine.digest, []
    engine.digest = lambda: (time.sleep(0.3), digest())[1]

    async def swapped() -> None:
        with pytest.raises(LawError, match="logprobs"):
            await asyncio.to_thread(Subscriber(url).deliver, engine)

    async def main():
        talk = asyncio.create_task(engine.speak(View([1, 2, 3], (), (), (0,)), Sampling(max_tokens=500)))
        swap = asyncio.create_task(swapped())
        while not swap.done():
            looks.append(engine.version)
            await asyncio.sleep(0.001)
        return await talk

    reply = asyncio.run(main())
    assert set(reply.versions) == {0} and engine.version == 0 and len(reply.versions) > 50
    assert looks.count(7) > 10


# --- real kills


WRITER = """
import sys, torch
from trivium.weights import Publisher
publisher = Publisher(sys.argv[1], every=3)
first = max([e.version for e in publisher.objects.entries()], default=0) + 1
for version in range(first, first + 10000):
    torch.manual_seed(version)
    publisher.send({"w": torch.randn(200_000)}, version)
    if version == first:
        print("ready", flush=True)
"""


def kill_midway(code: str, folder: Path, seconds: float) -> None:
    """Start, wait until it has published once, and kill -9 after so many seconds more, wherever it then is."""
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(seconds)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_a_killed_publisher_leaves_the_last_good_version_or_the_new(tmp_path):
    last = 0
    for seconds in (0.05, 0.35):
        kill_midway(WRITER, tmp_path, seconds)
        found = Subscriber(tmp_path).sync()
        torch.manual_seed(found.version)
        assert found.version > last and digest({"w": torch.randn(200_000)}) == found.digest
        last = found.version
    Publisher(tmp_path).send({"w": torch.ones(3)}, last + 1)
    assert Subscriber(tmp_path).sync().version == last + 1


def test_weights_that_say_nothing_finite_are_not_published(url):
    publisher, follower = Publisher(url), Subscriber(url)
    first, second = states(2)
    publisher.send(first, 1, Probe([1, 2], [-1.0]))
    for said in (math.nan, -math.inf):
        with pytest.raises(LawError, match="version 2 gives its probe logprobs that are not finite"):
            publisher.send(second, 2, Probe([1, 2], [said]))
    assert follower.sync().version == 1
    publisher.send(second, 2, Probe([1, 2], [-1.0]))
    assert follower.sync().version == 2


def test_options_of_a_bucket_are_refused_where_there_is_none(tmp_path):
    for url in (str(tmp_path), f"file://{tmp_path}", "memory://weights"):
        with pytest.raises(Unsupported, match="options .endpoint. are a bucket's"):
            Subscriber(url, options={"endpoint": "http://127.0.0.1:9"})
