"""Track what a convoy has in flight: memory operations not waited for and matrix results not ready.

vmcnt counts vector memory operations, loads and stores alike, in one in-order queue. lgkmcnt counts LDS operations, in
order among themselves, and scalar loads, which may return in any order: while one is outstanding only lgkmcnt(0) says
anything. Wait states after an MFMA follow the published rules of LLVM's GCNHazardRecognizer for gfx940 and gfx950: one
instruction is one state, ``s_nop n`` is n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .instruction import Instruction


@dataclass(frozen=True, slots=True)
class Pending:
    """Be one outstanding operation: registers as a bit set, the waves that have it, whether it is a scalar load."""

    registers: int
    waves: np.ndarray
    what: Instruction
    is_scalar: bool = False


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Be one MFMA in flight. ``issued`` is the clock at which it went; waits are in wait states after it."""

    destination: int
    source_c: int
    first_register: int
    issued: int
    waves: np.ndarray
    what: Instruction
    read_wait: int
    overlap_c_wait: int
    same_c_wait: int
    overwrite_c_wait: int


class Hazards:
    """Hold the queues of one convoy. A queue's element is a tuple of Pending, one for each set of waves merged into it."""

    __slots__ = ("clock", "lgkm", "lgkm_registers", "matrix", "matrix_registers", "pending_registers", "vm", "vm_registers")

    def __init__(self) -> None:
        self.vm: list[tuple[Pending, ...]] = []
        self.lgkm: list[tuple[Pending, ...]] = []
        self.matrix: list[MatrixResult] = []
        self.clock = 0
        self.vm_registers = self.lgkm_registers = self.matrix_registers = self.pending_registers = 0

    def _recount(self) -> None:
        self.vm_registers = _union(self.vm)
        self.lgkm_registers = _union(self.lgkm)
        self.pending_registers = self.vm_registers | self.lgkm_registers

    # --- memory counters ---

    def issue(self, queue: str, pending: Pending) -> None:
        """Put an operation in the queue "vm" or "lgkm"."""
        getattr(self, queue).append((pending,))
        if pending.registers:
            self._recount()

    def wait(self, vmcnt: int, lgkmcnt: int) -> None:
        """Do what s_waitcnt does."""
        changed = False
        if vmcnt < len(self.vm):
            del self.vm[: len(self.vm) - vmcnt]
            changed = True
        if lgkmcnt < len(self.lgkm):
            if lgkmcnt == 0:
                self.lgkm.clear()
            else:
                scalar = any(p.is_scalar for entry in self.lgkm for p in entry)
                if not scalar:
                    del self.lgkm[: len(self.lgkm) - lgkmcnt]
            changed = True
        if changed:
            self._recount()

    def unwaited(self, touches: int) -> tuple[Pending, str] | None:
        """Return the outstanding operation on any of these registers, and its counter's name."""
        for queue, counter in ((self.vm, "vmcnt"), (self.lgkm, "lgkmcnt")):
            for entry in queue:
                for pending in entry:
                    if pending.registers & touches:
                        return pending, counter
        return None

    # --- matrix results ---

    def issue_matrix(self, result: MatrixResult) -> None:
        self.matrix = [m for m in self.matrix if self.clock - m.issued <= 24]
        self.matrix.append(result)
        self.matrix_registers = 0
        for m in self.matrix:
            self.matrix_registers |= m.destination | m.source_c

    def matrix_conflict(self, instruction: Instruction) -> tuple[MatrixResult, int, int] | None:
        """Return (result, states needed, states passed) when the instruction comes too early after an MFMA."""
        shape = instruction.traits.get("mfma")
        for result in reversed(self.matrix):
            passed = self.clock - result.issued - 1
            if passed >= result.read_wait:
                continue
            need = 0
            if shape is None:
                if (instruction.reads | instruction.writes) & result.destination:
                    need = result.read_wait
                elif instruction.writes & result.source_c:
                    need = result.overwrite_c_wait
            else:
                sources = instruction.src["a"].mask() | instruction.src["b"].mask()
                c = instruction.src["c"]
                if sources & result.destination:
                    need = result.read_wait
                elif c.mask() & result.destination:
                    same = c.mask() & -c.mask() == result.first_register
                    need = result.same_c_wait if same else result.overlap_c_wait
            if passed < need:
                return result, need, passed
        return None

    # --- convoys split and merge ---

    def restricted(self, waves: np.ndarray) -> Hazards:
        """Return what these waves have in flight."""
        out = Hazards()
        out.clock = self.clock
        for source, target in ((self.vm, out.vm), (self.lgkm, out.lgkm)):
            for entry in source:
                kept = tuple(p for p in entry if _share(p.waves, waves))
                if kept:
                    target.append(kept)
        out.matrix = [m for m in self.matrix if _share(m.waves, waves)]
        out.matrix_registers = self.matrix_registers
        out._recount()
        return out

    def merged(self, other: Hazards, own_waves: np.ndarray, other_waves: np.ndarray) -> Hazards:
        """Return the union, youngest aligned with youngest, so that a later wait means the same for every wave."""
        out = Hazards()
        for a, b, target in (
            (_narrow(self.vm, own_waves), _narrow(other.vm, other_waves), out.vm),
            (_narrow(self.lgkm, own_waves), _narrow(other.lgkm, other_waves), out.lgkm),
        ):
            length = max(len(a), len(b))
            padded = [[()] * (length - len(queue)) + queue for queue in (a, b)]
            target.extend(x + y for x, y in zip(*padded, strict=True))
        out.clock = max(self.clock, other.clock)
        for hazards, waves in ((self, own_waves), (other, other_waves)):
            shift = out.clock - hazards.clock
            for m in hazards.matrix:
                if hazards.clock - m.issued <= 24:
                    out.matrix.append(
                        MatrixResult(
                            m.destination, m.source_c, m.first_register, m.issued + shift, waves, m.what,
                            m.read_wait, m.overlap_c_wait, m.same_c_wait, m.overwrite_c_wait,
                        )
                    )  # fmt: skip
        out.matrix.sort(key=lambda m: m.issued)
        for m in out.matrix:
            out.matrix_registers |= m.destination | m.source_c
        out._recount()
        return out


def _union(queue: list[tuple[Pending, ...]]) -> int:
    registers = 0
    for entry in queue:
        for pending in entry:
            registers |= pending.registers
    return registers


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or bool(np.isin(a, b).any())


def _narrow(queue: list[tuple[Pending, ...]], waves: np.ndarray) -> list[tuple[Pending, ...]]:
    """Say of every operation that it belongs to these waves (those it had that are still here)."""
    out = []
    for entry in queue:
        out.append(
            tuple(Pending(p.registers, p.waves[np.isin(p.waves, waves)], p.what, p.is_scalar) for p in entry)
        )
    return out
