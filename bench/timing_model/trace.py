"""Follow the waves of a launch through its control flow and addresses, without doing the arithmetic on the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from indexer_rt.emu import Buffer, Instruction, smem, vmem
from indexer_rt.emu.convoy import Convoy
from indexer_rt.emu.machine import Machine
from indexer_rt.flow import Flow, kind_of
from indexer_rt.launch import Launch

from .control_slice import MEMORY_KINDS, executed_offsets

SECTOR_BYTES, LINE_BYTES = 64, 128
# Source: the L1 cache swizzle of Wave's buffer operations (wave-lang.readthedocs.io): bits 7 and 8 choose the bank.
TAG_BANKS = 4
# An odd multiplier spreads sector numbers over 64 bits; the top ones choose the sample.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Stretch:
    """Be a straight run of instructions from one entry point: what is executed of it, and all of it."""

    instructions: list[Instruction]
    work: list[tuple[int, Any, Any]]  # (pc, execute or None, addresses or None)
    last: Any  # execute of the control instruction, or None to fall through
    last_pc: int
    end: int


@dataclass
class Samples:
    """Hold sampled memory accesses: a fixed fraction of all sectors, every access to those.

    ``sector``: address / 64; ``order``: how many memory instructions the wave had issued; ``wave``: its flat number;
    ``pc``: of the instruction; ``store``: whether it writes. ``modulus``: one sector in so many is kept.
    """

    modulus: int
    sector: np.ndarray
    order: np.ndarray
    wave: np.ndarray
    pc: np.ndarray
    store: np.ndarray


@dataclass
class Access:
    """Be what one wave's memory instruction touches: sectors (address / 64), and clocks of the address unit."""

    sectors: tuple[int, ...]
    clocks: int


@dataclass
class Trace:
    """Hold the paths of waves: ``paths[wave]`` lists entry points of stretches; ``accesses[wave]`` its memory
    instructions in order, where asked for.
    """

    stretches: dict[int, Stretch]
    paths: dict[int, list[int]] = field(default_factory=dict)
    accesses: dict[int, list[Access]] = field(default_factory=dict)
    samples: Samples | None = None


class Tracer(Machine):
    """Step waves through the slice that decides control flow and addresses."""

    def __init__(self, launch: Launch, buffers: Sequence[Buffer]) -> None:
        super().__init__(launch, list(buffers), False, None, None)
        self.flow = Flow.of(launch.kernel.code)
        self.sliced = executed_offsets(self.flow)
        self.stretches: dict[int, Stretch] = {}
        self.visits: list[tuple[int, np.ndarray]] = []
        self.modulus = 0
        self.kept: list[tuple[np.ndarray, ...]] = []
        self.order = np.zeros(self.workgroup_count * self.waves_per_workgroup, np.int32)
        self.accesses: dict[int, list[Access]] | None = None

    def follow(self, workgroups: Iterable[int], *, modulus: int = 0, accesses: bool = False) -> Trace:
        """Trace whole workgroups (flat ids). ``modulus``: sample one sector in so many; ``accesses``: keep each."""
        ids = np.fromiter(workgroups, np.int64)
        self.visits, self.kept, self.modulus = [], [], modulus
        self.accesses = {} if accesses else None
        self.order[:] = 0
        for first in range(0, len(ids), self.batch_workgroups):
            self.run_batch(ids[first : first + self.batch_workgroups])
        trace = Trace(self.stretches, _paths(self.visits))
        if accesses:
            trace.accesses = self.accesses or {}
        if modulus:
            columns = [np.concatenate(c) if c else np.zeros(0, np.int64) for c in zip(*self.kept, strict=True)]
            trace.samples = Samples(modulus, *(columns or [np.zeros(0, np.int64)] * 5))
        return trace

    def stretch_at(self, pc: int) -> Stretch:
        """Return the instructions from ``pc`` to the next jump, barrier, end or known entry point."""
        stretch = self.stretches.get(pc)
        if stretch is not None:
            return stretch
        instructions: list[Instruction] = []
        work: list[tuple[int, Any, Any]] = []
        at, last, last_pc = pc, None, pc
        while True:
            step = self.program.at(at)
            instruction = step.instruction
            instructions.append(instruction)
            kind = kind_of(instruction)
            if kind in ("branch", "end", "barrier"):
                last, last_pc = step.execute, at
                at += instruction.size
                break
            if kind in MEMORY_KINDS and instruction.name not in ("s_memtime", "s_memrealtime"):
                places = (
                    smem.places_of(instruction) if kind == "scalar_load" else vmem.places_of(self.program, instruction)
                )
                work.append((at, step.execute if at in self.sliced else None, (instruction, kind, places)))
            elif at in self.sliced:
                work.append((at, step.execute, None))
            at += instruction.size
            if at in self.flow.blocks:
                break
        stretch = self.stretches[pc] = Stretch(instructions, work, last, last_pc, at)
        return stretch

    def _advance(self, m: Convoy, limit: int) -> Any:
        while m.pc < limit:
            pc = m.pc
            stretch = self.stretches.get(pc) or self.stretch_at(pc)
            self.visits.append((pc, self._global_waves(m)))
            for at, execute, memory in stretch.work:
                m.pc = at
                if memory is not None:
                    self._note(m, *memory)
                if execute is not None:
                    outcome = execute(m)
                    if outcome is not None:
                        return outcome
            m.steps += len(stretch.instructions)
            m.pc = stretch.last_pc
            outcome = None if stretch.last is None else stretch.last(m)
            if outcome is None:
                m.pc = stretch.end
            elif isinstance(outcome, int):
                m.pc = outcome
            else:
                return outcome
        return None

    def _note(self, m: Convoy, instruction: Instruction, kind: str, places: Any) -> None:
        waves = self._global_waves(m)
        if kind == "scalar_load":
            addresses = places(m)[0][:, None]
            active, size = None, 4 * instruction.traits["count"]
        else:
            addresses, active = places(m)
            size = instruction.traits["size"]
        if self.accesses is not None:
            for wave, row, on in zip(waves, addresses, active if active is not None else [None] * m.n, strict=True):
                self.accesses.setdefault(int(wave), []).append(access_of(row if on is None else row[on], size, kind))
        if self.modulus:
            self._sample(m, waves, addresses, active, size, kind)
        self.order[waves] += 1

    def _sample(self, m: Convoy, waves: np.ndarray, addresses: Any, active: Any, size: int, kind: str) -> None:
        sectors = addresses >> np.uint64(6)
        chosen = (sectors * _SPREAD >> np.uint64(40)) % np.uint64(self.modulus) == 0
        if active is not None:
            chosen &= active
        row, lane = np.nonzero(chosen)
        if not len(row):
            return
        # Lanes of one instruction that share a sector ask for it once.
        both = np.unique(np.stack([row, sectors[row, lane].astype(np.int64)]), axis=1)
        found, who = both[1].astype(np.uint64), waves[both[0]]
        row = both[0]
        pcs = np.full(len(row), m.pc, np.int32)
        self.kept.append((found, self.order[who], who, pcs, np.full(len(row), kind == "store")))


def access_of(addresses: np.ndarray, size: int, kind: str) -> Access:
    """Work out what lanes at these addresses (uint64, active ones only, in lane order) touch.

    The vector unit takes the lanes in groups that make up 64 bytes, one group a clock. The tags of the L1 are in four
    banks (address bits 7 and 8), each of which finds one 128-byte line a clock: lines of one bank in a group take
    turns. An access that crosses a line looks up both.
    """
    if not len(addresses):
        return Access((), 1)
    first = addresses // np.uint64(SECTOR_BYTES)
    last = (addresses + np.uint64(size - 1)) // np.uint64(SECTOR_BYTES)
    sectors = np.unique(np.concatenate([first, last]) if (first != last).any() else first)
    if kind == "scalar_load":
        return Access(tuple(range(int(first[0]), int(last[0]) + 1)), 1)
    lanes = max(1, SECTOR_BYTES // size)
    lines = (addresses // np.uint64(LINE_BYTES)).astype(np.int64)
    ends = ((addresses + np.uint64(size - 1)) // np.uint64(LINE_BYTES)).astype(np.int64)
    groups = -(-len(lines) // lanes)
    group = np.arange(len(lines)) // lanes
    pairs = np.unique(np.stack([np.concatenate([group, group]), np.concatenate([lines, ends])]), axis=1)
    turns = np.bincount(pairs[0] * TAG_BANKS + pairs[1] % TAG_BANKS, minlength=groups * TAG_BANKS)
    clocks = int(turns.reshape(groups, TAG_BANKS).max(axis=1).sum())
    return Access(tuple(sectors.tolist()), clocks)


def _paths(visits: list[tuple[int, np.ndarray]]) -> dict[int, list[int]]:
    """Sort visits (in time order) by wave."""
    if not visits:
        return {}
    lengths = [len(waves) for _, waves in visits]
    pcs = np.repeat(np.array([pc for pc, _ in visits], np.int32), lengths)
    waves = np.concatenate([w for _, w in visits])
    order = np.argsort(waves, kind="stable")
    waves, pcs = waves[order], pcs[order]
    cuts = np.flatnonzero(np.diff(waves)) + 1
    return {int(part_w[0]): part_p.tolist() for part_w, part_p in zip(np.split(waves, cuts), np.split(pcs, cuts),
                                                                      strict=True)}  # fmt: skip
