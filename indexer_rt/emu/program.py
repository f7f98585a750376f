"""Turn a kernel's code into steps: decoded once, compiled to functions of the convoy once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..code_object import Kernel
from ..errors import EmulatorFault
from . import (
    checks,
    control,
    lds,
    matrix,
    packed,
    scalar,
    smem,
    vector,
    vector_compare,
    vector_float,
    vector_integer,
    vmem,
)
from .convoy import Convoy
from .instruction import Instruction, decode
from .operands import Operand


@dataclass(frozen=True, slots=True)
class Step:
    """Be one instruction ready to run. ``execute`` returns None, the next pc, convoys, "barrier" or "ended"."""

    instruction: Instruction
    execute: Callable[[Convoy], Any]
    effect: Callable[[Convoy], None] | None


# Importing these fills the vector opcode tables.
BODIES = (vector_compare, vector_float, vector_integer)

_BUILDERS = {
    "SOP1": scalar.build, "SOP2": scalar.build, "SOPC": scalar.build, "SOPK": scalar.build, "SOPP": control.build,
    "SMEM": smem.build, "VOP1": vector.build, "VOP2": vector.build, "VOPC": vector.build, "VOP3": vector.build,
    "VOP3P": packed.build, "VOP3PX2": matrix.build, "DS": lds.build, "FLAT": vmem.build, "GLOBAL": vmem.build,
    "SCRATCH": vmem.build, "MUBUF": vmem.build,
}  # fmt: skip


class Program:
    """Hold one kernel's steps by pc (bytes from the kernel's entry; a called function may lie elsewhere in the
    image).
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.accum_offset = kernel.descriptor.accum_offset
        self.vector_rows = kernel.descriptor.allocated_vgprs
        # Decoding works on the loadable segment that holds the entry, so that calls out of the kernel's symbol resolve.
        segment = next(s for s in kernel.code_object.segments if s.address <= kernel.entry < s.address + len(s.data))
        self.code = segment.data
        self.code_base = kernel.entry - segment.address
        self.steps: dict[int, Step] = {}

    def at(self, pc: int) -> Step:
        """Return the step at a pc; decode and compile it the first time."""
        step = self.steps.get(pc)
        if step is None:
            step = self.steps[pc] = self._make(pc)
        return step

    def _make(self, pc: int) -> Step:
        offset = self.code_base + pc
        if not 0 <= offset < len(self.code):
            raise EmulatorFault(
                f"{self.kernel.name}+{pc:#x}: the program counter left the code ({len(self.kernel.code)} bytes)."
            )
        try:
            instruction = decode(self.code, offset)
        except EmulatorFault as fault:
            raise EmulatorFault(str(fault).replace(f"+{offset:#x}", f"{self.kernel.name}+{pc:#x}")) from None
        instruction.needs = checks.needs_of(instruction)
        key = "MFMA" if "mfma" in instruction.traits else instruction.entry.format
        build = matrix.build if key == "MFMA" else _BUILDERS[key]
        try:
            return Step(instruction, build(self, instruction), checks.effect_of(instruction))
        except EmulatorFault as fault:
            raise EmulatorFault(f"{instruction.name} at {self.kernel.name}+{pc:#x}: {fault}") from None

    def row(self, operand: Operand) -> int:
        """Return the row of the unified register file where a VGPR or AGPR operand starts."""
        first, limit = operand.index, min(self.accum_offset, self.vector_rows)
        if operand.kind == "a":
            first, limit = self.accum_offset + operand.index, self.vector_rows
        if first + operand.type.regs > limit:
            raise EmulatorFault(
                f"{operand.plain()} is beyond the registers that the descriptor allocates "
                f"({self.vector_rows}, AGPRs from {self.accum_offset}). The code object is damaged or not for gfx950."
            )
        return first

    @staticmethod
    def touch(m: Convoy, row: int) -> None:
        """Note that a vector register row changes, so that decoded copies of it are stale."""
        m.batch.versions[row] += 1


_PROGRAMS: dict[tuple[str, str], Program] = {}
_PROGRAMS_KEPT = 64


def program_of(kernel: Kernel) -> Program:
    """Return the program of a kernel; the same file's kernel is compiled once per process."""
    key = (kernel.code_object.sha256, kernel.name)
    program = _PROGRAMS.get(key)
    if program is None:
        if len(_PROGRAMS) >= _PROGRAMS_KEPT:
            _PROGRAMS.clear()
        program = _PROGRAMS[key] = Program(kernel)
    return program
