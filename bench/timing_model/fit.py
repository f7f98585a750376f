"""Fit the fitted constants on part of the published times of the baseline, and report the error on the rest.

Rows are those published for the "hip" kernel of ROCm/aiter#5047, in file order. Every third (the 3rd, 6th, 9th, ...) is
held out; the rule was chosen before any fit. The fit minimises squared log ratios by a coordinate search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from indexer_rt.shapes import Published, published

from .baseline import Case, baseline_launch
from .constants import FITTED, Constants
from .prediction import Study, evaluate, study

SOURCE, KERNEL = "ROCm/aiter#5047", "hip"
HOLD_OUT_EVERY = 3
STEPS = (0.3, 0.15, 0.07, 0.03, 0.015)
# A latency lies below that of the next level, and not below what a faster level is known to take.
ORDER = ("l1_latency", "l2_latency", "infinity_latency", "hbm_latency")


@dataclass(frozen=True)
class Fitted:
    """Hold constants and the errors (model / published - 1) on the rows used and on those held out."""

    constants: Constants
    used: tuple[tuple[Published, float], ...]
    held_out: tuple[tuple[Published, float], ...]


def calibration_rows() -> list[Published]:
    """Return the published rows of the kernel that the baseline follows, in file order."""
    return [row for row in published() if (row.source, row.kernel) == (SOURCE, KERNEL)]


def is_held_out(index: int) -> bool:
    return index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1


def spread(errors: Sequence[float]) -> tuple[float, float]:
    """Return (median, worst) of absolute relative errors."""
    sizes = [abs(e) for e in errors]
    return median(sizes), max(sizes)


def fit(start: Constants | None = None) -> Fitted:
    """Fit on the rows that are not held out, starting from ``start``."""
    rows = calibration_rows()
    studies = [study(*baseline_launch(Case.of(row.shape))) for row in rows]
    used = [k for k in range(len(rows)) if not is_held_out(k)]

    def loss(constants: Constants) -> float:
        lats = [getattr(constants, name) for name in ORDER]
        if lats != sorted(lats):
            return math.inf
        return sum(math.log(evaluate(studies[k], constants).time_us / rows[k].time_us) ** 2 for k in used)

    best = start or Constants()
    least = loss(best)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in FITTED:
                for factor in (1 + step, 1 / (1 + step)):
                    trial = best.having(**{name: getattr(best, name) * factor})
                    value = loss(trial)
                    if value < least - 1e-6:
                        best, least, moved = trial, value, True
    return Fitted(best, *_errors(rows, studies, best))


def _errors(
    rows: Sequence[Published], studies: Sequence[Study], constants: Constants
) -> tuple[tuple[tuple[Published, float], ...], tuple[tuple[Published, float], ...]]:
    pairs = [(row, evaluate(s, constants).time_us / row.time_us - 1) for row, s in zip(rows, studies, strict=True)]
    kept = tuple(p for k, p in enumerate(pairs) if not is_held_out(k))
    return kept, tuple(p for k, p in enumerate(pairs) if is_held_out(k))


def errors(constants: Constants | None = None) -> Fitted:
    """Return the errors of given constants, unfitted."""
    rows = calibration_rows()
    studies = [study(*baseline_launch(Case.of(row.shape))) for row in rows]
    constants = constants or Constants()
    return Fitted(constants, *_errors(rows, studies, constants))
