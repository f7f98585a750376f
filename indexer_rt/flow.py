"""Find the basic blocks of a kernel's code and the edges between them, and say what kind of work an instruction is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from .emu import Instruction, disassemble
from .emu.text import signed

_INDIRECT = ("s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_cbranch_join", "s_cbranch_g_fork", "s_cbranch_i_fork")


def kind_of(instruction: Instruction) -> str:
    """Return what an instruction keeps busy.

    "mfma", "packed" (VALU on two float32 at once), "valu", "salu", "scalar_load", "load", "load_lds" (memory to LDS),
    "store", "atomic", "lds", "wait" (s_waitcnt), "nop" (s_nop), "barrier", "branch", "end", or "hint".
    """
    entry, traits, name = instruction.entry, instruction.traits, instruction.name
    format_name = entry.format
    if "mfma" in traits:
        return "mfma"
    if format_name.startswith("VOP"):
        return "packed" if name.startswith("v_pk_") and name.endswith("_f32") else "valu"
    if format_name in ("GLOBAL", "FLAT", "MUBUF", "SCRATCH"):
        if traits["kind"] == "load" and instruction.fields.get("lds"):
            return "load_lds"
        return "hint" if traits["kind"] == "cache" else traits["kind"]
    if format_name == "SMEM":
        return "scalar_load" if traits["kind"] in ("load", "buffer_load", "time") else "hint"
    if format_name == "DS":
        return "lds"
    if format_name == "SOPP":
        if name in ("s_waitcnt", "s_nop"):
            return {"s_waitcnt": "wait", "s_nop": "nop"}[name]
        return {"branch": "branch", "end": "end", "barrier": "barrier"}.get(traits["kind"], "hint")
    return "branch" if name in _INDIRECT else "salu"


def wait_counts(instruction: Instruction) -> tuple[int, int]:
    """Return (vmcnt, lgkmcnt) of an s_waitcnt; 63 and 15 mean that the counter is not waited for."""
    immediate = instruction.fields["simm16"]
    return immediate & 0xF | immediate >> 10 & 0x30, immediate >> 8 & 0xF


@dataclass
class Block:
    """Be a run of instructions that is entered at its first and left at its last."""

    instructions: list[Instruction]
    successors: list[int] = field(default_factory=list)

    @property
    def offset(self) -> int:
        return self.instructions[0].offset


@dataclass
class Flow:
    """Hold the blocks of a kernel by byte offset. ``is_indirect``: some jump's target is only known at run time."""

    blocks: dict[int, Block]
    is_indirect: bool

    @classmethod
    def of(cls, code: bytes) -> Flow:
        """Read the code of a kernel. Raises EmulatorFault at an instruction that is not known."""
        instructions = [instruction for _, instruction in disassemble(code)]
        ends: dict[int, list[int]] = {}
        leaders = {0}
        is_indirect = False
        for instruction in instructions:
            after = instruction.offset + instruction.size
            kind = kind_of(instruction)
            if kind == "branch" and instruction.name in _INDIRECT:
                is_indirect = True
                ends[instruction.offset] = []
            elif kind == "branch":
                target = after + 4 * signed(instruction.fields["simm16"], 16)
                ends[instruction.offset] = [target] if instruction.name == "s_branch" else [target, after]
            elif kind == "end":
                ends[instruction.offset] = []
            elif kind == "barrier":
                # A barrier ends a block, because waves part and meet there.
                ends[instruction.offset] = [after]
            else:
                continue
            leaders.update(ends[instruction.offset])
            leaders.add(after)
        blocks: dict[int, Block] = {}
        current: Block | None = None
        for instruction in instructions:
            if current is None or instruction.offset in leaders:
                if current is not None and not current.successors and current.instructions[-1].offset not in ends:
                    current.successors = [instruction.offset]
                current = blocks[instruction.offset] = Block([])
            current.instructions.append(instruction)
            if instruction.offset in ends:
                current.successors = [target for target in ends[instruction.offset] if target < len(code)]
        return cls(blocks, is_indirect)

    @cached_property
    def predecessors(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {offset: [] for offset in self.blocks}
        for offset, block in self.blocks.items():
            for successor in block.successors:
                out[successor].append(offset)
        return out

    @cached_property
    def reachable(self) -> set[int]:
        """Return the blocks that the entry leads to (code after the end is padding)."""
        seen, todo = set(), [0]
        while todo:
            offset = todo.pop()
            if offset not in seen:
                seen.add(offset)
                todo.extend(self.blocks[offset].successors)
        return seen

    @cached_property
    def dominators(self) -> dict[int, set[int]]:
        """Return, for each reachable block, the blocks that every path to it passes."""
        order = sorted(self.reachable)
        out = {offset: set(order) for offset in order}
        out[0] = {0}
        changed = True
        while changed:
            changed = False
            for offset in order[1:]:
                entries = [out[p] for p in self.predecessors[offset] if p in out]
                new = set.intersection(*entries) | {offset}
                if new != out[offset]:
                    out[offset], changed = new, True
        return out

    @cached_property
    def loops(self) -> dict[int, set[int]]:
        """Return natural loops: header -> blocks, found by back edges (to a block that dominates the jump)."""
        out: dict[int, set[int]] = {}
        for offset in self.reachable:
            for header in self.blocks[offset].successors:
                if header not in self.dominators[offset]:
                    continue
                body, todo = {header}, [offset]
                while todo:
                    block = todo.pop()
                    if block not in body:
                        body.add(block)
                        todo.extend(p for p in self.predecessors[block] if p in self.reachable)
                out[header] = out.get(header, set()) | body
        return out
