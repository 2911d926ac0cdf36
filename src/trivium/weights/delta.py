"""One delta: the values that changed between two states of one network, and back, bit for bit.

    old  [1.0, 2.0, 3.0, 4.0]     places 1, 3           gaps   [1, 1]    places skipped since the last change
    new  [1.0, 2.5, 3.0, 3.5] ->  bits as integers  ->  steps  zigzag(new - old)

An optimizer's step moves a value by a unit or two in its last place. So steps are small integers, and most of their bytes are
zero. Gaps and steps are laid out in byte planes (all low bytes, then all higher ones) and compressed. Values are compared as
bits, never as numbers: NaN payloads and the sign of zero survive. docs/weights.md has the encodings that were measured.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
import zstandard

from trivium import files
from trivium.errors import CorruptError, InputError

State = dict[str, torch.Tensor]
LEVEL = 3
"""zstandard's level. Higher ones cost more time than they save bytes on entropy-coded planes."""

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of an object. `changes` counts its values that are in the streams."""

    name: str
    dtype: str
    shape: list[int]
    changes: int


class Body(msgspec.Struct, frozen=True, array_like=True):
    """The content of an object: gaps of all tensors as one stream (empty in a full one), steps or values in one per width."""

    tensors: list[Tensor]
    gaps: bytes
    values: dict[int, bytes]


def encode(new: State, old: State | None = None) -> bytes:
    """`new` as bytes: all of it, or what changed since `old`. InputError unless both have the same names, dtypes, shapes."""
    if old is not None and not same_layout(old, new):
        raise InputError("a delta needs two states of one network: names, dtypes or shapes differ")
    tensors, gaps, values = [], [], {}
    for name in sorted(new):
        tensor, bits = new[name], _bits(new[name])
        if old is not None:
            before = _bits(old[name])
            places = np.flatnonzero(bits != before)
            gaps.append(np.diff(places, prepend=-1) - 1)
            bits = _zigzag(bits[places] - before[places])
        tensors.append(Tensor(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), bits.size))
        values.setdefault(bits.itemsize, []).append(bits)
    streams = {width: _pack(np.concatenate(parts)) for width, parts in values.items()}
    return msgspec.msgpack.encode(Body(tensors, _pack(_concatenate(gaps)), streams))


def decode(data: bytes, old: State | None = None) -> State:
    """The state that `encode` was called with, in new tensors. CorruptError if `data` is no such object, or not one on top of
    `old`."""
    try:
        body = msgspec.msgpack.decode(data, type=Body)
        return _state(body, old)
    except (*files.TORN, zstandard.ZstdError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise CorruptError(f"this is no weights object, or not one on top of these weights: {error}") from error


def same_layout(a: State, b: State) -> bool:
    """Whether both have the same names, dtypes and shapes."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape for k in a)


def _state(body: Body, old: State | None) -> State:
    gaps = _unpack(body.gaps, np.uint64)
    values = {width: _unpack(stream, _BITS[width]) for width, stream in body.values.items()}
    if old is not None and old.keys() != {t.name for t in body.tensors}:
        raise ValueError("other tensors")
    state: State = {}
    at, gap = dict.fromkeys(values, 0), 0
    for tensor in body.tensors:
        dtype = getattr(torch, tensor.dtype)
        stream, start = values[dtype.itemsize], at[dtype.itemsize]
        part = stream[start : start + tensor.changes]
        at[dtype.itemsize] += tensor.changes
        if part.size != tensor.changes:
            raise ValueError(f"{tensor.name} ends early")
        if old is not None:
            before = old[tensor.name]
            if before.dtype != dtype or list(before.shape) != tensor.shape:
                raise ValueError(f"{tensor.name} differs in dtype or shape")
            places = np.cumsum(gaps[gap : gap + tensor.changes].astype(np.int64) + 1) - 1
            gap += tensor.changes
            bits = _bits(before).copy()
            bits[places] += _unzigzag(part)
            part = bits
        state[tensor.name] = torch.empty(tensor.shape, dtype=dtype)
        _bits(state[tensor.name])[:] = part
    return state


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The values as unsigned integers of their width, flat."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().view(_BITS[tensor.dtype.itemsize])


def _zigzag(step: np.ndarray) -> np.ndarray:
    """0, -1, 1, -2, ... -> 0, 1, 2, 3, ...: a small step of either sign becomes a small number."""
    sign = step >> np.array(step.itemsize * 8 - 1, step.dtype)
    return (step << np.array(1, step.dtype)) ^ (np.array(0, step.dtype) - sign)


def _unzigzag(number: np.ndarray) -> np.ndarray:
    one = np.array(1, number.dtype)
    return (number >> one) ^ (np.array(0, number.dtype) - (number & one))


def _concatenate(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.uint64) if parts else np.empty(0, np.uint64)


def _pack(values: np.ndarray) -> bytes:
    planes = values.view(np.uint8).reshape(-1, values.itemsize).T
    return zstandard.ZstdCompressor(level=LEVEL).compress(np.ascontiguousarray(planes).tobytes())


def _unpack(stream: bytes, kind: type[np.unsignedinteger]) -> np.ndarray:
    planes = np.frombuffer(zstandard.ZstdDecompressor().decompress(stream), np.uint8)
    return np.ascontiguousarray(planes.reshape(np.dtype(kind).itemsize, -1).T).view(kind).reshape(-1)
