"""Derive what the host chooses from shapes, rows per wave and waves, from modelled times.

Fewer rows per wave make more units of work (64 tokens of a group of rows), each of them shorter: better while the
device takes few of them at once. More rows read the keys less often: better from then on. For each number of rows the
table indexer_rt.catalog.FEW_UNITS holds up to how many units per compute unit of the device that is the better side.

As many waves are launched as the device holds (indexer_rt.launch.waves): for comparison, a part of them only.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from statistics import geometric_mean

from indexer_rt.catalog import Catalog, best_rows
from indexer_rt.launch import WAVES_PER_WORKGROUP
from indexer_rt.shapes import Shape

from .baseline import NUM_CUS, Case, buffers_of
from .operator_launch import operator_launch, problem_of
from .prediction import predict

# Tokens are means of ragged lengths; the host sees only max_model_len, which is twice that, as in the published shapes.
NEXT_N = (1, 2, 3, 4, 5, 6, 7, 8)
BATCH_CTX = (
    (1, 2048), (1, 8192), (1, 16384), (1, 32768), (1, 65536),
    (4, 4096), (4, 16384), (16, 2048), (16, 8192), (32, 16384),
)  # fmt: skip
HEADS, BLOCK_KV = (32, 64), (1, 64)
SHARES = (0.75, 0.5)
TABLED = (1, 2, 3, 4)
"""Rows per wave that may get a limit; 6, the largest, needs none."""
CANDIDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Units per compute unit. It holds 16 waves of one row, 12 of two and 8 of three or four (32 heads)."""
COLUMNS = (
    "source", "batch", "next_n", "num_heads", "ctx", "block_kv", "units by rows per wave", "us by rows per wave",
    "rows per wave chosen", "us by share of the waves", "code_objects_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Hold the modelled times of one shape, in microseconds.

    ``by_rows``: per wave; ``units``: how many units of work so many rows make. ``by_share``: of the waves, with
    ``chosen`` rows. ``code_objects``: digest of the code objects modelled.
    """

    shape: Shape
    units: dict[int, int]
    by_rows: dict[int, float]
    chosen: int
    by_share: dict[float, float]
    code_objects: str

    def with_table(self, few_units: dict[int, int]) -> float:
        """Return the time with the rows that a table chooses."""
        return self.by_rows[best_rows(self.units, NUM_CUS, few_units)]


def shapes() -> Iterator[Shape]:
    """Yield the shapes to model: small and middle ones, where the choice matters."""
    for next_n, (batch, ctx), heads, block_kv in itertools.product(NEXT_N, BATCH_CTX, HEADS, BLOCK_KV):
        yield shape_of(batch, next_n, heads, ctx, block_kv)


def shape_of(batch: int, next_n: int, num_heads: int, ctx: int, block_kv: int) -> Shape:
    return Shape(batch, next_n, num_heads, ctx, block_kv, block_kv > 1, True, 2 * ctx)


def code_objects_digest(catalog: Catalog) -> str:
    """Return 16 hex digits over a catalog's code objects."""
    return hashlib.sha256("".join(sorted(entry.sha256 or "" for entry in catalog.entries)).encode()).hexdigest()[:16]


def times_of(shape: Shape) -> Times:
    """Model every number of rows per wave that there is a kernel for, and fewer waves."""
    catalog, case = Catalog.shipped(), Case.of(shape)
    units = catalog.units(problem_of(case, buffers_of(case)))
    launches = {rows: operator_launch(case, rows_per_wave=rows) for rows in units}
    by_rows = {rows: predict(*launches[rows]).time_us for rows in units}
    chosen = best_rows(units, NUM_CUS)
    launch, buffers = launches[chosen]
    waves = launch.grid[0] * WAVES_PER_WORKGROUP
    by_share = {share: predict(launch.over(math.ceil(share * waves)), buffers).time_us for share in SHARES}
    return Times(shape, units, by_rows, chosen, by_share, code_objects_digest(catalog))


def model_all(jobs: int) -> Iterator[Times]:
    """Model all shapes in so many processes."""
    with Pool(jobs) as pool:
        yield from pool.imap(times_of, shapes())


def line(times: Times) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS``."""
    shape = times.shape
    units = " ".join(f"{rows}={count}" for rows, count in times.units.items())
    by_rows, by_share = (
        " ".join(f"{key:g}={time:.2f}" for key, time in by.items()) for by in (times.by_rows, times.by_share)
    )
    numbers = map(str, (shape.batch, shape.next_n, shape.num_heads, shape.ctx, shape.block_kv))
    return "modelled", *numbers, units, by_rows, str(times.chosen), by_share, times.code_objects


def read(cells: dict[str, str]) -> Times:
    """Return what ``line`` wrote."""
    _, batch, next_n, heads, ctx, block_kv, units, by_rows, chosen, by_share, digest = (cells[c] for c in COLUMNS)
    return Times(
        shape_of(int(batch), int(next_n), int(heads), int(ctx), int(block_kv)),
        {int(rows): int(count) for rows, count in _pairs(units)},
        {int(rows): float(time) for rows, time in _pairs(by_rows)},
        int(chosen),
        {float(share): float(time) for share, time in _pairs(by_share)},
        digest,
    )


def _pairs(text: str) -> list[list[str]]:
    return [word.split("=") for word in text.split()]


def regret(modelled: Sequence[Times], few_units: dict[int, int]) -> tuple[float, float]:
    """Return (geometric mean, worst) over shapes of the time with a table over the best, less 1."""
    ratios = [times.with_table(few_units) / min(times.by_rows.values()) for times in modelled]
    return geometric_mean(ratios) - 1, max(ratios) - 1


def loss(modelled: Sequence[Times], share: float) -> float:
    """Return the geometric mean over shapes of the time with that share of the waves over that with all, less 1."""
    return geometric_mean([times.by_share[share] / times.by_rows[times.chosen] for times in modelled]) - 1


def derive(modelled: Sequence[Times]) -> dict[int, int]:
    """Search the table, number by number, for the least regret; the smaller candidate where it makes no difference."""
    best = dict.fromkeys(TABLED, 0)
    least = regret(modelled, best)[0]
    moved = True
    while moved:
        moved = False
        for rows, candidate in itertools.product(best, CANDIDATES):
            trial = best | {rows: candidate}
            mean = regret(modelled, trial)[0]
            if mean < least - 1e-9:
                best, least, moved = trial, mean, True
    return {count: units for count, units in best.items() if units}
