"""Predict the operator's kernels on the published shapes, beside the limit and what others published."""

from __future__ import annotations

import csv
import io
import math
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer_rt import table

from .baseline import Published, Shape, published
from .constants import Constants
from .operator_launch import operator_launch
from .prediction import Prediction, predict

# The limit that the times are held against: a launch in a graph, and all bytes once at a bandwidth that is reached.
LIMIT_LAUNCH_US, LIMIT_TBPS, SCATTER_FACTOR = 2.2, 6.5, 1.45
COLUMNS = ("source", "shape", "kernel", "workgroups", "time_us", "limit_us", "ratio", "gbps", "published", "binding")


def limit_us(shape: Shape) -> float:
    """Return the least time that a shape is held against. Keys in blocks of one token cost more than their bytes."""
    scatter = (SCATTER_FACTOR - 1) * shape.kv_bytes if shape.is_scattered else 0.0
    return LIMIT_LAUNCH_US + (shape.useful_bytes + scatter) / (LIMIT_TBPS * 1e6)


@dataclass(frozen=True)
class Row:
    """Be one case. ``source`` is "modelled" or "measured"."""

    shape: Shape
    label: str
    source: str
    kernel: str
    workgroups: int
    time_us: float
    binding: str
    published: tuple[tuple[str, float], ...]

    @property
    def ratio(self) -> float:
        return self.time_us / limit_us(self.shape)

    @property
    def gbps(self) -> float:
        return self.shape.useful_bytes / self.time_us / 1000

    def cells(self) -> tuple[str, ...]:
        others = " ".join(f"{kernel}={time:g}" for kernel, time in self.published)
        return (self.source, self.label, self.kernel.replace("fp8_paged_mqa_logits_", ""), str(self.workgroups),
                f"{self.time_us:.1f}", f"{limit_us(self.shape):.1f}", f"{self.ratio:.2f}", f"{self.gbps:.0f}", others,
                self.binding)  # fmt: skip


def shapes(rows: Iterable[Published]) -> dict[str, tuple[Shape, list[tuple[str, float]]]]:
    """Group published rows by shape."""
    out: dict[str, tuple[Shape, list[tuple[str, float]]]] = {}
    for row in rows:
        label = row.label + (" pre" if row.shape.preshuffle else "")
        out.setdefault(label, (row.shape, []))[1].append((row.kernel, row.time_us))
    return out


def model_row(shape: Shape, label: str, times: Sequence[tuple[str, float]], constants: Constants) -> Row:
    launch, buffers = operator_launch(shape)
    prediction: Prediction = predict(launch, buffers, constants=constants)
    return Row(shape, label, "modelled", launch.kernel.name, launch.grid[0], prediction.time_us, prediction.binding,
               tuple(times))  # fmt: skip


def modelled_rows(path: Path, constants: Constants | None = None) -> Iterable[Row]:
    """Predict every published shape that the shipped kernels take, buffers reused from launch to launch."""
    for label, (shape, times) in shapes(published(path)).items():
        yield model_row(shape, label, times, constants or Constants())


def geomean_speedup(rows: Iterable[Row], kernel: str, block_kv: int) -> float:
    """Return the geometric mean of published time over ours, over the shapes of one block size."""
    logs = [
        math.log(time / row.time_us)
        for row in rows if row.shape.block_kv == block_kv for name, time in row.published if name == kernel
    ]  # fmt: skip
    return math.exp(sum(logs) / len(logs))


def commit() -> str:
    """Return the hash of the commit checked out, with "+" when files differ from it."""
    root = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def csv_text(rows: Iterable[Row], commit_hash: str) -> str:
    """Return the table as CSV; the first column says that it is modelled, the last of which commit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, "commit"))
    writer.writerows((*row.cells(), commit_hash) for row in rows)
    return out.getvalue()


def text(rows: Sequence[Row]) -> str:
    return "\n".join(table.lines_of(COLUMNS, [row.cells() for row in rows], left=3))
