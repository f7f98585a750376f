"""Regroup MTP rows that a caller flattened, so that the rows of a sequence share one pass over its keys again.

A flattened call presents each of a sequence's N rows as a sequence of its own: N equal rows of the block table, N
lengths that are the rows' own ends. Right, but every row then streams the keys for itself. Nothing in the tensors'
shapes tells such a call from a plain decode step of as many sequences, so the caller must say that its rows are
grouped.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from .. import environment, kv_cache, ops
from . import argument

_log = logging.getLogger("indexer_rt")


class Rows(NamedTuple):
    """Hold the tensors of a call in the native form, B sequences of N rows. All are views of the flattened ones."""

    q_fp8: Tensor
    context_lens: Tensor
    block_tables: Tensor


def regroup(q_fp8: Tensor, context_lens: Tensor, block_tables: Tensor, *, rows_per_sequence: int) -> Rows:
    """View T = B * N flattened rows as B sequences of N rows; N is ``rows_per_sequence``, at least 1.

    ============ ============================== =========================================================
    tensor       flattened                      regrouped
    ============ ============================== =========================================================
    q_fp8        [T, H, 128] or [T, 1, H, 128]  [B, N, H, 128]
    context_lens [T] or [T, 1], the rows' ends  [B, N], for N = 1 the same lengths [B, 1]
    block_tables [T, W], N equal rows a group   [B, W]: each group's first row, at N times the row stride
    ============ ============================== =========================================================

    Weights and output stay as they are: their row b * N + n is the same row in both forms. Nothing is copied, no device
    data is read, and so it may be captured into a graph. That a group's rows of the block table are equal, as far as
    they are needed, is on trust here.

    Raises ValueError where shapes do not fit.
    """
    count = argument.integer("rows_per_sequence", rows_per_sequence, 1)
    for name, value in (("context_lens", context_lens), ("block_tables", block_tables)):
        argument.tensor(name, value)
    if argument.tensor("q_fp8", q_fp8).ndim not in (3, 4) or (q_fp8.ndim == 4 and q_fp8.shape[1] != 1):
        raise ValueError(
            f"q_fp8: expected flattened rows, [rows, num_heads, head_dim] or [rows, 1, num_heads, head_dim], got "
            f"{list(q_fp8.shape)}."
        )
    rows = q_fp8.shape[0]
    if rows % count:
        raise ValueError(
            f"rows_per_sequence: expected a divisor of the {rows} rows of q_fp8, got {count}. Every sequence must have "
            "as many rows; for other counts use the packed form (cu_seqlens_q)."
        )
    if tuple(context_lens.shape) not in ((rows,), (rows, 1)):
        raise ValueError(
            f"context_lens: expected [{rows}] or [{rows}, 1], one end for each flattened row, got "
            f"{list(context_lens.shape)}."
        )
    if block_tables.ndim != 2 or block_tables.shape[0] != rows:
        raise ValueError(
            f"block_tables: expected [{rows}, table width], one row for each flattened row, got "
            f"{list(block_tables.shape)}."
        )
    groups = (rows // count, count)
    q = q_fp8.squeeze(1) if q_fp8.ndim == 4 else q_fp8
    ends = context_lens.squeeze(1) if context_lens.ndim == 2 else context_lens
    return Rows(q.unflatten(0, groups), ends.unflatten(0, groups), block_tables[::count])


def fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    max_model_len: int,
    *,
    rows_per_sequence: int,
    preshuffle: bool,
    out: Tensor | None = None,
    clean_logits: bool | None = None,
    rows_per_wave: int | None = None,
) -> Tensor:
    """Compute a flattened call's logits as native ones, whose rows can share a pass over the keys.

    Takes the flattened tensors of ``regroup``, weights [T, H] or [T, H, 1], and the other arguments of
    ``indexer_rt.fp8_paged_mqa_logits``; gives, bit for bit, what that gives for the flattened call: [T, max_model_len],
    or ``out``.

    INDEXER_RT_STRICT=1 also checks, which reads device data, that every row of a group has the same needed block ids as
    the group's first row. Raises what ``regroup`` and the operator raise.
    """
    rows = regroup(q_fp8, context_lens, block_tables, rows_per_sequence=rows_per_sequence)
    if environment.current().strict:
        _check_tables(rows, block_tables, kv_cache.geometry(kv_cache_fp8, name="kv_cache_fp8")[1], max_model_len)
    return ops.fp8_paged_mqa_logits(
        rows.q_fp8,
        kv_cache_fp8,
        weights,
        rows.context_lens,
        rows.block_tables,
        max_model_len,
        preshuffle=preshuffle,
        out=out,
        clean_logits=clean_logits,
        rows_per_wave=rows_per_wave,
    )


def _check_tables(rows: Rows, block_tables: Tensor, block_kv: int, max_model_len: int) -> None:
    count = rows.q_fp8.shape[1]
    ends = rows.context_lens.reshape(-1).clamp(0, max_model_len)
    columns = torch.arange(block_tables.shape[1], device=block_tables.device)
    needed = columns < ((ends + block_kv - 1) // block_kv).unsqueeze(1)
    first = rows.block_tables.repeat_interleave(count, dim=0)
    bad = (needed & (block_tables != first)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise ValueError(
            f"block_tables: row {row}, column {column} is {int(block_tables[row, column])}, but row "
            f"{row - row % count}, the first of its group of {count}, has {int(first[row, column])}. The rows of a "
            "group must belong to one sequence; is rows_per_sequence right?"
        )


_noted: set[str] = set()


def note(site: str, q_fp8: Tensor) -> None:
    """Log, once per site and process, that a call has one row for each of several sequences.

    Such a call may be MTP rows that the caller flattened. The record's path and line are those of the drop-in's caller.
    """
    if site in _noted or q_fp8.shape[0] < 2 or (q_fp8.ndim == 4 and q_fp8.shape[1] != 1):
        return
    _noted.add(site)
    _log.warning(
        "%s: %d rows came as sequences of one row each. If they are MTP rows that the caller flattened, the keys of a "
        "sequence are read once for each of its rows; native [batch, next_n, heads, 128] rows, or "
        "indexer_rt.compat.flattened with rows_per_sequence=, read them once. Results are the same.",
        site,
        q_fp8.shape[0],
        stacklevel=3,
    )
