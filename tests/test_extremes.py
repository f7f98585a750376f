"""The far corners of the contract: batches past one wave's lanes, lengths that mean nothing, sizes past 32 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import SENTINEL, Case, check, make
from emulation import emulation
from test_forms import COLUMNS, cumulative, int32, run_both
from test_forms import make as make_rows

import indexer_rt
from indexer_rt import kv_cache

pytestmark = pytest.mark.usefixtures("fewest_groups")

LAYOUTS = {"kv1": dict(block_kv=1, preshuffle=False), "kv64": dict(block_kv=64, preshuffle=True)}
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LAYOUTS[request.param]


# Batches that a wave scans 64 sequences at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("num_waves", [None, 7], ids=lambda waves: f"{waves}-waves")
@pytest.mark.parametrize("batch", [65, 129])
def test_batches_with_gaps_match_the_formula(layout: dict[str, Any], batch: int, num_waves: int | None) -> None:
    lens = [0 if b % 5 != 4 else 1 + b * 7 % 67 for b in range(batch - 1)] + [70]
    inputs = make(Case(lens, clean_logits=batch == 129, **layout))
    with emulation(num_waves=num_waves):
        indexer_rt.fp8_paged_mqa_logits(
            *inputs.arguments(), preshuffle=layout["preshuffle"], out=inputs.out, clean_logits=batch == 129
        )
    check(inputs)


@pytest.mark.parametrize("where", ["first", "last", "between"])
def test_sequences_without_rows_match_the_formula(layout: dict[str, Any], where: str) -> None:
    sequences = 70
    has_rows = {"first": lambda b: b > 64, "last": lambda b: b < 3, "between": lambda b: b % 23 == 22}[where]
    counts = tuple(b % 3 + 1 if has_rows(b) else 0 for b in range(sequences))
    lens = [130 - b for b in range(sequences)]
    block = (layout["block_kv"], layout["preshuffle"])
    with emulation(num_waves=5, wave_order_seed=1):
        run_both(
            **make_rows(sum(counts), sequences, block), context_lens=int32(*lens), cu_seqlens_q=cumulative(counts),
            max_next_n=3, lens_per_row=False,
        )  # fmt: skip


def test_a_batch_without_a_single_row_writes_nothing(layout: dict[str, Any]) -> None:
    block = (layout["block_kv"], layout["preshuffle"])
    arguments = make_rows(2, 70, block) | {"context_lens": int32(*[9] * 70), "cu_seqlens_q": cumulative((0,) * 70)}
    out = torch.full((2, COLUMNS), SENTINEL)
    indexer_rt.fp8_paged_mqa_logits(**arguments, max_next_n=1, out=out, clean_logits=True)
    assert bool((out == SENTINEL).all())


@pytest.mark.parametrize("num_waves", [None, 3], ids=lambda waves: f"{waves}-waves")
def test_a_sequence_alone_and_in_a_large_batch_give_the_same_bits(
    layout: dict[str, Any], num_waves: int | None
) -> None:
    inputs = make(Case([0, 3] * 32 + [190], next_n=3, **layout))
    q, cache, weights, lens, tables, columns = inputs.arguments()
    with emulation(num_waves=num_waves):
        indexer_rt.fp8_paged_mqa_logits(*inputs.arguments(), preshuffle=layout["preshuffle"], out=inputs.out)
    for rows_per_wave in (1, 2, 3, 6):
        alone = torch.full((3, columns), SENTINEL)
        indexer_rt.fp8_paged_mqa_logits(
            q[-1:], cache, weights[-3:], lens[-1:], tables[-1:], columns, preshuffle=layout["preshuffle"], out=alone,
            rows_per_wave=rows_per_wave,
        )  # fmt: skip
        assert torch.equal(alone, inputs.out[-3:])


# Lengths on trust -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 1000])
def test_lengths_that_mean_nothing_end_at_the_table(layout: dict[str, Any], columns: int, clean: bool) -> None:
    """A negative length writes nothing; a huge one stops at the table's last column or at max_model_len."""
    arguments = make_rows(10, 5, (layout["block_kv"], layout["preshuffle"]))
    arguments["q_fp8"] = arguments["q_fp8"].view(5, 2, 32, 128)
    arguments["block_tables"] = arguments["block_tables"][:, :columns]
    run_both(
        **arguments, context_lens=int32(-1, INT32_MAX, 70, INT32_MIN, INT32_MAX - 1), clean_logits=clean
    )  # fmt: skip


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("is_packed", [False, True], ids=["native", "packed"])
def test_ends_of_rows_that_mean_nothing_end_at_the_table(layout: dict[str, Any], is_packed: bool, clean: bool) -> None:
    arguments = make_rows(10, 5, (layout["block_kv"], layout["preshuffle"]))
    ends = int32(-1, INT32_MAX, 70, INT32_MIN, INT32_MAX - 1, 3, INT32_MIN + 1, -64, 0, 1)
    arguments["block_tables"] = arguments["block_tables"][:, :2]
    if is_packed:
        run_both(
            **arguments, context_lens=ends, cu_seqlens_q=int32(0, 4, 4, 7, 9, 10), max_next_n=4, lens_per_row=True,
            clean_logits=clean,
        )  # fmt: skip
    else:
        arguments["q_fp8"] = arguments["q_fp8"].view(5, 2, 32, 128)
        run_both(**arguments, context_lens=ends.view(5, 2), clean_logits=clean)


# Sizes past 32 bits ---------------------------------------------------------------------------------------------------


def far(tensor: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """Return the same values with rows (dimension 0) so many bytes apart, in memory that is reserved, not touched."""
    stride = row_bytes // tensor.element_size()
    size = (tensor.shape[0] - 1) * stride + tensor[0].numel()
    view = torch.empty(size, dtype=tensor.dtype).as_strided(tensor.shape, (stride, *tensor.stride()[1:]))
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("name", ["q_fp8", "kv_cache_fp8", "weights", "context_lens", "block_tables", "out"])
def test_row_strides_may_need_64_bits(layout: dict[str, Any], name: str) -> None:
    block = (layout["block_kv"], layout["preshuffle"])
    arguments = make_rows(3, 3, block) | {"context_lens": int32(66, 1, 65)}
    if name == "kv_cache_fp8":
        arguments["block_tables"] = torch.zeros((3, COLUMNS), dtype=torch.int32)  # every key is one of three blocks
        arguments["block_tables"][:, ::2], arguments["block_tables"][2] = 2, 1
        arguments[name] = arguments[name][:3]
    arguments["out"] = torch.full((3, COLUMNS), SENTINEL)
    wanted = indexer_rt.fp8_paged_mqa_logits(**arguments).clone()
    arguments["out"].fill_(SENTINEL)
    arguments[name] = far(arguments[name], 9 << 28)
    assert torch.equal(indexer_rt.fp8_paged_mqa_logits(**arguments), wanted)
    assert bool((wanted != SENTINEL).any())


def test_a_table_of_two_to_the_thirty_columns_is_read(layout: dict[str, Any]) -> None:
    arguments = make_rows(1, 1, (layout["block_kv"], layout["preshuffle"])) | {"context_lens": int32(COLUMNS)}
    table = arguments["block_tables"]
    wide = torch.empty((1, 2**30), dtype=torch.int32)
    wide[:, : table.shape[1]] = table
    assert torch.equal(run_both(**arguments | {"block_tables": wide}), run_both(**arguments))


# Values ---------------------------------------------------------------------------------------------------------------


def test_the_largest_values_are_exact_and_the_scale_comes_last(layout: dict[str, Any]) -> None:
    blocks = -(-70 // layout["block_kv"])
    largest = torch.full((blocks, layout["block_kv"], 128), 0x7E, dtype=torch.uint8)

    def run(scale: float, weights: torch.Tensor) -> torch.Tensor:
        return indexer_rt.fp8_paged_mqa_logits(
            torch.full((1, 1, 32, 128), 0x7E, dtype=torch.uint8).view(torch.float8_e4m3fn),
            kv_cache.assemble(largest, torch.full(largest.shape[:2], scale)),
            weights, int32(70), torch.arange(blocks, dtype=torch.int32)[None], 70, preshuffle=layout["preshuffle"],
        )  # fmt: skip

    assert bool((run(1.0, torch.ones(1, 32)) == 32 * 128 * 448.0**2).all())
    assert bool((run(3e38, torch.tensor([1.0, -1.0] * 16)[None]) == 0.0).all())
    assert bool((run(3e38, torch.ones(1, 32)) == float("inf")).all())
