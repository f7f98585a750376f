"""Compute the operator in plain torch, on any device: what the kernels are compared with.

It shares nothing with them: each sequence's keys are gathered through its row of the block table, and the formula is
written down as it stands. It reads lengths and tables on the host, so it waits for the device.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from . import kv_cache as pages


def fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    max_model_len: int,
    *,
    preshuffle: bool,
    out: Tensor | None = None,
    clean_logits: bool | None = None,
    cu_seqlens_q: Tensor | None = None,
    lens_per_row: bool | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute the logits of ``indexer_rt.fp8_paged_mqa_logits``, which documents shapes, dtypes and the packed form.

    Writes the same cells: p < end with ``out``, -inf from there to max_model_len too with ``clean_logits``; a new
    tensor is clean by default. ``dtype``, float32 or float64, is that of the arithmetic and a new output (``out`` may
    have any). ``lens_per_row`` is for the packed form, as there.

    NaN is as the operator documents: relu(x) is x where x > 0, else 0, so relu(NaN) is 0, while a NaN scale or weight
    gives NaN. The sum over heads comes first, then the scale.

    Cells of a new output that are not written are NaN. Raises ValueError for a needed block id outside the cache, and
    for lengths that fit both sequences and rows without ``lens_per_row``.
    """
    num_blocks, block_kv, head_dim = pages.geometry(kv_cache_fp8, name="kv_cache_fp8")
    num_heads = q_fp8.shape[-2]
    rows = _rows(q_fp8, context_lens, cu_seqlens_q, lens_per_row)
    q = q_fp8.reshape(-1, num_heads, head_dim).to(dtype)
    w = weights.reshape(-1, num_heads).to(dtype)

    clean = out is None if clean_logits is None else clean_logits
    if out is None:
        out = torch.empty((q.shape[0], max_model_len), dtype=dtype, device=q.device)
        out.fill_(float("-inf") if clean else float("nan"))
    for sequence, ends in enumerate(rows):
        clipped = {row: max(0, min(end, max_model_len, block_tables.shape[1] * block_kv)) for row, end in ends.items()}
        longest = max(clipped.values(), default=0)
        table = block_tables[sequence, : -(-longest // block_kv)].tolist()
        for column, block in enumerate(table):
            if not 0 <= block < num_blocks:
                raise ValueError(
                    f"block_tables: row {sequence}, column {column} is {block}; the cache has {num_blocks} blocks."
                )
        values, scales = _gather(kv_cache_fp8, table, preshuffle)
        for row, end in clipped.items():
            dots = torch.einsum("hd,pd->ph", q[row], values[:end].to(dtype))
            relu = torch.where(dots > 0, dots, torch.zeros_like(dots))
            out[row, :end] = torch.einsum("ph,h->p", relu, w[row]) * scales[:end].to(dtype)
            if clean:
                out[row, end:max_model_len] = float("-inf")
    return out


def _rows(
    q_fp8: Tensor, context_lens: Tensor, cu_seqlens_q: Tensor | None, lens_per_row: bool | None
) -> list[dict[int, int]]:
    """Return, for each sequence, the end of each of its rows: {output row: end, not clipped}."""
    lens = context_lens.reshape(-1).tolist()
    if cu_seqlens_q is None:
        batch, next_n = q_fp8.shape[0], q_fp8.shape[1] if q_fp8.ndim == 4 else 1
        starts = [b * next_n for b in range(batch + 1)]
        per_row = len(lens) == batch * next_n and next_n != 1
    else:
        starts, num_rows = cu_seqlens_q.tolist(), q_fp8.shape[0]
        if lens_per_row is None and len(lens) == num_rows == len(starts) - 1:
            raise ValueError(f"context_lens: {len(lens)} fit both the sequences and the rows. Pass lens_per_row.")
        per_row = len(lens) == num_rows if lens_per_row is None else lens_per_row
    sequences = []
    for b, (first, last) in enumerate(itertools.pairwise(starts)):
        count = last - first
        sequences.append({first + n: lens[first + n] if per_row else lens[b] - count + n + 1 for n in range(count)})
    return sequences


def _gather(kv_cache: Tensor, table: list[int], preshuffle: bool) -> tuple[Tensor, Tensor]:
    """Return the keys of the blocks in a table: float8_e4m3fn [tokens, head_dim] and float32 scales [tokens]."""
    index = torch.tensor(table, dtype=torch.long, device=kv_cache.device)
    values = pages.values_of(kv_cache)[index]
    if preshuffle:
        values = pages.unpreshuffle_values(values)
    return values.view(pages.FP8).flatten(0, 1), pages.scales_of(kv_cache)[index].flatten()
