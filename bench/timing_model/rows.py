"""Derive indexer_rt.catalog.FEW_UNITS, the table that chooses rows per wave, from modelled times.

Fewer rows per wave make more units of work (64 tokens of a group of rows), each of them shorter: better while the
device takes all units at once. More rows read the keys less often: better from then on. For each number of rows the
table holds up to how many units per compute unit of the device that is the better side.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool

from indexer_rt.catalog import FEW_UNITS, Catalog, addressing_of, best_rows
from indexer_rt.manifest import STEP_TOKENS
from indexer_rt.shapes import Shape

from .baseline import NUM_CUS, Case
from .operator_launch import operator_launch
from .prediction import predict

# Tokens are means of ragged lengths; the host sees only max_model_len, which is twice that, as in the published shapes.
NEXT_N = (2, 3, 4, 5, 6, 8)
BATCH_CTX = (
    (1, 2048), (1, 8192), (1, 16384), (1, 32768), (1, 65536),
    (4, 4096), (4, 16384), (16, 2048), (16, 8192), (32, 16384),
)  # fmt: skip
HEADS, BLOCK_KV = (32, 64), (1, 64)
COLUMNS = ("source", "shape", "max_model_len", "chosen", "us by rows per wave")
_NAME = re.compile(r"b(\d+)-n(\d+)-h(\d+)-ctx(\d+)-kv(\d+)(-preshuffled)?(-ragged)?")
TABLED = (1, 2, 3, 4)
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Times:
    """Hold the modelled times of one shape by rows per wave, in microseconds."""

    shape: Shape
    by_rows: dict[int, float]

    def chosen(self, few_units: dict[int, int]) -> int:
        steps = self.shape.batch * -(-self.shape.max_model_len // STEP_TOKENS)
        return best_rows(self.shape.next_n, sorted(self.by_rows), steps / NUM_CUS, few_units)


def shapes() -> Iterator[Shape]:
    for next_n, (batch, ctx), heads, block_kv in itertools.product(NEXT_N, BATCH_CTX, HEADS, BLOCK_KV):
        yield Shape(batch, next_n, heads, ctx, block_kv, block_kv > 1, True, 2 * ctx)


def times_of(shape: Shape) -> Times:
    """Model every number of rows per wave that there is a kernel for."""
    available = Catalog.shipped().rows(shape.num_heads, 128, addressing_of(shape.block_kv))
    case = Case.of(shape)
    return Times(shape, {rows: predict(*operator_launch(case, rows_per_wave=rows)).time_us for rows in available})


def cell(times: Times) -> str:
    return " ".join(f"R{count}={time:.2f}" for count, time in times.by_rows.items())


def line(times: Times) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS``."""
    return "modelled", times.shape.name, str(times.shape.max_model_len), str(times.chosen(FEW_UNITS)), cell(times)


def read(cells: dict[str, str]) -> Times:
    """Return what ``line`` wrote."""
    found = _NAME.fullmatch(cells["shape"])
    assert found is not None
    numbers, flags = map(int, found.groups()[:5]), (part is not None for part in found.groups()[5:])
    by_rows = (word.removeprefix("R").split("=") for word in cells["us by rows per wave"].split())
    return Times(
        Shape(*numbers, *flags, int(cells["max_model_len"])), {int(count): float(time) for count, time in by_rows}
    )


def regret(measured: Sequence[Times], few_units: dict[int, int]) -> tuple[float, float]:
    """Return (geometric mean, worst) over shapes of the chosen time over the best, less 1."""
    ratios = [times.by_rows[times.chosen(few_units)] / min(times.by_rows.values()) for times in measured]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) - 1, max(ratios) - 1


def derive(measured: Sequence[Times]) -> dict[int, int]:
    """Search the table, number by number, for the least regret; the smaller candidate where it makes no difference."""
    best = dict.fromkeys(TABLED, 0)
    moved = True
    while moved:
        moved = False
        for rows, candidate in itertools.product(best, CANDIDATES):
            trial = best | {rows: candidate}
            if regret(measured, trial)[0] < regret(measured, best)[0] - 1e-9:
                best, moved = trial, True
    return {count: units for count, units in best.items() if units}


def model_all(jobs: int) -> Iterator[Times]:
    with Pool(jobs) as pool:
        yield from pool.imap(times_of, shapes())
