"""Random problems over every axis of the contract at once, the same ones at every run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import GUARD, SENTINEL, check_base, make_pool, random_fp8
from emulation import emulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_forms import spread

import indexer_rt
from indexer_rt.catalog import Catalog

LONGEST = 200
PROBLEMS = 40
"""For each head count, form of rows and kind of block: 640 in all."""
BLOCKS = {
    "gather": [(block_kv, False) for block_kv in (1, 2, 4, 8)],
    "page": [(block_kv, preshuffle) for block_kv in (16, 32, 48, 64, 80, 128, 640) for preshuffle in (False, True)],
}
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Random:
    """Describe a random problem. ``counts``: rows of each sequence; ``lens``: what context_lens holds, flat.

    ``width_change``: columns of the block table beyond, or short of, what the longest row needs. ``strided`` names the
    tensors that are views of larger ones.
    """

    num_heads: int
    block: tuple[int, bool]
    is_packed: bool
    counts: tuple[int, ...]
    lens_per_row: bool
    lens: tuple[int, ...]
    max_model_len: int
    width_change: int
    clean_logits: bool
    is_new: bool
    rows_per_wave: int | None
    num_waves: int | None
    wave_order_seed: int | None
    preload: bool
    strided: frozenset[str]
    shapes: int
    seed: int

    def raw_ends(self) -> list[list[int]]:
        """Return the end of each row of each sequence as the lengths say it."""
        starts = list(itertools.accumulate(self.counts, initial=0))
        if self.lens_per_row:
            return [list(self.lens[start : start + count]) for start, count in zip(starts, self.counts, strict=False)]
        return [
            [length - count + n + 1 for n in range(count)] for length, count in zip(self.lens, self.counts, strict=True)
        ]


@st.composite
def problems(draw: st.DrawFn, num_heads: int, is_packed: bool, addressing: str) -> Random:
    block = draw(st.sampled_from(BLOCKS[addressing]))
    batch = draw(st.integers(1, 5))
    if is_packed:
        counts = tuple(draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch)))
    else:
        counts = (draw(st.integers(1, 8)),) * batch
    lens_per_row = draw(st.booleans())
    size = sum(counts) if lens_per_row else batch
    length = st.one_of(st.integers(0, LONGEST), st.sampled_from((0, 1, 15, 16, 17, 63, 64, 65, 128, 129)))
    lens = tuple(draw(st.lists(length, min_size=size, max_size=size)))
    rows = Catalog.shipped().rows(num_heads, 128, addressing)
    is_new = draw(st.booleans())
    return Random(
        num_heads=num_heads,
        block=block,
        is_packed=is_packed,
        counts=counts,
        lens_per_row=lens_per_row,
        lens=lens,
        max_model_len=draw(st.one_of(st.integers(1, LONGEST + 20), st.just(max(lens, default=0) + 1))),
        width_change=draw(st.sampled_from((3, 0, -1))),
        clean_logits=is_new or draw(st.booleans()),
        is_new=is_new,
        rows_per_wave=draw(st.sampled_from([None, *rows])),
        num_waves=draw(st.sampled_from((None, None, 1, 2, 3, 7, 300))),
        wave_order_seed=draw(st.sampled_from((None, 0, 1))),
        preload=draw(st.booleans()),
        strided=frozenset(
            draw(st.sets(st.sampled_from(("q_fp8", "kv_cache_fp8", "weights", "context_lens", "block_tables"))))
        ),
        shapes=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 2**16)),
    )


def build(problem: Random) -> tuple[dict[str, Any], list[int]]:
    """Make a problem's arguments, without those of the output, and each row's end."""
    block_kv, preshuffle = problem.block
    heads, columns, batch, rows = problem.num_heads, problem.max_model_len, len(problem.counts), sum(problem.counts)
    generator = np.random.default_rng(problem.seed)
    clipped = [[min(max(end, 0), columns) for end in ends] for ends in problem.raw_ends()]
    needed = max((-(-end // block_kv) for ends in clipped for end in ends), default=0)
    width = max(0, needed + problem.width_change)
    clipped = [[min(end, width * block_kv) for end in ends] for ends in clipped]
    cache, tables = make_pool(generator, [max(ends, default=0) for ends in clipped], block_kv, preshuffle, width=width)
    next_n = problem.counts[0]
    lead = (rows,) if problem.is_packed else (batch, next_n)
    lens = torch.tensor(problem.lens, dtype=torch.int32)
    if problem.lens_per_row and not problem.is_packed:
        lens = lens.view(batch, next_n)
    tensors = dict(
        q_fp8=random_fp8(generator, (*lead, heads, 128)),
        kv_cache_fp8=cache,
        weights=torch.from_numpy(generator.normal(size=(rows, heads)).astype(np.float32)),
        context_lens=lens,
        block_tables=tables,
    )
    tensors |= {name: _strided(name, tensors[name]) for name in problem.strided if tensors[name].numel()}
    arguments: dict[str, Any] = _reshaped(tensors, problem) | dict(max_model_len=columns, preshuffle=preshuffle)
    if problem.is_packed:
        cu = torch.tensor(list(itertools.accumulate(problem.counts, initial=0)), dtype=torch.int32)
        arguments |= dict(cu_seqlens_q=cu, lens_per_row=problem.lens_per_row)
    return arguments, [end for ends in clipped for end in ends]


def _strided(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name == "kv_cache_fp8":
        padded = torch.full((tensor.shape[0], tensor[0].numel() + 68), 0x7F, dtype=torch.uint8)
        padded[:, :-68] = tensor.flatten(1)
        return padded.as_strided(tensor.shape, (padded.stride(0), 132, 132, 1))
    if name == "q_fp8":
        return spread(tensor, tensor.ndim - 2, 2, 0x7F)  # a slice of the heads of a larger projection
    if name == "context_lens":
        columns = tensor.view(len(tensor), -1)
        return spread(columns, 1, 2, INT32_MAX).view(tensor.shape) if tensor.ndim == 2 else (
            spread(columns, 1, 2, INT32_MAX)[:, 0]
        )  # fmt: skip
    return spread(tensor, 1, 2, float("nan") if name == "weights" else -1)


def _reshaped(tensors: dict[str, torch.Tensor], problem: Random) -> dict[str, torch.Tensor]:
    """Give weights, lengths and cache another of the shapes that mean the same."""
    result, batch = dict(tensors), len(problem.counts)
    if problem.shapes >= 1:
        result["weights"] = tensors["weights"].unsqueeze(-1)
        result["kv_cache_fp8"] = tensors["kv_cache_fp8"].squeeze(2).view(torch.float8_e4m3fn)
        if tensors["context_lens"].ndim == 1:
            result["context_lens"] = tensors["context_lens"].unsqueeze(1)
    if problem.shapes == 2 and not problem.is_packed:
        result["weights"] = tensors["weights"].unflatten(0, (batch, problem.counts[0]))
        if problem.counts[0] == 1:
            result["q_fp8"] = tensors["q_fp8"].squeeze(1)
    return result


@pytest.mark.parametrize("addressing", BLOCKS)
@pytest.mark.parametrize("is_packed", [False, True], ids=["native", "packed"])
@pytest.mark.parametrize("num_heads", [8, 16, 32, 64])
def test_random_problems_are_right_and_touch_nothing_else(num_heads: int, is_packed: bool, addressing: str) -> None:
    ran = []

    @settings(
        max_examples=PROBLEMS, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(problems(num_heads, is_packed, addressing))
    def run(problem: Random) -> None:
        arguments, ends = build(problem)
        columns = problem.max_model_len
        base = torch.full((len(ends) + 2, columns + 2 * GUARD + 1), SENTINEL)
        out = base[1:-1, GUARD : GUARD + columns]
        options: dict[str, Any] = dict(rows_per_wave=problem.rows_per_wave)
        if problem.is_packed:
            options["max_next_n"] = max(1, *problem.counts)
        if not problem.is_new:
            options |= dict(out=out, clean_logits=problem.clean_logits)
        with emulation(num_waves=problem.num_waves, wave_order_seed=problem.wave_order_seed, preload=problem.preload):
            got = indexer_rt.fp8_paged_mqa_logits(**arguments, **options)
        if problem.is_new:
            out.copy_(got)
        else:
            assert got is out
        check_base(base, columns, ends, arguments, clean_logits=problem.clean_logits)
        ran.append(problem)

    run()
    assert len(ran) >= PROBLEMS
