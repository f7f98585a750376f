"""Make problems whose every byte outside the contract is poison, and judge what an operator wrote.

Poison: key bytes 0x7f (NaN) and NaN scales in every cache slot that no row may read, block ids -1, INT32_MAX and random
ones in every table column past need, a sentinel in every output cell, guard cells round each row. A kernel that reads
or writes beyond its contract cannot give the expected output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from indexer_rt import kv_cache, reference

SENTINEL = 12345.0
HEAD_DIM = 128
GUARD = 7  # cells before each row and, with the odd width, after it; not a multiple of anything


@dataclass(frozen=True)
class Case:
    """Describe one problem. ``lens`` are context_lens: one per sequence, or [sequence][row] for per-row ends."""

    lens: Sequence[int] | Sequence[Sequence[int]]
    next_n: int = 1
    block_kv: int = 64
    preshuffle: bool = True
    max_model_len: int | None = None
    num_heads: int = 32
    clean_logits: bool = False
    rows_per_wave: int | None = None
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
    ends = case.ends()
    longest = [max(row_ends, default=0) for row_ends in ends]
    needed = [-(-end // case.block_kv) for end in longest]
    num_blocks = sum(needed) + 3
    ids = generator.permutation(num_blocks).astype(np.int32)

    # Tables: needed ids first, then poison.
    width = max(needed, default=0) + 3
    tables = generator.choice(np.array([-1, 2**31 - 1, 0x40000000, num_blocks], np.int32), size=(case.batch, width))
    values = np.full((num_blocks, case.block_kv, HEAD_DIM), 0x7F, np.uint8)
    scales = np.full((num_blocks, case.block_kv), np.nan, np.float32)
    taken = 0
    for sequence, count in enumerate(needed):
        own = ids[taken : taken + count]
        taken += count
        tables[sequence, :count] = own
        for page, block in enumerate(own):
            tokens = min(case.block_kv, longest[sequence] - page * case.block_kv)
            values[block, :tokens] = random_fp8(generator, (tokens, HEAD_DIM)).view(torch.uint8).numpy()
            scales[block, :tokens] = generator.uniform(0.5, 1.5, tokens)

    # Cache: one dense array, values in the case's order.
    plain = torch.from_numpy(values)
    cache = kv_cache.assemble(kv_cache.preshuffle_values(plain) if case.preshuffle else plain, torch.from_numpy(scales))

    rows = case.batch * case.next_n
    base = torch.full((rows + 2, case.columns + 2 * GUARD + 1), SENTINEL)
    return Inputs(
        case=case,
        q=random_fp8(generator, (case.batch, case.next_n, case.num_heads, HEAD_DIM)),
        cache=cache,
        weights=torch.from_numpy(generator.normal(size=(rows, case.num_heads)).astype(np.float32)),
        lens=torch.tensor(np.asarray(case.lens, np.int32)),
        tables=torch.from_numpy(tables.astype(np.int32)),
        out=base[1 : rows + 1, GUARD : GUARD + case.columns],
        base=base,
        num_blocks=num_blocks,
    )


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return 1 - 2<x,y> / (<x,x> + <y,y>) in float64: the field's measure of how far two tensors differ."""
    x, y = x.double(), y.double()
    norm = (x * x + y * y).sum()
    return float(1 - 2 * (x * y).sum() / norm) if norm > 0 else 0.0


def check(inputs: Inputs) -> float:
    """Assert that ``inputs.base`` holds what the contract says, cell by cell. Return the largest error over its bound.

    The cells written must agree exactly. Values: |error| <= 1e-6 * scale * sum_h |w_h| * sum_d |q*k| per cell, and
    calc_diff < 1e-9, both against the formula in float64.
    """
    case = inputs.case
    arguments, options = inputs.arguments(), dict(preshuffle=case.preshuffle)
    expected = torch.full(inputs.base.shape, SENTINEL, dtype=torch.float64)
    window = expected[1:-1, GUARD : GUARD + case.columns]
    reference.fp8_paged_mqa_logits(
        *arguments, **options, out=window, clean_logits=case.clean_logits, dtype=torch.float64
    )
    written = torch.zeros(window.shape, dtype=torch.bool)
    for row, end in enumerate(end for ends in case.ends() for end in ends):
        written[row, :end] = True

    outside = torch.ones(expected.shape, dtype=torch.bool)
    outside[1:-1, GUARD : GUARD + case.columns] = ~written
    assert torch.equal(inputs.base.double()[outside], expected[outside]), "a cell outside the window was changed"

    got, wanted = inputs.out[written], window[written]
    assert torch.isfinite(got).all(), "a cell of the window is not finite"
    bound = torch.zeros(window.shape, dtype=torch.float64)
    reference.fp8_paged_mqa_logits(
        _magnitude(inputs.q), _magnitude_of_cache(inputs), inputs.weights.abs(), *arguments[3:], **options,
        out=bound, clean_logits=False, dtype=torch.float64,
    )  # fmt: skip
    error = (got.double() - wanted).abs()
    allowed = 1e-6 * bound[written]
    assert (error <= allowed).all(), f"error {error.max():.3g} over the bound {allowed[error.argmax()]:.3g}"
    assert calc_diff(got, wanted) < 1e-9
    return float((error / allowed.clamp_min(1e-300)).max()) if len(error) else 0.0


def _magnitude(fp8: torch.Tensor) -> torch.Tensor:
    return (fp8.view(torch.uint8) & 0x7F).view(torch.float8_e4m3fn)


def _magnitude_of_cache(inputs: Inputs) -> torch.Tensor:
    """Return the cache with its keys' signs cleared. relu of a sum of magnitudes is the sum itself."""
    cache = inputs.cache.clone()
    kv_cache.values_of(cache).bitwise_and_(0x7F)
    return cache
