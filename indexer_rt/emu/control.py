"""Run SOPP: branches, barriers, the end, waits and hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .operands import EXEC, VCC
from .table import Entry, add
from .text import signed

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

_BRANCHES = {
    0x2: ("s_branch", None),
    0x4: ("s_cbranch_scc0", lambda m: ~m.scc[m.sel]),
    0x5: ("s_cbranch_scc1", lambda m: m.scc[m.sel]),
    0x6: ("s_cbranch_vccz", lambda m: ~_any(m, VCC)),
    0x7: ("s_cbranch_vccnz", lambda m: _any(m, VCC)),
    0x8: ("s_cbranch_execz", lambda m: ~_any(m, EXEC)),
    0x9: ("s_cbranch_execnz", lambda m: _any(m, EXEC)),
}
# Hints that change nothing here: opcode -> (mnemonic, how the immediate prints).
_HINTS = {
    0x0: ("s_nop", "decimal"), 0x3: ("s_wakeup", "none"), 0xC: ("s_waitcnt", "waitcnt"), 0xE: ("s_sleep", "decimal"),
    0xF: ("s_setprio", "decimal"), 0x13: ("s_icache_inv", "none"), 0x14: ("s_incperflevel", "decimal"),
    0x15: ("s_decperflevel", "decimal"), 0x16: ("s_ttracedata", "none"),
}  # fmt: skip
# Decoded and printed, but a fault when run: they need an operating system or a debugger.
_FOREIGN = {
    0xB: ("s_setkill", "decimal"), 0xD: ("s_sethalt", "decimal"), 0x10: ("s_sendmsg", "sendmsg"),
    0x11: ("s_sendmsghalt", "sendmsg"), 0x12: ("s_trap", "decimal"),
}  # fmt: skip


def _any(m: Convoy, row: int) -> np.ndarray:
    return (m.S[row, m.sel] | m.S[row + 1, m.sel]) != 0


for _opcode, (_name, _condition) in _BRANCHES.items():
    _rows = (VCC, VCC + 1) if "vcc" in _name else ()
    add(
        Entry(
            "SOPP",
            _opcode,
            _name,
            body=_condition,
            traits={"kind": "branch", "immediate": "branch", "reads_rows": _rows},
        )
    )
for _opcode, (_name, _style) in _HINTS.items():
    add(Entry("SOPP", _opcode, _name, traits={"kind": "hint", "immediate": _style}))
for _opcode, (_name, _style) in _FOREIGN.items():
    add(Entry("SOPP", _opcode, _name, traits={"kind": "foreign", "immediate": _style}))
add(Entry("SOPP", 0x1, "s_endpgm", traits={"kind": "end", "immediate": "optional"}))
add(Entry("SOPP", 0x1B, "s_endpgm_saved", traits={"kind": "end", "immediate": "none"}))
add(Entry("SOPP", 0xA, "s_barrier", traits={"kind": "barrier", "immediate": "none"}))


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """Compile one instruction to a function of the convoy."""
    del program
    kind = instruction.traits["kind"]
    if kind == "branch":
        return branch(instruction.entry.body, signed(instruction.fields["simm16"], 16), instruction.size)
    if kind == "end":
        return lambda m: "ended"
    if kind == "barrier":
        return _barrier
    if kind == "hint":
        return lambda m: None

    def foreign(m: Convoy) -> None:
        raise m.batch.machine.fault(m, f"{instruction} is not modelled")

    return foreign


def branch(condition: Callable[[Convoy], np.ndarray] | None, words: int, size: int) -> Callable[[Convoy], Any]:
    """Compile a relative branch: the target counts words from the next instruction."""
    if condition is None:
        return lambda m: m.pc + size + 4 * words

    def run(m: Convoy) -> Any:
        taken = condition(m)
        target = m.pc + size + 4 * words
        if taken.all():
            return target
        if not taken.any():
            return m.pc + size
        jump, stay = m.split(taken)
        jump.pc, stay.pc = target, m.pc + size
        return jump, stay

    return run


def _barrier(m: Convoy) -> str:
    m.pc += 4
    return "barrier"
