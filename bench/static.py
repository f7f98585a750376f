"""Report the steady loop of every code object, and hold the shipped ones to the figures they are built for.

``python -m bench.static [folder]`` prints the report; exit status 1 when a gate is broken (tests run the same gates).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer_rt import manifest, table
from indexer_rt.catalog import Catalog, Entry
from indexer_rt.code_object import CodeObject, Kernel
from indexer_rt.loops import HEADINGS, SteadyLoop, cells_of, steady_loop, waits_of

TOKEN_VALUE_BYTES = 128


@dataclass(frozen=True)
class Gate:
    """Hold the most VALU per row-tile that a kind of kernel may have, for one row per wave and for more."""

    one_row: float
    more_rows: float


# Vector instructions per (32 heads x 32 tokens), by heads and addressing.
GATES = {
    (32, "page"): Gate(40, 37),
    (32, "gather"): Gate(48, 41),
    (64, "page"): Gate(36, 36),
}
# Registers and waves per SIMD that the prefetch needs, by rows per wave: page kernels of 32 heads.
OCCUPANCY = {1: (128, 4), 6: (256, 2)}


def broken_gates(entry: Entry, kernel: Kernel, loop: SteadyLoop) -> list[str]:
    """Return a sentence for each figure that a shipped kernel misses."""
    rows, faults = entry.rows_per_wave, []
    gate = GATES.get((entry.num_heads, entry.addressing))
    if gate is not None:
        most = gate.one_row if rows == 1 else gate.more_rows
        if loop.valu_per_row_tile > most:
            faults.append(f"{loop.valu_per_row_tile:.2f} vector instructions per row-tile, wanted at most {most:g}")
    if any(wait.vmcnt == 0 for wait in loop.waits):
        faults.append("a vmcnt(0) in the steady loop drains every load in flight")
    if kernel.vgpr_spills or kernel.sgpr_spills or kernel.private_bytes:
        faults.append(f"{kernel.vgpr_spills + kernel.sgpr_spills} spills, {kernel.private_bytes} bytes of scratch")
    if loop.counts["packed"]:
        faults.append(f"{loop.counts['packed']} packed float32 instructions wait for the matrix unit")
    stage = manifest.STEP_TOKENS * TOKEN_VALUE_BYTES
    least = min((wait.after for wait in loop.waits if wait.vmcnt is not None), default=0)
    if least < stage:
        faults.append(f"only {least} bytes of loads in flight past a wait, wanted a stage of {stage} at least")
    steps = loop.steps(entry.num_heads, rows)
    if entry.addressing == "page" and loop.nt_load_bytes < stage * steps:
        faults.append(
            f"{loop.nt_load_bytes} bytes a round are loaded non-temporally, wanted all keys: {stage * steps:g}"
        )
    preloaded = 4 * kernel.descriptor.kernarg_preload_dwords
    first = next(arg.offset for arg in kernel.args if arg.name == "q")
    if preloaded != first:
        faults.append(f"{preloaded} bytes of arguments are preloaded, wanted all before q: {first}")
    if loop.counts["store"] > rows * steps:
        faults.append(f"{loop.counts['store']} stores a round of {steps:g} steps, wanted at most {rows} a step")
    if (entry.num_heads, entry.addressing) == (32, "page") and rows in OCCUPANCY:
        registers, waves = OCCUPANCY[rows]
        if loop.vgprs > registers or loop.waves_per_simd < waves:
            faults.append(
                f"{loop.vgprs} registers and {loop.waves_per_simd} waves per SIMD, wanted at most {registers} and "
                f"{waves} at least"
            )
    return faults


def loops_of(folder: Path) -> list[tuple[Entry, Kernel, SteadyLoop]]:
    """Read every code object of a folder."""
    out = []
    for entry in sorted(Catalog.read(folder).entries, key=lambda e: (e.num_heads, e.addressing, e.rows_per_wave)):
        kernel = manifest.only_kernel(CodeObject.read(entry.path))
        out.append((entry, kernel, steady_loop(kernel)))
    return out


def main(words: Sequence[str]) -> int:
    folder = Path(words[0]) if words else manifest.shipped_folder()
    found = loops_of(folder)
    print(*table.lines_of(HEADINGS, [cells_of(loop, e.num_heads, e.rows_per_wave) for e, _, loop in found]), sep="\n")
    print("\nwaits of the loop: counts, then bytes of vector loads in flight per wave before -> after")
    for entry, _, loop in found:
        print(f"{entry.name}: {waits_of(loop)}")
    bad = 0
    for entry, kernel, loop in found:
        for fault in broken_gates(entry, kernel, loop):
            print(f"{entry.name}: {fault}", file=sys.stderr)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
