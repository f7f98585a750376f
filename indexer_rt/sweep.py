"""Sweep the operator over the grid of decode steps that callers have, and write one CSV row per case.

512 cases: every combination of the axes below. Sequences have blocks of their own, scattered over the pool; with
ragged lengths they are drawn within 30 % of the mean. max_model_len is twice the mean.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import torch

from . import ops
from .comparison import Comparison
from .workload import Step, Workload, choose_variant, find_device

BATCH = (1, 4, 16, 64)
NEXT_N = (1, 2, 4, 6)
NUM_HEADS = (32, 64)
CTX = (1024, 8192, 32768, 131072)
BLOCK_KV = (1, 64)
RAGGED = (0.0, 0.3)

SAMPLE_CASES = 40
SAMPLE_COST = 1 << 27
"""Heads x rows x tokens of the largest case of the sample: it emulates in about 10 seconds on one core."""


@dataclass(frozen=True, slots=True)
class Case:
    """Name one point of the grid."""

    batch: int
    next_n: int
    num_heads: int
    ctx: int
    block_kv: int
    ragged: float

    @property
    def name(self) -> str:
        return f"b{self.batch}-n{self.next_n}-h{self.num_heads}-ctx{self.ctx}-kv{self.block_kv}-ragged{self.ragged:g}"

    @property
    def seed(self) -> int:
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little")

    @property
    def cost(self) -> int:
        return self.num_heads * self.batch * self.next_n * self.ctx

    def workload(self) -> Workload:
        """Draw the lengths. A block of 64 tokens is preshuffled, as servers keep it."""
        draw = random.Random(self.seed)
        lens = tuple(round(self.ctx * (1 + self.ragged * draw.uniform(-1, 1))) for _ in range(self.batch))
        return Workload(self.next_n, self.block_kv, self.block_kv > 1, lens, 2 * self.ctx, self.num_heads)


@dataclass(frozen=True, slots=True)
class Row:
    """Hold what one case gave: a line of the CSV. ``max_error`` as in ``comparison``; ``seconds`` for the op alone."""

    case: str
    variant: str
    device: str
    agrees: bool
    mask_equal: bool
    calc_diff: float
    max_error: float
    cells: int
    seconds: float
    code_object_sha256: str


COLUMNS = [field.name for field in fields(Row)]


def all_cases() -> list[Case]:
    """Return the 512 cases."""
    return [Case(*point) for point in itertools.product(BATCH, NEXT_N, NUM_HEADS, CTX, BLOCK_KV, RAGGED)]


def sample() -> list[Case]:
    """Return a fixed sample of 40 cases, as even over (heads, ctx, block_kv) as can be, none above ``SAMPLE_COST``.

    Within each of these 16 strata the order is that of the names' hashes.
    """
    strata: dict[tuple[int, int, int], list[Case]] = {}
    for case in sorted(all_cases(), key=lambda case: case.seed):
        if case.cost <= SAMPLE_COST:
            strata.setdefault((case.num_heads, case.ctx, case.block_kv), []).append(case)
    rounds = itertools.zip_longest(*(strata[key] for key in sorted(strata)))
    return [case for cases in rounds for case in cases if case is not None][:SAMPLE_CASES]


def run_case(case: Case) -> Row:
    """Make the case's tensors, run the op on the best device there is and compare every cell with the reference."""
    torch.set_num_threads(1)
    device, _ = find_device()
    workload = case.workload()
    step, options = workload.make_step(torch.Generator().manual_seed(case.seed)), workload.options
    on_device = Step(*(tensor.to(device) for tensor in step))
    start = time.perf_counter()
    logits = ops.fp8_paged_mqa_logits(*on_device, **options).cpu()
    seconds = time.perf_counter() - start
    verdict = Comparison(step, options).of(logits)
    variant = choose_variant(on_device, options)
    return Row(
        case=case.name,
        variant=variant.name,
        device="emulator" if device.type == "cpu" else torch.cuda.get_device_name(device),
        agrees=verdict.agrees,
        mask_equal=verdict.mask_equal,
        calc_diff=verdict.calc_diff,
        max_error=verdict.error,
        cells=verdict.cells,
        seconds=round(seconds, 2),
        code_object_sha256=variant.sha256 or "no manifest",
    )


def run(cases: Iterable[Case], jobs: int) -> Iterator[Row]:
    """Run cases on ``jobs`` processes, costly ones first, and yield their rows as they come."""
    ordered = sorted(cases, key=lambda case: -case.cost)
    if jobs == 1:
        yield from map(run_case, ordered)
        return
    # NOTE: spawned, because a process that has used HIP must not be forked; a process per case gives its memory back.
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_case, ordered)


def read(path: Path) -> dict[str, Row]:
    """Return the rows of an earlier run by case. Raises ValueError when the file is not one of this command's."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ValueError(
                f"{path}: expected the columns {', '.join(COLUMNS)}, got {reader.fieldnames}. Name another file."
            )
        return {line["case"]: _parse(line) for line in reader}


def _parse(line: dict[str, str]) -> Row:
    kinds: dict[str, Callable[[str], object]] = {
        "agrees": "True".__eq__, "mask_equal": "True".__eq__, "calc_diff": float, "max_error": float, "cells": int,
        "seconds": float,
    }  # fmt: skip
    return Row(**{name: kinds.get(name, str)(text) for name, text in line.items()})  # type: ignore[arg-type]


def append(path: Path, row: Row) -> None:
    """Add a row to the CSV, which starts with its column names."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))
