"""Make problems whose every byte outside the contract is poison, and judge what an operator wrote.

Poison: key bytes 0x7f (NaN) and NaN scales in every cache slot that no row may read, block ids -1, INT32_MAX and random
ones in every table column past need, a sentinel in every output cell, guard cells round each row. A kernel that reads
or writes beyond its contract cannot give the expected output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from indexer_rt import kv_cache, reference

SENTINEL = 12345.0
HEAD_DIM = 128
ERROR = 1e-6  # of a cell's magnitude: what float32 sums keep
GUARD = 7  # cells before each row and, with the odd width, after it; not a multiple of anything


@dataclass(frozen=True)
class Case:
    """Describe one problem. ``lens`` are context_lens: one per sequence, or [sequence][row] for per-row ends.

    ``table_width`` and ``num_blocks``: columns of the block table and blocks of the pool, None for 3 more than needed.
    """

    lens: Sequence[int] | Sequence[Sequence[int]]
    next_n: int = 1
    block_kv: int = 64
    preshuffle: bool = True
    max_model_len: int | None = None
    num_heads: int = 32
    clean_logits: bool = False
    rows_per_wave: int | None = None
    table_width: int | None = None
    num_blocks: int | None = None
    seed: int = 0

    @property
    def per_row(self) -> bool:
        return bool(len(self.lens)) and not isinstance(self.lens[0], (int, np.integer))

    @property
    def batch(self) -> int:
        return len(self.lens)

    @property
    def columns(self) -> int:
        longest = int(np.max(np.asarray(self.lens, dtype=np.int64), initial=0))
        return max(1, longest) + 5 if self.max_model_len is None else self.max_model_len

    def ends(self) -> list[list[int]]:
        """Return the end of each row of each sequence, clipped to [0, max_model_len]."""
        raw = self.lens if self.per_row else [[n - self.next_n + i + 1 for i in range(self.next_n)] for n in self.lens]
        return [[min(max(end, 0), self.columns) for end in ends] for ends in raw]


@dataclass
class Inputs:
    """Hold a case's tensors. ``base`` is the buffer that ``out`` is a window of."""

    case: Case
    q: torch.Tensor
    cache: torch.Tensor
    weights: torch.Tensor
    lens: torch.Tensor
    tables: torch.Tensor
    out: torch.Tensor
    base: torch.Tensor
    num_blocks: int = field(default=0)

    def arguments(self) -> tuple:
        return self.q, self.cache, self.weights, self.lens, self.tables, self.case.columns

    def keywords(self) -> dict[str, Any]:
        """Return the arguments that the operator and the reference share, by name."""
        names = ("q_fp8", "kv_cache_fp8", "weights", "context_lens", "block_tables", "max_model_len")
        return dict(zip(names, self.arguments(), strict=True)) | {"preshuffle": self.case.preshuffle}

    def clear(self) -> None:
        self.base.fill_(SENTINEL)


def random_fp8(generator: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Return random float8_e4m3fn of every exponent, subnormals and both zeros included, without NaN."""
    codes = generator.integers(0, 254, size=shape, dtype=np.uint8)
    codes = np.where(codes >= 0x7F, codes + 1, codes).astype(np.uint8)  # skips 0x7f; 0xff is out of reach
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def make(case: Case) -> Inputs:
    """Make a case's tensors on the CPU: shuffled pool, ragged batch, poison outside the contract."""
    generator = np.random.default_rng([case.seed, case.block_kv, case.next_n, case.batch])
    longest = [max(row_ends, default=0) for row_ends in case.ends()]
    cache, tables = make_pool(
        generator, longest, case.block_kv, case.preshuffle, width=case.table_width, num_blocks=case.num_blocks
    )
    rows = case.batch * case.next_n
    base = torch.full((rows + 2, case.columns + 2 * GUARD + 1), SENTINEL)
    return Inputs(
        case=case,
        q=random_fp8(generator, (case.batch, case.next_n, case.num_heads, HEAD_DIM)),
        cache=cache,
        weights=torch.from_numpy(generator.normal(size=(rows, case.num_heads)).astype(np.float32)),
        lens=torch.tensor(np.asarray(case.lens, np.int32)),
        tables=tables,
        out=base[1 : rows + 1, GUARD : GUARD + case.columns],
        base=base,
        num_blocks=cache.shape[0],
    )


def make_pool(
    generator: np.random.Generator,
    longest: Sequence[int],
    block_kv: int,
    preshuffle: bool,
    *,
    width: int | None = None,
    num_blocks: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the cache and block tables of sequences of so many tokens: shuffled, poison in all that none may read."""
    needed = [-(-end // block_kv) for end in longest]
    num_blocks = sum(needed) + 3 if num_blocks is None else num_blocks
    ids = generator.permutation(num_blocks).astype(np.int32)

    # Tables: needed ids first, then poison.
    width = max(needed, default=0) + 3 if width is None else width
    poison = np.array([-1, 2**31 - 1, 0x40000000, num_blocks], np.int32)
    tables = generator.choice(poison, size=(len(needed), width)).astype(np.int32)
    values = np.full((num_blocks, block_kv, HEAD_DIM), 0x7F, np.uint8)
    scales = np.full((num_blocks, block_kv), np.nan, np.float32)
    taken = 0
    for sequence, count in enumerate(needed):
        own = ids[taken : taken + count]
        taken += count
        tables[sequence, :count] = own
        for page, block in enumerate(own):
            tokens = min(block_kv, longest[sequence] - page * block_kv)
            values[block, :tokens] = random_fp8(generator, (tokens, HEAD_DIM)).view(torch.uint8).numpy()
            scales[block, :tokens] = generator.uniform(0.5, 1.5, tokens)

    # Cache: one dense array, values in the order asked for.
    plain = torch.from_numpy(values)
    cache = kv_cache.assemble(kv_cache.preshuffle_values(plain) if preshuffle else plain, torch.from_numpy(scales))
    return cache, torch.from_numpy(tables)


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return 1 - 2<x,y> / (<x,x> + <y,y>) in float64: the field's measure of how far two tensors differ."""
    x, y = x.double(), y.double()
    norm = (x * x + y * y).sum()
    return float(1 - 2 * (x * y).sum() / norm) if norm > 0 else 0.0


def check(inputs: Inputs) -> float:
    """Assert that ``inputs.base`` holds what the contract says, cell by cell. Return the largest error over its bound.

    The cells written must agree exactly. Values: as ``compare`` says.
    """
    case = inputs.case
    ends = [end for ends in case.ends() for end in ends]
    return check_base(inputs.base, case.columns, ends, inputs.keywords(), clean_logits=case.clean_logits)


def check_base(
    base: torch.Tensor, columns: int, ends: Sequence[int], arguments: dict[str, Any], *, clean_logits: bool
) -> float:
    """Assert that a buffer holds an output and, round it, what it held before. Return the error over its bound.

    The output is ``base[1:-1, GUARD : GUARD + columns]``; row r is written before ``ends[r]``. ``arguments`` are those
    of the reference.
    """
    expected = torch.full(base.shape, SENTINEL, dtype=torch.float64)
    window = expected[1:-1, GUARD : GUARD + columns]
    reference.fp8_paged_mqa_logits(**arguments, out=window, clean_logits=clean_logits, dtype=torch.float64)
    written = torch.arange(columns) < torch.tensor(ends, dtype=torch.long).unsqueeze(1)

    outside = torch.ones(expected.shape, dtype=torch.bool)
    outside[1:-1, GUARD : GUARD + columns] = ~written
    assert torch.equal(base.double()[outside], expected[outside]), "a cell outside the window was changed"
    return compare(base[1:-1, GUARD : GUARD + columns][written], window[written], magnitudes(**arguments)[written])


def compare(got: torch.Tensor, wanted: torch.Tensor, magnitude: torch.Tensor) -> float:
    """Assert that values agree with the formula in float64. Return the largest error over its bound.

    |error| <= 1e-6 * scale * sum_h |w_h| * sum_d |q*k| per cell, and calc_diff < 1e-9.
    """
    assert torch.isfinite(got).all(), "a cell of the window is not finite"
    error, allowed = (got.double() - wanted).abs(), ERROR * magnitude
    assert (error <= allowed).all(), f"error {error.max():.3g} over the bound {allowed[error.argmax()]:.3g}"
    assert calc_diff(got, wanted) < 1e-9
    return float((error / allowed.clamp_min(1e-300)).max()) if len(error) else 0.0


def magnitudes(q_fp8: torch.Tensor, kv_cache_fp8: torch.Tensor, weights: torch.Tensor, **others: Any) -> torch.Tensor:
    """Return scale * sum_h |w_h| * sum_d |q*k| of every cell in float64, 0 where none is written.

    With all signs cleared relu changes nothing, so this is the reference itself on the operands' magnitudes.
    """
    columns = others["max_model_len"]
    result = torch.zeros((q_fp8.shape[:-2].numel(), columns), dtype=torch.float64)
    reference.fp8_paged_mqa_logits(
        _magnitude(q_fp8), _magnitude_of_cache(kv_cache_fp8), weights.abs(), **others, out=result, clean_logits=False,
        dtype=torch.float64,
    )  # fmt: skip
    return result


def _magnitude(fp8: torch.Tensor) -> torch.Tensor:
    return (fp8.view(torch.uint8) & 0x7F).view(torch.float8_e4m3fn)


def _magnitude_of_cache(kv_cache_fp8: torch.Tensor) -> torch.Tensor:
    """Return the cache's blocks with their keys' signs cleared, dense."""
    cache = kv_cache_fp8.contiguous().clone()
    kv_cache.values_of(cache).bitwise_and_(0x7F)
    return cache
