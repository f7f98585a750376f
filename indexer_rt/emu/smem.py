"""Run SMEM: scalar loads through the constant cache, clocks, cache control."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .registers import fetch_scalar, join64, write_scalar
from .table import Entry, add
from .text import signed

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

u32, u64 = np.uint32, np.uint64

for _n, _count in enumerate((1, 2, 4, 8, 16)):
    _suffix = "" if _count == 1 else f"x{_count}"
    add(Entry("SMEM", _n, f"s_load_dword{_suffix}", traits={"kind": "load", "count": _count}))
    add(Entry("SMEM", 8 + _n, f"s_buffer_load_dword{_suffix}", traits={"kind": "buffer_load", "count": _count}))
for _opcode, _name in (
    (0x20, "s_dcache_inv"),
    (0x21, "s_dcache_wb"),
    (0x22, "s_dcache_inv_vol"),
    (0x23, "s_dcache_wb_vol"),
):
    add(Entry("SMEM", _opcode, _name, traits={"kind": "cache", "count": 0}))
for _opcode, _name in ((0x24, "s_memtime"), (0x25, "s_memrealtime")):
    add(Entry("SMEM", _opcode, _name, traits={"kind": "time", "count": 2}))


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """Compile one instruction to a function of the convoy."""
    del program
    kind, count = instruction.traits["kind"], instruction.traits["count"]
    if kind == "cache":
        return lambda m: None
    if kind == "time":
        write = write_scalar(instruction.dst[0])
        # NOTE: the clock counts the steps of the wave, so that runs repeat; it says nothing about time.
        return lambda m: write(m, u64(m.steps))
    row, base, places = instruction.dst[0].index, fetch_scalar(instruction.src["base"]), places_of(instruction)

    def run(m: Convoy) -> None:
        addresses, offsets = places(m)
        complain = _complain(m)
        if kind == "load":
            values = m.batch.machine.memory.load(addresses, 4 * count, complain)
        else:
            values = _buffer_values(m, base(m), offsets, count, complain)
        m.S[row : row + count, m.sel] = values.T
        if row + count > 126:
            m.exec_changed()

    return run


def places_of(instruction: Instruction) -> Callable[[Convoy], tuple[np.ndarray, np.ndarray]]:
    """Compile where a scalar load goes: (addresses uint64 [waves], offsets from the base int64 [waves])."""
    kind, fields = instruction.traits["kind"], instruction.fields
    base = fetch_scalar(instruction.src["base"])
    register = fetch_scalar(instruction.src["soffset"]) if "soffset" in instruction.src else None
    immediate = signed(fields["offset"], 21) if fields["imm"] else 0

    def places(m: Convoy) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.full(m.n, immediate, np.int64)
        if register is not None:
            offsets = offsets + np.asarray(register(m)).astype(np.int64)
        # The low two bits of the address are ignored by the hardware.
        if kind == "load":
            return (base(m) + offsets.view(u64)) & ~u64(3), offsets
        words, offsets = base(m), offsets & ~np.int64(3)
        return join64(words[0], words[1] & u32(0xFFFF)) + offsets.view(u64), offsets

    return places


def _buffer_values(m: Convoy, resource: np.ndarray, offsets: np.ndarray, count: int, complain: Any) -> np.ndarray:
    """Load through a V#: dwords at or past num_records (times stride, if any) read as 0."""
    address = join64(resource[0], resource[1] & u32(0xFFFF))
    stride = (resource[1] >> u32(16) & u32(0x3FFF)).astype(np.int64)
    size = resource[2].astype(np.int64) * np.maximum(stride, 1)
    values = np.zeros((m.n, count), u32)
    for n in range(count):
        inside = (offsets + 4 * n >= 0) & (offsets + 4 * n + 4 <= size)
        if inside.any():
            where = np.nonzero(inside)[0]
            places = address[where] + (offsets[where] + 4 * n).view(u64)
            values[where, n] = m.batch.machine.memory.load(places, 4, _complain_at(where, complain))[:, 0]
    return values


def _complain_at(where: np.ndarray, complain: Callable[[int, str], Exception]) -> Callable[[int, str], Exception]:
    return lambda index, text: complain(int(where[index]), text)


def _complain(m: Convoy) -> Callable[[int, str], Exception]:
    return lambda index, text: m.batch.machine.fault(m, text, int(m.waves[index]))
