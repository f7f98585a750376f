"""Reported faults, section C: context lengths, the causal window, what is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from calls import make_call
from cases import GUARD, SENTINEL, Case, check, make
from emulation import emulation
from reports import INT32_MAX, LAYOUTS, arguments_of, base, both_layouts, run
from test_reads import allowed_bytes

import indexer_rt
from indexer_rt.compat import aiter

pytestmark = pytest.mark.usefixtures("fewest_groups")


@both_layouts
def test_c01_each_row_sees_up_to_its_own_token(layout: str) -> None:
    inputs = make(Case((8,), next_n=4, max_model_len=256, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)
    assert [int((row != SENTINEL).sum()) for row in inputs.out] == [5, 6, 7, 8]


@both_layouts
def test_c03_lengths_of_zero_read_and_write_nothing(layout: str) -> None:
    inputs = base(layout, lens=(0,) * 32)
    inputs.tables.zero_()
    nothing = {
        "kv_cache": np.zeros(inputs.cache.numel(), bool),
        "block_tables": np.zeros(4 * inputs.tables.numel(), bool),
    }
    run(inputs, emulate=dict(allowed=nothing))
    assert bool((inputs.base == SENTINEL).all())


@both_layouts
def test_c04_stale_tables_of_padded_slots_are_not_followed(layout: str) -> None:
    inputs = make(Case((130, 67, 1, 64, 65, 0, 0, 0), max_model_len=256, **LAYOUTS[layout]))
    inputs.tables[5], inputs.tables[6] = INT32_MAX, -1
    inputs.tables[7] = torch.randint(0, inputs.num_blocks, inputs.tables[7].shape, dtype=torch.int32)
    run(inputs, emulate=dict(allowed=allowed_bytes(inputs)))
    check(inputs)
    five = torch.full((5, 256), SENTINEL)
    run(
        inputs, q_fp8=inputs.q[:5], weights=inputs.weights[:5], context_lens=inputs.lens[:5],
        block_tables=inputs.tables[:5], out=five,
    )  # fmt: skip
    assert torch.equal(five, inputs.out[:5])


def test_c06_a_tail_tile_stops_at_the_row_s_end() -> None:
    inputs = make(Case((2300,) * 3, max_model_len=2300))
    flat = torch.full((3 * (2300 + 256) + 256,), SENTINEL)
    inputs.out = flat.as_strided((3, 2300), (2300 + 256, 1))
    inputs.base[1:-1, GUARD : GUARD + 2300] = run(inputs)
    check(inputs)
    assert bool((flat[:-256].view(3, 2556)[:, 2300:] == SENTINEL).all()) and bool((flat[-256:] == SENTINEL).all())


@both_layouts
def test_c09_a_reused_buffer_keeps_a_longer_step_s_cells_unless_it_is_cleaned(layout: str) -> None:
    inputs = make(Case((200,), max_model_len=256, **LAYOUTS[layout]))
    before = run(inputs).clone()
    check(inputs)
    inputs.lens.fill_(20)
    assert torch.equal(run(inputs), before)  # the same first 20 cells, and 180 stale ones: as documented
    assert "Exactly the cells p < end are written" in " ".join(indexer_rt.fp8_paged_mqa_logits.__doc__.split())
    cleaned = run(inputs, clean_logits=True)
    assert torch.equal(cleaned[0, :20], before[0, :20]) and bool((cleaned[0, 20:] == float("-inf")).all())
    assert bool((inputs.base[:, GUARD + 256 :] == SENTINEL).all())


@both_layouts
def test_c11_each_row_is_bounded_by_its_own_length(layout: str) -> None:
    inputs = make(Case((1, 63, 64, 65, 128, 1000), max_model_len=1024, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)


def _garbage_lengths(layout: str):
    """Make three sequences, of which only the third has a length that means something and a table of its own."""
    inputs = make(Case((0, 128, 70), max_model_len=128, **LAYOUTS[layout]))
    inputs.lens = torch.tensor([-1, INT32_MAX, 70], dtype=torch.int32)
    inputs.tables[:2] = int(inputs.tables[2, 0])
    return inputs


@both_layouts
def test_c13_lengths_that_mean_nothing_are_clamped(layout: str) -> None:
    inputs = _garbage_lengths(layout)
    run(inputs)
    third, width = inputs.out[2].clone(), inputs.tables.shape[1] * LAYOUTS[layout]["block_kv"]
    assert width >= 128 and bool((inputs.out[0] == SENTINEL).all())
    assert not bool((inputs.out[1] == SENTINEL).any())
    check_third = make(inputs.case)
    run(check_third)
    check(check_third)
    assert torch.equal(third, check_third.out[2])
    inputs.out.fill_(SENTINEL)
    assert bool((inputs.base == SENTINEL).all())  # nothing but the output itself was touched


@both_layouts
@pytest.mark.parametrize("entry, length", [(0, -1), (1, INT32_MAX)])
def test_c13_the_strict_mode_refuses_lengths_that_mean_nothing(
    strict: None, layout: str, entry: int, length: int
) -> None:
    inputs = _garbage_lengths(layout)
    inputs.lens[1 - entry] = 70
    match = rf"^context_lens: entry {entry} is {length}, expected 0 to 128 \(max_model_len\)\.$"
    with pytest.raises(ValueError, match=match):
        indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs))


@both_layouts
def test_c14_lengths_of_two_dimensions_are_ends_of_rows(layout: str) -> None:
    inputs = base(layout, lens=[[130, 3, 64], [0, 67, 65]], next_n=3)
    assert inputs.lens.shape == (2, 3)
    run(inputs)
    check(inputs)


def test_c14_lengths_of_another_shape_are_refused() -> None:
    call = make_call(next_n=3)
    call.context_lens = torch.full((3, 2), 6, dtype=torch.int32)
    match = r"^context_lens: expected \[2\], \[2, 1\] \(one per sequence\) or \[2, 3\] \(one per row\), got \[3, 2\]\.$"
    with pytest.raises(ValueError, match=match):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())


@both_layouts
def test_c15_windows_of_rows_that_share_a_table_are_their_own(layout: str) -> None:
    inputs = make(Case((4, 4, 5, 5, 5, 6), max_model_len=256, **LAYOUTS[layout]))
    inputs.tables = inputs.tables[5:].expand(6, -1)  # the longest sequence's, for all
    run(inputs)
    check(inputs)


@both_layouts
@pytest.mark.parametrize("num_waves", [None, 64, 1000])
def test_c16_more_splits_than_work_write_nothing_else(layout: str, num_waves: int | None) -> None:
    inputs = base(layout, lens=(1, 2))
    with emulation(num_waves=num_waves):
        aiter.fp8_paged_mqa_logits(*inputs.arguments(), SplitKV=INT32_MAX, out=inputs.out)
    check(inputs)


def test_c17_one_long_sequence_among_many_tiny_ones_is_right_and_costs_what_it_does_alone() -> None:
    inputs = make(Case((131072, *[1] * 15)))
    with emulation() as launches:
        indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs))
        check(inputs)
        indexer_rt.fp8_paged_mqa_logits(
            **arguments_of(inputs)
            | dict(q_fp8=inputs.q[:1], weights=inputs.weights[:1], context_lens=inputs.lens[:1],
                   block_tables=inputs.tables[:1], out=torch.empty(1, inputs.case.columns)),
        )  # fmt: skip
    together, alone = (launch.counts for launch in launches)
    matrix = next(name for name in together if name.startswith("v_mfma"))
    assert together[matrix] == alone[matrix] * (2048 + 15) / 2048  # one step of 64 tokens more for each tiny sequence
