"""Run the timing model: ``python -m bench.timing_model predict|errors|fit|constants``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from indexer_rt import table

from . import fit, report
from .constants import FITTED, Constants

ROOT = Path(__file__).resolve().parents[2]
RESULTS, FIGURES = ROOT / "bench" / "results" / "modelled.csv", ROOT / "indexer_rt" / "figures" / "modelled.csv"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timing_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "predict", help=f"model the shipped kernels on every published shape; writes {RESULTS.name} in both places"
    )
    commands.add_parser("errors", help="errors of the model on the published times of the baseline")
    commands.add_parser("fit", help="fit the fitted constants anew (minutes)")
    commands.add_parser("constants", help="every constant and its source")
    command = parser.parse_args().command
    if command == "constants":
        print(*table.lines_of(("constant", "value", "unit", "source"), Constants().table(), left=4), sep="\n")
    elif command == "predict":
        print_predictions()
    else:
        print_errors(fit.fit() if command == "fit" else fit.errors())
    return 0


def print_predictions() -> None:
    rows = []
    for row in report.modelled_rows():
        rows.append(row)
        print(f"{row.shape.name}: {row.time_us:.1f} us modelled", file=sys.stderr, flush=True)
    print(report.text(rows))
    for block_kv in (1, 64):
        speedup = report.geomean_speedup(rows, fit.KERNEL, block_kv)
        print(f"block {block_kv}: geometric mean of published hip time over ours: {speedup:.2f} (ours modelled)")
    commit = report.commit()
    RESULTS.write_text(report.csv_text(rows, commit))
    FIGURES.write_text(report.figures_text(rows, commit))


def print_errors(result: fit.Fitted) -> None:
    for name in FITTED:
        print(f"{name} = {getattr(result.constants, name):.4g}")
    for title, pairs in (("used in the fit", result.used), ("held out", result.held_out)):
        for row, error in pairs:
            print(f"{title:16s} {row.shape.name:48s} published {row.time_us:7.1f} us, modelled {error:+.1%}")
        middle, worst = fit.spread([error for _, error in pairs])
        print(f"{title}: median {middle:.1%}, worst {worst:.1%}")


if __name__ == "__main__":
    sys.exit(main())
