"""Derive what the host chooses from shapes, rows per wave and waves, from modelled times.

Fewer rows per wave make more units of work (64 tokens of a group of rows), each of them shorter: better while the
device takes all units at once. More rows read the keys less often: better from then on. For each number of rows the
table indexer_rt.catalog.FEW_UNITS holds up to how many units per compute unit of the device that is the better side.

As many waves are launched as the device holds (indexer_rt.launch.waves): for comparison, a part of them only.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool

from indexer_rt.catalog import FEW_UNITS, Catalog, addressing_of, best_rows
from indexer_rt.launch import WAVES_PER_WORKGROUP
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
SHARES = (0.75, 0.5)
COLUMNS = ("source", "shape", "max_model_len", "chosen", "us by rows per wave", "us by share of the waves")
_NAME = re.compile(r"b(\d+)-n(\d+)-h(\d+)-ctx(\d+)-kv(\d+)(-preshuffled)?(-ragged)?")
TABLED = (1, 2, 3, 4)
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Times:
    """Hold the modelled times of one shape, in microseconds.

    ``by_rows``: per wave. ``by_share``: of the waves, with the rows that FEW_UNITS chooses.
    """

    shape: Shape
    by_rows: dict[int, float]
    by_share: dict[float, float]

    def chosen(self, few_units: dict[int, int]) -> int:
        steps = self.shape.batch * -(-self.shape.max_model_len // STEP_TOKENS)
        return best_rows(self.shape.next_n, sorted(self.by_rows), steps / NUM_CUS, few_units)


def shapes() -> Iterator[Shape]:
    for next_n, (batch, ctx), heads, block_kv in itertools.product(NEXT_N, BATCH_CTX, HEADS, BLOCK_KV):
        yield Shape(batch, next_n, heads, ctx, block_kv, block_kv > 1, True, 2 * ctx)


def times_of(shape: Shape) -> Times:
    """Model every number of rows per wave that there is a kernel for, and fewer waves."""
    available = Catalog.shipped().rows(shape.num_heads, 128, addressing_of(shape.block_kv))
    case = Case.of(shape)
    by_rows = {rows: predict(*operator_launch(case, rows_per_wave=rows)).time_us for rows in available}
    launch, buffers = operator_launch(case)
    waves = launch.grid[0] * WAVES_PER_WORKGROUP
    by_share = {share: predict(launch.over(math.ceil(share * waves)), buffers).time_us for share in SHARES}
    return Times(shape, by_rows, by_share)


def line(times: Times) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS``."""
    by_rows, by_share = (
        " ".join(f"{key:g}={time:.2f}" for key, time in by.items()) for by in (times.by_rows, times.by_share)
    )
    chosen = str(times.chosen(FEW_UNITS))
    return "modelled", times.shape.name, str(times.shape.max_model_len), chosen, by_rows, by_share


def read(cells: dict[str, str]) -> Times:
    """Return what ``line`` wrote."""
    found = _NAME.fullmatch(cells["shape"])
    assert found is not None
    numbers, flags = map(int, found.groups()[:5]), (part is not None for part in found.groups()[5:])
    by_rows, by_share = ([word.split("=") for word in cells[column].split()] for column in COLUMNS[-2:])
    return Times(
        Shape(*numbers, *flags, int(cells["max_model_len"])),
        {int(count): float(time) for count, time in by_rows},
        {float(share): float(time) for share, time in by_share},
    )


def regret(measured: Sequence[Times], few_units: dict[int, int]) -> tuple[float, float]:
    """Return (geometric mean, worst) over shapes of the chosen time over the best, less 1."""
    ratios = [times.by_rows[times.chosen(few_units)] / min(times.by_rows.values()) for times in measured]
    return geometric_mean(ratios) - 1, max(ratios) - 1


def loss(measured: Sequence[Times], share: float) -> float:
    """Return the geometric mean over shapes of the time with that share of the waves over that with all, less 1."""
    return geometric_mean([times.by_share[share] / times.by_rows[times.chosen(FEW_UNITS)] for times in measured]) - 1


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


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
