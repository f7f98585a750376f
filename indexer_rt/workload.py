"""Make decode steps as a server has them: ragged lengths, several rows a sequence, blocks scattered over a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from . import device as devices
from . import environment, kv_cache
from .catalog import Catalog, Entry
from .manifest import HEAD_DIM
from .problem import Problem, Tensors

# e4m3fn and float32 NaN: what lies in cache slots and table columns that the kernel must not read.
_NAN_BYTE = 0xFF
_NO_BLOCK = -1
_SPARE_BLOCKS = 8
_CHUNK_TOKENS = 1 << 18  # keys made at a time, which bounds the memory that making them takes


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
class Workload:
    """Describe one decode step: ``next_n`` rows for each of ``context_lens`` (tokens; 0 is a padded slot)."""

    next_n: int
    block_kv: int
    preshuffle: bool
    context_lens: tuple[int, ...]
    max_model_len: int
    num_heads: int = 32

    @property
    def options(self) -> Options:
        return {"max_model_len": self.max_model_len, "preshuffle": self.preshuffle}

    def make_step(self, generator: torch.Generator) -> Step:
        """Make the op's tensors, on the CPU.

        Every sequence has its own blocks, scattered over a pool with spare ones in it. Every cache slot past a
        sequence's end holds NaN and every table column past its last block -1: a kernel that reads one shows it.
        Keys are normal deviates, rounded to bfloat16 and quantised as a server does it.
        """
        counts = [-(-length // self.block_kv) for length in self.context_lens]
        num_blocks = sum(counts) + _SPARE_BLOCKS
        order = torch.randperm(num_blocks, generator=generator, dtype=torch.int32)
        block_tables = torch.full((len(counts), max(counts, default=0) + 2), _NO_BLOCK, dtype=torch.int32)
        used = torch.zeros(num_blocks, self.block_kv, dtype=torch.bool)
        for row, (count, length) in enumerate(zip(counts, self.context_lens, strict=True)):
            blocks, order = order[:count], order[count:]
            block_tables[row, :count] = blocks
            used[blocks.long()] = (torch.arange(count * self.block_kv) < length).view(count, self.block_kv)

        row_bytes = HEAD_DIM + kv_cache.SCALE_BYTES
        cache = torch.empty(num_blocks, self.block_kv, 1, row_bytes, dtype=torch.uint8)
        chunk = max(1, _CHUNK_TOKENS // self.block_kv)
        for first in range(0, num_blocks, chunk):
            unused = ~used[first : first + chunk]
            keys = torch.randn(*unused.shape, HEAD_DIM, generator=generator).to(torch.bfloat16)
            values, scales = kv_cache.quantize(keys)
            values.view(torch.uint8)[unused] = _NAN_BYTE
            scales[unused] = torch.nan
            if self.preshuffle:
                values = kv_cache.preshuffle_values(values)
            cache[first : first + chunk] = kv_cache.assemble(values, scales)

        batch, rows = len(counts), len(counts) * self.next_n
        q = torch.randn(batch, self.next_n, self.num_heads, HEAD_DIM, generator=generator)
        return Step(
            q_fp8=q.to(torch.float8_e4m3fn),
            kv_cache_fp8=cache,
            weights=torch.randn(rows, self.num_heads, generator=generator) * self.num_heads**-0.5,
            context_lens=torch.tensor(self.context_lens, dtype=torch.int32),
            block_tables=block_tables,
        )


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


def choose_variant(step: Step, options: Options) -> Entry:
    """Return the catalog's entry of the code object that the op chooses for a step, on the device that it lies on."""
    tensors = Tensors(*step, cu_seqlens_q=None, logits=None)
    folder = environment.current().hsaco_dir
    catalog = Catalog.shipped() if folder is None else Catalog.read(folder)
    return catalog.choose(Problem.check(tensors, **options), num_cus=devices.of(step.q_fp8.device).num_cus)
