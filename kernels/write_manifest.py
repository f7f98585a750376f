#!/usr/bin/env python3
"""Check freshly built code objects, write their manifest and print a table of their resources.

build.sh calls this with the folder of code objects, the folder of sources and the compiler's name, and on stdin a line
per variant: name, heads, rows per wave, addressing, then the flags it was compiled with. PYTHONPATH is the checkout.
A fault is printed with the variant it is in; nothing is written then and the exit status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from indexer_rt import manifest, table
from indexer_rt.code_object import CodeObject
from indexer_rt.errors import CodeObjectError

COLUMNS = ("variant", "VGPR", "AGPR", "SGPR", "LDS", "spills", "code bytes", "waves/SIMD")


def check(folder: Path, name: str, flags: str) -> tuple[CodeObject | None, list[str]]:
    """Read one code object that was compiled with ``flags``. Returns it and what is wrong with it."""
    try:
        code_object = CodeObject.read(folder / f"{name}.hsaco")
        kernel = manifest.only_kernel(code_object)
    except CodeObjectError as error:
        return None, [str(error)]
    faults = manifest.forbidden(code_object)
    waves, wanted = manifest.waves_per_simd(kernel), int(manifest.defines_of(flags)["WAVES_PER_SIMD"])
    if waves < wanted:
        faults.append(f"leaves room for {waves} waves per SIMD, variants.txt wants {wanted}")
    if kernel.name != name:
        faults.append(f"its kernel is called {kernel.name}, wanted {name}: use the macro KERNEL_NAME")
    return code_object, faults


def main(folder: Path, kernels: Path, compiler: str) -> int:
    """Check, write and print; return the exit status."""
    source_sha256 = manifest.source_digest(kernels)
    entries, rows, bad = [], [], 0
    for line in sys.stdin:
        name, heads, rows_per_wave, addressing, flags = line.rstrip("\n").split(" ", 4)
        code_object, faults = check(folder, name, flags)
        for fault in faults:
            print(f"build.sh: {name}: {fault}.".replace("..", "."), file=sys.stderr)
        bad += bool(faults)
        if code_object is None:
            continue
        problem = {
            "num_heads": int(heads),
            "head_dim": manifest.HEAD_DIM,
            "rows_per_wave": int(rows_per_wave),
            "addressing": addressing,
        }
        provenance = {"compiler": compiler, "flags": flags, "source_sha256": source_sha256}
        entries.append({**manifest.measured(code_object), "problem": problem, **provenance})
        kernel = manifest.only_kernel(code_object)
        numbers = (kernel.vgprs, kernel.agprs, kernel.sgprs, kernel.lds_bytes, kernel.vgpr_spills + kernel.sgpr_spills,
                   len(kernel.code), manifest.waves_per_simd(kernel))  # fmt: skip
        rows.append((name, *map(str, numbers)))
    print(*table.lines_of(COLUMNS, rows), sep="\n")
    if bad:
        print(f"build.sh: {bad} of the code objects must not ship; nothing was written.", file=sys.stderr)
        return 1
    (folder / manifest.FILE_NAME).write_text(manifest.text_of(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
