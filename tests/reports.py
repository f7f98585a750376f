"""The bases that reported faults are retold on, and short ways to run them and judge what came out.

A base has two sequences of 130 and 67 tokens, one row each, 32 heads, 256 columns, a shuffled pool of 16 preshuffled
blocks of 64 tokens (``kv64``) or of 512 plain blocks of 1 (``kv1``), and poison wherever nothing may read or write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from cases import ERROR, Case, Inputs, make
from emulation import emulation

import indexer_rt
from indexer_rt import kv_cache

LAYOUTS = {"kv64": dict(block_kv=64, preshuffle=True), "kv1": dict(block_kv=1, preshuffle=False)}
_POOLS = {"kv64": dict(table_width=4, num_blocks=16), "kv1": dict(table_width=256, num_blocks=512)}
INT32_MAX = 2**31 - 1

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def base(layout: str, **changes: Any) -> Inputs:
    """Make a base, its ``Case`` changed."""
    return make(Case(**dict(lens=(130, 67), max_model_len=256) | LAYOUTS[layout] | _POOLS[layout] | changes))


def arguments_of(inputs: Inputs) -> dict[str, Any]:
    """Return all of the operator's arguments for a case."""
    case = inputs.case
    return inputs.keywords() | dict(out=inputs.out, clean_logits=case.clean_logits, rows_per_wave=case.rows_per_wave)


def run(inputs: Inputs, *, emulate: Mapping[str, Any] | None = None, **changes: Any) -> torch.Tensor:
    """Run the operator on a case, its arguments changed, in the strict emulator with the options ``emulate``."""
    with emulation(**emulate or {}):
        return indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs) | changes)


def sequence(
    layout: str, q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor
) -> dict[str, Any]:
    """Make a call of one sequence with one row that sees all of it, its blocks in falling order.

    q: float [H, 128]; keys: float [tokens, 128]; scales: float32 [tokens]; weights: float32 [H].
    """
    block_kv, preshuffle = LAYOUTS[layout]["block_kv"], LAYOUTS[layout]["preshuffle"]
    tokens = len(keys)
    blocks = -(-tokens // block_kv)
    values = torch.full((blocks * block_kv, 128), 0x7F, dtype=torch.uint8)
    values[:tokens] = keys.to(torch.float8_e4m3fn).view(torch.uint8)
    padded = torch.full((blocks * block_kv,), float("nan"))
    padded[:tokens] = scales
    values = values.view(blocks, block_kv, 128).flip(0)
    return dict(
        q_fp8=q.to(torch.float8_e4m3fn)[None, None],
        kv_cache_fp8=kv_cache.assemble(
            kv_cache.preshuffle_values(values) if preshuffle else values, padded.view(blocks, block_kv).flip(0)
        ),
        weights=weights[None],
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32).flip(0)[None],
        max_model_len=tokens,
        preshuffle=preshuffle,
    )


def far_rows(tensor: torch.Tensor, stride: int) -> torch.Tensor:
    """Return the same values with rows (dimension 0) ``stride`` elements apart, the memory between never touched."""
    size = (tensor.shape[0] - 1) * stride + tensor[0].numel()
    view = torch.empty(size, dtype=tensor.dtype).as_strided(tensor.shape, (stride, *tensor[0].stride()))
    view.copy_(tensor)
    return view


def assert_same_top(got: torch.Tensor, wanted: torch.Tensor, magnitude: torch.Tensor, k: int) -> int:
    """Assert that the k best cells of a row are the reference's, but for ties within twice the bound of an error.

    Returns how many cells had to be among them.
    """
    k = min(k, got.numel())
    chosen = torch.zeros(got.shape, dtype=torch.bool)
    chosen[got.topk(k).indices] = True
    threshold, slack = wanted.topk(k).values[-1], 2 * ERROR * magnitude.max()
    must, may = wanted > threshold + slack, wanted >= threshold - slack
    assert not bool((must & ~chosen).any()), "a cell well above the threshold was not chosen"
    assert not bool((chosen & ~may).any()), "a cell well below the threshold was chosen"
    return int(must.sum())
