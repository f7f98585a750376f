"""Run the timing model: ``python -m bench.timing_model predict|errors|fit|choice|constants``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from indexer_rt import table
from indexer_rt.catalog import FEW_UNITS

from . import choice, fit, report
from .constants import FITTED, Constants

ROOT = Path(__file__).resolve().parents[2]
CHOICE = ROOT / "bench" / "results" / "choice.csv"
RESULTS, FIGURES = ROOT / "bench" / "results" / "modelled.csv", ROOT / "indexer_rt" / "figures" / "modelled.csv"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timing_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "predict", help=f"model the shipped kernels on every published shape; writes {RESULTS.name} in both places"
    )
    commands.add_parser("errors", help="errors of the model on the published times of the baseline")
    commands.add_parser("fit", help="fit the fitted constants anew (minutes)")
    commands.add_parser("choice", help=f"derive what the host chooses from shapes (minutes); writes {CHOICE.name}")
    commands.add_parser("constants", help="every constant and its source")
    command = parser.parse_args().command
    if command == "constants":
        print(*table.lines_of(("constant", "value", "unit", "source"), Constants().table(), left=4), sep="\n")
    elif command == "choice":
        print_choice()
    elif command == "predict":
        print_predictions()
    else:
        print_errors(fit.fit() if command == "fit" else fit.errors())
    return 0


def print_predictions() -> None:
    modelled = []
    for row in report.modelled_rows():
        modelled.append(row)
        print(
            f"{row.shape.name}: {row.warm_us:.1f} us warm, {row.cold_us:.1f} us cold, modelled",
            file=sys.stderr,
            flush=True,
        )
    print(report.text(modelled))
    for block_kv in (1, 64):
        speedup = report.geomean_speedup(modelled, fit.KERNEL, block_kv)
        print(f"block {block_kv}: geometric mean of published hip time over ours: {speedup:.2f} (ours modelled)")
    commit = report.commit()
    RESULTS.write_text(report.csv_text(modelled, commit))
    FIGURES.write_text(report.figures_text(modelled, commit))


def print_choice() -> None:
    modelled = []
    for times in choice.model_all(os.cpu_count() or 1):
        modelled.append(times)
        print("; ".join(choice.line(times)), file=sys.stderr, flush=True)
    derived = choice.derive(modelled)
    for title, few_units in (("derived", derived), ("in use", FEW_UNITS), ("fewest groups always", {})):
        middle, worst = choice.regret(modelled, few_units)
        print(
            f"{title}: {few_units}: slower than the best choice by {middle:.1%} (geometric mean), {worst:.0%} at worst"
        )
    for share in choice.SHARES:
        print(f"{share:.0%} of the waves: slower than all by {choice.loss(modelled, share):.1%} (geometric mean)")
    CHOICE.write_text(report.csv_of(choice.COLUMNS, map(choice.line, modelled)))


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
