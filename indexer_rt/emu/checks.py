"""Check, in strict mode, what the hardware leaves undefined: one cheap test per step, and the story when it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .hazards import MatrixResult, Pending
from .operands import EXEC, M0, SGPR_BIT, TTMP0, VCC, register_text
from .text import waitcnt_fields

if TYPE_CHECKING:
    from .convoy import Batch, Convoy
    from .instruction import Instruction
    from .machine import Machine

REGISTER_BITS = SGPR_BIT + 128


class Tracking:
    """Know which registers and LDS bytes of a batch were ever written, and by whom.

    A compiler may move undefined bits about (the high half of a widened integer, a copy of a value it will not use), so
    moves, selects and the high half of 64-bit operands are not checked.
    """

    def __init__(self, machine: Machine, batch: Batch, defined_rows: list[int]) -> None:
        self.machine, self.batch = machine, batch
        count = batch.V.shape[1]
        self.written = np.zeros((REGISTER_BITS, count), bool)
        defined = [0, *(SGPR_BIT + row for row in (*defined_rows, EXEC, EXEC + 1, *range(TTMP0, M0)))]
        for bit in defined:
            self.written[bit] = True
        groups, lds_bytes = len(batch.workgroups), machine.lds_bytes
        # Barrier count of each workgroup, and for each LDS byte who wrote it when: epoch * 64 + wave, -1 for never.
        self.epoch = np.zeros(groups, np.int32)
        self.lds_tag = np.full((groups, lds_bytes), -1, np.int32)
        # Bytes whose writer passed a barrier without waiting for the write.
        self.lds_late = np.zeros((groups, lds_bytes), bool)

    def unwritten_by(self, sel: slice | np.ndarray) -> int:
        """Return the registers (a bit set) that at least one of these waves never wrote."""
        every = self.written[:, sel].all(axis=1)
        return ~int.from_bytes(np.packbits(every, bitorder="little").tobytes(), "little") & ((1 << REGISTER_BITS) - 1)

    def check(self, m: Convoy, instruction: Instruction) -> None:
        """Raise the fault that running this instruction now would be; note what it writes."""
        hazards = m.hazards
        if hazards.pending_registers & instruction.touches:
            self._unwaited(m, instruction)
        if hazards.matrix_registers & instruction.touches:
            conflict = hazards.matrix_conflict(instruction)
            if conflict is not None:
                self._too_early(m, instruction, *conflict)
        hazards.clock += 1
        unwritten = m.unwritten
        if unwritten & instruction.needs:
            self._never_written(m, instruction, unwritten & instruction.needs)
        fresh = unwritten & instruction.writes
        if fresh:
            for bit in bits_of(fresh):
                self.written[bit, m.sel] = True
            m.unwritten = unwritten & ~fresh

    def _never_written(self, m: Convoy, instruction: Instruction, needed: int) -> None:
        busy = (m.S[EXEC, m.sel] | m.S[EXEC + 1, m.sel]) != 0
        is_vector = instruction.entry.format[0] in "VDFGM"
        for bit in bits_of(needed):
            missing = ~self.written[bit, m.sel]
            if is_vector and "mfma" not in instruction.traits:
                missing &= busy
            if missing.any():
                wave = int(m.waves[np.argmax(missing)])
                raise self.machine.fault(m, f"reads {bit_text(bit)}, which was never written ({instruction})", wave)

    def _unwaited(self, m: Convoy, instruction: Instruction) -> None:
        found = m.hazards.unwaited(instruction.touches)
        if found is None:
            return
        pending, counter = found
        bit = next(bits_of(pending.registers & instruction.touches))
        verb = "reads" if instruction.reads >> bit & 1 else "overwrites"
        raise self.machine.fault(
            m,
            f"{verb} {bit_text(bit)} while {pending.what} at {self._place(pending.what)} is outstanding: "
            f"no s_waitcnt {counter} has waited for it ({instruction})",
            _first(pending.waves),
        )

    def _place(self, instruction: Instruction) -> str:
        return f"+{instruction.offset - self.machine.program.code_base:#x}"

    def _too_early(self, m: Convoy, instruction: Instruction, result: MatrixResult, need: int, passed: int) -> None:
        registers = instruction.touches & (result.destination | result.source_c)
        bit = next(bits_of(registers))
        raise self.machine.fault(
            m,
            f"uses {bit_text(bit)} {passed} wait states after {result.what} at "
            f"{self._place(result.what)}; it needs {need} ({instruction})",
            _first(result.waves),
        )


def _first(waves: int) -> int:
    return (waves & -waves).bit_length() - 1


def bits_of(value: int) -> Any:
    """Yield the numbers of the set bits, lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def bit_text(bit: int) -> str:
    if bit >= SGPR_BIT:
        return register_text("s", bit - SGPR_BIT, 1)
    return f"v{bit}" if bit < 256 else f"a{bit - 256}"


def needs_of(instruction: Instruction) -> int:
    """Return the registers that must have been written before this instruction: see Tracking."""
    traits = instruction.traits
    if traits.get("moves"):
        return 0
    needs = 0
    for name, operand in instruction.src.items():
        if name == "d" and (
            traits.get("preserves_high")
            or traits.get("d_is_fill")
            or traits.get("d16")
            or instruction.variant == "sdwa"
        ):
            continue
        mask = operand.mask()
        needs |= mask & -mask if operand.type.bits == 64 else mask
    for row in traits.get("reads_rows", ()):
        needs |= 1 << (SGPR_BIT + row)
    return needs & ~(1 << (SGPR_BIT + M0)) & ~(0 if "carry" in instruction.src else 3 << (SGPR_BIT + VCC))


Effect = Callable[["Convoy"], None]


def effect_of(instruction: Instruction) -> Effect | None:
    """Return what the instruction leaves in flight, as a function of the convoy, or None."""
    format_name, traits, name = instruction.entry.format, instruction.traits, instruction.name
    if name == "s_waitcnt":
        vmcnt, _, lgkmcnt = waitcnt_fields(instruction.fields["simm16"])
        return lambda m: m.hazards.wait(64 if vmcnt == 63 else vmcnt, 64 if lgkmcnt == 15 else lgkmcnt)
    if name == "s_nop":
        states = instruction.fields["simm16"] & 15

        def wait_states(m: Convoy) -> None:
            m.hazards.clock += states

        return wait_states
    if "mfma" in traits:
        return _matrix_effect(instruction)
    if name == "s_barrier":
        return _leave_writes_behind
    queues = {"FLAT": ("vm", "lgkm"), "GLOBAL": ("vm",), "MUBUF": ("vm",), "DS": ("lgkm",), "SMEM": ("lgkm",)}.get(
        format_name, ()
    )
    if not queues or traits.get("kind") in ("cache", "nop"):
        return None
    registers, is_scalar = instruction.writes, format_name == "SMEM"

    def issue(m: Convoy) -> None:
        for queue in queues:
            m.hazards.issue(queue, Pending(registers, m.members, instruction, is_scalar, m.lds_writes))
        m.lds_writes = ()

    return issue


def _leave_writes_behind(m: Convoy) -> None:
    """Note the LDS bytes whose write is still outstanding at a barrier: other waves may not rely on them after it."""
    late = m.batch.tracking.lds_late.reshape(-1)
    for entry in m.hazards.lgkm:
        for pending in entry:
            for places, waves, size in pending.lds_writes:
                mine = np.isin(waves, [*bits_of(pending.waves)])
                for n in range(size):
                    late[places[mine] + n] = True


def _matrix_effect(instruction: Instruction) -> Effect:
    shape = instruction.traits["mfma"]
    destination, c = instruction.dst[0].mask(), instruction.src["c"].mask()
    waits = shape.wait_states()

    def issue(m: Convoy) -> None:
        m.hazards.issue_matrix(MatrixResult(destination, c, m.hazards.clock - 1, m.members, instruction, **waits))

    return issue
