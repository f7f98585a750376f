"""Hold the state of the waves in flight, and the convoys: waves at one program counter that step together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .lds import LdsMemory
from .operands import EXEC, SGPR_ROWS, TTMP0
from .registers import unpack_mask

if TYPE_CHECKING:
    from .machine import Machine

# What a register holds before the first write: a NaN pattern, so that a use shows in the result.
POISON = 0x7FC0DEAD
LDS_POISON = 0xFF


class Batch:
    """Hold registers and LDS of whole workgroups that run at the same time.

    ``V`` [unified rows, waves, 64] and ``S`` [128, waves] are uint32, ``scc`` [waves] bool. Row ``accum_offset + r``
    of V is AGPR r. ``lds`` is uint8 [workgroups, lds_bytes].
    """

    def __init__(self, machine: Machine, workgroups: np.ndarray) -> None:
        """``workgroups``: flat ids, int64 [count]."""
        self.machine = machine
        self.workgroups = workgroups
        self.waves_per_workgroup = machine.waves_per_workgroup
        count = len(workgroups) * self.waves_per_workgroup
        self.V = np.full((machine.vector_rows, count, 64), POISON, np.uint32)
        self.S = np.full((SGPR_ROWS, count), POISON, np.uint32)
        self.S[TTMP0 : TTMP0 + 16] = 0
        self.scc = np.zeros(count, bool)
        self.lds = np.full((len(workgroups), machine.lds_bytes), LDS_POISON, np.uint8)
        self.versions = [0] * machine.vector_rows
        self.decoded: dict[Any, Any] = {}
        self.ended = np.zeros(count, bool)
        self.tracking: Any = None
        self.lds_memory = LdsMemory(self)
        self.convoys: list[Convoy] = []

    def open_loads(self, instruction: Any) -> int:
        """Return the waves (a bit set) that have not yet waited for this vector memory instruction."""
        waves = 0
        for convoy in self.convoys:
            for entry in convoy.hazards.vm:
                for pending in entry:
                    if pending.what is instruction:
                        waves |= pending.waves
        return waves

    def release(self, waiting: list[Convoy]) -> tuple[list[Convoy], list[Convoy]]:
        """Split the convoys at a barrier into those whose whole workgroup is there and the rest."""
        arrived = self.ended.copy()
        for convoy in waiting:
            arrived[convoy.sel] = True
        complete = arrived.reshape(-1, self.waves_per_workgroup).all(axis=1)
        released, kept = [], []
        for convoy in waiting:
            go = complete[convoy.waves // self.waves_per_workgroup]
            if go.all():
                released.append(convoy)
            elif not go.any():
                kept.append(convoy)
            else:
                yes, no = convoy.split(go)
                released.append(yes)
                kept.append(no)
        if self.tracking is not None:
            self.tracking.epoch[complete] += 1
        return released, kept

    def local_wave(self, wave: int) -> tuple[int, int]:
        """Return (flat workgroup id, wave within it) of a wave of this batch."""
        group, local = divmod(int(wave), self.waves_per_workgroup)
        return int(self.workgroups[group]), local


def mode_problem(mode: int) -> str | None:
    """Say what a MODE register asks for that is not modelled, or None."""
    if mode & 0xF:
        return "a rounding mode other than to nearest even"
    if mode >> 4 & 3 not in (0, 3):
        return "float32 subnormals flushed on one side only"
    if mode >> 6 & 3 != 3:
        return "float16 and float64 subnormals flushed"
    return None


def _marked(waves: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros(count, bool)
    out[waves] = True
    return out


class Convoy:
    """Be waves of one batch at one program counter.

    ``waves`` sorted wave numbers, ``members`` the same as a bit set, ``sel`` a slice or index array that selects
    them, ``n`` their number; ``mode`` the MODE register; ``hazards`` what is in flight and ``unwritten`` the
    registers that some wave never wrote (strict mode only); ``pc`` a byte offset from the kernel's entry.
    """

    __slots__ = (
        "S",
        "V",
        "_mask",
        "_mask_known",
        "batch",
        "hazards",
        "instruction",
        "lds_writes",
        "members",
        "mode",
        "n",
        "pc",
        "scc",
        "sel",
        "steps",
        "unwritten",
        "waves",
    )  # fmt: skip

    def __init__(self, batch: Batch, waves: np.ndarray, pc: int, mode: int, hazards: Any, steps: int) -> None:
        self.batch, self.waves, self.pc, self.mode, self.hazards, self.steps = batch, waves, pc, mode, hazards, steps
        self.V, self.S, self.scc = batch.V, batch.S, batch.scc
        self.n = len(waves)
        first, last = int(waves[0]), int(waves[-1])
        self.sel: slice | np.ndarray = slice(first, last + 1) if last - first + 1 == self.n else waves
        self.members = int.from_bytes(np.packbits(_marked(waves, last + 1), bitorder="little").tobytes(), "little")
        self.unwritten = 0 if batch.tracking is None else batch.tracking.unwritten_by(self.sel)
        self.instruction: Any = None
        # What the running instruction wrote to LDS (strict mode): see hazards.Pending.
        self.lds_writes: tuple[Any, ...] = ()
        self._mask: np.ndarray | None = None
        self._mask_known = False

    def exec_changed(self) -> None:
        self._mask_known = False

    @property
    def mask(self) -> np.ndarray | None:
        """Return EXEC as bools [waves, 64], or None when every lane is active."""
        if not self._mask_known:
            low, high = self.S[EXEC, self.sel], self.S[EXEC + 1, self.sel]
            self._mask = None if (low & high == 0xFFFFFFFF).all() else unpack_mask(low, high)
            self._mask_known = True
        return self._mask

    def active(self) -> np.ndarray:
        """Return EXEC as bools [waves, 64]."""
        mask = self.mask
        return np.ones((self.n, 64), bool) if mask is None else mask

    def split(self, chosen: np.ndarray) -> tuple[Convoy, Convoy]:
        """Split by bools [waves] into (chosen, rest), both non-empty."""
        parts = []
        for pick in (chosen, ~chosen):
            waves = self.waves[pick]
            part = Convoy(self.batch, waves, self.pc, self.mode, None, self.steps)
            if self.hazards is not None:
                part.hazards = self.hazards.restricted(part.members)
            parts.append(part)
        return parts[0], parts[1]

    def merged(self, other: Convoy) -> Convoy:
        """Join two convoys that stand at one pc with one mode."""
        waves = np.sort(np.concatenate([self.waves, other.waves]))
        hazards = self.hazards.merged(other.hazards) if self.hazards is not None else None
        return Convoy(self.batch, waves, self.pc, self.mode, hazards, max(self.steps, other.steps))

    # MODE bits: 3:0 rounding, 5:4 denormals of f32, 7:6 of f16 and f64, 8 dx10_clamp, 9 ieee.
    @property
    def flush32(self) -> bool:
        return self.mode & 0x30 != 0x30

    @property
    def ieee(self) -> bool:
        return bool(self.mode & 0x200)

    @property
    def dx10_clamp(self) -> bool:
        return bool(self.mode & 0x100)
