"""Predict the operator's kernels on the published shapes, beside the limit and what others published."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from indexer_rt import table
from indexer_rt.shapes import Shape, published

from .baseline import Case
from .constants import Constants
from .operator_launch import operator_launch
from .prediction import evaluate, study

COLUMNS = (
    "source", "shape", "kernel", "workgroups", "limit us", "warm us", "warm/limit", "cold us", "cold/limit",
    "cold TB/s", "published", "binding (warm)",
)  # fmt: skip
# What indexer_rt.shapes reads.
FIGURES = ("shape", "warm_us", "cold_us", "binding", "commit")


@dataclass(frozen=True)
class Row:
    """Be one modelled case. ``warm_us``: launched again on the same buffers; ``cold_us``: all bytes come from HBM."""

    shape: Shape
    kernel: str
    workgroups: int
    warm_us: float
    cold_us: float
    binding: str
    published: tuple[tuple[str, float], ...]

    def cells(self) -> tuple[str, ...]:
        others = " ".join(f"{kernel}={time:g}" for kernel, time in self.published)
        limit, warm, cold = self.shape.limit_us, self.warm_us, self.cold_us
        return ("modelled", self.shape.name, self.kernel.replace("fp8_paged_mqa_logits_", ""), str(self.workgroups),
                f"{limit:.1f}", f"{warm:.1f}", f"{warm / limit:.2f}", f"{cold:.1f}", f"{cold / limit:.2f}",
                f"{self.shape.bytes_moved / cold / 1e6:.2f}", others, self.binding)  # fmt: skip


def modelled_rows() -> Iterator[Row]:
    """Predict every published shape."""
    constants = Constants()
    times: dict[Shape, list[tuple[str, float]]] = {}
    for row in published():
        times.setdefault(row.shape, []).append((row.kernel, row.time_us))
    for shape, others in times.items():
        launch, buffers = operator_launch(Case.of(shape))
        studied = study(launch, buffers)
        warm, cold = (evaluate(one, constants) for one in (studied, studied.cold(constants)))
        yield Row(shape, launch.kernel.name, launch.grid[0], warm.time_us, cold.time_us, warm.binding, tuple(others))


def geomean_speedup(rows: Iterable[Row], kernel: str, block_kv: int) -> float:
    """Return the geometric mean of a kernel's published time over ours (warm), over its shapes of one block size."""
    return geometric_mean(
        time / row.warm_us
        for row in rows if row.shape.block_kv == block_kv for name, time in row.published if name == kernel
    )  # fmt: skip


def commit() -> str:
    """Return the hash of the commit checked out, with "+" when files differ from it."""
    root = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def csv_text(rows: Iterable[Row], commit_hash: str) -> str:
    """Return the table as CSV; the first column says that it is modelled, the last of which commit."""
    return csv_of((*COLUMNS, "commit"), ((*row.cells(), commit_hash) for row in rows))


def figures_text(rows: Iterable[Row], commit_hash: str) -> str:
    """Return what ships with the package, for ``indexer-rt bench`` to print."""
    return csv_of(
        FIGURES,
        ((row.shape.name, f"{row.warm_us:.2f}", f"{row.cold_us:.2f}", row.binding, commit_hash) for row in rows),
    )


def csv_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a CSV file's text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return out.getvalue()


def text(rows: Sequence[Row]) -> str:
    return "\n".join(table.lines_of(COLUMNS, [row.cells() for row in rows], left=3))
