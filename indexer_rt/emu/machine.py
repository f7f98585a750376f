"""Run a launch: make the waves of whole workgroups, step convoys, meet at barriers, count, fault."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from ..manifest import LDS_BYTES_PER_CU
from .checks import Tracking
from .convoy import Batch, Convoy, mode_problem
from .hazards import Hazards
from .instruction import Instruction
from .memory import Buffer, Memory
from .operands import EXEC
from .program import Program, Step, program_of

if TYPE_CHECKING:
    from ..launch import Launch

# Where the code object, the kernarg segment and the dispatch packet lie in the emulated address space.
IMAGE_ADDRESS, KERNARG_ADDRESS, DISPATCH_ADDRESS = 0x7A00_0000_0000, 0x7B00_0000_0000, 0x7C00_0000_0000

# Hardware that preloads kernel arguments enters the code this far in, past what old firmware runs.
PRELOAD_PROLOGUE_BYTES = 256

# Registers of a batch take about this many bytes at most, and a batch has at most so many waves.
BATCH_BYTES, BATCH_WAVES = 192 << 20, 256
DEFAULT_STEP_LIMIT = 50_000_000


@dataclass
class RunStats:
    """Count what a launch did.

    ``instructions``: wave instructions executed; ``lane_instructions``: 64 times that; ``counts``: wave instructions
    per mnemonic; ``steps``: convoy steps (numpy work items); ``seconds``: host wall clock. It says nothing about
    device time.
    """

    instructions: int = 0
    lane_instructions: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


Observer = Callable[[int, Instruction, np.ndarray], None]


def run(
    launch: Launch,
    buffers: Sequence[Buffer],
    *,
    strict: bool = True,
    step_limit: int | None = None,
    wave_order_seed: int | None = None,
    observer: Observer | None = None,
    preload: bool = True,
) -> RunStats:
    """Execute a launch on the CPU.

    ``buffers``: every tensor the kernel may touch; writable ones are changed in place. ``strict``: also fault on what
    the hardware leaves undefined (unwaited loads, early reads of matrix results, reads of registers and LDS never
    written, LDS shared without a barrier); bounds are checked either way. ``step_limit``: the most instructions one
    wave may execute. ``wave_order_seed``: shuffle the order of the workgroups. ``observer``: called before every
    step with (pc in bytes from the kernel's entry, instruction, wave numbers int64: flat workgroup id * waves + wave).
    ``preload``: False runs a kernel that asks for preloaded arguments as firmware does that cannot preload any (LLVM,
    AMDGPU backend guide, "Preloaded Kernel Arguments"): from the code's start, which loads them.

    Raises EmulatorFault, which names kernel, pc, instruction, workgroup, wave, lane and tensor where they apply;
    ValueError for a launch that no device takes.
    """
    started = time.perf_counter()
    machine = Machine(launch, list(buffers), strict, step_limit, observer, preload)
    order = np.arange(machine.workgroup_count)
    if wave_order_seed is not None:
        order = np.random.default_rng(wave_order_seed).permutation(order)
    for first in range(0, len(order), machine.batch_workgroups):
        machine.run_batch(order[first : first + machine.batch_workgroups])
    return machine.finish(time.perf_counter() - started)


def _padded(kernarg: bytes) -> bytes:
    """Return the kernarg segment as it lies in memory: in whole pieces of 16 bytes, its least alignment (LLVM, AMDGPU
    backend guide). Compilers read past its end within such a piece; what lies there is unknown.
    """
    return kernarg + _UNKNOWN * (-len(kernarg) % 16)


_UNKNOWN = b"\xa5"


class Machine:
    """Hold what all batches of one launch share."""

    def __init__(
        self,
        launch: Launch,
        buffers: list[Buffer],
        strict: bool,
        step_limit: int | None,
        observer: Observer | None,
        preload: bool = True,
    ) -> None:
        kernel = launch.kernel
        self.preloaded_dwords = kernel.descriptor.kernarg_preload_dwords if preload else 0
        self.launch, self.kernel, self.strict, self.observer = launch, kernel, strict, observer
        self.step_limit = DEFAULT_STEP_LIMIT if step_limit is None else step_limit
        block_size = launch.block[0] * launch.block[1] * launch.block[2]
        if min(*launch.block, *launch.grid) < 1 or block_size > kernel.max_workgroup_size:
            raise ValueError(
                f"{kernel.name}: grid {launch.grid} of workgroups {launch.block}: expected at least 1 in each "
                f"dimension and at most {kernel.max_workgroup_size} work-items per workgroup."
            )
        if len(launch.kernarg) != kernel.kernarg_bytes:
            raise ValueError(
                f"{kernel.name}: kernarg has {len(launch.kernarg)} bytes, the kernel takes {kernel.kernarg_bytes}."
            )
        self.block_size = block_size
        self.waves_per_workgroup = -(-block_size // 64)
        self.workgroup_count = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.program: Program = program_of(kernel)
        self.vector_rows = kernel.descriptor.allocated_vgprs
        self.lds_bytes = kernel.lds_bytes + launch.lds_bytes
        if self.lds_bytes > LDS_BYTES_PER_CU:
            raise ValueError(
                f"{kernel.name}: {self.lds_bytes} bytes of LDS per workgroup; a CU has {LDS_BYTES_PER_CU}."
            )
        per_workgroup = self.waves_per_workgroup * self.vector_rows * 256 + self.lds_bytes * (9 if strict else 1)
        self.batch_workgroups = max(1, min(BATCH_WAVES // self.waves_per_workgroup, BATCH_BYTES // per_workgroup))
        self.image_base = IMAGE_ADDRESS
        own = [
            Buffer("the kernarg segment", KERNARG_ADDRESS, _padded(launch.kernarg)),
            Buffer("the dispatch packet", DISPATCH_ADDRESS, self._dispatch_packet()),
        ]
        for segment in kernel.code_object.segments:
            own.append(Buffer("the code object", self.image_base + segment.address, segment.data))
        self.memory = Memory(buffers + own)
        self.entry_address = self.image_base + kernel.entry
        self.stats = RunStats()
        self.executed: Counter[int] = Counter()

    def _dispatch_packet(self) -> bytes:
        """Make the 64-byte kernel dispatch packet of the HSA standard that the dispatch pointer points to."""
        block, grid = self.launch.block, self.launch.grid
        items = (count * size for count, size in zip(grid, block, strict=True))
        dimensions = max(n + 1 for n in range(3) if n == 0 or grid[n] * block[n] > 1)
        return struct.pack(
            "<6H5I3Q8x",
            2,
            dimensions,
            *block,
            0,
            *items,
            self.kernel.private_bytes,
            self.lds_bytes,
            0,
            KERNARG_ADDRESS,
            0,
        )

    def finish(self, seconds: float) -> RunStats:
        """Turn the counts per pc into counts per mnemonic."""
        for pc, count in self.executed.items():
            self.stats.counts[self.program.at(pc).instruction.name] += count
        self.stats.instructions = sum(self.executed.values())
        self.stats.lane_instructions = 64 * self.stats.instructions
        self.stats.seconds = seconds
        return self.stats

    # --- waves ---

    def run_batch(self, workgroups: np.ndarray) -> None:
        """Run these workgroups (flat ids) from entry to end."""
        batch = Batch(self, workgroups)
        waves = np.arange(len(workgroups) * self.waves_per_workgroup)
        defined = self._initialise(batch)
        hazards = Hazards() if self.strict else None
        if self.strict:
            batch.tracking = Tracking(self, batch, defined)
        descriptor = self.kernel.descriptor
        mode = (
            descriptor.float_round_mode_32 | descriptor.float_round_mode_16_64 << 2 | descriptor.float_denorm_mode_32
            << 4 | descriptor.float_denorm_mode_16_64 << 6 | descriptor.dx10_clamp << 8 | descriptor.ieee_mode << 9
        )  # fmt: skip
        problem = mode_problem(mode)
        if problem is not None:
            raise EmulatorFault(f"{self.kernel.name}: its descriptor asks for {problem}, which is not modelled.")
        entry = PRELOAD_PROLOGUE_BYTES if self.preloaded_dwords else 0
        with np.errstate(all="ignore"):
            self._schedule(batch, Convoy(batch, waves, entry, mode, hazards, 0))

    def _initialise(self, batch: Batch) -> list[int]:
        """Set the registers that the ABI defines at entry; return the scalar rows it defined."""
        kernel, launch, descriptor = self.kernel, self.launch, self.kernel.descriptor
        if kernel.private_bytes or descriptor.uses_dynamic_stack:
            stack = " and a dynamic stack" if descriptor.uses_dynamic_stack else ""
            raise EmulatorFault(
                f"{kernel.name}: wants {kernel.private_bytes} bytes of scratch per lane{stack}; "
                "the emulator has no scratch memory. Compile without spills."
            )
        row, defined = 0, []

        def put(*values: Any) -> None:
            nonlocal row
            for value in values:
                batch.S[row] = value
                defined.append(row)
                row += 1

        # Order of the user SGPRs: AMDGPU backend guide, "SGPR Register Set Up Order".
        # What has no meaning here (scratch, queue) keeps its place and stays poisoned.
        row += 4 * descriptor.sgpr_private_segment_buffer
        if descriptor.sgpr_dispatch_ptr:
            put(DISPATCH_ADDRESS & 0xFFFFFFFF, DISPATCH_ADDRESS >> 32)
        row += 2 * descriptor.sgpr_queue_ptr
        if descriptor.sgpr_kernarg_segment_ptr:
            put(KERNARG_ADDRESS & 0xFFFFFFFF, KERNARG_ADDRESS >> 32)
        if descriptor.sgpr_dispatch_id:
            put(0, 0)
        row += 2 * descriptor.sgpr_flat_scratch_init + descriptor.sgpr_private_segment_size
        if self.preloaded_dwords:
            first = descriptor.kernarg_preload_offset_dwords
            words = np.frombuffer(_padded(launch.kernarg), np.uint32)
            put(*words[first : first + self.preloaded_dwords])
        row = max(row, descriptor.user_sgprs)
        group = np.repeat(batch.workgroups, self.waves_per_workgroup)
        grid = launch.grid
        if descriptor.workgroup_id_x:
            put(group % grid[0])
        if descriptor.workgroup_id_y:
            put(group // grid[0] % grid[1])
        if descriptor.workgroup_id_z:
            put(group // (grid[0] * grid[1]))
        if descriptor.workgroup_info:
            put(0)
        local = np.arange(len(group)) % self.waves_per_workgroup
        flat = local[:, None] * 64 + np.arange(64)
        batch.S[EXEC : EXEC + 2] = 0
        words = np.packbits(flat < self.block_size, axis=1, bitorder="little").view(np.uint32)
        batch.S[EXEC], batch.S[EXEC + 1] = words[:, 0], words[:, 1]
        x, y, z = launch.block
        # gfx90a and later pack the work-item ids that the descriptor asks for into v0, ten bits each.
        batch.V[0] = flat % x
        if descriptor.vgpr_workitem_id >= 1:
            batch.V[0] |= (flat // x % y << 10).astype(np.uint32)
        if descriptor.vgpr_workitem_id >= 2:
            batch.V[0] |= (flat // (x * y) % z << 20).astype(np.uint32)
        return defined

    # --- scheduling ---

    def _schedule(self, batch: Batch, first: Convoy) -> None:
        """Step the convoy at the lowest pc until it meets another, splits, waits or ends."""
        ready: list[Convoy] = [first]
        waiting: list[Convoy] = []
        while ready or waiting:
            if not ready:
                ready, waiting = batch.release(waiting)
            ready.sort(key=lambda c: c.pc)
            convoy = ready.pop(0)
            while ready and ready[0].pc == convoy.pc and ready[0].mode == convoy.mode:
                convoy = convoy.merged(ready.pop(0))
            limit = ready[0].pc if ready else 1 << 62
            batch.convoys = [convoy, *ready, *waiting]
            outcome = self._advance(convoy, limit)
            if outcome == "barrier":
                waiting.append(convoy)
            elif outcome == "ended":
                batch.ended[convoy.sel] = True
            elif isinstance(outcome, tuple):
                ready.extend(outcome)
            else:
                ready.append(convoy)

    def _advance(self, m: Convoy, limit: int) -> Any:
        """Step until the pc reaches ``limit``, or something else than the next instruction follows."""
        program, executed, strict, observer = self.program, self.executed, self.strict, self.observer
        tracking = m.batch.tracking
        while m.pc < limit:
            step = program.steps.get(m.pc) or self._step(m)
            instruction = step.instruction
            m.instruction = instruction
            executed[m.pc] += m.n
            m.steps += 1
            self.stats.steps += 1
            if m.steps > self.step_limit:
                raise self.fault(
                    m, f"more than {self.step_limit} instructions in one wave: an endless loop, or raise step_limit"
                )
            if observer is not None:
                observer(m.pc, instruction, self._global_waves(m))
            if strict:
                tracking.check(m, instruction)
            outcome = step.execute(m)
            if strict and step.effect is not None:
                step.effect(m)
            if outcome is None:
                m.pc += instruction.size
            elif isinstance(outcome, int):
                m.pc = outcome
            else:
                return outcome
        return None

    def _step(self, m: Convoy) -> Step:
        try:
            return self.program.at(m.pc)
        except EmulatorFault as fault:
            raise EmulatorFault(f"{fault} Reached by {self._place(int(m.waves[0]), m)}.") from None

    def _place(self, wave: int, m: Convoy) -> str:
        group, local = m.batch.local_wave(wave)
        x, y, z = self.launch.grid
        place = str(group) if y * z == 1 else f"({group % x}, {group // x % y}, {group // (x * y)})"
        return f"workgroup {place} wave {local}"

    def _global_waves(self, m: Convoy) -> np.ndarray:
        group, local = np.divmod(m.waves, self.waves_per_workgroup)
        return m.batch.workgroups[group] * self.waves_per_workgroup + local

    # --- faults ---

    def fault(self, m: Convoy, message: str, wave: int | None = None, lane: int | None = None) -> EmulatorFault:
        """Make a fault that says where. ``wave``: a wave number of the batch (the convoy's first if not given)."""
        name = "" if m.instruction is None else m.instruction.name
        where = self._place(int(m.waves[0]) if wave is None else wave, m)
        lane_text = "" if lane is None else f" lane {lane}"
        return EmulatorFault(f"{name} at {self.kernel.name}+{m.pc:#x}, {where}{lane_text}: {message}.")
