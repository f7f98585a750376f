"""Reported faults, section E: values and numerics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import SENTINEL, Case, check, compare, magnitudes, make, make_pool, random_fp8
from reports import LAYOUTS, assert_same_top, base, both_layouts, run, sequence

import indexer_rt
from indexer_rt import kv_cache, reference

pytestmark = pytest.mark.usefixtures("fewest_groups")

TOKENS = 70
MIXED = torch.tensor([1.0, -1.0] * 16)


def _uniform(layout: str, q: float, k: float, scales: torch.Tensor, weights: torch.Tensor) -> dict[str, Any]:
    """Make a call where every element of q and of the keys is the same."""
    return sequence(layout, torch.full((32, 128), q), torch.full((len(scales), 128), k), scales, weights)


def _random(layout: str, scales: torch.Tensor, weights: torch.Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    q, keys = (torch.randn(rows, 128, generator=generator) for rows in (32, len(scales)))
    return sequence(layout, q, keys, scales, weights)


@both_layouts
def test_e01_finite_inputs_give_finite_logits(layout: str) -> None:
    """200 sequences, each drawn from a seed of its own."""
    block_kv, preshuffle = LAYOUTS[layout]["block_kv"], LAYOUTS[layout]["preshuffle"]
    width, q, weights, caches, tables = -(-TOKENS // block_kv), [], [], [], []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        cache, table = make_pool(generator, [TOKENS], block_kv, preshuffle, width=width, num_blocks=width + 1)
        caches.append(cache)
        tables.append(table + seed * (width + 1))
        q.append(random_fp8(generator, (1, 1, 32, 128)).view(torch.uint8))
        weights.append(torch.from_numpy(generator.normal(size=(1, 32)).astype(np.float32)))
    arguments = dict(
        q_fp8=torch.cat(q).view(torch.float8_e4m3fn), kv_cache_fp8=torch.cat(caches), weights=torch.cat(weights),
        context_lens=torch.full((200,), TOKENS, dtype=torch.int32), block_tables=torch.cat(tables),
        max_model_len=TOKENS, preshuffle=preshuffle,
    )  # fmt: skip
    got = indexer_rt.fp8_paged_mqa_logits(**arguments)
    assert bool(got.isfinite().all())
    wanted = reference.fp8_paged_mqa_logits(**arguments, dtype=torch.float64)
    compare(got.view(-1), wanted.view(-1), magnitudes(**arguments).view(-1))


@both_layouts
@pytest.mark.parametrize("key, scale", [(0x7F, float("nan")), (0xFF, float("inf")), (0x7F, float("-inf"))])
def test_e02_slots_past_the_end_do_not_matter(layout: str, key: int, scale: float) -> None:
    inputs = base(layout)
    values, scales = kv_cache.values_of(inputs.cache), kv_cache.scales_of(inputs.cache)
    poison, no_scale = values == 0x7F, scales.isnan()  # no key and no scale of a valid token is either
    assert bool(poison.any()) and bool(no_scale.any())
    values[poison], scales[no_scale] = 0, 0.0
    zeroed = run(inputs).clone()
    values[poison], scales[no_scale] = key, scale
    inputs.clear()
    assert torch.equal(run(inputs), zeroed)
    check(inputs)


@both_layouts
def test_e04_a_scale_that_is_not_finite_reaches_its_column_only(layout: str) -> None:
    scales = torch.ones(TOKENS)
    wanted = indexer_rt.fp8_paged_mqa_logits(**_random(layout, scales, MIXED))
    scales[5:8] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    got = indexer_rt.fp8_paged_mqa_logits(**_random(layout, scales, MIXED))
    odd = torch.zeros(1, TOKENS, dtype=torch.bool)
    odd[:, 5:8] = True
    assert torch.equal(got.isfinite(), ~odd) and torch.equal(got[~odd], wanted[~odd])
    assert bool(got[0, 5].isnan()) and torch.equal(got[0, 6:8], wanted[0, 6:8] * scales[6:8])


@both_layouts
def test_e05_scales_of_zero_and_tiny_ones_are_exact(layout: str) -> None:
    scales = torch.ones(TOKENS)
    scales[:3] = torch.tensor([0.0, 1e-40, 1.2e-38])
    one = torch.zeros(32)
    one[3] = 1.0
    q = torch.zeros(32, 128)
    q[3, 9] = 1.0
    got = indexer_rt.fp8_paged_mqa_logits(**sequence(layout, q, torch.ones(TOKENS, 128), scales, one))
    assert torch.equal(got[0], scales)  # every sum is 1; 1e-40 is subnormal
    text = " ".join(indexer_rt.fp8_paged_mqa_logits.__doc__.split())
    assert "Subnormal scales, weights and logits are kept, not flushed to zero." in text


@both_layouts
def test_e06_the_scale_multiplies_the_sum_over_heads(layout: str) -> None:
    arguments = _uniform(layout, 448.0, 448.0, torch.full((TOKENS,), 3e38), MIXED)
    for function in (indexer_rt.fp8_paged_mqa_logits, reference.fp8_paged_mqa_logits):
        assert bool((function(**arguments) == 0.0).all())
        assert bool((function(**arguments | {"weights": torch.ones(1, 32)}) == float("inf")).all())
    assert "The scale multiplies the sum over heads, after it." in indexer_rt.fp8_paged_mqa_logits.__doc__
    assert "The sum over heads comes first, then the scale." in " ".join(reference.fp8_paged_mqa_logits.__doc__.split())


@both_layouts
def test_e07_negative_weights_give_the_negative(layout: str) -> None:
    inputs = base(layout)
    inputs.weights.fill_(1.0)
    positive = run(inputs).clone()
    inputs.weights.fill_(-1.0)
    inputs.clear()
    negative = run(inputs)
    check(inputs)
    window = negative != SENTINEL
    assert torch.equal(negative[window], -positive[window]) and bool((negative[window] <= 0).all())
    assert bool((negative[window] < 0).any())


@both_layouts
@pytest.mark.parametrize("weights", [torch.ones(32), MIXED, -torch.ones(32)], ids=["positive", "mixed", "negative"])
def test_e08_dots_below_zero_give_zeros(layout: str, weights: torch.Tensor) -> None:
    arguments = _uniform(layout, 1.0, -1.0, torch.linspace(0.5, 1.5, TOKENS), weights)
    assert bool((indexer_rt.fp8_paged_mqa_logits(**arguments) == 0.0).all())


@both_layouts
def test_e10_the_largest_values_are_exact(layout: str) -> None:
    arguments = _uniform(layout, 448.0, 448.0, torch.ones(TOKENS), torch.ones(32))
    assert bool((arguments["q_fp8"].view(torch.uint8) == 0x7E).all())
    assert bool((indexer_rt.fp8_paged_mqa_logits(**arguments) == 822083584.0).all())


@both_layouts
def test_e12_a_negative_scale_follows_the_reference_s_rule(layout: str) -> None:
    arguments = _random(layout, torch.full((TOKENS,), -1.0), MIXED)
    wanted = reference.fp8_paged_mqa_logits(**arguments, dtype=torch.float64)
    compare(indexer_rt.fp8_paged_mqa_logits(**arguments)[0], wanted[0], magnitudes(**_absolute(arguments))[0])
    assert "scales are >= 0" in indexer_rt.fp8_paged_mqa_logits.__doc__


def _absolute(arguments: dict[str, Any]) -> dict[str, Any]:
    cache = arguments["kv_cache_fp8"].clone()
    kv_cache.scales_of(cache).abs_()
    return arguments | {"kv_cache_fp8": cache}


@both_layouts
def test_e12_the_strict_mode_refuses_a_negative_scale(strict: None, layout: str) -> None:
    match = r"^kv_cache_fp8: the scale of token 0 of sequence 0 \(.*\) is -1\.0, expected >= 0\.$"
    with pytest.raises(ValueError, match=match):
        indexer_rt.fp8_paged_mqa_logits(**_random(layout, torch.full((TOKENS,), -1.0), MIXED))


@both_layouts
def test_e15_the_bound_holds_for_float32_and_not_for_less(layout: str) -> None:
    """The bound is written down in ``cases.compare``; the reference's arithmetic is float32 or float64."""
    inputs = make(Case((4096,), max_model_len=4096, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)
    exact = reference.fp8_paged_mqa_logits(**inputs.keywords(), dtype=torch.float64)[0]
    single, magnitude = reference.fp8_paged_mqa_logits(**inputs.keywords())[0], magnitudes(**inputs.keywords())[0]
    assert single.dtype == torch.float32
    compare(single, exact, magnitude)
    with pytest.raises(AssertionError, match="over the bound"):
        compare(single.bfloat16().float(), exact, magnitude)


@both_layouts
@pytest.mark.parametrize("lens", [(27000,), (27000, *range(1, 16))], ids=["b1", "b16"])
def test_e16_twenty_launches_give_the_same_bits(layout: str, lens: tuple[int, ...]) -> None:
    inputs = make(Case(lens, **LAYOUTS[layout]))  # one long sequence in either: 16 would take the emulator minutes
    first = run(inputs).clone()
    check(inputs)
    for launch in range(19):
        inputs.clear()
        num_waves = None if launch % 3 else 512 + 97 * launch
        assert torch.equal(run(inputs, emulate=dict(wave_order_seed=launch, num_waves=num_waves)), first)


@both_layouts
def test_e18_the_best_2048_of_random_keys_are_the_reference_s(layout: str) -> None:
    inputs = make(Case((8192,), max_model_len=8192, **LAYOUTS[layout]))
    run(inputs)
    check(inputs)
    wanted = reference.fp8_paged_mqa_logits(**inputs.keywords(), dtype=torch.float64)[0]
    assert assert_same_top(inputs.out[0], wanted, magnitudes(**inputs.keywords())[0], 2048) >= 2040


@both_layouts
def test_e18_ties_at_the_threshold_are_exact(layout: str) -> None:
    """1000 keys of 8192 stand above a plateau of zeros: no noise may lift or sink a cell of it."""
    keys = torch.full((8192, 128), -1.0)
    above = torch.randperm(8192, generator=torch.Generator().manual_seed(0))[:1000]
    keys[above] = 1.0
    arguments = sequence(layout, torch.ones(32, 128), keys, torch.linspace(0.5, 1.5, 8192), torch.ones(32))
    got = indexer_rt.fp8_paged_mqa_logits(**arguments)[0]
    assert torch.equal(got, reference.fp8_paged_mqa_logits(**arguments)[0])  # 32 * 128 * scale has no rounding
    assert int((got == 0.0).sum()) == 7192 and set(above.tolist()) <= set(got.topk(2048).indices.tolist())
