"""Hold the named buffers a kernel may touch, and move data between them and lanes with exact bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

U32 = np.uint32


_FAR_BYTES = 1 << 40  # beyond any tensor's reach, so that naming the nearest buffer would only mislead


@dataclass(slots=True)
class Buffer:
    """Be one tensor (or argument block) as the kernel sees it.

    ``address``: the device address of its first byte, any int that fits 64 bits; it may be made up. ``data``: the
    bytes, a C-contiguous numpy uint8 array (shared, not copied: stores show up in it) or bytes-like. ``writable``:
    whether a store is allowed. Raises ValueError when writable data cannot be written, TypeError when data is not
    one-dimensional uint8.
    """

    name: str
    address: int
    data: Any
    writable: bool = False
    bytes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        view = self.data if isinstance(self.data, np.ndarray) else np.frombuffer(self.data, np.uint8)
        if view.dtype != np.uint8 or view.ndim != 1 or not view.flags.c_contiguous:
            raise TypeError(
                f"buffer {self.name!r}: expected a contiguous one-dimensional uint8 array, got {view.dtype} "
                f"{view.shape}. Pass array.reshape(-1).view(np.uint8)."
            )
        if self.writable and not view.flags.writeable:
            raise ValueError(f"buffer {self.name!r} is writable, but its data is read-only. Pass a writable array.")
        self.bytes = view

    @property
    def end(self) -> int:
        return self.address + len(self.bytes)


# Called with (index into the addresses, message) when an access is not allowed; raises.
Complain = Callable[[int, str], Exception]


class Memory:
    """Find buffers by address; load and store arrays of lanes."""

    def __init__(self, buffers: list[Buffer]) -> None:
        """Raises ValueError when two buffers overlap."""
        self.buffers = sorted((b for b in buffers if len(b.bytes)), key=lambda b: b.address)
        for before, after in zip(self.buffers, self.buffers[1:], strict=False):
            if before.end > after.address:
                raise ValueError(
                    f"buffers {before.name!r} ({before.address:#x}, {len(before.bytes)} bytes) and {after.name!r} "
                    f"({after.address:#x}) overlap. Give them disjoint addresses."
                )
        self.starts = [b.address for b in self.buffers]
        self._start_array = np.array(self.starts, np.uint64)

    def find(self, address: int) -> Buffer | None:
        index = bisect_right(self.starts, address) - 1
        if index < 0 or address >= self.buffers[index].end:
            return None
        return self.buffers[index]

    def split(
        self, addresses: np.ndarray, size: int, writes: bool, complain: Complain
    ) -> list[tuple[Buffer, Any, np.ndarray]]:
        """Sort lane addresses (uint64, one-dimensional) into buffers: (buffer, which lanes, byte offsets int64)."""
        low, high = int(addresses.min()), int(addresses.max())
        buffer = self.find(low)
        if buffer is not None and high + size <= buffer.end:
            self._check_writable(buffer, writes, complain, 0)
            return [(buffer, slice(None), (addresses - np.uint64(buffer.address)).view(np.int64))]
        index = np.searchsorted(self._start_array, addresses, side="right") - 1
        out = []
        for number in np.unique(index):
            where = np.nonzero(index == number)[0]
            if number < 0:
                raise complain(int(where[0]), self.describe_miss(int(addresses[where[0]]), size))
            buffer = self.buffers[number]
            offsets = (addresses[where] - np.uint64(buffer.address)).view(np.int64)
            beyond = (offsets + size > len(buffer.bytes)) | (offsets < 0)
            if beyond.any():
                lane = int(where[np.argmax(beyond)])
                raise complain(lane, self.describe_miss(int(addresses[lane]), size))
            self._check_writable(buffer, writes, complain, int(where[0]))
            out.append((buffer, where, offsets))
        return out

    def _check_writable(self, buffer: Buffer, writes: bool, complain: Complain, lane: int) -> None:
        if writes and not buffer.writable:
            raise complain(lane, f"writes to the input {buffer.name!r}, which is read-only")

    def describe_miss(self, address: int, size: int) -> str:
        """Say how far an access lies from the nearest buffer."""
        best: tuple[int, str] | None = None
        for buffer in self.buffers:
            held = f"{buffer.name!r} ({len(buffer.bytes)} bytes)"
            if address >= buffer.address:
                past = address + size - buffer.end
                candidate = (past, f"{past} bytes past the end of {held}")
            else:
                candidate = (buffer.address - address, f"{buffer.address - address} bytes before the start of {held}")
            if best is None or candidate[0] < best[0]:
                best = candidate
        if best is None:
            return f"{size} bytes at address {address:#x}: the launch has no buffer"
        if best[0] > _FAR_BYTES:
            return f"{size} bytes at address {address:#x}, near no buffer"
        if best[0] > 1 << 20:
            return f"{size} bytes at address {address:#x}, in no buffer; the nearest is {best[1]}"
        return f"{size} bytes at address {address:#x}: {best[1]}"

    def load(self, addresses: np.ndarray, size: int, complain: Complain) -> np.ndarray:
        """Load ``size`` bytes per address (uint64 [lanes]): uint32 [lanes, size / 4], or [lanes, 1] below 4 bytes."""
        parts = self.split(addresses, size, False, complain)
        if len(parts) == 1:
            buffer, _, offsets = parts[0]
            return gather(buffer.bytes, offsets, size)
        out = np.empty((len(addresses), max(1, size // 4)), U32)
        for buffer, where, offsets in parts:
            out[where] = gather(buffer.bytes, offsets, size)
        return out

    def store(self, addresses: np.ndarray, values: np.ndarray, size: int, complain: Complain) -> None:
        """Store the low ``size`` bytes of ``values`` (uint32 [lanes, words]) at each address."""
        for buffer, where, offsets in self.split(addresses, size, True, complain):
            scatter(buffer.bytes, offsets, values[where], size)


def gather(data: np.ndarray, offsets: np.ndarray, size: int) -> np.ndarray:
    """Read ``size`` bytes at each byte offset of ``data`` (uint8): uint32 [lanes, words]."""
    if size == 1:
        return data.take(offsets).astype(U32)[:, None]
    unit = 4 if size % 4 == 0 else size
    if size == 2 or (offsets & (unit - 1)).any():
        windows = np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1))
        raw = windows[offsets]
        return raw.view(np.uint16).astype(U32) if size == 2 else raw.view(U32)
    words = data[: len(data) & ~3].view(U32)
    index = offsets >> 2
    if size == 4:
        return words.take(index)[:, None]
    count = size // 4
    windows = np.lib.stride_tricks.as_strided(words, (len(words) - count + 1, count), (4, 4))
    return windows[index]


def scatter(data: np.ndarray, offsets: np.ndarray, values: np.ndarray, size: int) -> None:
    """Write the low ``size`` bytes of ``values`` (uint32 [lanes, words]) at each byte offset; the last lane wins."""
    if size == 1:
        data[offsets] = values[:, 0].astype(np.uint8)
        return
    if size % 4 == 0 and not (offsets & 3).any():
        words, index = data[: len(data) & ~3].view(U32), offsets >> 2
        for n in range(size // 4):
            words[index + n] = values[:, n]
        return
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    for n in range(size):
        data[offsets + n] = raw[:, n]


def extend(values: np.ndarray, bits: int) -> np.ndarray:
    """Sign-extend uint32 words from their low ``bits``; 0 leaves them as they are."""
    if not bits:
        return values
    shift = np.int32(32 - bits)
    return ((values.view(np.int32) << shift) >> shift).view(U32)


def merge_half(held: np.ndarray, word: np.ndarray, high: int) -> np.ndarray:
    """Put the low 16 bits of ``word`` into the high (1) or low (0) half of ``held``, both uint32."""
    return (held & U32(0xFFFF)) | word << U32(16) if high else (held & U32(0xFFFF0000)) | (word & U32(0xFFFF))
