"""The learner's side: it writes each version as a delta or in full, then the manifest, and then removes old ones."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from trivium.errors import InputError, LawError
from trivium.nn import Network
from trivium.nn.network import digest
from trivium.weights.delta import State, encode, same_layout
from trivium.weights.places import Content
from trivium.weights.publish import probe_logprobs
from trivium.weights.store import Entry, Objects, Probe, Unreachable, checksum

_NAME = re.compile(r"\d{8,}-[0-9a-f]{16}\.(full|delta)(\.[0-9a-f]{32}\.part)?|manifest\.json\.[0-9a-f]{32}\.part")
"""The name of a publisher's object, whole or staged. A publisher removes nothing else under its URL."""


class Publisher:
    """Publishes versions under a URL, one publisher at a time. One that finds another at work there raises InputError.

    Every `every`th version, the first of a process and one whose delta would be larger is sent in full, and `Entry.why` says
    so. The last two full versions and all that stands on them are kept. With `dtype` (bfloat16) the learner's float32 weights
    are rounded on the way. Deltas are between rounded states, so rounding errors do not add up, and the learner keeps its own
    weights. All requests of one publication end in `seconds` together; encoding is not counted.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        every: int = 25,
        dtype: torch.dtype | None = None,
        seconds: float = 30.0,
        options: dict[str, str] | None = None,
    ) -> None:
        if every < 1:
            raise InputError(f"every must be at least 1, not {every}")
        self.objects = Objects(url, seconds=seconds, options=options)
        self.every, self.dtype = every, dtype
        self._last: tuple[Entry, State] | None = None
        self._manifests: tuple[bytes | None, ...] = ()  # what the manifest may be, unless somebody else writes here
        self._spare = 0  # bytes: see _smaller

    def publish(self, network: Network, version: int, probe: Sequence[int], full: bool = False) -> Entry:
        """Publish a network's weights with the logprobs that they give to `probe`, by which receivers are judged (law 10).

        `full` sends them in full, for a reader that the last version did not reach. Raises as `send` does.
        """
        state = self.rounded(network.state())
        if self.dtype is not None:
            network = network.plain()
            network.load_state(state)
        return self.send(state, version, Probe(list(probe), probe_logprobs(network, probe).tolist()), full)

    def send(self, state: State, version: int, probe: Probe | None = None, full: bool = False) -> Entry:
        """Publish a state. A `version` not above the last one takes its place and that of all after it: a run was resumed.

        Raises LawError where its probe's logprobs are not finite. Raises Unreachable, after which the versions published
        before are still there, and this one only if its answer was lost: send it again. Raises InputError if somebody else
        published here since this publisher first did: theirs stands, and this one must stop.
        """
        if probe and not all(map(math.isfinite, probe.logprobs)):
            raise LawError(f"version {version} gives its probe logprobs that are not finite: it is not published")
        with self.objects.within():
            names = self.objects.names()  # before the manifest: what another one puts after it is not ours to remove
            manifest = self._check(self.objects.manifest())
            entries = [entry for entry in self.objects.read(manifest) if entry.version < version]
            with self.objects.untimed():
                state = {name: tensor.clone() for name, tensor in self.rounded(state).items()}
                entry, data = self._encoded(state, version, probe, entries, "asked for" if full else "")
            self.objects.put(entry.name, data)
            entries = _recent([*entries, entry])
            self._point(entries, manifest)
            self._last = (entry, state)
            self._collect(names, entries)
            return entry

    def rounded(self, state: State) -> State:
        """The state as it is published: itself, or with its floating point values in `dtype`."""
        if self.dtype is None:
            return state
        return {name: t.to(self.dtype) if t.is_floating_point() else t for name, t in state.items()}

    def _check(self, manifest: Content) -> Content:
        """The manifest, if it is as this publisher first read it or last wrote it. Raises InputError."""
        if self._manifests and manifest.data not in self._manifests:
            raise self.objects.conflict()
        self._manifests = (manifest.data,)
        return manifest

    def _point(self, entries: list[Entry], manifest: Content) -> None:
        data = msgspec.json.encode(entries)
        self._manifests = (manifest.data, data)  # either, should the answer be lost
        self.objects.point(data, manifest)
        self._manifests = (data,)

    def _encoded(self, state: State, version: int, probe: Probe | None, entries: list[Entry], full: str) -> tuple[Entry, bytes]:
        data, base, why = self._smaller(state, entries, full)
        mark = checksum(data)
        name = f"{version:08d}-{mark[:16]}.{'full' if base is None else 'delta'}"
        return Entry(version, base, why, name, len(data), mark, digest(state), probe), data

    def _smaller(self, state: State, entries: list[Entry], full: str) -> tuple[bytes, int | None, str]:
        """The object, the version that it stands on (None: full), and why it is full.

        Encoding in full only to compare sizes would cost more than all else. An older state can be had from a newer one by
        deltas of about the same sizes, so a full one is smaller than the last one measured by their sum at most. Until then
        a delta goes out unmeasured. (About, since compressors promise nothing. What is at stake is a size, never a value.)
        """
        why = full or self._reason(state, entries)
        if why or self._last is None:
            return self._full(state), None, why
        last, before = self._last
        delta = encode(state, before)
        self._spare -= 2 * len(delta)
        if self._spare < 0 and len(delta) >= len(data := self._full(state)):
            return data, None, f"the delta would be larger: {len(delta)} bytes against {len(data)}"
        return delta, last.version, ""

    def _full(self, state: State) -> bytes:
        data = encode(state)
        self._spare = len(data)
        return data

    def _reason(self, state: State, entries: list[Entry]) -> str:
        """Why this version must be full; "" where it need not."""
        if self._last is None or not entries or entries[-1] != self._last[0]:
            return "the first of this publisher" if self._last is None else "does not follow the last one published here"
        if not same_layout(self._last[1], state):
            return "another network"
        since = next((n for n, entry in enumerate(reversed(entries)) if entry.base is None), len(entries))
        return f"every {self.every} versions" if since + 1 >= self.every else ""

    def _collect(self, names: list[str], entries: list[Entry]) -> None:
        """Remove the objects of publishers that no entry names, those that a killed one left among them."""
        needed = {entry.name for entry in entries}
        with suppress(Unreachable):  # this version is published; the next one collects
            self.objects.delete([name for name in names if _NAME.fullmatch(name) and name not in needed])


def _recent(entries: list[Entry]) -> list[Entry]:
    """The entries from the last full one but one on, so that whoever reads the chain before the newest can finish."""
    fulls = [n for n, entry in enumerate(entries) if entry.base is None]
    return entries[fulls[-2] if len(fulls) > 1 else fulls[0] :]
