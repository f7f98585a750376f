"""Set up launches of the baseline kernel, and of the operator's own, for published shapes, without their data."""

from __future__ import annotations

import csv
import struct
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from indexer_rt import manifest
from indexer_rt.code_object import CodeObject
from indexer_rt.emu import Buffer
from indexer_rt.launch import Launch

FOLDER = Path(__file__).resolve().parent.parent / "baseline" / "hsaco"
HEAD_DIM, TOKEN_BYTES, SCALE_BYTES = 128, 132, 4
# Published ragged lengths: the mean given, drawn from +-30 %.
SPREAD, SEED = 0.3, 0
NUM_CUS = 256


@dataclass(frozen=True)
class Shape:
    """Be one decode step: ``lengths`` of every sequence, ``next_n`` rows each."""

    lengths: tuple[int, ...]
    next_n: int
    heads: int
    block_kv: int
    preshuffle: bool
    max_model_len: int

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def kv_bytes(self) -> int:
        return sum(self.lengths) * TOKEN_BYTES

    @property
    def useful_bytes(self) -> int:
        """Bytes that must move: each key once, queries, weights, written logits, table entries."""
        rows = self.batch * self.next_n
        logits = sum(max(0, n - self.next_n + r + 1) for n in self.lengths for r in range(self.next_n))
        return self.kv_bytes + rows * self.heads * (HEAD_DIM + 4) + 4 * logits

    @property
    def is_scattered(self) -> bool:
        return self.block_kv == 1


@dataclass(frozen=True)
class Published:
    """Be one row of the published times."""

    source: str
    kernel: str
    shape: Shape
    time_us: float
    label: str


def lengths_of(batch: int, mean: int, ragged: bool, seed: int = SEED) -> tuple[int, ...]:
    """Draw lengths, or repeat the mean."""
    if not ragged:
        return (mean,) * batch
    draw = np.random.default_rng(seed).uniform(1 - SPREAD, 1 + SPREAD, batch)
    return tuple(int(mean * x) for x in draw)


def published(path: Path) -> list[Published]:
    """Read the rows of a file of published times whose shape our kernels cover (FP8 cache, heads and context stated).

    Columns as in published_timings.csv. Rows of other caches or unstated shapes are left out.
    """
    rows = []
    for row in csv.DictReader(path.open()):
        layout = row["layout"]
        if not row["heads"] or layout.startswith("mxfp4"):
            continue
        batch, next_n, ctx = int(row["batch"]), int(row["next_n"]), int(row["ctx_len"])
        ragged = row["ragged"] == "1"
        model_len = int(row["max_model_len"] or 0) or ctx
        block_kv = int(row["kv_block_size"])
        shape = Shape(lengths_of(batch, ctx, ragged), next_n, int(row["heads"]), block_kv,
                      layout.startswith("preshuffle"), model_len)  # fmt: skip
        label = f"b{batch} n{next_n} h{row['heads']} ctx{ctx} kv{block_kv}{'r' if ragged else ''}"
        rows.append(Published(row["source"], row["kernel"], shape, float(row["time_us"]), label))
    return rows


class Addresses:
    """Hand out made-up device addresses, 2 MiB apart at least."""

    def __init__(self) -> None:
        self.next = 1 << 33

    def buffer(self, name: str, data: np.ndarray, writable: bool = False) -> Buffer:
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer = Buffer(name, self.next, data, writable)
        self.next += (len(data) + (2 << 21)) >> 21 << 21
        return buffer


def buffers_of(shape: Shape, seed: int = SEED) -> dict[str, Buffer]:
    """Make the tensors of a decode step: real lengths and shuffled tables, keys and outputs that are never touched."""
    rows = shape.batch * shape.next_n
    width = -(-max(shape.lengths) // shape.block_kv)
    pages = [-(-n // shape.block_kv) for n in shape.lengths]
    ids = np.random.default_rng(seed + 1).permutation(sum(pages)).astype(np.int32)
    table = np.zeros((shape.batch, width), np.int32)
    start = 0
    for b, count in enumerate(pages):
        table[b, :count] = ids[start : start + count]
        start += count
    make = Addresses().buffer
    # NOTE: np.zeros takes no memory until touched, and the slice never touches keys or logits.
    return {
        "q": make("q", np.zeros(rows * shape.heads * HEAD_DIM, np.uint8)),
        "kv_cache": make("kv_cache", np.zeros(sum(pages) * shape.block_kv * TOKEN_BYTES, np.uint8)),
        "weights": make("weights", np.zeros(rows * shape.heads, np.float32)),
        "context_lens": make("context_lens", np.array(shape.lengths, np.int32)),
        "block_tables": make("block_tables", table),
        "logits": make("logits", np.zeros(rows * shape.max_model_len, np.float32), True),
    }


def pack(kernel: Any, values: dict[str, int]) -> bytes:
    """Pack explicit arguments by name. Raises KeyError for one that is missing."""
    kernarg = bytearray(kernel.kernarg_bytes)
    for arg in kernel.args:
        if arg.is_hidden:
            continue
        struct.pack_into({4: "<i", 8: "<q"}[arg.size], kernarg, arg.offset, values[arg.name])
    return bytes(kernarg)


def baseline_rule(batch: int, next_n: int, max_model_len: int) -> SimpleNamespace:
    """Choose rows per block, waves, tokens per chunk and splits as the published design does."""
    total = batch * max_model_len
    rows = min(next_n, 1 if total < 90_000 else 2 if total < 280_000 else 3)
    waves = 8 if 80_000 <= total < 280_000 else 4
    if max_model_len >= 50_000:
        chunk = 64 if total >= 400_000 else 128
    else:
        chunk = 64 if total >= 280_000 else 256
    groups = -(-next_n // rows)
    split = min(-(-max_model_len // chunk), -(-512 // (batch * groups)))
    return SimpleNamespace(rows=rows, waves=waves, chunk=chunk, split=split, groups=groups)


def baseline_launch(shape: Shape, folder: Path = FOLDER) -> tuple[Launch, list[Buffer]]:
    """Launch the baseline kernel on a shape: 32 heads, blocks of 1 (plain) or 64 (preshuffled) tokens.

    Raises ValueError for another shape.
    """
    if shape.heads != 32 or (shape.block_kv, shape.preshuffle) not in ((1, False), (64, True)):
        raise ValueError(
            f"the baseline kernel takes 32 heads and blocks of 1 (plain) or 64 (preshuffled); got {shape.heads} heads, "
            f"blocks of {shape.block_kv} ({'preshuffled' if shape.preshuffle else 'plain'})."
        )
    rule = baseline_rule(shape.batch, shape.next_n, shape.max_model_len)
    name = f"baseline_paged_mqa_logits_h32_r{rule.rows}_{'gather' if shape.block_kv == 1 else 'page'}"
    kernel = manifest.only_kernel(CodeObject.read(folder / f"{name}.hsaco"))
    buffers = buffers_of(shape)
    values = {key: buffer.address for key, buffer in buffers.items()} | {
        "table_row_stride": len(buffers["block_tables"].bytes) // 4 // shape.batch,
        "logits_row_stride": shape.max_model_len,
        "next_n": shape.next_n,
        "chunk_tokens": rule.chunk,
        "num_waves": rule.waves,
        "num_splits": rule.split,
    }
    grid = (shape.batch, rule.split, rule.groups)
    return Launch(kernel, grid, (rule.waves * 64, 1, 1), 0, pack(kernel, values)), list(buffers.values())
