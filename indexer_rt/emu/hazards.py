"""Track what a convoy has in flight: memory operations not waited for and matrix results not ready.

vmcnt counts vector memory operations, loads and stores alike, in one in-order queue. lgkmcnt counts LDS operations, in
order among themselves, and scalar loads, which may return in any order: while one is outstanding only lgkmcnt(0) says
anything. Wait states after an MFMA follow the published rules of LLVM's GCNHazardRecognizer for gfx940 and gfx950: one
instruction is one state, ``s_nop n`` is n + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .instruction import Instruction


# No wait after an MFMA is longer than this many states.
LONGEST_WAIT = 24


@dataclass(frozen=True, slots=True)
class Pending:
    """Be one outstanding operation: its registers and the waves that have it, as bit sets."""

    registers: int
    waves: int
    what: Instruction
    is_scalar: bool = False
    # LDS bytes it writes: (flat byte numbers, wave of each, bytes each) per store.
    lds_writes: tuple[tuple[np.ndarray, np.ndarray, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Be one MFMA in flight. ``issued`` is the clock at which it went; ``waves`` is a bit set.

    Waits are in wait states: ``read_wait`` before anything but an addend reads or overwrites the result;
    ``same_c_wait`` before an MFMA takes exactly it as addend; ``xdl_c_wait`` and ``f32_c_wait`` before an XDL or an f32
    MFMA takes an addend that only overlaps it; ``overwrite_c_wait`` before its own addend is overwritten.
    """

    destination: int
    source_c: int
    issued: int
    waves: int
    what: Instruction
    read_wait: int
    xdl_c_wait: int
    f32_c_wait: int
    same_c_wait: int
    overwrite_c_wait: int


class Hazards:
    """Hold the queues of one convoy. A queue's element is a tuple of Pending, one for each set of waves merged into
    it.
    """

    __slots__ = (
        "clock",
        "lgkm",
        "lgkm_registers",
        "matrix",
        "matrix_registers",
        "pending_registers",
        "vm",
        "vm_registers",
    )

    def __init__(self) -> None:
        self.vm: list[tuple[Pending, ...]] = []
        self.lgkm: list[tuple[Pending, ...]] = []
        self.matrix: list[MatrixResult] = []
        self.clock = 0
        self.vm_registers = self.lgkm_registers = self.matrix_registers = self.pending_registers = 0

    def recount(self) -> None:
        self.vm_registers = _union(self.vm)
        self.lgkm_registers = _union(self.lgkm)
        self.pending_registers = self.vm_registers | self.lgkm_registers
        self.matrix_registers = 0
        for m in self.matrix:
            self.matrix_registers |= m.destination | m.source_c

    # --- memory counters ---

    def issue(self, queue: str, pending: Pending) -> None:
        """Put an operation in the queue "vm" or "lgkm"."""
        getattr(self, queue).append((pending,))
        if pending.registers:
            self.recount()

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
            self.recount()

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
        self.matrix = [m for m in self.matrix if self.clock - m.issued <= LONGEST_WAIT]
        self.matrix.append(result)
        self.recount()

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
                    same = c.mask() == result.destination
                    overlap = result.xdl_c_wait if shape.is_xdl else result.f32_c_wait
                    need = result.same_c_wait if same else overlap
            if passed < need:
                return result, need, passed
        return None

    # --- convoys split and merge ---

    def restricted(self, waves: int) -> Hazards:
        """Return what these waves (a bit set) have in flight."""
        out = Hazards()
        out.clock = self.clock
        out.vm, out.lgkm = _narrow(self.vm, waves), _narrow(self.lgkm, waves)
        # An operation that only the other waves have is gone; those in front of it keep their order.
        out.vm = [entry for entry in out.vm if entry]
        out.lgkm = [entry for entry in out.lgkm if entry]
        out.matrix = [replace(m, waves=m.waves & waves) for m in self.matrix if m.waves & waves]
        out.recount()
        return out

    def merged(self, other: Hazards) -> Hazards:
        """Return the union, youngest aligned with youngest, so that a later wait means the same for every wave."""
        out = Hazards()
        for a, b, target in ((self.vm, other.vm, out.vm), (self.lgkm, other.lgkm, out.lgkm)):
            length = max(len(a), len(b))
            padded = [[()] * (length - len(queue)) + queue for queue in (a, b)]
            target.extend(x + y for x, y in zip(*padded, strict=True))
        out.clock = max(self.clock, other.clock)
        for hazards in (self, other):
            shift = out.clock - hazards.clock
            out.matrix.extend(
                replace(m, issued=m.issued + shift) for m in hazards.matrix if hazards.clock - m.issued <= LONGEST_WAIT
            )
        out.matrix.sort(key=lambda m: m.issued)
        out.recount()
        return out


def _union(queue: list[tuple[Pending, ...]]) -> int:
    registers = 0
    for entry in queue:
        for pending in entry:
            registers |= pending.registers
    return registers


def _narrow(queue: list[tuple[Pending, ...]], waves: int) -> list[tuple[Pending, ...]]:
    return [
        tuple(p if not p.waves & ~waves else replace(p, waves=p.waves & waves) for p in entry if p.waves & waves)
        for entry in queue
    ]
