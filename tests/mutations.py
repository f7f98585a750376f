"""Break the kernel source on purpose, one line at a time, and say what notices.

A mutation replaces one piece of text in kernels/; the mutant is built by build.sh with the pip toolchain and run
through the operator. It is caught when a cell differs from the formula beyond the bound, when one is written or left
that should not be, or when the emulator faults.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cases import Case, Inputs, check, make
from emulation import emulation
from test_reads import allowed_bytes

import indexer_rt
from indexer_rt import emu, launch
from indexer_rt.code_object import Kernel
from indexer_rt.errors import EmulatorFault

ROOT = Path(__file__).parents[1]
KERNEL, STREAM, PROBLEM, WORK, ISA = (
    "fp8_paged_mqa_logits.hip",
    "kv_stream.h",
    "problem.h",
    "worklist.h",
    "gfx950.h",
)


@dataclass(frozen=True)
class Mutation:
    """Replace ``old``, which occurs once in ``file``, by ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation("weights of the wrong heads", KERNEL, "w_lane = lane / kTile * 16;", "w_lane = lane % 4 * 16;"),
    Mutation("one head tile left out", KERNEL, "i < kTilesScored; ++i)\n#pragma", "i < 1; ++i)\n#pragma"),
    Mutation(
        "halves of K swapped",
        STREAM,
        "return {values, values + 4 * chunk_stride,",
        "return {values + 4 * chunk_stride, values,",
    ),
    Mutation("causal bound off by one", PROBLEM, "length - num_rows + n + 1)", "length - num_rows + n)"),
    Mutation("end of another row", KERNEL, "own_end<Uniform>(lengths, rows.row(r))",
             "own_end<Uniform>(lengths, rows.row(0))"),
    Mutation("ends of rows taken as lengths", PROBLEM, "return lengths.clip(Access::read(row_0",
             "return lengths.clip(n + 1 - num_rows + Access::read(row_0"),
    Mutation("negative ends of rows kept", PROBLEM, "return lengths.clip(Access::read(row_0",
             "return min(lengths.reach, Access::read(row_0"),
    Mutation("longest of the first four rows", PROBLEM, "n < s.num_rows; n += 4)", "n < min(s.num_rows, 4); n += 4)"),
    Mutation("rest of a range in the sequence before", WORK, "      b += !is_found;\n", ""),
    Mutation("last tile's scales of the third", STREAM, "replace_row<3>", "replace_row<2>"),
    Mutation("scale of the page's first tile", STREAM, "value_bytes + first * 4)", "value_bytes)"),
    Mutation("stale page", STREAM, "load_tile(stage, tile, next, lane)",
             "load_tile(stage, tile, opened, lane)"),
    Mutation("row's end not clipped to its own", KERNEL, "rows.ends[r] * 4)", "(rows.ends[r] ? rows.longest * 4 : 0))"),
    Mutation("lane swap dropped", KERNEL, "  swap_rows(even, odd);\n", ""),
    Mutation("absent rows of a group stored", KERNEL, "if (r >= rows.count) rows.ends[r] = 0;", ""),
    Mutation("page offset in 32 bits", STREAM, "cache + static_cast<u32>(tiles.ids[tile]) * block_stride",
             "cache + static_cast<u32>(static_cast<u32>(tiles.ids[tile]) * block_stride)"),
    Mutation("tail tokens read past the end", STREAM, "min(static_cast<u32>(lane_id() % kTile), left)",
             "lane_id() % kTile"),
    Mutation("next page looked up past the last", STREAM, "page : min(page, last_page)) * 4", "page : page) * 4"),
    Mutation("gathered blocks looked up past the last", STREAM, "min(page, last_page - (kStep >> shift) + 1)", "page"),
    Mutation("relu left out", KERNEL, "__builtin_fmaxf(scores.tiles[i][v], 0.0f)", "scores.tiles[i][v]"),
    Mutation("scale left out", KERNEL, "reduce(partial) * scale", "reduce(partial)"),
    Mutation("ranges of waves overlap", WORK, "wave * share + min(wave, extra)", "wave * share"),
    Mutation("last step of a range left out", KERNEL, "end = min(end, ceil_div(tokens, kStep));",
             "end = min(end, tokens / kStep);"),
    Mutation("clean cells start one late", KERNEL, "if (cell >= end)", "if (cell > end)"),
    Mutation("rows of packed sequences mixed up", PROBLEM, "s.index = s.first_row = Access", "s.first_row = Access"),
    Mutation("first tiles past the end looked up", STREAM, "if (kExtent == kMayEnd) token = min(token, last_tile());",
             ""),
    Mutation("gathered tokens past the end looked up", STREAM, "return min(token, last_token); }", "return token; }"),
    Mutation("share of a wave not corrected", PROBLEM, "return share + (total - share * num_waves >= num_waves);",
             "return share;"),
    Mutation("sequence of the wrong lane", WORK, "list.sequence = lanes.of_lane(lane);",
             "list.sequence = lanes.of_lane(lane ^ 1);"),
    Mutation("group taken for the first", KERNEL, "list.skip < steps ? 0 :", "true ? 0 :"),
    Mutation("scales of the wrong tile", STREAM, "replace_row<2>(replace_row<1>", "replace_row<1>(replace_row<2>"),
    Mutation("arguments preloaded in another order", KERNEL, "i32 num_waves, u32 waves_inverse,\n",
             "u32 waves_inverse, i32 num_waves,\n"),
    Mutation("a scan step lost", ISA, "  value = add_dpp<kRowBcast15, 0xa>(value);\n", ""),
)  # fmt: skip

# Instructions that one wave may execute in a trial, for a mutant may run for ever. A right one needs under 10 thousand.
STEPS = 200_000

LAYOUTS = (
    dict(block_kv=64, preshuffle=True),
    dict(block_kv=16, preshuffle=False),
    dict(block_kv=1, preshuffle=False),
    dict(block_kv=4, preshuffle=False),
)


@dataclass
class Trial:
    """One problem, shared out over ``num_waves`` waves, with memory only where the contract allows reads if asked.
    ``waves_inverse``: multiplied by instead of what belongs to ``num_waves``.
    """

    name: str
    inputs: Inputs
    num_waves: int | None = None
    only_allowed: bool = False
    cu_seqlens_q: torch.Tensor | None = None
    waves_inverse: int | None = None

    def run(self, **options: Any) -> None:
        """Run the operator with the code objects in use and check every cell. ``options`` go to ``emu.run``."""
        inputs, case = self.inputs, self.inputs.case
        packed = {"cu_seqlens_q": self.cu_seqlens_q, "max_next_n": case.next_n} if self.cu_seqlens_q is not None else {}
        q, *rest = inputs.arguments()
        inverse = launch.waves_inverse if self.waves_inverse is None else lambda _: self.waves_inverse
        with (
            mock.patch.object(launch, "waves_inverse", inverse),
            emulation(
                num_waves=self.num_waves, allowed=allowed_bytes(inputs) if self.only_allowed else None, **options
            ),
        ):
            indexer_rt.fp8_paged_mqa_logits(
                q.flatten(0, 1) if packed else q, *rest, preshuffle=case.preshuffle, out=inputs.out,
                clean_logits=case.clean_logits, rows_per_wave=case.rows_per_wave, **packed,
            )  # fmt: skip
        check(inputs)


def trials() -> Iterator[Trial]:
    """Yield the trials, cheap and telling ones first. Two rows per wave throughout."""
    for layout in LAYOUTS:
        name, rows = "kv{block_kv}".format(**layout), dict(rows_per_wave=2, **layout)
        yield Trial(f"{name} ragged", make(Case((137, 0, 64, 300, 1), next_n=3, **rows)))
        yield Trial(f"{name} one wave", make(Case((200, 0, 64, 333), next_n=3, **rows)), num_waves=1)
        # 22 steps over 3 waves are 7 and 1 left. The quotient is first estimated as 6: a large one may be 1 too small.
        low = Trial(f"{name} low estimate", make(Case((200, 0, 64, 333), next_n=3, **rows)), num_waves=3)
        yield replace(low, waves_inverse=int(6.5 / 22 * 2**32))
        yield Trial(f"{name} clean", make(Case((13, 0, 300), next_n=2, clean_logits=True, max_model_len=331, **rows)))
        yield Trial(f"{name} per row", make(Case([[70, 3], [0, 131]], next_n=2, **rows)))
        ends = [[70, 3, 0, -5, 20, 140], [0, 131, -9, 5, 64, 1]]
        yield Trial(f"{name} per row, some negative", make(Case(ends, next_n=6, **rows)))
        yield Trial(f"{name} reads", make(Case((130, 65, 200), next_n=2, **rows)), num_waves=2, only_allowed=True)
        yield Trial(f"{name} many", make(Case((3, 70) * 20, next_n=2, **rows)))
        rising = torch.tensor([0, 2, 4, 6], dtype=torch.int32)
        yield Trial(f"{name} packed", make(Case((90, 40, 66), next_n=2, **rows)), cu_seqlens_q=rising)
    yield Trial("blocks past 4 GiB", place_far(make(Case((64, 64)))))
    yield Trial("blocks past 4 GiB, one wave", place_far(make(Case((256,)))), num_waves=1)


def place_far(inputs: Inputs) -> Inputs:
    """Move a case's cache blocks 1.5 GiB apart, in memory that is reserved and, between the blocks, never touched."""
    stride = 3 << 29
    blocks, rest = inputs.cache.shape[0], inputs.cache.shape[1:]
    size = (blocks - 1) * stride + inputs.cache[0].numel()
    pool = torch.empty(size, dtype=torch.uint8)
    far = pool.as_strided(inputs.cache.shape, (stride, *inputs.cache[0].stride()))
    far.copy_(inputs.cache.view(blocks, *rest))
    inputs.cache = far
    return inputs


def build(mutation: Mutation, work: Path) -> Path:
    """Build the mutant's two-row and one-row variants. Returns their folder."""
    kernels, out = work / "kernels", work / "hsaco"
    shutil.copytree(ROOT / "kernels", kernels)
    source = kernels / mutation.file
    text = source.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.name}: {mutation.file} has {text.count(mutation.old)} of {mutation.old!r}, wanted 1"
        )
    source.write_text(text.replace(mutation.old, mutation.new))
    only = [
        f"--only=fp8_paged_mqa_logits_h32_{variant}" for variant in ("r1_page", "r2_page", "r1_gather", "r2_gather")
    ]
    arguments = [part for option in only for part in option.split("=")]
    environment = {name: value for name, value in os.environ.items() if name != "HIPCC"} | {"PYTHON": sys.executable}
    subprocess.run(
        [ROOT / "build.sh", "--kernels", kernels, "--out", out, *arguments],
        check=True,
        capture_output=True,
        env=environment,
    )
    return out


def catch(code_objects: Path | None) -> str | None:
    """Run the trials with the code objects of a folder. Return what noticed a mistake first, or None."""
    indexer_rt.use_code_objects(code_objects)
    try:
        for trial in trials():
            try:
                trial.run(step_limit=STEPS)
            except (AssertionError, EmulatorFault) as error:
                return f"{trial.name}: {type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        indexer_rt.use_code_objects(None)
    return None


def longer_waits(kernel: Kernel) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in the code, code object): with the vmcnt of one s_waitcnt raised by one, for each that has one."""
    data, start = kernel.code_object.data, kernel.code_object.data.index(kernel.code)
    for offset, instruction in emu.disassemble(kernel.code):
        if instruction.name != "s_waitcnt" or "vmcnt" not in str(instruction):
            continue
        word = int.from_bytes(kernel.code[offset : offset + 4], "little")
        vmcnt = ((word & 0xF) | (word >> 14 & 3) << 4) + 1  # simm16: vmcnt is bits 3..0 and 15..14
        patched = bytearray(data)
        patched[start + offset : start + offset + 4] = (word & ~0xC00F | vmcnt & 0xF | vmcnt >> 4 << 14).to_bytes(
            4, "little"
        )
        yield offset, bytes(patched)
