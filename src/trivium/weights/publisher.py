"""The side of the learner: each version as a delta or in full, then the manifest, then the old ones go."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from trivium.errors import InputError
from trivium.nn import Network
from trivium.nn.network import digest
from trivium.weights.delta import State, alike, encode
from trivium.weights.publish import probed
from trivium.weights.store import MANIFEST, Entry, Objects, Probe, checksum


class Publisher:
    """Publishes versions under a URL, one publisher at a time.

    Every `every`th version, the first of a process and one whose delta would be larger is sent in full, and `Entry.why` says
    so. Two full ones and all that stands on them are kept. With `dtype` (bfloat16) the learner's float32 weights are rounded
    on the way: deltas are between rounded states, so rounding errors do not add up, and the learner keeps its own weights.
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

    def publish(self, network: Network, version: int, probe: Sequence[int]) -> Entry:
        """Publish a network's weights with the logprobs they give to `probe`, by which receivers are judged (law 10)."""
        state = self.rounded(network.state())
        if self.dtype is not None:
            network = copy.deepcopy(network)
            network.load_state(state)
        return self.send(state, version, Probe(list(probe), probed(network, probe).tolist()))

    def send(self, state: State, version: int, probe: Probe | None = None) -> Entry:
        """Publish a state. Raises Unreachable, after which the versions published before are still there, and only they.

        A `version` not above the last one takes its place and that of all after it: a run that was resumed.
        """
        state = {name: tensor.clone() for name, tensor in self.rounded(state).items()}
        entries = [entry for entry in self.objects.entries() if entry.version < version]
        data, base, why = self._encoded(state, entries)
        mark = checksum(data)
        name = f"{version:08d}-{mark[:16]}.{'full' if base is None else 'delta'}"
        entry = Entry(version, base, why, name, len(data), mark, digest(state), probe)
        self.objects.put(name, data)
        kept = _kept([*entries, entry])
        self.objects.point(kept)
        self._last = (entry, state)
        self._collect(kept)
        return entry

    def rounded(self, state: State) -> State:
        """What of `state` is published: itself, or its floating point values in `dtype`."""
        if self.dtype is None:
            return state
        return {name: t.to(self.dtype) if t.is_floating_point() else t for name, t in state.items()}

    def _encoded(self, state: State, entries: list[Entry]) -> tuple[bytes, int | None, str]:
        """The object, the version it stands on (None: full), and why it is full."""
        why = self._reason(state, entries)
        full = encode(state)
        if why:
            return full, None, why
        last, before = self._last
        delta = encode(state, before)
        if len(delta) >= len(full):
            return full, None, f"the delta would be larger: {len(delta)} bytes against {len(full)}"
        return delta, last.version, ""

    def _reason(self, state: State, entries: list[Entry]) -> str:
        if self._last is None or not entries or entries[-1] != self._last[0]:
            return "the first of this publisher"
        if not alike(self._last[1], state):
            return "another network"
        since = next((n for n, entry in enumerate(reversed(entries)) if entry.base is None), len(entries))
        return f"every {self.every} versions" if since + 1 >= self.every else ""

    def _collect(self, kept: list[Entry]) -> None:
        """Remove what no kept version needs, and what a killed publisher left."""
        needed = {MANIFEST, *(entry.name for entry in kept)}
        self.objects.delete([name for name in self.objects.names() if name not in needed])


def _kept(entries: list[Entry]) -> list[Entry]:
    """From the last full one but one on: whoever reads the chain before the newest can finish."""
    fulls = [n for n, entry in enumerate(entries) if entry.base is None]
    return entries[fulls[-2] if len(fulls) > 1 else fulls[0] :]
