"""Run the shipped code objects on realistic decode steps and compare with the reference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from . import ops
from .comparison import LIMIT, Comparison
from .workload import Step, Workload, choose_variant

MAX_MODEL_LEN = 8200


CASES = (
    Workload(1, 64, True, (8113, 64, 4096, 1, 0), MAX_MODEL_LEN),
    Workload(2, 16, True, (5301, 4000, 130, 17), MAX_MODEL_LEN),
    Workload(3, 64, True, (4096, 3000, 65), MAX_MODEL_LEN),
    Workload(6, 64, True, (6500, 1029), MAX_MODEL_LEN),
    Workload(4, 64, False, (5111, 515), MAX_MODEL_LEN),
    Workload(7, 16, True, (3600, 77), MAX_MODEL_LEN),
    Workload(1, 1, False, (7800, 31, 2048), MAX_MODEL_LEN),
    Workload(3, 1, False, (4129, 1300), MAX_MODEL_LEN),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what one case gave. ``error`` is in the units of ``LIMIT``, ``seconds`` what the op took on ``device``."""

    case: str
    variant: str
    device: str
    error: float
    mask_equal: bool
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.mask_equal and self.error <= LIMIT


def describe(workload: Workload) -> str:
    """Name a workload in the table."""
    layout = "preshuffled" if workload.preshuffle else "plain"
    return f"{len(workload.context_lens)} sequences x {workload.next_n} rows, block {workload.block_kv} {layout}"


def run_case(workload: Workload, device: torch.device, generator: torch.Generator) -> Outcome:
    """Run one case on a device and compare with the reference on the CPU."""
    step, options = workload.make_step(generator), workload.options
    on_device = Step(*(tensor.to(device) for tensor in step))
    if device.type == "cuda":
        ops.fp8_paged_mqa_logits(*on_device, **options)  # loads the module; not timed
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    logits = ops.fp8_paged_mqa_logits(*on_device, **options)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    verdict = Comparison(step, options).of(logits.cpu())
    where = "emulator" if device.type == "cpu" else str(device)
    return Outcome(
        describe(workload), choose_variant(on_device, options).name, where, verdict.error, verdict.mask_equal, seconds
    )


def run(seed: int, device: torch.device) -> Iterator[Outcome]:
    """Run every case in ``CASES``."""
    generator = torch.Generator().manual_seed(seed)
    for workload in CASES:
        yield run_case(workload, device, generator)
