"""Every form that an argument may take, run by the shipped code objects: packed, strided, flattened, not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import SENTINEL, random_fp8

import indexer_rt
from indexer_rt import kv_cache, reference

pytestmark = pytest.mark.usefixtures("fewest_groups")

COLUMNS = 203
BLOCKS = {"kv1": (1, False), "kv16": (16, True), "kv64": (64, True), "kv64-plain": (64, False)}


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> tuple[int, bool]:
    return BLOCKS[request.param]


def make(rows: int, sequences: int, block: tuple[int, bool], seed: int = 0) -> dict[str, Any]:
    """Make tensors for ``rows`` rows [T, ...] of ``sequences`` sequences, each of COLUMNS tokens, without lengths."""
    block_kv, preshuffle = block
    generator = torch.Generator().manual_seed(seed)
    width = -(-COLUMNS // block_kv)
    num_blocks = sequences * width + 2
    keys = torch.randn(num_blocks, block_kv, 128, generator=generator)
    ids = torch.randperm(num_blocks, generator=generator)[: sequences * width]
    return dict(
        q_fp8=random_fp8(np.random.default_rng(seed), (rows, 32, 128)),
        kv_cache_fp8=kv_cache.pack(keys, block_kv, preshuffle=preshuffle),
        weights=torch.randn(rows, 32, generator=generator),
        block_tables=ids.reshape(sequences, width).int(),
        max_model_len=COLUMNS,
        preshuffle=preshuffle,
    )


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare with a float64 reference: which cells are written, exactly; values, to the rounding of the largest."""
    written = (wanted != SENTINEL) & wanted.isfinite()
    assert torch.equal(got[~written].double(), wanted[~written])
    assert bool(got[written].isfinite().all())
    assert float((got[written] - wanted[written]).abs().max()) <= 2e-6 * float(wanted[written].abs().max())


def run_both(**arguments: Any) -> torch.Tensor:
    """Run the operator and the reference on buffers full of a sentinel and compare. Returns the operator's."""
    rows = arguments["q_fp8"].shape[:-2].numel()
    got = torch.full((rows, COLUMNS + 9), SENTINEL)
    wanted = got.double()
    indexer_rt.fp8_paged_mqa_logits(**arguments, out=got)
    for_kernels = ("max_next_n", "rows_per_wave")
    reference.fp8_paged_mqa_logits(
        **{name: value for name, value in arguments.items() if name not in for_kernels}, out=wanted, dtype=torch.float64
    )
    assert_close(got, wanted)
    return got


# Packed rows ----------------------------------------------------------------------------------------------------------

COUNTS = {"ragged": (2, 0, 3, 1), "one-each": (1, 1, 1, 1), "long": (7, 0, 0, 2), "none-first": (0, 0, 5, 1)}


def cumulative(counts: tuple[int, ...]) -> torch.Tensor:
    return torch.cumsum(int32(0, *counts), 0).int()


@pytest.mark.parametrize("rows_per_wave", [None, 6])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_packed_lengths_of_sequences(block: Any, counts: tuple[int, ...], rows_per_wave: int | None) -> None:
    run_both(
        **make(sum(counts), 4, block),
        context_lens=int32(130, 17, 203, 1),
        cu_seqlens_q=cumulative(counts),
        max_next_n=max(counts),
        rows_per_wave=rows_per_wave,
        lens_per_row=False,
    )


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_packed_ends_of_rows(block: Any, counts: tuple[int, ...]) -> None:
    ends = [(37 * row + 11) % (COLUMNS + 1) for row in range(sum(counts))]
    run_both(
        **make(sum(counts), 4, block),
        context_lens=int32(*ends),
        cu_seqlens_q=cumulative(counts),
        max_next_n=max(counts) + 3,
        lens_per_row=True,
    )


def test_packed_rows_equal_native_rows_bit_for_bit(block: Any) -> None:
    arguments = make(6, 2, block)
    packed = run_both(
        **arguments,
        context_lens=int32(130, 66),
        cu_seqlens_q=int32(0, 3, 6),
        max_next_n=3,
    )
    native = run_both(**arguments | {"q_fp8": arguments["q_fp8"].view(2, 3, 32, 128)}, context_lens=int32(130, 66))
    assert torch.equal(packed, native)


def test_rows_that_belong_to_no_sequence_are_not_touched(block: Any) -> None:
    arguments = make(8, 2, block) | {"context_lens": int32(130, 66), "cu_seqlens_q": int32(0, 3, 5), "max_next_n": 3}
    out = torch.full((8, COLUMNS), SENTINEL)
    indexer_rt.fp8_paged_mqa_logits(**arguments, out=out, clean_logits=True)
    assert bool((out[5:] == SENTINEL).all()) and not bool((out[:5] == SENTINEL).any())
    own = indexer_rt.fp8_paged_mqa_logits(**arguments)
    assert bool((own[5:] == float("-inf")).all()) and torch.equal(own[:5], out[:5])


# Strides and views ----------------------------------------------------------------------------------------------------


def spread(tensor: torch.Tensor, dim: int, factor: int, fill: Any) -> torch.Tensor:
    """Return the same values as a view of a larger tensor with ``factor`` times the elements along ``dim``."""
    shape = list(tensor.shape)
    shape[dim] *= factor
    large = torch.empty(shape, dtype=tensor.dtype)
    large.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).fill_(fill)
    view = large.narrow(dim, tensor.shape[dim] * (factor - 1), tensor.shape[dim])
    view.copy_(tensor)
    return view


def test_strides_are_honoured(block: Any) -> None:
    arguments = make(6, 3, block)
    native = arguments | {"q_fp8": arguments["q_fp8"].view(3, 2, 32, 128), "context_lens": int32(130, 66, 203)}
    wanted = run_both(**native)
    cache = native["kv_cache_fp8"]
    padded = torch.full((cache.shape[0], cache[0].numel() + 68), 0x7F, dtype=torch.uint8)
    padded[:, :-68] = cache.flatten(1)
    got = run_both(
        **native
        | {
            "q_fp8": spread(native["q_fp8"], 2, 3, 0x7F),
            "kv_cache_fp8": padded.as_strided(cache.shape, (padded.stride(0), 132, 132, 1)),
            "weights": spread(native["weights"].view(3, 2, 32), 1, 2, float("nan")),
            "context_lens": spread(native["context_lens"].view(3, 1), 1, 2, 2**31 - 1)[:, 0],
            "block_tables": spread(native["block_tables"], 1, 2, -1),
        }
    )
    assert torch.equal(got, wanted)


def test_a_wider_output_keeps_its_other_columns(block: Any) -> None:
    arguments = make(4, 2, block) | {"context_lens": int32(100, 3)}
    arguments["q_fp8"] = arguments["q_fp8"].view(2, 2, 32, 128)
    wide = torch.full((4, 2 * COLUMNS), SENTINEL)
    indexer_rt.fp8_paged_mqa_logits(**arguments, out=wide[:, 7:], clean_logits=True)
    assert torch.equal(wide[:, 7 : 7 + COLUMNS], indexer_rt.fp8_paged_mqa_logits(**arguments))
    assert bool((wide[:, :7] == SENTINEL).all()) and bool((wide[:, 7 + COLUMNS :] == SENTINEL).all())


@pytest.mark.parametrize("form", ["rows", "trailing-one", "by-sequence"])
def test_shapes_of_weights_and_cache_are_the_same_call(block: Any, form: str) -> None:
    arguments = make(6, 3, block)
    native = arguments | {"q_fp8": arguments["q_fp8"].view(3, 2, 32, 128), "context_lens": int32(130, 66, 203)}
    wanted = run_both(**native)
    shapes = {"rows": (6, 32), "trailing-one": (6, 32, 1), "by-sequence": (3, 2, 32)}
    other = native | {
        "weights": native["weights"].view(shapes[form]),
        "kv_cache_fp8": native["kv_cache_fp8"].squeeze(2).view(torch.float8_e4m3fn),
        "context_lens": native["context_lens"].view(3, 1),
    }
    assert torch.equal(run_both(**other), wanted)


def test_a_flattened_batch_gives_the_same_bits(block: Any) -> None:
    arguments = make(8, 2, block)
    native = arguments | {"q_fp8": arguments["q_fp8"].view(2, 4, 32, 128), "context_lens": int32(9, 130)}
    flat = arguments | {
        "context_lens": int32(6, 7, 8, 9, 127, 128, 129, 130),
        "block_tables": arguments["block_tables"].repeat_interleave(4, 0),
    }
    per_row = native | {"context_lens": flat["context_lens"].view(2, 4)}
    shared = flat | {
        "block_tables": arguments["block_tables"][:1].expand(8, -1),
        "context_lens": int32(4, 4, 5, 5, 5, 6, 0, 1),
    }
    wanted = run_both(**native)
    assert torch.equal(run_both(**flat), wanted) and torch.equal(run_both(**per_row), wanted)
    run_both(**shared)


# Values ---------------------------------------------------------------------------------------------------------------


def test_nan_and_infinity_count_as_documented(block: Any) -> None:
    arguments = make(1, 1, block) | {"context_lens": int32(100)}
    cache, table = arguments["kv_cache_fp8"], arguments["block_tables"][0].tolist()
    block_kv = cache.shape[1]
    scales = kv_cache.scales_of(cache)
    odd = {5: float("nan"), 6: float("inf"), 7: float("-inf"), 8: 0.0, 9: 1e-40, 10: 1.2e-38}
    for token, scale in odd.items():
        scales[table[token // block_kv], token % block_kv] = scale
    kv_cache.values_of(cache)[table[0], 0, :16] = 0x7F  # 16 bytes of token 0 in either order
    got = torch.full((1, COLUMNS), SENTINEL)
    wanted = got.double()
    indexer_rt.fp8_paged_mqa_logits(**arguments, out=got)
    reference.fp8_paged_mqa_logits(**arguments, out=wanted, dtype=torch.float64)
    assert got[0, 0] == 0.0 and bool(got[0, 5].isnan()) and got[0, 6].abs() == got[0, 7].abs() == float("inf")
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_reaches_its_row_only(block: Any, weight: float) -> None:
    arguments = make(2, 2, block) | {"context_lens": int32(30, 40)}
    before = indexer_rt.fp8_paged_mqa_logits(**arguments)
    arguments["weights"][1, 4] = weight
    got = indexer_rt.fp8_paged_mqa_logits(**arguments)
    wanted = reference.fp8_paged_mqa_logits(**arguments)
    assert torch.equal(got[0], before[0]) and not bool(got[1, :40].isfinite().any())
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got == float("inf"), wanted == float("inf"))
