"""Make realistic decode steps, run the shipped code objects on them and compare with the reference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from . import device as devices
from . import environment, kv_cache, ops, reference
from .catalog import Catalog
from .manifest import HEAD_DIM
from .problem import Problem, Tensors

NUM_HEADS = 32
MAX_MODEL_LEN = 8200

# Largest error of a cell that is accepted, in units of scale * sum_h |w_h| * sum_d |q * k|: what fp32 sums keep.
LIMIT = 1e-6

# e4m3fn and float32 NaN: what lies in cache slots and table columns that the kernel must not read.
_NAN_BYTE = 0xFF
_NO_BLOCK = -1


class Step(NamedTuple):
    """Hold the op's tensors, in the order of its parameters."""

    q_fp8: Tensor
    kv_cache_fp8: Tensor
    weights: Tensor
    context_lens: Tensor
    block_tables: Tensor


class Options(TypedDict):
    """Hold the op's arguments that are no tensors."""

    max_model_len: int
    preshuffle: bool


@dataclass(frozen=True, slots=True)
class Case:
    """Describe one decode step: ``next_n`` rows for each of ``context_lens`` (tokens; 0 is a padded slot)."""

    next_n: int
    block_kv: int
    preshuffle: bool
    context_lens: tuple[int, ...]

    @property
    def name(self) -> str:
        layout = "preshuffled" if self.preshuffle else "plain"
        return f"{len(self.context_lens)} sequences x {self.next_n} rows, block {self.block_kv} {layout}"


CASES = (
    Case(1, 64, True, (8113, 64, 4096, 1, 0)),
    Case(2, 16, True, (5301, 4000, 130, 17)),
    Case(3, 64, True, (4096, 3000, 65)),
    Case(6, 64, True, (6500, 1029)),
    Case(4, 64, False, (5111, 515)),
    Case(7, 16, True, (3600, 77)),
    Case(1, 1, False, (7800, 31, 2048)),
    Case(3, 1, False, (4129, 1300)),
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


def find_device() -> tuple[torch.device, str]:
    """Return the best device there is, and in words which one it is and, if it is the emulator, why."""
    reasons = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.device("cuda", index)
        reason = devices.why_not(gpu)
        if reason is None:
            return gpu, f"HIP device {index}, {torch.cuda.get_device_name(gpu)}"
        reasons.append(reason)
    return torch.device("cpu"), f"the emulator, on the CPU ({' '.join(reasons) or 'torch sees no GPU'})"


def name_variant(step: Step, options: Options) -> str:
    """Return the name of the code object that the op chooses for a step."""
    tensors = Tensors(*step, cu_seqlens_q=None, logits=None)
    folder = environment.current().hsaco_dir
    catalog = Catalog.shipped() if folder is None else Catalog.read(folder)
    return catalog.choose(Problem.check(tensors, **options)).name


def make_step(case: Case, generator: torch.Generator) -> Step:
    """Make the op's tensors, on the CPU.

    Blocks are scattered over a pool with spare ones in it. Every cache slot past a sequence's end holds NaN and every
    table column past its last block -1: a kernel that reads one shows it.
    """
    counts = [-(-length // case.block_kv) for length in case.context_lens]
    num_blocks = sum(counts) + 8
    order = torch.randperm(num_blocks, generator=generator, dtype=torch.int32)
    block_tables = torch.full((len(counts), max(counts) + 2), _NO_BLOCK, dtype=torch.int32)
    used = torch.zeros(num_blocks, case.block_kv, dtype=torch.bool)
    for row, (count, length) in enumerate(zip(counts, case.context_lens, strict=True)):
        blocks, order = order[:count], order[count:]
        block_tables[row, :count] = blocks
        used[blocks.long()] = (torch.arange(count * case.block_kv) < length).view(count, case.block_kv)

    keys = torch.randn(num_blocks, case.block_kv, HEAD_DIM, generator=generator).to(torch.bfloat16)
    values, scales = kv_cache.quantize(keys)
    values.view(torch.uint8)[~used] = _NAN_BYTE
    scales[~used] = torch.nan
    if case.preshuffle:
        values = kv_cache.preshuffle_values(values)

    batch, rows = len(counts), len(counts) * case.next_n
    q = torch.randn(batch, case.next_n, NUM_HEADS, HEAD_DIM, generator=generator)
    return Step(
        q_fp8=q.to(torch.float8_e4m3fn),
        kv_cache_fp8=kv_cache.assemble(values, scales),
        weights=torch.randn(rows, NUM_HEADS, generator=generator) * NUM_HEADS**-0.5,
        context_lens=torch.tensor(case.context_lens, dtype=torch.int32),
        block_tables=block_tables,
    )


def run_case(case: Case, device: torch.device, generator: torch.Generator) -> Outcome:
    """Run one case on a device and compare with the reference on the CPU."""
    step = make_step(case, generator)
    on_device = Step(*(tensor.to(device) for tensor in step))
    options: Options = {"max_model_len": MAX_MODEL_LEN, "preshuffle": case.preshuffle}
    if device.type == "cuda":
        ops.fp8_paged_mqa_logits(*on_device, **options)  # loads the module; not timed
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    logits = ops.fp8_paged_mqa_logits(*on_device, **options)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    error, mask_equal = compare(logits.cpu(), step, options)
    where = "emulator" if device.type == "cpu" else str(device)
    return Outcome(case.name, name_variant(step, options), where, error, mask_equal, seconds)


def compare(logits: Tensor, step: Step, options: Options) -> tuple[float, bool]:
    """Return the largest error, in the units of ``LIMIT``, and whether -inf stands exactly where it should.

    ``logits``: float32 [rows, MAX_MODEL_LEN] on the CPU. A NaN among them is an infinite error.
    """
    expected = reference.fp8_paged_mqa_logits(*step, **options, dtype=torch.float64)
    # With every operand's sign cleared, relu changes nothing and the logit is scale * sum_h |w_h| * sum_d |q * k|.
    sizes = step._replace(
        q_fp8=(step.q_fp8.view(torch.uint8) & 0x7F).view(torch.float8_e4m3fn),
        kv_cache_fp8=_without_value_signs(step.kv_cache_fp8),
        weights=step.weights.abs(),
    )
    unit = reference.fp8_paged_mqa_logits(*sizes, **options, dtype=torch.float64)
    written = ~expected.isneginf()
    error = ((logits.double() - expected).abs() / unit)[written]
    largest = float(error.nan_to_num(nan=torch.inf).max())
    return largest, torch.equal(logits.isneginf(), expected.isneginf())


def _without_value_signs(cache: Tensor) -> Tensor:
    cache = cache.clone()
    kv_cache.values_of(cache).bitwise_and_(0x7F)
    return cache


def run(seed: int, device: torch.device) -> Iterator[Outcome]:
    """Run every case in ``CASES``."""
    generator = torch.Generator().manual_seed(seed)
    for case in CASES:
        yield run_case(case, device, generator)
