"""Small valid calls of the operator, to be changed by one argument at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from indexer_rt.problem import Problem, Tensors


@dataclass
class Call:
    """Hold the arguments of one call of the operator; any may be changed. ``arguments()`` makes them keywords."""

    q_fp8: Any
    kv_cache_fp8: Any
    weights: Any
    context_lens: Any
    block_tables: Any
    max_model_len: Any
    preshuffle: Any
    out: Any = None
    clean_logits: Any = None
    rows_per_wave: Any = None
    cu_seqlens_q: Any = None
    max_next_n: Any = None
    lens_per_row: Any = None

    def arguments(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def tensors(self) -> Tensors:
        return Tensors(
            self.q_fp8,
            self.kv_cache_fp8,
            self.weights,
            self.context_lens,
            self.block_tables,
            self.cu_seqlens_q,
            self.out,
        )

    def check(self) -> Problem:
        return Problem.check(
            self.tensors(),
            self.max_model_len,
            preshuffle=self.preshuffle,
            clean_logits=self.clean_logits,
            max_next_n=self.max_next_n,
            lens_per_row=self.lens_per_row,
        )


def make_call(
    *,
    batch: int = 2,
    next_n: int = 1,
    heads: int = 32,
    block_kv: int = 64,
    preshuffle: bool = True,
    width: int = 4,
    num_blocks: int = 16,
    max_model_len: int = 200,
) -> Call:
    """Make a small valid call on the CPU: zeros, lengths of 2 * next_n, a shuffled table."""
    rows = batch * next_n
    ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
    return Call(
        q_fp8=torch.zeros(batch, next_n, heads, 128, dtype=torch.float8_e4m3fn),
        kv_cache_fp8=torch.zeros(num_blocks, block_kv, 1, 132, dtype=torch.uint8),
        weights=torch.zeros(rows, heads),
        context_lens=torch.full((batch,), 2 * next_n, dtype=torch.int32),
        block_tables=ids.repeat(batch * width)[: batch * width].reshape(batch, width).int(),
        max_model_len=max_model_len,
        preshuffle=preshuffle,
    )


def make_packed(*, counts: tuple[int, ...] = (2, 0, 3), **options: Any) -> Call:
    """Make a small valid call in the packed form, sequence b having ``counts[b]`` rows."""
    batch, rows = len(counts), sum(counts)
    call = make_call(batch=batch, **options)
    call.q_fp8 = torch.zeros(rows, 32, 128, dtype=torch.float8_e4m3fn)
    call.weights = torch.zeros(rows, 32)
    call.context_lens = torch.full((batch,), 2 * max(counts), dtype=torch.int32)
    call.cu_seqlens_q = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    call.max_next_n = max(counts)
    return call
