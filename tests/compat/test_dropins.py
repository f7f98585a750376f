"""The drop-ins' values against the reference, what they write and return, their layout rules and their refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import SENTINEL, Case, check, make

from indexer_rt import catalog
from indexer_rt.compat import aiter, flattened, sglang, vllm

NONSENSE = (0, -1, True, False, "64", 2.0, None, torch.tensor(1))


@pytest.fixture(autouse=True)
def forget_notes() -> Iterator[None]:
    flattened._noted.clear()
    yield
    flattened._noted.clear()


def clean(case_result: torch.Tensor, inputs: Any) -> None:
    """Check a new tensor that is to be clean: put it in the window of the guarded buffer and judge that."""
    assert case_result.shape == (inputs.case.batch * inputs.case.next_n, inputs.case.columns)
    assert case_result.dtype == torch.float32 and case_result.is_contiguous()
    inputs.out.copy_(case_result)
    check(inputs)


# aiter


@pytest.mark.parametrize(
    ("block_kv", "preshuffle"), [(1, False), (8, False), (16, True), (64, True), (64, False), (128, True)]
)
@pytest.mark.parametrize("next_n", [1, 3])
def test_aiter_writes_the_window_in_place_and_returns_a_string(block_kv: int, preshuffle: bool, next_n: int) -> None:
    inputs = make(Case([70, 0, 131], next_n=next_n, block_kv=block_kv, preshuffle=preshuffle))
    key = aiter.deepgemm_fp8_paged_mqa_logits(
        inputs.q, inputs.cache, inputs.weights, inputs.out, inputs.lens, inputs.tables, inputs.case.columns,
        Preshuffle=preshuffle, KVBlockSize=block_kv,
    )  # fmt: skip
    check(inputs)
    layout = "preshuffled" if preshuffle else "plain"
    assert key == f"indexer_rt.fp8_paged_mqa_logits:heads=32,block_kv={block_kv},{layout}"


def test_aiter_takes_2d_lengths_as_ends_of_rows() -> None:
    inputs = make(Case([[5, 90], [66, 2]], next_n=2))
    aiter.deepgemm_fp8_paged_mqa_logits(
        inputs.q, inputs.cache, inputs.weights, inputs.out, inputs.lens, inputs.tables, inputs.case.columns, True, 64
    )
    check(inputs)


def aiter_call(**changes: Any) -> tuple[Any, torch.Tensor]:
    inputs = make(Case([70, 20], next_n=2))
    out = inputs.out
    arguments: dict[str, Any] = dict(
        q_fp8=inputs.q, kv_cache=inputs.cache, weights=inputs.weights, out_logits=out, context_lens=inputs.lens,
        kv_indices=inputs.tables, max_model_len=inputs.case.columns, Preshuffle=True, KVBlockSize=64,
    )  # fmt: skip
    aiter.deepgemm_fp8_paged_mqa_logits(**(arguments | changes))
    return inputs, out


@pytest.mark.parametrize(
    ("name", "value"),
    [("ChunkK", value) for value in (*NONSENSE, 3)]
    + [("TotalCuCount", value) for value in NONSENSE if value is not None]
    + [("WavePerEU", value) for value in NONSENSE]
    + [("KVBlockSize", value) for value in (*NONSENSE, 3, 16, 1000000)]
    + [("VarCtxSchedule", value) for value in (0, "schedule", [1])],
)
def test_a15_aiter_refuses_a_nonsensical_knob(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        aiter_call(**{name: value})


@pytest.mark.parametrize(
    "knobs",
    [
        dict(ChunkK=1),
        dict(ChunkK=16),
        dict(ChunkK=1000000),
        dict(TotalCuCount=1),
        dict(TotalCuCount=1000000),
        dict(WavePerEU=1),
        dict(WavePerEU=64),
        dict(VarCtxSchedule=torch.zeros(1, dtype=torch.int32)),
    ],
    ids=str,
)
def test_a15_a_valid_knob_changes_no_bit_in_aiter(knobs: dict[str, Any]) -> None:
    _, without = aiter_call()
    _, with_knob = aiter_call(**knobs)
    assert torch.equal(without, with_knob)


def test_aiter_never_guesses_the_layout() -> None:
    inputs, _ = aiter_call(Preshuffle=False)
    with pytest.raises(AssertionError, match="over the bound"):
        check(inputs)
    with pytest.raises(TypeError, match=r"^preshuffle: expected a bool"):
        aiter_call(Preshuffle=None)
    with pytest.raises(ValueError, match=r"^preshuffle: expected False for block_kv 8"):
        small = make(Case([9], block_kv=8, preshuffle=False))
        aiter_call(kv_cache=small.cache, KVBlockSize=8, Preshuffle=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(out_logits=None), TypeError, "^out_logits: expected a torch.Tensor, got NoneType"),
        (dict(q_fp8=None), TypeError, "^q_fp8: expected a torch.Tensor, got NoneType"),
        (dict(q_fp8=torch.zeros(4, 32, 128).to(torch.float8_e4m3fn)), ValueError, "^q_fp8: expected 4 dimensions"),
        (dict(kv_cache=[1]), TypeError, "^kv_cache: expected a torch.Tensor, got list"),
        (dict(kv_cache=torch.zeros(9, 64 * 132, dtype=torch.uint8)), ValueError, r"^KVBlockSize: .* got \[9, 8448\]"),
    ],
    ids=["out", "q", "q-3d", "cache", "cache-2d"],
)
def test_aiter_says_what_it_wants(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        aiter_call(**changes)


# aiter's pull request 5047


@pytest.mark.parametrize("block_kv", [1, 64])
def test_aiter_5047_knows_the_layout_of_its_two_block_sizes(block_kv: int) -> None:
    inputs = make(Case([70, 131], next_n=2, block_kv=block_kv, preshuffle=block_kv == 64))
    assert aiter.fp8_paged_mqa_logits(*inputs.arguments(), out=inputs.out) is inputs.out
    check(inputs)  # the window, and nothing else
    fresh = make(Case([70, 131], next_n=2, block_kv=block_kv, preshuffle=block_kv == 64, clean_logits=True))
    clean(aiter.fp8_paged_mqa_logits(*fresh.arguments()), fresh)


@pytest.mark.parametrize("block_kv", [2, 8, 16, 128])
def test_aiter_5047_refuses_other_block_sizes(block_kv: int) -> None:
    inputs = make(Case([20], block_kv=block_kv, preshuffle=block_kv % 16 == 0))
    with pytest.raises(ValueError, match=rf"^kv_cache_fp8: expected block size 1 .*, got {block_kv}\."):
        aiter.fp8_paged_mqa_logits(*inputs.arguments(), out=inputs.out)
    assert (inputs.base == SENTINEL).all()


@pytest.mark.parametrize("name", ["ChunkK", "SplitKV", "num_warps", "RowsPerBlock", "TotalCuCount"])
def test_a15_aiter_5047_checks_its_knobs_and_uses_none(name: str) -> None:
    inputs = make(Case([70, 20], next_n=2))
    expected = aiter.fp8_paged_mqa_logits(*inputs.arguments())
    for value in (-1, True, "3", 1.0, None, torch.tensor(1), *((0,) if name == "TotalCuCount" else ())):
        with pytest.raises(ValueError, match=f"^{name}: expected an integer of at least"):
            aiter.fp8_paged_mqa_logits(*inputs.arguments(), **{name: value})
    for value in (1, 3, 1000000):
        assert torch.equal(aiter.fp8_paged_mqa_logits(*inputs.arguments(), **{name: value}), expected)


def test_aiter_5047_is_supported_for_the_heads_there_are_and_its_two_block_sizes() -> None:
    for heads in {entry.num_heads for entry in catalog.Catalog.shipped().entries}:
        assert aiter.is_supported(heads, 128) and aiter.is_supported(heads, 128, kv_block_size=64)
        assert not aiter.is_supported(heads, 64)
        assert not any(aiter.is_supported(heads, 128, block_kv) for block_kv in (0, 2, 16, 128))
    assert not aiter.is_supported(7, 128)


# vLLM


@pytest.mark.parametrize(
    ("block_kv", "ratio", "preshuffle"),
    [
        (1, 1, False),
        (1, 2, False),
        (1, 4, False),
        (16, 1, True),
        (64, 1, True),
        (64, 2, True),
        (16, 4, False),
        (64, 4, False),
    ],
)
def test_b01_vllm_layout_follows_block_size_and_compress_ratio(block_kv: int, ratio: int, preshuffle: bool) -> None:
    assert vllm.is_preshuffled(block_kv, ratio) is preshuffle
    inputs = make(Case([70, 0, 33], block_kv=block_kv, preshuffle=preshuffle, clean_logits=True))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    clean(vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns, compress_ratio=ratio), inputs)


@pytest.mark.parametrize("block_kv", [2, 8])
def test_vllm_refuses_tiles_that_cannot_be(block_kv: int) -> None:
    inputs = make(Case([20], block_kv=block_kv, preshuffle=False, clean_logits=True))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    with pytest.raises(ValueError, match=rf"^kv_cache_fp8: expected block size 1 or a multiple of 16, got {block_kv}:"):
        vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns)
    clean(vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns, compress_ratio=4), inputs)


@pytest.mark.parametrize("ratio", NONSENSE, ids=repr)
def test_vllm_refuses_a_nonsensical_ratio(ratio: Any) -> None:
    inputs = make(Case([20]))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    with pytest.raises(ValueError, match=r"^compress_ratio: expected an integer of at least 1"):
        vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns, compress_ratio=ratio)


@pytest.mark.parametrize(
    "case",
    [
        Case([[70, 71], [9, 10], [0, 0]], next_n=2, clean_logits=True),
        Case([[3, 90, 17], [66, 2, 5]], next_n=3, clean_logits=True),
        Case([70, 9, 2], next_n=2, clean_logits=True),
    ],
    ids=["per-row-2", "per-row-any", "lengths"],
)
def test_c14_vllm_takes_2d_lengths_per_row_and_1d_per_sequence(case: Case) -> None:
    inputs = make(case)
    q, cache, weights, lens, tables, columns = inputs.arguments()
    schedule = torch.zeros(3, dtype=torch.int32)
    clean(vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, schedule, columns), inputs)


def test_vllm_takes_lengths_of_sequences_as_a_column() -> None:
    inputs = make(Case([70, 9], next_n=2, clean_logits=True))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    clean(vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens.unsqueeze(1), tables, None, columns), inputs)


def test_vllm_takes_padded_pages() -> None:
    inputs = make(Case([70, 90], next_n=2, clean_logits=True))
    pool = torch.full((inputs.num_blocks, 64 * 132 + 256), 0x7F, dtype=torch.uint8)
    padded = pool[:, : 64 * 132].unflatten(1, (64, 132))
    padded.copy_(inputs.cache.squeeze(2))
    q, _, weights, lens, tables, columns = inputs.arguments()
    clean(vllm.rocm_fp8_paged_mqa_logits(q, padded.unsqueeze(-2), weights, lens, tables, None, columns), inputs)


class Workspace:
    """Give windows of guarded memory, as vLLM's workspace gives windows of its own, and remember the requests."""

    def __init__(self, window: torch.Tensor) -> None:
        self.window, self.asked = window, []  # type: ignore[var-annotated]

    def get_simultaneous(self, *shapes_and_dtypes: Any) -> list[torch.Tensor]:
        self.asked.append(shapes_and_dtypes)
        return [self.window]


def test_vllm_in_workspace_writes_the_window_of_the_workspace_and_nothing_else() -> None:
    inputs = make(Case([70, 0, 33], next_n=2))
    workspace = Workspace(inputs.out)
    q, cache, weights, lens, tables, columns = inputs.arguments()
    logits = vllm.in_workspace(lambda: workspace)(q, cache, weights, lens, tables, None, columns)
    assert logits is inputs.out
    assert workspace.asked == [(((6, columns), torch.float32),)]
    check(inputs)


# SGLang


@pytest.mark.parametrize(("block_kv", "preshuffle"), [(1, False), (16, True), (64, True), (64, False)])
@pytest.mark.parametrize("pool", ["4d", "2d", "2d-padded"])
def test_sglang_takes_its_pool_and_flattened_rows(block_kv: int, preshuffle: bool, pool: str) -> None:
    inputs = make(Case([70, 0, 33], block_kv=block_kv, preshuffle=preshuffle, clean_logits=True))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    if pool != "4d":
        flat = torch.full((inputs.num_blocks, block_kv * 132 + (64 if pool == "2d-padded" else 0)), 0x7F).byte()
        flat[:, : block_kv * 132] = cache.flatten(1)
        cache = flat[:, : block_kv * 132]
    logits = sglang.aiter_paged_mqa_logits(
        q.squeeze(1), cache, weights.unsqueeze(2), lens, tables, columns, preshuffle=preshuffle, kv_block_size=block_kv
    )
    clean(logits, inputs)


@pytest.mark.parametrize("pool", ["4d", "2d"])
@pytest.mark.parametrize("size", [*NONSENSE, 16, 128], ids=repr)
def test_sglang_refuses_a_block_size_that_is_not_the_caches(pool: str, size: Any) -> None:
    inputs = make(Case([20]))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    cache = cache.flatten(1) if pool == "2d" else cache
    with pytest.raises(ValueError, match=r"^(kv_block_size|kv_cache_fp8): expected"):
        sglang.aiter_paged_mqa_logits(
            q.squeeze(1), cache, weights, lens, tables, columns, preshuffle=True, kv_block_size=size
        )


def test_sglang_refuses_rows_without_a_length() -> None:
    inputs = make(Case([20, 30, 40]))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    with pytest.raises(ValueError, match=r"^context_lens: expected \[3\].*got \[2\]"):
        sglang.aiter_paged_mqa_logits(
            q.squeeze(1), cache, weights, lens[:2], tables, columns, preshuffle=True, kv_block_size=64
        )


# What is logged of flattened callers


def vllm_call(batch: int, next_n: int) -> None:
    q, cache, weights, lens, tables, columns = make(Case([9] * batch, next_n=next_n)).arguments()
    vllm.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns)


def sglang_call(batch: int, next_n: int) -> None:
    q, cache, weights, lens, tables, columns = make(Case([9] * batch, next_n=next_n)).arguments()
    sglang.aiter_paged_mqa_logits(
        q.squeeze(1), cache, weights, lens, tables, columns, preshuffle=True, kv_block_size=64
    )


def aiter_5047_call(batch: int, next_n: int) -> None:
    aiter.fp8_paged_mqa_logits(*make(Case([9] * batch, next_n=next_n)).arguments())


def deepgemm_call(batch: int, next_n: int) -> None:
    inputs = make(Case([9] * batch, next_n=next_n))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    aiter.deepgemm_fp8_paged_mqa_logits(q, cache, weights, inputs.out, lens, tables, columns, True, 64)


@pytest.mark.parametrize(
    ("call", "site"),
    [
        (deepgemm_call, "aiter.deepgemm_fp8_paged_mqa_logits"),
        (aiter_5047_call, "aiter.fp8_paged_mqa_logits"),
        (vllm_call, "vllm.rocm_fp8_paged_mqa_logits"),
        (sglang_call, "sglang.aiter_paged_mqa_logits"),
    ],
    ids=["aiter", "aiter-5047", "vllm", "sglang"],
)
def test_a_flattening_caller_is_named_once(
    call: Callable[[int, int], None], site: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="indexer_rt"):
        call(1, 1)
        if call is not sglang_call:
            call(2, 2)
        assert not caplog.records
        call(3, 1)
        call(4, 1)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{site}: 3 rows came as sequences of one row each.")
    assert "rows_per_sequence=" in record.getMessage()
    assert record.pathname == __file__ and record.funcName == call.__name__
