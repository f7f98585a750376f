"""Run the timing model: ``python -m bench.timing_model predict|errors|fit|constants [published_timings.csv]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from indexer_rt import table

from . import fit, report
from .constants import FITTED, Constants

BENCH = Path(__file__).resolve().parent.parent
RESULTS = BENCH / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timing_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        (
            "predict",
            "modelled times of the shipped kernels on the published shapes, also as bench/results/modelled.csv",
        ),
        ("errors", "errors of the model on the published times of the baseline"),
        ("fit", "fit the fitted constants anew (minutes)"),
    ):
        commands.add_parser(name, help=text).add_argument(
            "published", type=Path, nargs="?", default=BENCH / "published_timings.csv", help="CSV of published times"
        )
    commands.add_parser("constants", help="every constant and its source")
    arguments = parser.parse_args()
    if arguments.command == "constants":
        print(*table.lines_of(("constant", "value", "unit", "source"), Constants().table(), left=4), sep="\n")
    elif arguments.command == "predict":
        rows = []
        for row in report.modelled_rows(arguments.published):
            rows.append(row)
            print(f"{row.label}: {row.time_us:.1f} us {row.source}", file=sys.stderr, flush=True)
        print(report.text(rows))
        for block_kv in (1, 64):
            print(f"geometric mean speed-up over the published hip times, block {block_kv}: "
                  f"{report.geomean_speedup(rows, fit.KERNEL, block_kv):.2f} (modelled)")  # fmt: skip
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "modelled.csv").write_text(report.csv_text(rows, report.commit()))
    else:
        result = (fit.fit if arguments.command == "fit" else fit.errors)(arguments.published)
        for name in FITTED:
            print(f"{name} = {getattr(result.constants, name):.4g}")
        for title, pairs in (("used in the fit", result.used), ("held out", result.held_out)):
            for used, error in pairs:
                print(f"{title:16s} {used.label:28s} published {used.time_us:7.1f} us, modelled {error:+.1%}")
            print(f"{title}: median {fit.spread([e for _, e in pairs])[0]:.1%}, "
                  f"worst {fit.spread([e for _, e in pairs])[1]:.1%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
