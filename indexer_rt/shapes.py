"""Name the decode steps whose times somebody has published, and what is known of each: limit, published, modelled."""

from __future__ import annotations

import csv
import importlib.resources
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .workload import Workload

LAUNCH_US = 2.2
"""Microseconds that a launch takes in a graph, whatever it does. Estimate from published small shapes."""
BYTES_PER_US = 6.5e6
"""HBM bandwidth that a streaming kernel reaches on an MI355X; its peak is 8 TB/s."""
SCATTERED_FACTOR = 1.45
"""Bytes moved for each byte of K where every 132-byte record stands alone: it touches 2 or 3 sectors of 64 bytes."""
SPREAD = 0.3
"""Ragged lengths are drawn within this share of their mean, as the published benchmark draws them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describe one decode step of a benchmark. ``ctx`` is the length, or the mean of ragged lengths, in tokens."""

    batch: int
    next_n: int
    num_heads: int
    ctx: int
    block_kv: int
    preshuffle: bool
    is_ragged: bool
    max_model_len: int

    @property
    def name(self) -> str:
        words = [f"b{self.batch}", f"n{self.next_n}", f"h{self.num_heads}", f"ctx{self.ctx}", f"kv{self.block_kv}"]
        return "-".join(words + ["preshuffled"] * self.preshuffle + ["ragged"] * self.is_ragged)

    def workload(self) -> Workload:
        """Draw the lengths: the same ones each time."""
        draw = random.Random(self.name)
        spread = SPREAD if self.is_ragged else 0.0
        lens = tuple(int(self.ctx * (1 + spread * draw.uniform(-1, 1))) for _ in range(self.batch))
        return Workload(
            self.next_n, self.block_kv, self.preshuffle, lens, max(self.max_model_len, *lens), self.num_heads
        )

    @property
    def bytes_moved(self) -> int:
        """Count what a kernel must read and write: K once, q, weights, and every logit of the windows."""
        lens, next_n = self.workload().context_lens, self.next_n
        rows = self.batch * next_n
        logits = sum(max(0, length - next_n + n + 1) for length in lens for n in range(next_n))
        return sum(lens) * 132 + rows * self.num_heads * (128 + 4) + logits * 4

    @property
    def limit_us(self) -> float:
        """Return the time of a launch, then of the bytes at the bandwidth above.

        No kernel is expected to beat it by much from HBM. Where K stays in the Infinity Cache between launches, as in
        benchmarks that use the same tensors again, it can be beaten.
        """
        scattered = (SCATTERED_FACTOR - 1) * sum(self.workload().context_lens) * 132 if self.block_kv == 1 else 0
        return LAUNCH_US + (self.bytes_moved + scattered) / BYTES_PER_US


@dataclass(frozen=True, slots=True)
class Published:
    """Be one published time of one kernel, in microseconds; ``source`` says where it was published."""

    source: str
    gpu: str
    kernel: str
    shape: Shape
    time_us: float


@dataclass(frozen=True, slots=True)
class Modelled:
    """Be the timing model's figures for our kernel on one shape, in microseconds.

    ``warm_us``: launched again and again on the same tensors, as published benchmarks do; what fits stays in the
    Infinity Cache. ``cold_us``: everything comes from HBM, as in a server's step. ``binding``: what a warm launch
    spends the time on.
    """

    warm_us: float
    cold_us: float
    binding: str
    commit: str


def published() -> list[Published]:
    """Return the published times that ship with the package."""
    return [
        Published(
            line["source"],
            line["gpu"],
            line["kernel"],
            Shape(
                batch=int(line["batch"]),
                next_n=int(line["next_n"]),
                num_heads=int(line["num_heads"]),
                ctx=int(line["ctx"]),
                block_kv=int(line["block_kv"]),
                preshuffle=line["preshuffle"] == "yes",
                is_ragged=line["ragged"] == "yes",
                max_model_len=int(line["max_model_len"]),
            ),
            float(line["time_us"]),
        )
        for line in _lines("published.csv")
    ]


def modelled() -> dict[str, Modelled]:
    """Return the timing model's figures by the name of the shape. Each says which commit it was made at."""
    return {
        line["shape"]: Modelled(float(line["warm_us"]), float(line["cold_us"]), line["binding"], line["commit"])
        for line in _lines("modelled.csv")
    }


def _lines(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(importlib.resources.files("indexer_rt.figures").joinpath(name).read_text().splitlines())
