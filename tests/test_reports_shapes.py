"""Reported faults, section A: shapes, heads, rows per sequence, batch, block size, tuning knobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls import make_call
from cases import Case, check, compare, magnitudes, make
from emulation import emulation
from reports import LAYOUTS, arguments_of, assert_same_top, base, both_layouts, run

import indexer_rt
from indexer_rt import reference
from indexer_rt.compat import aiter

pytestmark = pytest.mark.usefixtures("fewest_groups")


@both_layouts
def test_a01_eight_heads_are_right(layout: str) -> None:
    inputs = base(layout, num_heads=8)
    run(inputs)
    check(inputs)


@pytest.mark.parametrize("heads", [1, 4, 24])
def test_a01_other_head_counts_are_refused_by_name(heads: int) -> None:
    with pytest.raises(ValueError, match=rf"^num_heads: expected one of 8, 16, 32, 64, got {heads}\.$"):
        indexer_rt.fp8_paged_mqa_logits(**make_call(heads=heads).arguments())


@both_layouts
def test_a03_sixty_four_heads_are_the_sum_of_two_halves(layout: str) -> None:
    inputs = base(layout, num_heads=64)
    whole = run(inputs).clone()
    check(inputs)
    halves = [
        run(inputs, q_fp8=inputs.q[:, :, half].contiguous(), weights=inputs.weights[:, half].contiguous()).double()
        for half in (slice(0, 32), slice(32, 64))
    ]
    magnitude = magnitudes(**inputs.keywords())
    window = magnitude > 0
    compare(whole[window], (halves[0] + halves[1])[window], magnitude[window])


@both_layouts
def test_a04_heads_of_zero_weight_are_neutral(layout: str) -> None:
    inputs = base(layout)
    inputs.weights[:, 16:] = 0.0
    run(inputs)
    check(inputs)
    arguments = inputs.keywords()
    first = arguments | {"q_fp8": inputs.q[:, :, :16], "weights": inputs.weights[:, :16]}
    wanted = reference.fp8_paged_mqa_logits(**first, dtype=torch.float64)
    window = wanted.isfinite()
    compare(inputs.out[window], wanted[window], magnitudes(**first)[window])


@pytest.mark.parametrize("head_dim", [64, 256])
def test_a05_another_head_dim_is_refused(head_dim: int) -> None:
    call = make_call()
    call.q_fp8 = torch.zeros(2, 1, 32, head_dim, dtype=torch.float8_e4m3fn)
    call.kv_cache_fp8 = torch.zeros(16, 64, 1, head_dim + 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=rf"^head_dim: expected 128, got {head_dim}\.$"):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())


@both_layouts
@pytest.mark.parametrize("batch", [65, 96])
def test_a06_a_batch_larger_than_the_head_count_is_right(layout: str, batch: int) -> None:
    inputs = make(Case((70,) * batch, max_model_len=128, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)


@both_layouts
def test_a07_three_rows_per_sequence_are_right(layout: str) -> None:
    inputs = base(layout, next_n=3)
    run(inputs)
    check(inputs)


@both_layouts
def test_a09_native_and_flattened_rows_agree_bitwise(layout: str) -> None:
    inputs = make(Case((9, 64, 65, 300), next_n=4, **LAYOUTS[layout]))
    native = run(inputs).clone()
    check(inputs)
    inputs.clear()
    ends = inputs.lens.view(4, 1) + torch.arange(-3, 1, dtype=torch.int32)
    run(
        inputs, q_fp8=inputs.q.view(16, 1, 32, 128), context_lens=ends.reshape(16),
        block_tables=inputs.tables.repeat_interleave(4, 0),
    )  # fmt: skip
    check(inputs)
    assert torch.equal(inputs.out, native)


@both_layouts
def test_a11_an_empty_batch_launches_nothing(layout: str) -> None:
    inputs = base(layout, lens=())
    assert inputs.q.shape == (0, 1, 32, 128) and inputs.tables.shape[0] == 0
    with emulation() as launches:
        indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs))
        assert indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs) | {"out": None}).shape == (0, 256)
    assert not launches
    check(inputs)


EMPTY = {"no-columns": dict(lens=(0, 0), table_width=0), "no-max-model-len": dict(lens=(0, 0), max_model_len=0),
         "no-rows": dict(lens=(0, 0), next_n=0)}  # fmt: skip


@both_layouts
@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
def test_a12_other_empty_dimensions_launch_nothing(layout: str, empty: dict[str, Any]) -> None:
    inputs = base(layout, **empty)
    with emulation() as launches:
        indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs))
    assert not launches
    check(inputs)
    own = indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs) | {"out": None, "clean_logits": None})
    assert own.shape == inputs.out.shape and bool((own == float("-inf")).all())


@pytest.mark.parametrize("preshuffle", [True, False], ids=["preshuffled", "plain"])
def test_a13_blocks_of_sixteen_are_right(preshuffle: bool) -> None:
    inputs = make(Case((130, 67), block_kv=16, preshuffle=preshuffle, max_model_len=256))
    assert indexer_rt.is_supported(32, 128, 16, preshuffle)
    run(inputs)
    check(inputs)


def _own(inputs: Any, **knob: int) -> torch.Tensor:
    return indexer_rt.fp8_paged_mqa_logits(**arguments_of(inputs) | knob)


def _deepgemm(inputs: Any, **knob: int) -> torch.Tensor:
    q, cache, weights, lens, tables, columns = inputs.arguments()
    aiter.deepgemm_fp8_paged_mqa_logits(
        q, cache, weights, inputs.out, lens, tables, columns, Preshuffle=True, KVBlockSize=64, **knob
    )
    return inputs.out


def _proposed(inputs: Any, **knob: int) -> torch.Tensor:
    return aiter.fp8_paged_mqa_logits(*inputs.arguments(), **knob, out=inputs.out)


KNOBS = {
    "rows_per_wave": (_own, "rows_per_wave", (1, 3)),
    "deepgemm-ChunkK": (_deepgemm, "ChunkK", (1, 64, 1000000)),  # 1000000 is 15625 blocks of 64
    "deepgemm-TotalCuCount": (_deepgemm, "TotalCuCount", (1, 3, 64, 1000000)),
    "deepgemm-WavePerEU": (_deepgemm, "WavePerEU", (1, 3, 64, 1000000)),
    "proposed-ChunkK": (_proposed, "ChunkK", (0, 1, 3, 64, 1000000)),
    "proposed-SplitKV": (_proposed, "SplitKV", (0, 1, 3, 64, 1000000)),
    "proposed-num_warps": (_proposed, "num_warps", (0, 1, 3, 64, 1000000)),
    "proposed-RowsPerBlock": (_proposed, "RowsPerBlock", (0, 1, 3, 64, 1000000)),
    "proposed-TotalCuCount": (_proposed, "TotalCuCount", (1, 3, 64, 1000000)),
}


@pytest.mark.parametrize("call, knob, accepted", KNOBS.values(), ids=KNOBS)
def test_a15_a_knob_is_refused_by_name_or_changes_nothing(
    call: Callable[..., torch.Tensor], knob: str, accepted: tuple[int, ...]
) -> None:
    inputs = base("kv64")
    wanted = call(inputs).clone()
    check(inputs)
    for value in (0, -1, 1, 3, 64, 1000000):
        inputs.clear()
        if value in accepted:
            assert torch.equal(call(inputs, **{knob: value}), wanted)
        else:
            with pytest.raises(ValueError, match=rf"^{knob}: expected .*got {value}\."):
                call(inputs, **{knob: value})


@both_layouts
@pytest.mark.parametrize("tokens", [2047, 2048, 2049, 2050])
def test_a16_nothing_changes_at_2048_tokens(layout: str, tokens: int) -> None:
    inputs = make(Case((tokens,), **LAYOUTS[layout]))
    run(inputs)
    check(inputs)
    wanted = reference.fp8_paged_mqa_logits(**inputs.keywords())[0, :tokens]
    magnitude = magnitudes(**inputs.keywords())[0, :tokens]
    assert assert_same_top(inputs.out[0, :tokens], wanted, magnitude, 2048) >= 2040
