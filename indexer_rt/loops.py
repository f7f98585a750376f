"""Count what one round of a kernel's steady loop costs, from its decoded bytes.

The steady loop is the innermost natural loop with the most matrix instructions. A step is 64 tokens, a row-tile
32 heads x 32 tokens; both are told from the matrix work: one row-tile of head_dim 128 is 32 * 32 * 128 multiply-adds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .code_object import Kernel
from .emu import Instruction
from .errors import CodeObjectError
from .flow import Flow, kind_of, wait_counts
from .manifest import STEP_TOKENS, waves_per_simd

ROW_TILE_MACS = 32 * 32 * 128
WAVE_SIZE = 64

NOT_WAITED = {"vmcnt": 63, "lgkmcnt": 15}


@dataclass(frozen=True, slots=True)
class Wait:
    """Be one s_waitcnt of the loop. ``vmcnt`` and ``lgkmcnt`` as encoded, None when the counter is not waited for.

    ``before`` and ``after``: bytes of vector loads in flight per wave on reaching it and on passing it.
    """

    offset: int
    vmcnt: int | None
    lgkmcnt: int | None
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class SteadyLoop:
    """Count one round of the steady loop, by wave instructions; bytes are those of 64 lanes.

    ``row_tiles``: (32 heads x 32 tokens) per round. ``counts``: instructions per kind (flow.kind_of). ``nop_slots``:
    issue slots that s_nop fills. ``waits``: in order of address. ``nt_load_bytes``: of the loaded bytes, those loaded
    non-temporally.
    """

    kernel: str
    vgprs: int
    agprs: int
    sgprs: int
    waves_per_simd: int
    first: int
    last: int
    counts: Counter[str]
    row_tiles: float
    load_bytes: int
    nt_load_bytes: int
    store_bytes: int
    nop_slots: int
    waits: tuple[Wait, ...]

    @property
    def valu_per_row_tile(self) -> float:
        """Vector instructions per row-tile, packed ones included."""
        return (self.counts["valu"] + self.counts["packed"]) / self.row_tiles

    def steps(self, num_heads: int, rows: int) -> float:
        """Return how many 64-token steps of a kernel of so many heads and rows a round makes."""
        # The matrix unit takes 16 heads at least.
        return self.row_tiles / (rows * (max(num_heads, 16) / 32) * (STEP_TOKENS / 32))


def steady_loop(kernel: Kernel) -> SteadyLoop:
    """Find and count a kernel's steady loop. Raises CodeObjectError when no loop holds a matrix instruction."""
    flow = Flow.of(kernel.code)
    loops = flow.loops

    def matrix_work(header: int) -> int:
        return sum(_macs(i) for offset in loops[header] for i in flow.blocks[offset].instructions)

    innermost = [h for h, body in loops.items() if not any(o != h and o in body and loops[o] < body and matrix_work(o)
                                                          for o in loops)]  # fmt: skip
    candidates = [header for header in innermost if matrix_work(header)]
    if not candidates:
        raise CodeObjectError(f"{kernel.name}: no loop holds a matrix instruction; nothing to report of a steady loop.")
    header = max(candidates, key=matrix_work)
    body = [i for offset in sorted(loops[header]) for i in flow.blocks[offset].instructions]
    counts = Counter(kind_of(i) for i in body)
    loads = [i for i in body if kind_of(i) in ("load", "load_lds")]
    return SteadyLoop(
        kernel=kernel.name,
        vgprs=kernel.vgprs,
        agprs=kernel.agprs,
        sgprs=kernel.sgprs,
        waves_per_simd=waves_per_simd(kernel),
        first=header,
        last=body[-1].offset,
        counts=counts,
        row_tiles=sum(map(_macs, body)) / ROW_TILE_MACS,
        load_bytes=sum(WAVE_SIZE * i.traits["size"] for i in loads),
        nt_load_bytes=sum(WAVE_SIZE * i.traits["size"] for i in loads if i.fields["nt"]),
        store_bytes=sum(WAVE_SIZE * i.traits["size"] for i in body if kind_of(i) == "store"),
        nop_slots=sum(i.fields["simm16"] + 1 for i in body if kind_of(i) == "nop"),
        waits=tuple(_waits(body)),
    )


def _macs(instruction: Instruction) -> int:
    shape = instruction.traits.get("mfma")
    return 0 if shape is None else shape.m * shape.n * shape.k * shape.blocks


def _waits(body: list[Instruction]) -> list[Wait]:
    """Run the in-order queue of vector memory operations through rounds of the loop until it repeats."""
    queue: list[int] = []
    before_round: list[int] | None = None
    waits: list[Wait] = []
    while before_round != queue:
        before_round, waits = list(queue), []
        for instruction in body:
            kind = kind_of(instruction)
            if kind in ("load", "load_lds", "store", "atomic"):
                queue.append(WAVE_SIZE * instruction.traits["size"] if kind in ("load", "load_lds") else 0)
            elif kind == "wait":
                vmcnt, lgkmcnt = wait_counts(instruction)
                before = sum(queue)
                if vmcnt < len(queue):
                    del queue[: len(queue) - vmcnt]
                waits.append(
                    Wait(
                        instruction.offset,
                        None if vmcnt == NOT_WAITED["vmcnt"] else vmcnt,
                        None if lgkmcnt == NOT_WAITED["lgkmcnt"] else lgkmcnt,
                        before,
                        sum(queue),
                    )
                )
        if len(queue) > NOT_WAITED["vmcnt"]:
            # More than the counter holds: the loop never waits for its loads.
            break
    return waits


HEADINGS = ("kernel", "VGPR", "AGPR", "SGPR", "waves", "steps", "row-tiles", "MFMA", "VALU", "packed", "VALU/tile",
            "SALU", "s_load", "loads", "bytes/step", "stores", "LDS", "nop slots")  # fmt: skip


def cells_of(loop: SteadyLoop, num_heads: int, rows: int) -> tuple[str, ...]:
    """Return one line of the report, under ``HEADINGS``."""
    steps = loop.steps(num_heads, rows)
    counts = loop.counts
    numbers = (loop.vgprs, loop.agprs, loop.sgprs, loop.waves_per_simd, steps, loop.row_tiles, counts["mfma"],
               counts["valu"], counts["packed"], round(loop.valu_per_row_tile, 2), counts["salu"],
               counts["scalar_load"], counts["load"] + counts["load_lds"], loop.load_bytes / steps, counts["store"],
               counts["lds"], loop.nop_slots)  # fmt: skip
    return (loop.kernel, *(f"{number:g}" for number in numbers))


def waits_of(loop: SteadyLoop) -> str:
    """Return each wait with the bytes in flight before and after it, in order."""
    words = []
    for wait in loop.waits:
        counts = [f"{name}({n})" for name, n in (("vmcnt", wait.vmcnt), ("lgkmcnt", wait.lgkmcnt)) if n is not None]
        words.append(f"{' '.join(counts)} {wait.before}->{wait.after}")
    return ", ".join(words)
