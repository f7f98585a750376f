"""Do atomic read-modify-write on a byte array: lanes that hit one address take turns in lane order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import floats

u32, u64 = np.uint32, np.uint64

Operation = Callable[[Any, Any], Any]


def _increment(old: Any, data: Any) -> Any:
    return np.where(old >= data, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Any, data: Any) -> Any:
    return np.where((old == 0) | (old > data), data, old - old.dtype.type(1))


def _packed(dtype: Any) -> Operation:
    def add(old: Any, data: Any) -> Any:
        if dtype == "f16":
            return (old.view(np.float16) + data.view(np.float16)).view(u32)
        total = floats.from_bf16(old.view(np.uint16)) + floats.from_bf16(data.view(np.uint16))
        return floats.to_bf16(total).view(u32)

    return add


# operation -> (numpy kind of the element: u, i or f; function of old value and data)
OPERATIONS: dict[str, tuple[str, Operation]] = {
    "swap": ("u", lambda old, data: data), "add": ("u", lambda old, data: old + data),
    "sub": ("u", lambda old, data: old - data),
    "rsub": ("u", lambda old, data: data - old), "smin": ("i", np.minimum), "umin": ("u", np.minimum),
    "smax": ("i", np.maximum),
    "umax": ("u", np.maximum), "and": ("u", np.bitwise_and), "or": ("u", np.bitwise_or), "xor": ("u", np.bitwise_xor),
    "inc": ("u", _increment), "dec": ("u", _decrement), "fadd": ("f", lambda old, data: old + data),
    "fmin": ("f", lambda old, data: floats.minimum(old, data, False)),
    "fmax": ("f", lambda old, data: floats.maximum(old, data, False)),
    "pk_add_f16": ("u", _packed("f16")), "pk_add_bf16": ("u", _packed("bf16")),
}  # fmt: skip


def apply(
    data: np.ndarray, offsets: np.ndarray, values: np.ndarray, operation: str, bits: int, compare: np.ndarray | None
) -> np.ndarray:
    """Apply an operation at byte offsets (aligned) of ``data`` (uint8); return the old values.

    ``values``: unsigned of ``bits`` bits, [lanes]; ``compare``: likewise, what "cmpswap" and only it compares with.
    """
    size = bits // 8
    unsigned = np.dtype(f"u{size}")
    words = data[: len(data) // size * size].view(unsigned)
    index = offsets // size
    old = np.empty(len(index), unsigned)
    order = np.argsort(index, kind="stable")
    rank = np.empty(len(index), np.int64)
    ordered = index[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    rank[order] = np.arange(len(index)) - np.maximum.accumulate(np.where(starts, np.arange(len(index)), 0))
    for turn in range(int(rank.max()) + 1):
        now = np.nonzero(rank == turn)[0]
        place = index[now]
        held = words[place]
        old[now] = held
        if compare is not None:
            words[place] = np.where(held == compare[now], values[now], held)
            continue
        kind, function = OPERATIONS[operation]
        dtype = np.dtype(f"{kind}{size}")
        words[place] = np.asarray(function(held.view(dtype), values[now].view(dtype)), dtype).view(unsigned)
    return old
