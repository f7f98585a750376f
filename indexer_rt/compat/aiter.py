"""Drop-ins for aiter: ``deepgemm_fp8_paged_mqa_logits``, and the operator that its pull request 5047 proposes."""

from __future__ import annotations

from torch import Tensor

from .. import kv_cache as pages
from .. import ops
from . import argument, flattened

LAYOUTS = {1: False, 64: True}
"""Block sizes of pull request 5047, and whether their blocks are preshuffled. It has no others."""


def deepgemm_fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    out_logits: Tensor,
    context_lens: Tensor,
    kv_indices: Tensor,
    max_model_len: int,
    Preshuffle: bool = False,
    KVBlockSize: int = 1,
    ChunkK: int = 256,
    TotalCuCount: int | None = None,
    WavePerEU: int = 2,
    VarCtxSchedule: Tensor | None = None,
) -> str:
    """Write logits into ``out_logits``, as ``aiter.ops.triton.attention.pa_mqa_logits`` does.

    q_fp8 [B, N, H, 128] float8_e4m3fn; kv_cache [num_blocks, KVBlockSize, 1, 132] uint8 or float8_e4m3fn, blocks any
    distance apart; weights [B*N, H] float32; out_logits [B*N, at least max_model_len] float32, rows any distance apart;
    context_lens [B] int32, or [B, N] ends of rows (aiter itself reads [B, N] as if it were [B]); kv_indices [B, W]
    int32, rows any distance apart (aiter: dense). The operator's messages call kv_cache kv_cache_fp8, out_logits out,
    and kv_indices block_tables.

    Layout: ``Preshuffle`` says it. True is 16 x 16 tiles and wants a KVBlockSize that is a multiple of 16; False is
    plain, at any size.

    Written: exactly the cells p < end of every row. aiter also puts -inf into some cells past the end, those of the
    chunks it visits; nobody can rely on which, and here they keep what they held.

    Returns a string that names the configuration. aiter returns a key of Triton's cache; no such entry exists here.

    Knobs: ChunkK at least 1, and it or KVBlockSize a multiple of the other; TotalCuCount None or at least 1; WavePerEU
    at least 1; VarCtxSchedule None or a tensor. Checked and unused.

    Raises ValueError for a knob, and what ``indexer_rt.fp8_paged_mqa_logits`` raises.
    """
    argument.tensor("q_fp8", q_fp8, 4)
    argument.tensor("out_logits", out_logits, 2)
    block_kv = argument.block_size("KVBlockSize", KVBlockSize, kv_cache)
    chunk = argument.integer("ChunkK", ChunkK, 1)
    if chunk % block_kv and block_kv % chunk:
        raise ValueError(
            f"ChunkK: expected a multiple or a divisor of KVBlockSize {block_kv}, got {chunk}. It changes nothing "
            "here; leave it out."
        )
    if TotalCuCount is not None:
        argument.integer("TotalCuCount", TotalCuCount, 1)
    argument.integer("WavePerEU", WavePerEU, 1)
    if VarCtxSchedule is not None and not isinstance(VarCtxSchedule, Tensor):
        raise ValueError(f"VarCtxSchedule: expected a torch.Tensor or None, got {VarCtxSchedule!r}.")
    ops.fp8_paged_mqa_logits(
        q_fp8, kv_cache, weights, context_lens, kv_indices, max_model_len, preshuffle=Preshuffle, out=out_logits
    )
    flattened.note("aiter.deepgemm_fp8_paged_mqa_logits", q_fp8)
    layout = "preshuffled" if Preshuffle else "plain"
    return f"indexer_rt.fp8_paged_mqa_logits:heads={q_fp8.shape[2]},block_kv={block_kv},{layout}"


def fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    max_model_len: int,
    ChunkK: int = 0,
    SplitKV: int = 0,
    num_warps: int = 0,
    TotalCuCount: int = 256,
    RowsPerBlock: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Compute logits as the operator of aiter's pull request 5047 does.

    Shapes and dtypes are those of ``indexer_rt.fp8_paged_mqa_logits``.

    Layout: by the block size, which is this site's own rule: 1 is plain, 64 is preshuffled. Any other size is refused,
    since the rule does not say; call ``indexer_rt.fp8_paged_mqa_logits`` with ``preshuffle=``.

    Written: with ``out``, exactly the cells p < end, and ``out`` is returned. Without, a new [B*N, max_model_len] with
    -inf past the end. Strided caches, outputs and tables are taken too (the pull request: contiguous ones only).

    Knobs: ChunkK, SplitKV, num_warps, RowsPerBlock at least 0 (0 is automatic), TotalCuCount at least 1. Checked and
    unused.

    Raises ValueError for a knob or a block size, and what ``indexer_rt.fp8_paged_mqa_logits`` raises.
    """
    for name, value in (
        ("ChunkK", ChunkK),
        ("SplitKV", SplitKV),
        ("num_warps", num_warps),
        ("RowsPerBlock", RowsPerBlock),
    ):
        argument.integer(name, value, 0)
    argument.integer("TotalCuCount", TotalCuCount, 1)
    block_kv = pages.geometry(argument.tensor("kv_cache_fp8", kv_cache_fp8), name="kv_cache_fp8")[1]
    if block_kv not in LAYOUTS:
        raise ValueError(
            f"kv_cache_fp8: expected block size 1 (plain) or 64 (preshuffled), got {block_kv}. At other sizes this "
            "signature does not say the layout; call indexer_rt.fp8_paged_mqa_logits with preshuffle=."
        )
    logits = ops.fp8_paged_mqa_logits(
        q_fp8,
        kv_cache_fp8,
        weights,
        context_lens,
        block_tables,
        max_model_len,
        preshuffle=LAYOUTS[block_kv],
        out=out,
    )
    flattened.note("aiter.fp8_paged_mqa_logits", q_fp8)
    return logits


def is_supported(num_heads: int, head_dim: int, kv_block_size: int = 1) -> bool:
    """Say whether ``fp8_paged_mqa_logits`` of this module takes such a call. ``indexer_rt.why_not`` gives reasons."""
    preshuffle = LAYOUTS.get(kv_block_size)
    return preshuffle is not None and ops.is_supported(num_heads, head_dim, kv_block_size, preshuffle)
