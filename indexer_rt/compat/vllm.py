"""Drop-in for vLLM's ``rocm_fp8_paged_mqa_logits`` (vllm.v1.attention.ops.rocm_aiter_mla_sparse)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import kv_cache as pages
from .. import ops
from . import argument, flattened

SITE = "vllm.rocm_fp8_paged_mqa_logits"
PLAIN_RATIO = 4
"""The compress_ratio whose indexer cache vLLM writes block-flat (DeepSeek-V4 C4A); 1 and 2 are shuffled."""


def is_preshuffled(block_size: int, compress_ratio: int) -> bool:
    """Say what vLLM wrote: block size 1 is plain, compress_ratio 4 is plain, everything else is 16 x 16 tiles."""
    return block_size > 1 and compress_ratio != PLAIN_RATIO


def rocm_fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    schedule_metadata: Tensor | None,
    max_model_len: int,
    *,
    compress_ratio: int = 1,
) -> Tensor:
    """Compute the logits of a decode step, as vLLM calls for them.

    q_fp8 [B, N, H, 128] float8_e4m3fn; kv_cache_fp8 [num_blocks, block_size, 1, 132] uint8, blocks any distance apart;
    weights [B*N, H] float32; context_lens int32 [B] or [B, 1], lengths, or [B, N], each row's own end (N = 2 in vLLM);
    block_tables [B, W] int32. Lengths and max_model_len count what the cache holds: compressed tokens where it is
    compressed. ``schedule_metadata`` is for NVIDIA's kernels and unused, here as there.

    Layout: ``is_preshuffled``, vLLM's own rule. It cannot be told from the block size alone.

    Returns a new float32 [B*N, max_model_len] with -inf past each row's end. What the plugin installs takes the output
    from vLLM's workspace instead; see ``in_workspace``.

    Raises ValueError for a compress_ratio that is no positive integer or a block size that vLLM's rule cannot have
    tiled, and what ``indexer_rt.fp8_paged_mqa_logits`` raises.
    """
    argument.tensor("q_fp8", q_fp8, 4)
    preshuffle = _layout(kv_cache_fp8, compress_ratio)
    logits = ops.fp8_paged_mqa_logits(
        q_fp8, kv_cache_fp8, weights, context_lens, block_tables, max_model_len, preshuffle=preshuffle
    )
    flattened.note(SITE, q_fp8)
    return logits


def in_workspace(workspace: Callable[[], Any]) -> Callable[..., Tensor]:
    """Return a ``rocm_fp8_paged_mqa_logits`` whose output is vLLM's: memory of its workspace manager, not initialised.

    ``workspace`` returns the manager (vLLM's ``current_workspace_manager``); its
    ``get_simultaneous(((rows, columns), dtype))`` gives the tensors. vLLM sizes and locks the workspace when it
    profiles, so an output from elsewhere would be memory that it has not counted. Exactly the cells p < end are
    written; vLLM's top-k reads no others.
    """

    @functools.wraps(rocm_fp8_paged_mqa_logits)
    def logits_in_workspace(
        q_fp8: Tensor,
        kv_cache_fp8: Tensor,
        weights: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        schedule_metadata: Tensor | None,
        max_model_len: int,
        *,
        compress_ratio: int = 1,
    ) -> Tensor:
        batch, next_n = argument.tensor("q_fp8", q_fp8, 4).shape[:2]
        preshuffle = _layout(kv_cache_fp8, compress_ratio)
        (out,) = workspace().get_simultaneous(((batch * next_n, max_model_len), torch.float32))
        logits = ops.fp8_paged_mqa_logits(
            q_fp8, kv_cache_fp8, weights, context_lens, block_tables, max_model_len, preshuffle=preshuffle, out=out
        )
        flattened.note(SITE, q_fp8)
        return logits

    return logits_in_workspace


def _layout(kv_cache_fp8: Tensor, compress_ratio: int) -> bool:
    ratio = argument.integer("compress_ratio", compress_ratio, 1)
    block_size = pages.geometry(argument.tensor("kv_cache_fp8", kv_cache_fp8), name="kv_cache_fp8")[1]
    preshuffle = is_preshuffled(block_size, ratio)
    if preshuffle and block_size % pages.TILE:
        raise ValueError(
            f"kv_cache_fp8: expected block size 1 or a multiple of {pages.TILE}, got {block_size}: with compress_ratio "
            f"{ratio} vLLM's blocks of more than one token are {pages.TILE} x {pages.TILE} tiles."
        )
    return preshuffle
