"""Drop-in for SGLang's ``aiter_paged_mqa_logits`` (sglang.kernels.ops.attention.dsa.paged_mqa_logits)."""

from __future__ import annotations

from torch import Tensor

from .. import kv_cache as pages
from .. import ops
from . import argument, flattened


def aiter_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    max_seq_len: int,
    *,
    preshuffle: bool,
    kv_block_size: int,
) -> Tensor:
    """Compute the logits of a decode step, as SGLang calls for them: one row per sequence, MTP rows flattened.

    q_fp8 [T, H, 128] float8_e4m3fn; kv_cache_fp8 uint8 or float8_e4m3fn [num_pages, kv_block_size, 1, 132], or the pool
    as it lies, [num_pages, kv_block_size * 132]; weights [T, H] or [T, H, 1] float32; seq_lens [T] int32, each row's
    own end; block_tables [T, W] int32. Rows that padding adds to q_fp8 alone are refused: they have no length (SGLang's
    own function reads past seq_lens for them).

    Layout: ``preshuffle`` says it; True wants a kv_block_size that is a multiple of 16.

    Returns a new float32 [T, max_seq_len] with -inf past each row's end. SGLang's own function leaves those cells
    undefined.

    Raises ValueError when kv_block_size is not the cache's, and what ``indexer_rt.fp8_paged_mqa_logits`` raises.
    """
    argument.tensor("q_fp8", q_fp8, 3)
    if argument.tensor("kv_cache_fp8", kv_cache_fp8, 2, 4).ndim == 2:
        kv_cache_fp8 = _paged(kv_cache_fp8, argument.integer("kv_block_size", kv_block_size, 1), q_fp8.shape[2])
    argument.block_size("kv_block_size", kv_block_size, kv_cache_fp8)
    logits = ops.fp8_paged_mqa_logits(
        q_fp8, kv_cache_fp8, weights, seq_lens, block_tables, max_seq_len, preshuffle=preshuffle
    )
    flattened.note("sglang.aiter_paged_mqa_logits", q_fp8)
    return logits


def _paged(pool: Tensor, block_kv: int, head_dim: int) -> Tensor:
    """View a pool [num_pages, block_kv * (head_dim + 4)], its pages any distance apart, as the operator's cache."""
    token_bytes = head_dim + pages.SCALE_BYTES
    if pool.shape[1] != block_kv * token_bytes or pool.stride(1) != 1:
        raise ValueError(
            f"kv_cache_fp8: expected dense pages [num_pages, {block_kv * token_bytes}] for kv_block_size {block_kv} "
            f"and head_dim {head_dim}, got {list(pool.shape)} with strides {list(pool.stride())}."
        )
    return pool.unflatten(1, (block_kv, 1, token_bytes))
