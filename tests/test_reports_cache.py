"""Reported faults, section B: layout of the cache, strides, offsets, alignment."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from cases import GUARD, SENTINEL, Case, check, make
from reports import arguments_of, base, both_layouts, far_rows, run

import indexer_rt
from indexer_rt import kv_cache, reference

pytestmark = pytest.mark.usefixtures("fewest_groups")

ROW_STRIDE = 1048576
"""Columns of 4 MiB: row 512 lies 2**31 bytes past row 0, row 1024 2**32."""


def test_b01_the_shuffled_bytes_are_where_the_format_says() -> None:
    """128 rows, row d one-hot at dimension d in head 0, against keys that are one-hot at (7 * t + 3) % 128."""
    shuffled, plain = (torch.zeros(1, 64, 1, 132, dtype=torch.uint8) for _ in range(2))
    one, scales = 0x38, torch.arange(1.0, 65.0)
    for t in range(64):
        d = (7 * t + 3) % 128
        shuffled.view(-1)[(t // 16) * 2048 + (d // 16) * 256 + (t % 16) * 16 + d % 16] = one
        plain.view(-1)[t * 128 + d] = one
    for cache in (shuffled, plain):
        cache.view(-1)[64 * 128 :] = scales.view(torch.uint8)
    q = torch.zeros(1, 128, 32, 128)
    q[0, :, 0] = torch.eye(128)
    wanted = torch.zeros(128, 64)
    wanted[(7 * torch.arange(64) + 3) % 128, torch.arange(64)] = scales

    def scores(cache: torch.Tensor, preshuffle: bool) -> torch.Tensor:
        return indexer_rt.fp8_paged_mqa_logits(
            q.to(torch.float8_e4m3fn), cache, torch.ones(128, 32), torch.full((1, 128), 64, dtype=torch.int32),
            torch.zeros(1, 1, dtype=torch.int32), 64, preshuffle=preshuffle,
        )  # fmt: skip

    assert torch.equal(scores(shuffled, True), wanted) and torch.equal(scores(plain, False), wanted)
    assert not torch.equal(scores(plain, True), wanted)  # nothing in the bytes tells: the caller must say


def test_b03_every_token_is_found_through_its_column_and_offset() -> None:
    inputs = make(Case((200,), table_width=4))
    run(inputs)
    check(inputs)
    assert inputs.tables.shape == (1, 4) and len(inputs.out[0, :200].unique()) == 200


def test_b04_blocks_past_two_gib_are_read() -> None:
    stride, ids = 1002240, (2142, 2143)
    inputs = make(Case((64, 64), max_model_len=256))
    own = inputs.tables[:, 0].tolist()
    pool = torch.empty(ids[1] * stride + 64 * 132, dtype=torch.uint8)
    far = pool.as_strided((ids[1] + 1, 64, 1, 132), (stride, 132, 132, 1))
    far[list(ids)] = inputs.cache[own]
    inputs.cache, inputs.tables = inputs.cache[own], torch.tensor([[0, -1, -1, -1], [1, -1, -1, -1]], dtype=torch.int32)
    near = run(inputs).clone()
    check(inputs)
    inputs.clear()
    assert ids[1] * stride > 2**31 > ids[0] * stride
    tables = torch.tensor([[ids[0], -1, -1, -1], [ids[1], -1, -1, -1]], dtype=torch.int32)
    assert torch.equal(run(inputs, kv_cache_fp8=far, block_tables=tables), near)
    check(inputs)


def _write_far_rows(case: Case, tail: tuple[int, ...]) -> None:
    inputs = make(case)
    inputs.base = far_rows(inputs.base, ROW_STRIDE)
    inputs.out = inputs.base[1:-1, GUARD : GUARD + case.columns]
    assert inputs.out.stride(0) == ROW_STRIDE
    run(inputs)
    assert all(bool((inputs.out[row, :60] != SENTINEL).all()) for row in tail)
    check(inputs)


def test_b07_rows_of_the_output_past_two_gib_are_written() -> None:
    _write_far_rows(Case((64,) * 520), (511, 512, 519))


def test_b08_rows_of_the_output_past_four_gib_are_written() -> None:
    _write_far_rows(Case(tuple(64 + b % 65 for b in range(206)), next_n=5), (1023, 1024, 1029))


@both_layouts
def test_b09_a_padded_output_keeps_its_pad(layout: str) -> None:
    inputs = base(layout, next_n=2)
    wide = torch.full((4, 512), SENTINEL)
    inputs.out = wide[:, :256]
    assert inputs.out.stride(0) == 512
    inputs.base[1:-1, GUARD : GUARD + 256] = run(inputs)
    check(inputs)
    assert bool((wide[:, 256:] == SENTINEL).all())


@both_layouts
def test_b11_lengths_may_be_a_column_of_a_larger_tensor(layout: str) -> None:
    inputs = base(layout)
    both = torch.full((2, 2), 200, dtype=torch.int32)
    both[:, 0] = inputs.lens
    inputs.lens = both[:, 0]
    assert inputs.lens.stride(0) == 2
    run(inputs)
    check(inputs)


@both_layouts
def test_b13_q_may_be_a_slice_of_heads(layout: str) -> None:
    inputs = base(layout, next_n=2, num_heads=64)
    large = inputs.q
    inputs = base(layout, next_n=2)
    inputs.q = large[:, :, 16:48, :]
    assert not inputs.q.is_contiguous()
    run(inputs)
    check(inputs)


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_b15_rows_at_any_multiple_of_four_bytes_are_right(offset: int) -> None:
    inputs = base("kv1")
    inputs.cache = _at(inputs.cache, offset)
    run(inputs)
    check(inputs)


@pytest.mark.parametrize("offset", [1, 2])
def test_b15_rows_between_multiples_of_four_bytes_are_refused(offset: int) -> None:
    inputs = base("kv1")
    inputs.cache = _at(inputs.cache, offset)
    match = rf"^kv_cache_fp8: expected an address that is a multiple of 4 bytes, got 0x\w+ \({offset} past one\)\."
    with pytest.raises(ValueError, match=match):
        run(inputs)
    assert bool((inputs.base == SENTINEL).all())


def _at(cache: torch.Tensor, offset: int) -> torch.Tensor:
    pool = torch.full((cache.numel() + 16,), 0x7F, dtype=torch.uint8)
    pool[offset : offset + cache.numel()] = cache.view(-1)
    view = pool[offset : offset + cache.numel()].view(cache.shape)
    assert view.data_ptr() % 16 == offset
    return view


def _narrow_table() -> dict[str, torch.Tensor]:
    inputs = make(Case((128,), max_model_len=256, table_width=2))
    inputs.lens.fill_(200)
    return inputs


def test_b17_a_table_with_too_few_columns_is_not_read_past_its_row() -> None:
    inputs = _narrow_table()
    run(inputs)  # the table has no memory past its row: a read there would fault
    check(inputs)


def test_b17_the_strict_mode_refuses_a_table_with_too_few_columns(strict: None) -> None:
    match = (
        r"^block_tables: row 0 needs 4 columns for 200 tokens in blocks of 64, has 2\. "
        r"Does the table hold ids of larger blocks\?$"
    )
    with pytest.raises(ValueError, match=match):
        indexer_rt.fp8_paged_mqa_logits(**arguments_of(_narrow_table()))


def test_b18_layout_and_block_size_are_documented_as_part_of_the_format_and_never_guessed() -> None:
    readme = " ".join((Path(__file__).parents[1] / "README.md").read_text().split())
    assert "Order and block_kv are part of the stored format" in readme
    assert "order and ``block_kv`` are part of the stored format" in " ".join(kv_cache.__doc__.split())
    for function in (
        indexer_rt.fp8_paged_mqa_logits, reference.fp8_paged_mqa_logits, kv_cache.pack, kv_cache.dequantize
    ):  # fmt: skip
        parameter = inspect.signature(function).parameters["preshuffle"]
        assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    with pytest.raises(TypeError, match=r"^preshuffle: expected a bool, got NoneType\.$"):
        run(base("kv64"), preshuffle=None)


@both_layouts
def test_b19_a_cache_of_bytes_and_of_fp8_are_the_same(layout: str) -> None:
    inputs = base(layout)
    wanted = run(inputs).clone()
    check(inputs)
    inputs.clear()
    assert torch.equal(run(inputs, kv_cache_fp8=inputs.cache.view(torch.float8_e4m3fn)), wanted)


@both_layouts
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.int8, torch.float16], ids=str)
def test_b19_a_cache_of_another_dtype_is_refused(layout: str, dtype: torch.dtype) -> None:
    inputs = base(layout)
    cache = inputs.cache.view(dtype) if dtype.itemsize == 1 else inputs.cache.to(dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=rf"^kv_cache_fp8: expected uint8 or float8_e4m3fn, got {name}\."):
        run(inputs, kv_cache_fp8=cache)
