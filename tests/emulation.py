"""Change how the emulator end runs a launch, below everything that ships: fewer waves, less memory, other orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from indexer_rt import emu
from indexer_rt.device import EmulatedDevice
from indexer_rt.launch import Launch
from indexer_rt.problem import Tensors


def spans(buffer: emu.Buffer, allowed: np.ndarray) -> Iterator[emu.Buffer]:
    """Yield the pieces of a buffer whose bytes are ``allowed`` (bool, one per byte)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], allowed, [False])).astype(np.int8)))
    for start, end in edges.reshape(-1, 2):
        yield emu.Buffer(buffer.name, buffer.address + int(start), buffer.data[start:end], buffer.writable)


@contextmanager
def emulation(
    *, num_waves: int | None = None, allowed: dict[str, np.ndarray] | None = None, **options: Any
) -> Iterator[list[emu.RunStats]]:
    """Within, launches on CPU tensors run strictly with ``options`` of ``emu.run``. Yields their statistics.

    ``num_waves``: share the work over so many. ``allowed``: per tensor name, the only bytes that exist of it.
    """
    stats: list[emu.RunStats] = []

    def run(self: EmulatedDevice, launch: Launch, tensors: Tensors) -> None:
        buffers: list[emu.Buffer] = []
        for whole in self.buffers(tensors):
            buffers += spans(whole, allowed[whole.name]) if allowed and whole.name in allowed else [whole]
        if num_waves is not None:
            launch = launch.over(num_waves)
        stats.append(emu.run(launch, buffers, strict=True, **options))

    with mock.patch.object(EmulatedDevice, "run", run):
        yield stats
