"""The same values give the same bits, however a call is batched, shaped, split or laid out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import SENTINEL, Case, Inputs, check, make
from reports import run

from indexer_rt import kv_cache
from indexer_rt.catalog import Catalog, addressing_of

pytestmark = pytest.mark.usefixtures("fewest_groups")

LAYOUTS = {
    "kv1": dict(block_kv=1, preshuffle=False),
    "kv16": dict(block_kv=16, preshuffle=False),
    "kv16-preshuffled": dict(block_kv=16, preshuffle=True),
    "kv64": dict(block_kv=64, preshuffle=False),
    "kv64-preshuffled": dict(block_kv=64, preshuffle=True),
}

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_head_count = pytest.mark.parametrize("num_heads", [8, 16, 32, 64])


@every_layout
@every_head_count
def test_a_sequence_alone_and_in_a_batch_of_64(layout: str, num_heads: int) -> None:
    lens = [(37 * b + 5) % 140 for b in range(64)]
    inputs = make(Case(lens, next_n=2, num_heads=num_heads, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)
    for b in (0, 17, 40, 63):
        rows, one = slice(2 * b, 2 * b + 2), slice(b, b + 1)
        alone = torch.full((2, inputs.case.columns), SENTINEL)
        run(
            inputs, q_fp8=inputs.q[one], weights=inputs.weights[rows], context_lens=inputs.lens[one],
            block_tables=inputs.tables[one], out=alone,
        )  # fmt: skip
        assert torch.equal(alone, inputs.out[rows])


@every_layout
@every_head_count
def test_every_rows_per_wave(layout: str, num_heads: int) -> None:
    inputs = make(Case((137, 0, 66), next_n=7, num_heads=num_heads, **LAYOUTS[layout]))
    wanted = run(inputs).clone()
    check(inputs)
    all_rows = Catalog.shipped().rows(num_heads, 128, addressing_of(inputs.cache.shape[1]))
    assert len(all_rows) >= 3
    for rows in all_rows:
        # As they are, over two waves, and on firmware that preloads no arguments: every code object.
        for emulate in ({}, {"num_waves": 2}, {"preload": False}):
            inputs.clear()
            assert torch.equal(run(inputs, rows_per_wave=rows, emulate=emulate), wanted)


@every_layout
@every_head_count
def test_native_flattened_and_packed_rows(layout: str, num_heads: int) -> None:
    inputs = make(Case((9, 64, 130), next_n=4, num_heads=num_heads, **LAYOUTS[layout]))
    native = run(inputs).clone()
    check(inputs)
    ends = (inputs.lens.view(3, 1) + torch.arange(-3, 1, dtype=torch.int32)).view(-1)
    cumulative = torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    forms: dict[str, dict[str, Any]] = {
        "per-row": dict(context_lens=ends.view(3, 4)),
        "flattened": dict(
            q_fp8=inputs.q.flatten(0, 1).unsqueeze(1), context_lens=ends,
            block_tables=inputs.tables.repeat_interleave(4, 0),
        ),
        "packed": dict(
            q_fp8=inputs.q.flatten(0, 1), cu_seqlens_q=cumulative, max_next_n=4, lens_per_row=False
        ),
        "packed-per-row": dict(
            q_fp8=inputs.q.flatten(0, 1), cu_seqlens_q=cumulative, max_next_n=4, context_lens=ends, lens_per_row=True
        ),
    }  # fmt: skip
    for changes in forms.values():
        inputs.clear()
        assert torch.equal(run(inputs, **changes), native)


def _twin(inputs: Inputs, block_kv: int, preshuffle: bool) -> dict[str, torch.Tensor]:
    """Store the keys of a case with one sequence in blocks of another size and order. Slots past the end are poison."""
    case = inputs.case
    (tokens,) = case.lens
    values = kv_cache.values_of(inputs.cache)
    if case.preshuffle:
        values = kv_cache.unpreshuffle_values(values)
    ids = inputs.tables[0, : -(-tokens // case.block_kv)].long()
    blocks = -(-tokens // block_kv)
    new_values = torch.full((blocks * block_kv, 128), 0x7F, dtype=torch.uint8)
    new_scales = torch.full((blocks * block_kv,), float("nan"))
    new_values[:tokens] = values[ids].flatten(0, 1)[:tokens]
    new_scales[:tokens] = kv_cache.scales_of(inputs.cache)[ids].flatten()[:tokens]
    new_values = new_values.view(blocks, block_kv, 128)
    return dict(
        kv_cache_fp8=kv_cache.assemble(
            kv_cache.preshuffle_values(new_values) if preshuffle else new_values, new_scales.view(blocks, block_kv)
        ),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
    )


@every_head_count
def test_every_layout_of_the_same_keys(num_heads: int) -> None:
    inputs = make(Case((203,), next_n=3, num_heads=num_heads))
    wanted = run(inputs).clone()
    check(inputs)
    for block_kv in (1, 2, 4, 8, 16, 48, 64, 640):
        for preshuffle in (False, True) if block_kv % 16 == 0 else (False,):
            inputs.clear()
            twin = _twin(inputs, block_kv, preshuffle)
            assert torch.equal(run(inputs, preshuffle=preshuffle, **twin), wanted), (block_kv, preshuffle)


@every_layout
def test_twenty_launches_in_shuffled_orders_of_waves(layout: str) -> None:
    inputs = make(Case((137, 0, 64, 300, 1), next_n=3, clean_logits=True, **LAYOUTS[layout]))
    wanted = run(inputs).clone()
    check(inputs)
    for seed in range(20):
        inputs.clear()
        order = dict(wave_order_seed=seed, num_waves=(None, 3, 8, 33)[seed % 4])
        assert torch.equal(run(inputs, emulate=order), wanted)
    check(inputs)
