"""Measure what one call costs the host: python bench/host_overhead.py [--calls N] [--growth N]

Needs no GPU: the driver is the tests' stand-in, told to return at once, so only host work is timed. Every row is
measured in this one process, in turns, and is the best of many short batches; the ratio is to the first row, a ctypes
call whose arguments were all made before. Real drivers add their own time to every row.

``--growth N`` makes N calls of mixed shapes and says what memory, open files and loaded modules grew by.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hip_standin  # noqa: E402
import torch  # noqa: E402
from calls import make_call  # noqa: E402

import indexer_rt  # noqa: E402
from indexer_rt import call, hip, launch, torch_gpu  # noqa: E402

BATCH = 200  # calls timed together; short, so that some batch is not disturbed
RAW, TUPLE, EAGER, OPERATOR = (
    "raw ctypes launch",
    "hip-python, tuple of arguments",
    "eager operator",
    "torch.ops operator",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the host's cost of one call.")
    parser.add_argument("--calls", type=int, default=100_000, help="calls timed of each kind (default 100000)")
    parser.add_argument("--growth", type=int, default=0, metavar="N", help="make N mixed calls and measure growth")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        standin = hip_standin.Standin(hip_standin.compile_standin(Path(folder)))
        standin.reset()
        torch_gpu._current = hip_standin.Gpu(standin)
        print_machine()
        if arguments.growth:
            print_growth(standin, arguments.growth)
        else:
            standin.library.standin_quiet(1)
            print_costs(measure(subjects(standin), arguments.calls))


def print_machine() -> None:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT).stdout
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"commit {commit.strip()}; {cpu}, {os.cpu_count()} CPUs; load {os.getloadavg()[0]:.1f}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, hip-python {version('hip-python')}")


def subjects(standin: hip_standin.Standin) -> dict[str, Callable[[], object]]:
    """Return what is timed: each makes one launch of the same kernel with the same arguments."""
    made = make_call()
    out = torch.zeros(2, made.max_model_len)
    q, kv, w, lens, tables = made.q_fp8, made.kv_cache_fp8, made.weights, made.context_lens, made.block_tables
    eager, operator = indexer_rt.fp8_paged_mqa_logits, torch.ops.indexer_rt.fp8_paged_mqa_logits.out
    eager(q, kv, w, lens, tables, 200, preshuffle=True, out=out)

    prepared = call.own.call.launch.__self__
    function, *numbers, stream, _, _ = prepared._args
    entries = prepared._keep[2]
    types = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    values = (int(function), *numbers, 0, 0, ctypes.addressof(entries))
    raw, raw_arguments = standin.library.hipModuleLaunchKernel, tuple(t(v) for t, v in zip(types, values, strict=True))

    c_types = {("global_buffer", 8): ctypes.c_void_p, ("by_value", 8): ctypes.c_int64, ("by_value", 4): ctypes.c_int32}
    words = tuple(c_types[kind](0) for kind in launch.ABI.values())
    documented = hip._runtime().hip.hipModuleLaunchKernel

    return {
        RAW: lambda: raw(*raw_arguments),
        TUPLE: lambda: documented(function, *numbers, stream, None, words),
        EAGER: lambda: eager(q, kv, w, lens, tables, 200, preshuffle=True, out=out),
        OPERATOR: lambda: operator(q, kv, w, lens, tables, 200, True, out),
        "eager operator, new output": lambda: eager(q, kv, w, lens, tables, 200, preshuffle=True),
        "torch.empty of that output": lambda: torch.empty((2, 200), dtype=torch.float32, device="cpu"),
    }


def measure(timed: dict[str, Callable[[], object]], calls: int) -> dict[str, float]:
    """Return microseconds per call, less the cost of calling a function that does nothing."""
    timed = {"": lambda: None, **timed}
    timers = {name: timeit.Timer(work) for name, work in timed.items()}
    best = dict.fromkeys(timed, float("inf"))
    gc.disable()
    for _ in range(max(1, calls // BATCH)):
        for name, timer in timers.items():
            best[name] = min(best[name], timer.timeit(BATCH) / BATCH * 1e6)
    gc.enable()
    nothing = best.pop("")
    return {name: cost - nothing for name, cost in best.items()}


def print_costs(costs: dict[str, float]) -> None:
    print(f"\n{'one call':<32} {'us':>8} {'ratio':>7}")
    for name, cost in costs.items():
        print(f"{name:<32} {cost:8.2f} {cost / costs[RAW]:7.1f}")
    print(f"\neager operator: {costs[EAGER] / costs[RAW]:.1f} raw launches (wanted: at most 6), ", end="")
    print(f"{costs[TUPLE] / costs[EAGER]:.1f} times cheaper than the tuple launch alone (wanted: at least 8)")
    print(f"torch.ops operator: {costs[OPERATOR] / costs[RAW]:.1f} raw launches (wanted: at most 11)")


def print_growth(standin: hip_standin.Standin, calls: int) -> None:
    """Make mixed calls in 10 parts, and print what the process holds after each."""
    made = [
        make_call(batch=batch, next_n=next_n, block_kv=block_kv, preshuffle=block_kv >= 16).arguments()
        for batch, next_n, block_kv in itertools.product((1, 2, 5), (1, 2, 3, 4, 6, 8), (1, 16, 64))
    ]
    for index, arguments in enumerate(made):
        if index % 2:
            problem = make_call(batch=1).check()
            rows = arguments["weights"].shape[0]
            arguments["out"] = torch.zeros(rows, problem.max_model_len)
    for arguments in made * 20:
        indexer_rt.fp8_paged_mqa_logits(**arguments)
    print(f"\n{'calls':>8} {'resident KiB':>13} {'open files':>11} {'module loads':>13}")
    rotation = itertools.cycle(made)
    for part in range(11):
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
        loads = standin.calls("hipModuleLoadData")
        print(f"{part * calls // 10:8} {resident:13} {len(os.listdir('/proc/self/fd')):11} {loads:13}")
        if part < 10:
            for arguments in itertools.islice(rotation, calls // 10):
                indexer_rt.fp8_paged_mqa_logits(**arguments)


if __name__ == "__main__":
    main()
