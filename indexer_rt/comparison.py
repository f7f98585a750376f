"""Compare logits with the reference in float64, one sequence at a time, so that memory stays small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import kv_cache, reference
from .workload import Options, Step

LIMIT = 1e-6
"""Largest error of a cell that is accepted, in units of scale * sum_h |w_h| * sum_d |q * k|: what float32 sums keep."""

MAX_CALC_DIFF = 1e-9


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how logits compare: where -inf stands, largest error in the units of ``LIMIT``, calc_diff, cells compared."""

    mask_equal: bool
    error: float
    calc_diff: float
    cells: int

    @property
    def agrees(self) -> bool:
        return self.mask_equal and self.error <= LIMIT and self.calc_diff < MAX_CALC_DIFF


class Comparison:
    """Hold a step and what its logits should be compared with. Native rows, clean logits, CPU tensors."""

    def __init__(self, step: Step, options: Options) -> None:
        # With every operand's sign cleared, relu changes nothing and the logit is scale * sum_h |w_h| * sum_d |q * k|.
        cache = step.kv_cache_fp8.clone()
        kv_cache.values_of(cache).bitwise_and_(0x7F)
        self._step, self._options = step, options
        self._sizes = step._replace(
            q_fp8=(step.q_fp8.view(torch.uint8) & 0x7F).view(torch.float8_e4m3fn),
            kv_cache_fp8=cache,
            weights=step.weights.abs(),
        )

    def of(self, logits: Tensor) -> Verdict:
        """Compare float32 [rows, max_model_len] logits, every cell of them. A NaN among them is an infinite error.

        calc_diff is the field's 1 - 2<x, y> / (<x, x> + <y, y>), over the cells of the windows.
        """
        batch, next_n = self._step.q_fp8.shape[:2]
        mask_equal, error, cells, product, squares = True, 0.0, 0, 0.0, 0.0
        for sequence in range(batch):
            rows = slice(sequence * next_n, (sequence + 1) * next_n)
            expected, unit = (
                reference.fp8_paged_mqa_logits(*_only(step, sequence, rows), **self._options, dtype=torch.float64)
                for step in (self._step, self._sizes)
            )
            got, window = logits[rows], ~expected.isneginf()
            mask_equal &= torch.equal(got.isneginf(), ~window)
            x, y = got.double()[window], expected[window]
            cells += x.numel()
            if x.numel():
                # A unit of 0 (a key of zeros, say) wants the exact value.
                ratio = (x - y).abs() / unit[window]
                ratio[x == y] = 0
                error = max(error, float(ratio.nan_to_num(nan=torch.inf).max()))
                product += float(x @ y)
                squares += float(x @ x + y @ y)
        return Verdict(mask_equal, error, 1 - 2 * product / squares if squares else 0.0, cells)


def _only(step: Step, sequence: int, rows: slice) -> Step:
    """Return one sequence of a step, over the whole cache."""
    one = slice(sequence, sequence + 1)
    return Step(step.q_fp8[one], step.kv_cache_fp8, step.weights[rows], step.context_lens[one], step.block_tables[one])
