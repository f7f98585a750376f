"""Time the operator on the card, and set beside it what the timing model and others' publications say.

``measured`` stands only for what ran on this machine's GPU. Without one there is nothing measured, and the table shows
the model's figures alone, marked so.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from . import ops, shapes
from .shapes import Modelled, Published, Shape
from .workload import Step

COLD_BYTES = 512 << 20
"""Footprint to rotate through before a buffer is used again: twice the 256 MB Infinity Cache."""
CALLS = 100
WARM_UP_CALLS = 10
PEAK_BYTES_PER_US = 8e6
"""HBM3E peak of an MI355X. A cold time that would need more is refused as a mistake of the measurement."""


class Timer(Protocol):
    """Time calls on a device."""

    def eager_us(self, calls: list[Callable[[], object]]) -> float:
        """Return the microseconds a call takes, the mean over all of them launched one by one."""

    def graph_us(self, calls: list[Callable[[], object]]) -> float:
        """Return the same for one graph that holds all of them."""


class GpuTimer:
    """Time with the device's own events."""

    def eager_us(self, calls: list[Callable[[], object]]) -> float:
        return self._between(lambda: [call() for call in calls]) / len(calls)

    def graph_us(self, calls: list[Callable[[], object]]) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        return self._between(graph.replay) / len(calls)

    def _between(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1000


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold the microseconds of one call: with K in HBM (cold) or in the caches (warm), eager or within a graph."""

    cold_eager_us: float
    cold_graph_us: float
    warm_eager_us: float
    warm_graph_us: float


@dataclass(frozen=True, slots=True)
class Line:
    """Hold all that is known of one shape. None where there is no figure."""

    shape: Shape
    limit_us: float
    modelled: Modelled | None
    best_published: Published | None
    measured: Measured | None


def lines(measure: Callable[[Shape], Measured] | None, wanted: Callable[[Shape], bool]) -> list[Callable[[], Line]]:
    """Return one function per published shape that gives its line; ``measure`` runs it on the card, if there is one."""
    published, modelled = shapes.published(), shapes.modelled()
    every = dict.fromkeys(row.shape for row in published)

    def line_of(shape: Shape) -> Line:
        rows = [row for row in published if row.shape == shape]
        return Line(
            shape=shape,
            limit_us=shape.limit_us,
            modelled=modelled.get(shape.name),
            best_published=min(rows, key=lambda row: row.time_us),
            measured=measure(shape) if measure else None,
        )

    return [lambda shape=shape: line_of(shape) for shape in every if wanted(shape)]  # type: ignore[misc]


def measure(shape: Shape, device: torch.device, timer: Timer, calls: int = CALLS) -> Measured:
    """Time one shape on a device. Raises ValueError when a cold time would need more than the peak bandwidth."""
    workload = shape.workload()
    generator = torch.Generator().manual_seed(0)
    first = workload.make_step(generator)
    footprint = sum(tensor.nbytes for tensor in first) + first.weights.shape[0] * workload.max_model_len * 4
    steps = [first] + [workload.make_step(generator) for _ in range(COLD_BYTES // footprint)]

    def call_of(step: Step) -> Callable[[], object]:
        on_device = Step(*(tensor.to(device) for tensor in step))
        out = torch.empty(step.weights.shape[0], workload.max_model_len, device=device)
        return lambda: ops.fp8_paged_mqa_logits(*on_device, **workload.options, out=out)

    ops.load(device)
    each = [call_of(step) for step in steps]
    warm, cold = [each[0]] * calls, [each[i % len(each)] for i in range(max(calls, len(each)))]
    timer.eager_us(warm[:WARM_UP_CALLS])
    measured = Measured(timer.eager_us(cold), timer.graph_us(cold), timer.eager_us(warm), timer.graph_us(warm))
    if len(each) > 1 and shape.bytes_moved / measured.cold_graph_us > PEAK_BYTES_PER_US:
        raise ValueError(
            f"{shape.name}: {measured.cold_graph_us:.2f} us for {shape.bytes_moved} bytes from HBM is beyond its "
            f"{PEAK_BYTES_PER_US / 1e6:g} TB/s: the buffers were not cold. Report this with the whole output."
        )
    return measured


HEADINGS = (
    "shape", "limit us", "modelled warm us", "modelled cold us", "/limit", "published us", "kernel", "measured warm us",
    "measured cold us", "/limit", "TB/s", "eager us", "binding (modelled warm)",
)  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """Return a line of the table. Measured: within a graph, the last column but one cold and eager. TB/s: cold."""
    measured, published, modelled = line.measured, line.best_published, line.modelled
    return (
        line.shape.name,
        f"{line.limit_us:.1f}",
        f"{modelled.warm_us:.1f}" if modelled else "-",
        f"{modelled.cold_us:.1f}" if modelled else "-",
        f"{modelled.cold_us / line.limit_us:.2f}" if modelled else "-",
        f"{published.time_us:.1f}" if published else "-",
        published.kernel if published else "-",
        f"{measured.warm_graph_us:.1f}" if measured else "-",
        f"{measured.cold_graph_us:.1f}" if measured else "-",
        f"{measured.cold_graph_us / line.limit_us:.2f}" if measured else "-",
        f"{line.shape.bytes_moved / measured.cold_graph_us / 1e6:.2f}" if measured else "-",
        f"{measured.cold_eager_us:.1f}" if measured else "-",
        modelled.binding if modelled else "-",
    )


def write_csv(path: Path, table: list[Line]) -> None:
    """Write the table with every figure's kind in its column's name."""
    columns = ["shape", "limit_us", "modelled_warm_us", "modelled_cold_us", "modelled_binding", "published_us",
               "published_kernel", "published_source", "measured_cold_graph_us", "measured_cold_eager_us",
               "measured_warm_graph_us", "measured_warm_eager_us"]  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for line in table:
            best, got, figure = line.best_published, line.measured, line.modelled
            writer.writerow(
                [line.shape.name, f"{line.limit_us:.3f}"]
                + ([figure.warm_us, figure.cold_us, figure.binding] if figure else [""] * 3)
                + ([best.time_us, best.kernel, best.source] if best else ["", "", ""])
                + ([got.cold_graph_us, got.cold_eager_us, got.warm_graph_us, got.warm_eager_us] if got else [""] * 4)
            )


def plot(path: Path, table: list[Line]) -> None:
    """Draw time over limit per shape: modelled, published and measured, each with a mark of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(table) + 1.6), layout="constrained")
    kinds: dict[str, tuple[str, Callable[[Line], float | None]]] = {
        "modelled (ours, warm)": ("o", lambda line: line.modelled.warm_us if line.modelled else None),
        "modelled (ours, cold)": ("^", lambda line: line.modelled.cold_us if line.modelled else None),
        "published (best of any kernel)": (
            "x",
            lambda line: line.best_published.time_us if line.best_published else None,
        ),
        "measured (ours, cold, in a graph)": ("s", lambda line: line.measured.cold_graph_us if line.measured else None),
    }
    for label, (mark, time_of) in kinds.items():
        points = [(time / line.limit_us, row) for row, line in enumerate(table) if (time := time_of(line))]
        if points:
            axes.scatter(*zip(*points, strict=True), marker=mark, label=label)
    axes.set_yticks(range(len(table)), [line.shape.name for line in table])
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("time / limit (launch, then bytes at 6.5 TB/s)")
    axes.legend()
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
