"""The reference against a loop over Python floats, cell by cell."""

from __future__ import annotations

import math

import pytest
import torch

from indexer_rt import kv_cache, reference

FP8 = torch.float8_e4m3fn
GUARD = 12345.0


def decode(byte: int) -> float:
    """Decode one float8_e4m3fn byte: 1 sign, 4 exponent (bias 7), 3 fraction bits; 0x7f and 0xff are NaN."""
    sign, exponent, fraction = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if byte & 0x7F == 0x7F:
        return math.nan
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def by_hand(q, cache, weights, table, ends, columns, *, block_kv, preshuffle):
    """Return {(row, column): logit} of one sequence; ``q`` and ``cache`` are bytes, ``ends`` one end per row."""
    cells = {}
    for row, end in enumerate(ends):
        for p in range(max(0, min(end, columns))):
            block, t = cache[table[p // block_kv]], p % block_kv
            total = 0.0
            for head, weight in enumerate(weights[row]):
                dot = 0.0
                for d in range(128):
                    at = (t // 16) * 2048 + (d // 16) * 256 + (t % 16) * 16 + d % 16 if preshuffle else t * 128 + d
                    dot += decode(q[row][head][d]) * decode(block[at])
                total += max(dot, 0.0) * weight
            scale = torch.tensor(list(block[block_kv * 128 + 4 * t :][:4]), dtype=torch.uint8).view(torch.float32)
            cells[row, p] = total * float(scale)
    return cells


def make(batch, next_n, heads, block_kv, preshuffle, width, seed=0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, next_n, heads, 128, generator=g).to(FP8)
    num_blocks = batch * width + 2
    cache = kv_cache.pack(torch.randn(num_blocks, block_kv, 128, generator=g), block_kv, preshuffle=preshuffle)
    weights = torch.randn(batch * next_n, heads, generator=g)
    tables = torch.randperm(num_blocks, generator=g)[: batch * width].reshape(batch, width).int()
    return q, cache, weights, tables


@pytest.mark.parametrize("block_kv, preshuffle", [(1, False), (4, False), (16, True), (16, False)])
@pytest.mark.parametrize("per_row", [False, True])
def test_reference_matches_a_loop(block_kv: int, preshuffle: bool, per_row: bool) -> None:
    batch, next_n, heads, columns = 2, 2, 3, 20
    q, cache, weights, tables = make(batch, next_n, heads, block_kv, preshuffle, width=-(-columns // block_kv))
    lens = torch.tensor([[5, 18], [0, 25]] if per_row else [17, 1], dtype=torch.int32)
    ends = [[5, 18], [0, 25]] if per_row else [[16, 17], [0, 1]]
    out = torch.full((4, columns + 3), GUARD, dtype=torch.float64)
    got = reference.fp8_paged_mqa_logits(
        q, cache, weights, lens, tables, columns, preshuffle=preshuffle, out=out, dtype=torch.float64
    )
    assert got is out
    for b in range(batch):
        cells = by_hand(
            q.view(torch.uint8)[b].tolist(),
            cache.reshape(cache.shape[0], -1).tolist(),
            weights[b * next_n :][:next_n].tolist(),
            tables[b].tolist(),
            ends[b],
            columns,
            block_kv=block_kv,
            preshuffle=preshuffle,
        )
        for n in range(next_n):
            for p in range(columns + 3):
                wanted = cells.get((n, p), GUARD)
                assert float(out[b * next_n + n, p]) == pytest.approx(wanted, rel=1e-9, abs=1e-9), (b, n, p)


def test_float32_and_float64_agree() -> None:
    q, cache, weights, tables = make(3, 2, 32, 64, True, width=4)
    lens = torch.tensor([200, 256, 3], dtype=torch.int32)
    single = reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 256, preshuffle=True)
    double = reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 256, preshuffle=True, dtype=torch.float64)
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    assert torch.equal(single.isinf(), double.isinf())
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-4)


def test_a_clean_output_is_minus_infinity_past_the_end() -> None:
    q, cache, weights, tables = make(2, 2, 4, 16, True, width=3)
    lens = torch.tensor([40, 1], dtype=torch.int32)
    logits = reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 45, preshuffle=True)
    written = torch.arange(45) < torch.tensor([[39], [40], [0], [1]])
    assert torch.equal(logits.isfinite(), written) and bool((logits[~written] == float("-inf")).all())
    out = torch.full((4, 50), GUARD)
    reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 45, preshuffle=True, out=out, clean_logits=True)
    assert torch.equal(out[:, :45], logits) and bool((out[:, 45:] == GUARD).all())


def test_ends_are_clipped_to_max_model_len_and_to_the_table() -> None:
    q, cache, weights, tables = make(1, 1, 4, 16, True, width=2)
    lens = torch.tensor([2**31 - 1], dtype=torch.int32)
    for columns, reach in ((20, 20), (100, 32)):
        logits = reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, columns, preshuffle=True)
        assert logits.shape == (1, columns) and int(logits.isfinite().sum()) == reach
    lens[0] = -5
    assert not reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 20, preshuffle=True).isfinite().any()


@pytest.mark.parametrize("per_row", [False, True])
def test_packed_rows_equal_calls_of_one_sequence_each(per_row: bool) -> None:
    counts, lens = [2, 0, 3], [20, 9, 31]
    q, cache, weights, tables = make(5, 1, 4, 16, True, width=2)
    tables, q = tables[:3], q.squeeze(1)
    cu = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    ends = [19, 20, 29, 30, 31]
    given = torch.tensor(ends if per_row else lens, dtype=torch.int32)
    packed = reference.fp8_paged_mqa_logits(
        q, cache, weights, given, tables, 33, preshuffle=True, cu_seqlens_q=cu, lens_per_row=per_row
    )
    for b, first in ((0, 0), (2, 2)):
        rows = slice(first, first + counts[b])
        alone = reference.fp8_paged_mqa_logits(
            q[rows].unsqueeze(0),
            cache,
            weights[rows],
            torch.tensor([lens[b]], dtype=torch.int32),
            tables[b : b + 1],
            33,
            preshuffle=True,
        )
        assert torch.equal(packed[rows], alone)


def test_nan_counts_as_documented() -> None:
    q, cache, weights, tables = make(1, 1, 4, 16, True, width=1)
    lens = torch.tensor([16], dtype=torch.int32)
    kv_cache.values_of(cache)[tables[0, 0], 0, :16] = 0x7F  # the first 16 bytes of token 0
    kv_cache.scales_of(cache)[tables[0, 0], 5] = float("nan")
    logits = reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 16, preshuffle=True)
    assert logits[0, 0] == 0.0
    assert logits.isnan().nonzero().tolist() == [[0, 5]]
    weights[0, 2] = float("nan")
    assert bool(reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 16, preshuffle=True).isnan().all())


def test_the_scale_comes_after_the_sum_over_heads() -> None:
    q, cache, weights, tables = make(1, 1, 4, 16, True, width=1)
    q[:], weights[0] = q[0, 0, 0].clone(), torch.tensor([1.0, -1.0, 1.0, -1.0])
    kv_cache.scales_of(cache)[:] = 3e38
    logits = reference.fp8_paged_mqa_logits(
        q, cache, weights, torch.tensor([16], dtype=torch.int32), tables, 16, preshuffle=True
    )
    assert bool((logits == 0).all())


def test_largest_values_give_the_exact_product() -> None:
    q = torch.full((1, 1, 32, 128), 448.0).to(FP8)
    cache = kv_cache.assemble(torch.full((1, 16, 128), 0x7E, dtype=torch.uint8), torch.ones(1, 16))
    logits = reference.fp8_paged_mqa_logits(
        q, cache, torch.ones(1, 32), torch.tensor([16], dtype=torch.int32), torch.zeros(1, 1).int(), 16, preshuffle=True
    )
    assert bool((logits == 822083584.0).all())


def test_errors_say_what_was_wanted() -> None:
    q, cache, weights, tables = make(2, 1, 4, 16, True, width=2)
    lens = torch.tensor([32, 32], dtype=torch.int32)
    tables[1, 1] = -1
    with pytest.raises(ValueError, match=r"block_tables: row 1, column 1 is -1; the cache has 6 blocks"):
        reference.fp8_paged_mqa_logits(q, cache, weights, lens, tables, 32, preshuffle=True)
    with pytest.raises(ValueError, match=r"context_lens: 2 fit both the sequences and the rows\. Pass lens_per_row"):
        reference.fp8_paged_mqa_logits(
            q[:, 0], cache, weights, lens, tables, 32, preshuffle=True, cu_seqlens_q=torch.tensor([0, 1, 2])
        )
