"""Set up launches of the baseline kernel, and of the operator's own, for published shapes, without their data."""

from __future__ import annotations

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
from indexer_rt.shapes import Shape

FOLDER = Path(__file__).resolve().parent.parent / "baseline" / "hsaco"
HEAD_DIM, TOKEN_BYTES = 128, 132
SEED = 0
NUM_CUS = 256


@dataclass(frozen=True)
class Case:
    """Be one decode step: ``lengths`` of every sequence, ``next_n`` rows each."""

    lengths: tuple[int, ...]
    next_n: int
    heads: int
    block_kv: int
    preshuffle: bool
    max_model_len: int

    @classmethod
    def of(cls, shape: Shape) -> Case:
        """Draw the lengths of a published shape: the same ones each time."""
        work = shape.workload()
        return cls(tuple(work.context_lens), shape.next_n, shape.num_heads, shape.block_kv, shape.preshuffle,
                   work.max_model_len)  # fmt: skip

    @property
    def batch(self) -> int:
        return len(self.lengths)


class Addresses:
    """Hand out made-up device addresses, 2 MiB apart at least."""

    def __init__(self) -> None:
        self.next = 1 << 33

    def buffer(self, name: str, data: np.ndarray, writable: bool = False) -> Buffer:
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer = Buffer(name, self.next, data, writable)
        self.next += (len(data) + (2 << 21)) >> 21 << 21
        return buffer


def buffers_of(case: Case, seed: int = SEED) -> dict[str, Buffer]:
    """Make the tensors of a decode step: real lengths and shuffled tables, keys and outputs that are never touched."""
    rows = case.batch * case.next_n
    width = -(-max(case.lengths) // case.block_kv)
    pages = [-(-n // case.block_kv) for n in case.lengths]
    ids = np.random.default_rng(seed + 1).permutation(sum(pages)).astype(np.int32)
    table = np.zeros((case.batch, width), np.int32)
    start = 0
    for b, count in enumerate(pages):
        table[b, :count] = ids[start : start + count]
        start += count
    make = Addresses().buffer
    # NOTE: np.zeros takes no memory until touched, and the slice never touches keys or logits.
    return {
        "q": make("q", np.zeros(rows * case.heads * HEAD_DIM, np.uint8)),
        "kv_cache": make("kv_cache", np.zeros(sum(pages) * case.block_kv * TOKEN_BYTES, np.uint8)),
        "weights": make("weights", np.zeros(rows * case.heads, np.float32)),
        "context_lens": make("context_lens", np.array(case.lengths, np.int32)),
        "block_tables": make("block_tables", table),
        "logits": make("logits", np.zeros(rows * case.max_model_len, np.float32), True),
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


def baseline_launch(case: Case, folder: Path = FOLDER) -> tuple[Launch, list[Buffer]]:
    """Launch the baseline kernel on a shape: 32 heads, blocks of 1 (plain) or 64 (preshuffled) tokens.

    Raises ValueError for another case.
    """
    if case.heads != 32 or (case.block_kv, case.preshuffle) not in ((1, False), (64, True)):
        raise ValueError(
            f"the baseline kernel takes 32 heads and blocks of 1 (plain) or 64 (preshuffled); got {case.heads} heads, "
            f"blocks of {case.block_kv} ({'preshuffled' if case.preshuffle else 'plain'})."
        )
    rule = baseline_rule(case.batch, case.next_n, case.max_model_len)
    name = f"baseline_paged_mqa_logits_h32_r{rule.rows}_{'gather' if case.block_kv == 1 else 'page'}"
    kernel = manifest.only_kernel(CodeObject.read(folder / f"{name}.hsaco"))
    buffers = buffers_of(case)
    values = {key: buffer.address for key, buffer in buffers.items()} | {
        "table_row_stride": len(buffers["block_tables"].bytes) // 4 // case.batch,
        "logits_row_stride": case.max_model_len,
        "next_n": case.next_n,
        "chunk_tokens": rule.chunk,
        "num_waves": rule.waves,
        "num_splits": rule.split,
    }
    grid = (case.batch, rule.split, rule.groups)
    return Launch(kernel, grid, (rule.waves * 64, 1, 1), 0, pack(kernel, values)), list(buffers.values())
