"""Find the instructions that decide where a kernel goes and which memory it touches.

Only these need to be executed to know every wave's path and addresses; matrix and vector arithmetic on the data is
stepped over. The slice is a backward data-flow over registers: a register is needed where a branch, EXEC or an address
will read it. A vector write ends the need only where EXEC is known to be the entry's or the reads follow under the same
EXEC, since elsewhere it is partial.
"""

from __future__ import annotations

from indexer_rt.emu import Instruction
from indexer_rt.emu.operands import EXEC, SGPR_BIT
from indexer_rt.flow import Flow, kind_of

SCC = 1 << (SGPR_BIT + 200)
EXEC_MASK = 3 << (SGPR_BIT + EXEC)
VECTOR_MASK = (1 << SGPR_BIT) - 1
ADDRESS_OPERANDS = ("addr", "saddr", "rsrc", "soffset", "m0", "base")
MEMORY_KINDS = ("load", "load_lds", "store", "atomic", "scalar_load")


def executed_offsets(flow: Flow) -> set[int]:
    """Return the byte offsets of the instructions that must be executed; all of them when a jump is indirect."""
    if flow.is_indirect:
        return {i.offset for block in flow.blocks.values() for i in block.instructions}
    full = _exec_is_full(flow)
    with_lds = False
    while True:
        executed = _slice(flow, full, with_lds)
        reads_lds = any(
            i.offset in executed and kind_of(i) == "lds" for block in flow.blocks.values() for i in block.instructions
        )
        if with_lds or not reads_lds:
            return executed
        with_lds = True


def _slice(flow: Flow, full: set[int], with_lds: bool) -> set[int]:
    executed: set[int] = set()
    needed_at: dict[int, int] = dict.fromkeys(flow.blocks, 0)
    todo = sorted(flow.reachable)
    while todo:
        offset = todo.pop()
        block = flow.blocks[offset]
        # What is read beyond the last change of EXEC below, and what is read before it: under the same lanes.
        beyond, near = EXEC_MASK, 0
        for successor in block.successors:
            beyond |= needed_at[successor]
        for instruction in reversed(block.instructions):
            if instruction.writes & EXEC_MASK or _changes_exec(instruction):
                beyond, near = beyond | near, 0
            beyond, near = _before(instruction, beyond, near, full, with_lds, executed)
        needed = beyond | near
        if needed & ~needed_at[offset]:
            needed_at[offset] |= needed
            todo.extend(p for p in flow.predecessors[offset] if p in flow.reachable)
    return executed


def _before(
    instruction: Instruction, beyond: int, near: int, full: set[int], with_lds: bool, executed: set[int]
) -> tuple[int, int]:
    """Return what is needed before an instruction, given what is needed after it."""
    kind = kind_of(instruction)
    if kind == "branch":
        return beyond, near | instruction.reads | (SCC if "scc" in instruction.name else 0)
    writes = instruction.writes | (SCC if _writes_scc(instruction) else 0)
    needs = bool(writes & (beyond | near | EXEC_MASK)) or instruction.name.startswith("s_setreg")
    if with_lds and (kind == "load_lds" or (kind == "lds" and not instruction.dst)):
        needs = True
    if needs:
        executed.add(instruction.offset)
        whole = writes & ~VECTOR_MASK
        if not _keeps_lanes(instruction):
            near &= ~writes
            whole = writes if instruction.offset in full else whole
        beyond, near = beyond & ~whole, near & ~whole
        near |= instruction.reads | (SCC if _reads_scc(instruction) else 0)
        beyond |= EXEC_MASK
    if kind in MEMORY_KINDS:
        for name in ADDRESS_OPERANDS:
            if name in instruction.src:
                near |= instruction.src[name].mask()
    return beyond, near


def _reads_scc(instruction: Instruction) -> bool:
    named = any(name == "scc" for name, _ in instruction.entry.params)
    return named or any(o.kind == "const" and o.index == 253 for o in instruction.src.values())


def _writes_scc(instruction: Instruction) -> bool:
    return instruction.traits.get("scc", "none") != "none" or _changes_exec(instruction)


def _changes_exec(instruction: Instruction) -> bool:
    return "saveexec" in instruction.name or "wrexec" in instruction.name


def _keeps_lanes(instruction: Instruction) -> bool:
    """Say whether some lane or half of the result keeps what it held, though EXEC has the lane."""
    return bool(instruction.variant == "dpp" or instruction.traits.get("d16") or "writelane" in instruction.name)


def _exec_is_full(flow: Flow) -> set[int]:
    """Return the offsets at which EXEC is what it was at entry.

    A forward data-flow of (EXEC is the entry's, scalar pairs that hold the entry's EXEC); paths meet by intersection.
    """
    State = tuple[bool, frozenset[int]]
    entry: dict[int, State] = {0: (True, frozenset())}
    out: set[int] = set()
    todo = [0]
    while todo:
        offset = todo.pop()
        state = entry[offset]
        for instruction in flow.blocks[offset].instructions:
            (out.add if state[0] else out.discard)(instruction.offset)
            state = _after(instruction, *state)
        for successor in flow.blocks[offset].successors:
            known = entry.get(successor)
            merged = state if known is None else (known[0] and state[0], known[1] & state[1])
            if merged != known:
                entry[successor] = merged
                todo.append(successor)
    return out


def _after(instruction: Instruction, is_full: bool, pairs: frozenset[int]) -> tuple[bool, frozenset[int]]:
    written = {o.index for o in instruction.dst if o.kind == "s"}
    was_full, held = is_full, pairs
    if written or instruction.writes >> SGPR_BIT:
        pairs = frozenset(p for p in pairs if not instruction.writes & (3 << (SGPR_BIT + p)))
    source = next((o.index for o in instruction.src.values() if o.kind == "s" and o.index in held), None)
    if "saveexec" in instruction.name:
        return False, pairs | ({instruction.dst[0].index} if was_full else frozenset())
    if "wrexec" in instruction.name:
        return False, pairs
    if instruction.name == "s_mov_b64":
        from_exec = any(o.kind == "s" and o.index == EXEC for o in instruction.src.values())
        holds = source is not None or (from_exec and was_full)
        target = instruction.dst[0].index
        if target == EXEC:
            minus_one = any(o.kind == "const" and o.index == 193 for o in instruction.src.values())
            return source is not None or minus_one, pairs
        return is_full, pairs | ({target} if holds else frozenset())
    if instruction.writes & EXEC_MASK:
        restores = instruction.name == "s_or_b64" and source is not None
        return restores, pairs
    return is_full, pairs
