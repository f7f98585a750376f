"""Time the emulator and its memory on this machine: python bench/emulator.py

Measured, of emulating on a CPU: it says nothing about the kernels' speed on an MI355X. The emulator is held to 2 s for
the first case, and for large ones to 20 million lane-instructions a second and twice the tensors plus 1 GB.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from unittest import mock

import torch

import indexer_rt
from indexer_rt import emu, table
from indexer_rt.workload import Workload

# rows per sequence, context lengths
CASES = ((3, (4096, 3000)), (6, (8192,) * 16), (2, (8192,) * 64))
HEADINGS = ("case", "mode", "seconds", "lane-instructions", "million/s", "tensors, MB", "peak memory, MB")


def measure(case: int, block_kv: int, is_strict: bool) -> tuple[str, ...]:
    """Run one case in this process, whose peak memory is then the case's."""
    next_n, lens = CASES[case]
    workload = Workload(next_n, block_kv, block_kv > 1, lens, max(lens))
    step = workload.make_step(torch.Generator().manual_seed(0))
    run, lane_instructions = emu.run, []

    def counted(*arguments, **options):
        stats = run(*arguments, **(options | {"strict": is_strict}))
        lane_instructions.append(stats.lane_instructions)

    with mock.patch.object(emu, "run", counted):
        start = time.perf_counter()
        logits = indexer_rt.fp8_paged_mqa_logits(*step, **workload.options)
        seconds = time.perf_counter() - start
    tokens = "/".join(map(str, dict.fromkeys(lens)))
    return (
        f"{len(lens)} sequences x {next_n} rows, {tokens} tokens, block {block_kv}",
        "strict" if is_strict else "fast",
        f"{seconds:.2f}",
        f"{lane_instructions[0]}",
        f"{lane_instructions[0] / seconds / 1e6:.1f}",
        f"{sum(tensor.nbytes for tensor in (*step, logits)) / 1e6:.0f}",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f}",
    )


def main() -> None:
    if len(sys.argv) == 4:
        print(json.dumps(measure(*map(int, sys.argv[1:3]), sys.argv[3] == "strict")))
        return
    load = os.getloadavg()[0]
    print(f"measured: emulation on {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before")
    rows = []
    for case in range(len(CASES)):
        for block_kv in (64, 1):
            for mode in ("strict", "fast"):
                words = [sys.executable, __file__, str(case), str(block_kv), mode]
                rows.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    print(*table.lines_of(HEADINGS, rows, left=2), sep="\n")


if __name__ == "__main__":
    main()
