"""The command line: ``indexer-rt demo``, ``info``, ``verify``, ``sweep`` and ``bench``."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from . import environment, loops, manifest, table
from .code_object import CodeObject, Kernel
from .errors import NO_TORCH, CodeObjectError, IndexerRtError
from .verify import verify


def main(words: list[str] | None = None) -> int:
    """Run one command; ``words`` are its arguments, the process's own by default. Returns the exit status.

    0 when all is well, 1 when a comparison or a check failed or the command could not be done (stderr says why).
    """
    parser = argparse.ArgumentParser(prog="indexer-rt", description="Lightning-indexer logits on gfx950.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="run the code objects on a decode step and compare with the reference")
    demo.add_argument("--seed", type=_seed, default=0, help="seed of the random tensors, 0 to 2**63 - 1 (default 0)")
    info = commands.add_parser("info", help="list the code objects, and the HIP runtime if there is one")
    info.add_argument("--loops", action="store_true", help="also what a round of each steady loop costs")
    check = commands.add_parser("verify", help="check hashes, ELF, manifest and every instruction of the code objects")
    check.add_argument("folder", nargs="?", type=Path, help="folder of code objects (default: those in use)")
    sweep = commands.add_parser("sweep", help="compare with the reference over 512 decode steps; resumable")
    sweep.add_argument(
        "--filter", default="", metavar="TEXT", help="only cases whose name contains TEXT, as b16-n2 or kv64"
    )
    sweep.add_argument("--sample", action="store_true", help="only the fixed sample of 40 cases")
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1); each may take 4 GB")
    sweep.add_argument("--output", type=Path, default=Path("sweep.csv"), help="CSV; cases in it are not run again")
    bench = commands.add_parser("bench", help="time the op on the card, beside modelled and published times")
    bench.add_argument("--filter", default="", metavar="TEXT", help="only shapes whose name contains TEXT, as b16-n6")
    bench.add_argument("--csv", type=Path, metavar="FILE", help="also write the figures to FILE")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="also draw time over limit to FILE (png, svg, pdf)")
    arguments = parser.parse_args(words)
    try:
        environment.current()
    except ValueError as error:
        parser.error(str(error))
    try:
        if arguments.command == "demo":
            status = run_demo(arguments.seed)
        elif arguments.command == "sweep":
            if arguments.jobs < 1:
                parser.error(f"--jobs: expected 1 or more, got {arguments.jobs}")
            status = run_sweep(arguments.filter, arguments.sample, arguments.jobs, arguments.output)
        elif arguments.command == "bench":
            status = run_bench(arguments.filter, arguments.csv, arguments.plot)
        elif arguments.command == "info":
            status = print_info(with_loops=arguments.loops)
        else:
            status = run_verify(arguments.folder or folder_in_use())
        sys.stdout.flush()
        return status
    except IndexerRtError as error:
        print(f"indexer-rt {arguments.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader is gone (`| head`). What is still buffered must not fail once more when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _seed(word: str) -> int:
    if not word.isdecimal() or int(word) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected 0 to 2**63 - 1, got {word!r}")
    return int(word)


def folder_in_use() -> Path:
    """Return the folder of code objects that the op uses: INDEXER_RT_HSACO_DIR, else the shipped one."""
    return environment.current().hsaco_dir or manifest.shipped_folder()


def has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return False
    return True


def run_demo(seed: int) -> int:
    """Run every case of the demo and print one table. Returns 1 when a case disagrees with the reference."""
    if lacks("demo"):
        return 1
    from . import demo, workload

    device, words = workload.find_device()
    emulated = device.type == "cpu"
    print(f"running {folder_in_use()} on {words}", flush=True)
    outcomes = list(demo.run(seed, device))
    rows = [
        (
            outcome.case,
            outcome.variant,
            outcome.device,
            f"{outcome.error:.1e}",
            "yes" if outcome.mask_equal else "NO",
            f"{outcome.seconds:.2f} s emulated" if emulated else f"{outcome.seconds * 1e6:.0f} us measured",
        )
        for outcome in outcomes
    ]
    headings = ("case", "variant", "device", "max error", "-inf mask equal", "time")
    print(*table.lines_of(headings, rows, left=3), sep="\n")
    print(
        "max error: largest |logit - reference| / (scale * sum_h |w_h| * sum_d |q*k|) of any cell; "
        f"{demo.LIMIT:.0e} is accepted."
    )
    if emulated:
        print("time: of emulating the code object on this CPU. It says nothing of the kernel's speed on an MI355X.")
    else:
        print("time: of one call by the host's clock, launch and synchronisation included, after a warm-up call.")
    wrong = [outcome.case for outcome in outcomes if not outcome.agrees]
    for case in wrong:
        print(f"indexer-rt demo: disagrees with the reference: {case}", file=sys.stderr)
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} cases agree with the reference.")
    return 1 if wrong else 0


def lacks(command: str, *packages: str) -> bool:
    """Say on stderr what a command needs and is not installed: torch, or one of ``packages`` of the extra bench."""
    message = None if has_torch() else NO_TORCH
    for package in packages:
        if message is None and importlib.util.find_spec(package) is None:
            message = f'{package} is not installed. Run: pip install "indexer-rt[bench]"'
    if message is not None:
        print(f"indexer-rt {command}: {message}", file=sys.stderr)
    return message is not None


def run_sweep(text: str, is_sample: bool, jobs: int, output: Path) -> int:
    """Run the cases that are not in ``output`` yet and add them to it. Returns 1 when any is wrong."""
    if lacks("sweep", "tqdm"):
        return 1
    from tqdm import tqdm

    from . import sweep

    cases = [case for case in (sweep.sample() if is_sample else sweep.all_cases()) if text in case.name]
    try:
        done = sweep.read(output)
    except ValueError as error:
        print(f"indexer-rt sweep: {error}", file=sys.stderr)
        return 1
    rows = [done[case.name] for case in cases if case.name in done]
    left = [case for case in cases if case.name not in done]
    if not cases:
        print(
            f"indexer-rt sweep: no case has {text!r} in its name, such as {sweep.all_cases()[0].name}", file=sys.stderr
        )
        return 1
    print(f"{len(cases)} cases, {len(rows)} of them in {output} already", flush=True)
    for row in tqdm(sweep.run(left, jobs), total=len(left), unit="case"):
        sweep.append(output, row)
        rows.append(row)
    wrong = [row for row in rows if not row.agrees]
    for row in wrong:
        print(f"indexer-rt sweep: {row.case}: mask equal {row.mask_equal}, calc_diff {row.calc_diff:.1e}, "
              f"max error {row.max_error:.1e}", file=sys.stderr)  # fmt: skip
    print(f"{len(rows) - len(wrong)} of {len(rows)} cases agree with the reference.")
    return 1 if wrong else 0


def run_bench(text: str, csv_file: Path | None, plot_file: Path | None) -> int:
    """Measure every published shape on the card, or show the model's figures where there is none. Returns 0."""
    if lacks("bench", "tqdm", *(["matplotlib"] if plot_file is not None else [])):
        return 1
    from tqdm import tqdm

    from . import bench, workload

    device, words = workload.find_device()
    is_gpu = device.type == "cuda"
    rows = bench.lines((lambda shape: bench.measure(shape, device, bench.GpuTimer())) if is_gpu else None,
                       lambda shape: text in shape.name)  # fmt: skip
    if not rows:
        print(f"indexer-rt bench: no shape has {text!r} in its name.", file=sys.stderr)
        return 1
    print(f"measured on {words}" if is_gpu else f"nothing is measured: no gfx950 here, only {words}")
    table_of_lines = [make() for make in tqdm(rows, unit="shape", disable=not is_gpu)]
    print(*table.lines_of(bench.HEADINGS, [bench.cells(line) for line in table_of_lines]), sep="\n")
    print(
        "limit: a launch, then the bytes that must move at 6.5 TB/s, from HBM. modelled: by the timing model, never "
        "run on a card. published: the best of any kernel, as its authors gave it, most of them warm. warm: on the "
        "same tensors again and again, which stay in the Infinity Cache as far as they fit. cold: from HBM."
    )
    if csv_file is not None:
        bench.write_csv(csv_file, table_of_lines)
    if plot_file is not None:
        bench.plot(plot_file, table_of_lines)
    return 0


def print_info(*, with_loops: bool = False) -> int:
    """Print the code objects, their resources and arguments, and what is installed to run them. Returns 0.

    ``with_loops``: also the instructions of each steady loop and its waits.
    Raises CodeObjectError for a folder without any, and for a file that is none.
    """
    folder = folder_in_use()
    kernels = [manifest.only_kernel(CodeObject.read(path)) for path in sorted(folder.glob("*.hsaco"))]
    if not kernels:
        raise CodeObjectError(
            f"{folder}: holds no code object. Run ./build.sh, or reinstall, or unset INDEXER_RT_HSACO_DIR."
        )
    print(f"code objects in {folder}")
    print(*table.lines_of(_INFO_HEADINGS, [_info_row(kernel) for kernel in kernels]), sep="\n")
    if with_loops:
        print()
        print_loops(folder)
    for args in dict.fromkeys(kernel.args for kernel in kernels):
        print("\narguments (offset, bytes, name, kind)")
        rows = [(str(arg.offset), str(arg.size), f"  {arg.name}", arg.kind) for arg in args]
        print(*(f"{o:>8} {s:>4} {name:<22} {kind}" for o, s, name, kind in rows), sep="\n")
    print()
    for name in ("indexer-rt", "hip-python", "numpy", "torch"):
        print(f"{name}: {_version(name)}")
    print(f"HIP runtime: {_hip_runtime()}")
    return 0


def print_loops(folder: Path) -> None:
    """Print what a round of each steady loop costs, and its waits."""
    from .catalog import Catalog

    entries = Catalog.read(folder).entries
    found = [(entry, loops.steady_loop(manifest.only_kernel(CodeObject.read(entry.path)))) for entry in entries]
    rows = [loops.cells_of(loop, entry.num_heads, entry.rows_per_wave) for entry, loop in found]
    print("steady loops, counted in one round (a step is 64 tokens, a row-tile 32 heads x 32 tokens)")
    print(*table.lines_of(loops.HEADINGS, rows), sep="\n")
    print("\nwaits of the loop: counts, then bytes of vector loads in flight per wave before -> after")
    for _, loop in found:
        print(f"{loop.kernel}: {loops.waits_of(loop)}")


_INFO_HEADINGS = ("kernel", "version", "VGPR", "AGPR", "SGPR", "LDS", "spills", "code bytes", "waves/SIMD", "sha256")


def _info_row(kernel: Kernel) -> tuple[str, ...]:
    code_object = kernel.code_object
    numbers = (
        kernel.vgprs,
        kernel.agprs,
        kernel.sgprs,
        kernel.lds_bytes,
        kernel.vgpr_spills + kernel.sgpr_spills,
        len(kernel.code),
        manifest.waves_per_simd(kernel),
    )
    return (kernel.name, f"{code_object.target} v{code_object.version}", *map(str, numbers), code_object.sha256[:12])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hip_runtime() -> str:
    if not has_torch():
        return f"not looked for: {NO_TORCH}"
    from . import hip

    try:
        return hip.runtime_version()
    except IndexerRtError as error:
        return f"none that can be used. {error}"


def run_verify(folder: Path) -> int:
    """Verify a folder of code objects and print a line for each. Returns 1 when anything is wrong."""
    kernels = folder.parent / "kernels"
    in_checkout = folder.name == "hsaco" and (kernels / "variants.txt").is_file()
    verdicts = verify(folder, kernels=kernels if in_checkout else None)
    rows = [(v.name, str(v.instructions), "FAULTY" if v.faults else "sound") for v in verdicts]
    print(f"code objects in {folder}")
    print(*table.lines_of(("code object", "instructions", "verdict"), rows), sep="\n")
    for verdict in verdicts:
        for fault in verdict.faults:
            print(f"indexer-rt verify: {verdict.name}: {fault}", file=sys.stderr)
    sound = sum(not verdict.faults for verdict in verdicts)
    print(
        f"{sound} of {len(verdicts)} code objects are sound: hash, ELF target, manifest against ELF, every instruction "
        f"decoded and executable{', source hash' if in_checkout else '; no sources here to compare with'}."
    )
    return 0 if sound == len(verdicts) else 1
