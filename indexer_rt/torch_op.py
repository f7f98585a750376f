"""Register the operator with torch's dispatcher, so that compiled, traced and fake calls see one opaque operator.

``torch.ops.indexer_rt.fp8_paged_mqa_logits`` returns a new tensor; its overload ``out`` writes its argument ``out``,
says so in its schema, and returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _increment_version as increment_version

from .problem import Tensors

NAMESPACE, NAME = "indexer_rt", "fp8_paged_mqa_logits"
_TENSORS = "Tensor q_fp8, Tensor kv_cache_fp8, Tensor weights, Tensor context_lens, Tensor block_tables"
_OPTIONS = (
    "bool? clean_logits=None, int? rows_per_wave=None, Tensor? cu_seqlens_q=None, SymInt? max_next_n=None, "
    "bool? lens_per_row=None"
)
_library = torch.library.Library(NAMESPACE, "DEF")


def register(function: Callable[..., Tensor]) -> None:
    """Define the operator and make ``function`` its kernel, on CPU tensors as on ROCm ones (torch calls them CUDA)."""
    # NOTE: no keyword-only arguments: they cost torch's parser 1.3 us a call.
    _library.define(f"{NAME}({_TENSORS}, SymInt max_model_len, bool preshuffle, {_OPTIONS}) -> Tensor")
    _library.define(f"{NAME}.out({_TENSORS}, SymInt max_model_len, bool preshuffle, Tensor(a!) out, {_OPTIONS}) -> ()")

    def new(
        q: Tensor,
        kv_cache: Tensor,
        weights: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        max_model_len: int,
        preshuffle: bool,
        clean_logits: bool | None = None,
        rows_per_wave: int | None = None,
        cu_seqlens_q: Tensor | None = None,
        max_next_n: int | None = None,
        lens_per_row: bool | None = None,
    ) -> Tensor:
        return function(
            q, kv_cache, weights, context_lens, block_tables, max_model_len, preshuffle=preshuffle,
            clean_logits=clean_logits, rows_per_wave=rows_per_wave, cu_seqlens_q=cu_seqlens_q, max_next_n=max_next_n,
            lens_per_row=lens_per_row,
        )  # fmt: skip

    def write(
        q: Tensor,
        kv_cache: Tensor,
        weights: Tensor,
        context_lens: Tensor,
        block_tables: Tensor,
        max_model_len: int,
        preshuffle: bool,
        out: Tensor,
        clean_logits: bool | None = None,
        rows_per_wave: int | None = None,
        cu_seqlens_q: Tensor | None = None,
        max_next_n: int | None = None,
        lens_per_row: bool | None = None,
    ) -> None:
        function(
            q, kv_cache, weights, context_lens, block_tables, max_model_len, preshuffle=preshuffle, out=out,
            clean_logits=clean_logits, rows_per_wave=rows_per_wave, cu_seqlens_q=cu_seqlens_q, max_next_n=max_next_n,
            lens_per_row=lens_per_row,
        )  # fmt: skip
        if not out.is_inference():
            increment_version((out,))

    for name, kernel in ((NAME, new), (f"{NAME}.out", write)):
        for key in ("CPU", "CUDA"):
            _library.impl(name, kernel, key)
        _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # there is no gradient
    torch.library.register_fake(f"{NAMESPACE}::{NAME}", _fake, lib=_library)
    torch.library.register_fake(f"{NAMESPACE}::{NAME}.out", _fake_out, lib=_library)


def dispatch(tensors: Tensors, options: tuple[Any, ...]) -> Tensor:
    """Call the operator through torch's dispatcher. ``options``: its other arguments, in their order."""
    q, kv_cache, weights, context_lens, block_tables, cu_seqlens_q, out = tensors
    max_model_len, preshuffle, clean_logits, rows_per_wave, max_next_n, lens_per_row = options
    operator = torch.ops.indexer_rt.fp8_paged_mqa_logits
    if out is None:
        return operator.default(
            q, kv_cache, weights, context_lens, block_tables, max_model_len, preshuffle, clean_logits, rows_per_wave,
            cu_seqlens_q, max_next_n, lens_per_row,
        )  # fmt: skip
    operator.out(
        q, kv_cache, weights, context_lens, block_tables, max_model_len, preshuffle, out, clean_logits, rows_per_wave,
        cu_seqlens_q, max_next_n, lens_per_row,
    )  # fmt: skip
    return out


def has_fake(tensors: Tensors) -> bool:
    """Say whether a tensor answers for itself what is called on it, as fake tensors do."""
    return any(
        isinstance(tensor, Tensor) and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
        for tensor in tensors
    )


def _fake(q_fp8: Tensor, *arguments: Any, **options: Any) -> Tensor:
    rows = q_fp8.shape[0]
    if q_fp8.ndim == 4:
        rows = rows * q_fp8.shape[1]
    return q_fp8.new_empty((rows, arguments[4]), dtype=torch.float32)


def _fake_out(*arguments: Any, **options: Any) -> None:
    return None
