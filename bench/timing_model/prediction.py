"""Predict how long a launch takes on an MI355X: trace it, place its workgroups, simulate the CU with most to do."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from indexer_rt.emu import Buffer
from indexer_rt.flow import kind_of
from indexer_rt.launch import Launch
from indexer_rt.manifest import LDS_BYTES_PER_CU, REGISTERS_PER_SIMD

from .caches import Levels, levels_of
from .compute_unit import ComputeUnit, WaveWork
from .constants import Constants
from .trace import SECTOR_BYTES, Trace, Tracer

MODULUS = 31
INSTRUCTION_LIMIT = 200_000
BUSY = 0.8


@dataclass(frozen=True)
class Prediction:
    """Hold a modelled time and why.

    ``binding``: the resource that is busy, or the latency that is waited for. ``busy``: share of the time, per resource
    (of the busiest SIMD where there are four); for "dispatch", until the last workgroup may start. ``waiting``: share
    of the waves' time. ``footprint``: bytes touched; ``warm``: share of them in the Infinity Cache before.
    ``imbalance``: work of the busiest compute unit over the mean.
    """

    time_us: float
    binding: str
    busy: dict[str, float]
    waiting: float
    footprint: int
    warm: float
    imbalance: float
    waves_per_simd: float


@dataclass
class Study:
    """Hold what does not depend on the constants that are fitted: traces, placement, cache levels.

    ``trace``: of the chosen CU's ``workgroups``, with every access; ``whole``: of all waves, with samples of accesses.
    ``cu_bytes``: what each CU fetches in all, in whole sectors; ``misses``: the share of it that L2 does not serve.
    """

    launch: Launch
    workgroups: list[int]
    starts: list[int]
    trace: Trace
    whole: Trace
    levels: Levels
    misses: float
    cu_bytes: np.ndarray
    resident: int
    waves_per_workgroup: int
    imbalance: float
    workgroups_total: int

    def cold(self, constants: Constants) -> Study:
        """Return the same launch with its bytes in no cache."""
        levels, misses = _served(self.whole, self.resident, self.waves_per_workgroup, constants, False)
        return replace(self, levels=levels, misses=misses)


def _served(
    whole: Trace, resident: int, waves_per_workgroup: int, constants: Constants, warm: bool
) -> tuple[Levels, float]:
    """Return from where each access is served, and the share of them that L2 does not serve."""
    assert whole.samples is not None
    levels = levels_of(whole.samples, constants, waves_per_workgroup, resident * constants.num_cus, warm)
    pcs, counts = np.unique(whole.samples.pc, return_counts=True)
    missed = sum(n * (1 - levels.of(int(pc))[1][0]) for pc, n in zip(pcs, counts, strict=True))
    return levels, float(missed / max(1, counts.sum()))


def resident_workgroups(launch: Launch, constants: Constants) -> int:
    """Return how many workgroups one CU holds: bounded by registers, wave slots and LDS."""
    kernel = launch.kernel
    waves = -(-launch.block[0] * launch.block[1] * launch.block[2] // 64)
    per_simd = min(constants.wave_slots, REGISTERS_PER_SIMD // kernel.descriptor.allocated_vgprs)
    count = max(1, per_simd * constants.simds // waves)
    lds = kernel.lds_bytes + launch.lds_bytes
    return min(count, LDS_BYTES_PER_CU // lds) if lds else count


def place(costs: Sequence[float], resident: int, constants: Constants) -> list[list[int]]:
    """Place workgroups on CUs: XCDs in turn, within one the CU that is free first, the emptiest among equals.

    ``costs``: estimated length of each. Returns the workgroups of each CU in order.
    """
    per_xcd = constants.num_cus // constants.num_xcds
    placed: list[list[int]] = [[] for _ in range(constants.num_cus)]
    for xcd in range(constants.num_xcds):
        # Slots ordered by (free at, workgroups there, CU).
        slots = [(0.0, turn, cu) for turn in range(resident) for cu in range(per_xcd)]
        heapq.heapify(slots)
        for group in range(xcd, len(costs), constants.num_xcds):
            free, turn, cu = heapq.heappop(slots)
            placed[xcd * per_xcd + cu].append(group)
            heapq.heappush(slots, (free + costs[group], turn, cu))
    return placed


def bandwidth_share(cu_bytes: np.ndarray) -> Callable[[float], float]:
    """Return the share of device bandwidth of a CU that has fetched so many bytes, when CUs share it fairly.

    ``cu_bytes``: what each CU fetches in all. CUs with less are done by then and leave their share to the others.
    """
    ordered = np.sort(cu_bytes)

    def share(fetched: float) -> float:
        return 1.0 / max(1, len(ordered) - int(np.searchsorted(ordered, fetched, side="right")))

    return share


def study(launch: Launch, buffers: Sequence[Buffer], *, warm: bool = True, constants: Constants | None = None) -> Study:
    """Trace a launch. ``warm``: it is repeated on the same buffers, else their bytes are in no cache."""
    constants = constants or Constants()
    tracer = Tracer(launch, buffers)
    total = tracer.workgroup_count
    per_group = tracer.waves_per_workgroup
    trace = tracer.follow(range(total), modulus=MODULUS)
    length = {pc: len(s.instructions) for pc, s in trace.stretches.items()}
    moved = {
        pc: sum(64 * i.traits["size"] for i in s.instructions if kind_of(i) in ("load", "load_lds", "store"))
        for pc, s in trace.stretches.items()
    }
    work = np.zeros((2, total * per_group))
    for wave, path in trace.paths.items():
        pcs, counts = np.unique(path, return_counts=True)
        work[0, wave] = sum(length[int(pc)] * int(n) for pc, n in zip(pcs, counts, strict=True))
        work[1, wave] = sum(moved[int(pc)] * int(n) for pc, n in zip(pcs, counts, strict=True))
    per_wave = work.reshape(2, total, per_group)
    resident = resident_workgroups(launch, constants)
    placed = place(per_wave[0].max(axis=1).tolist(), resident, constants)
    sums = np.array([[per_wave[k, groups].sum() for groups in placed] for k in (0, 1)])
    longest = np.array([per_wave[0, groups].max(initial=0.0) for groups in placed])
    # The CU that ends last: most work on its busiest slot, then most work in all.
    busiest = int(np.lexsort((sums[0], longest * np.maximum(1, [len(g) / resident for g in placed])))[-1])
    chosen = placed[busiest]
    detail = tracer.follow(chosen, accesses=True)
    detail.stretches = trace.stretches | detail.stretches
    # What a CU fetches is whole sectors: more than what is asked for where records are scattered.
    asked = float(per_wave[1, chosen].sum())
    fetched = sum(len(access.sectors) for wave in detail.accesses.values() for access in wave) * SECTOR_BYTES
    return Study(
        launch, chosen, [group // constants.num_xcds * per_group for group in chosen], detail, trace,
        *_served(trace, resident, per_group, constants, warm), sums[1][sums[1] > 0] * (fetched / max(1.0, asked)),
        resident, per_group, float(sums[0].max() / sums[0].mean()), total,
    )  # fmt: skip


def evaluate(studied: Study, constants: Constants, limit: int = INSTRUCTION_LIMIT) -> Prediction:
    """Simulate the chosen CU of a traced launch."""
    trace, per_group = studied.trace, studied.waves_per_workgroup
    share = bandwidth_share(studied.cu_bytes * studied.misses)
    unit = ComputeUnit(constants, trace.stretches, studied.levels, share)
    preload = constants.preload if studied.launch.kernel.descriptor.kernarg_preload_dwords else 0
    groups = []
    for group, turn in zip(studied.workgroups, studied.starts, strict=True):
        members = range(group * per_group, (group + 1) * per_group)
        works = [WaveWork(trace.paths[w], trace.accesses.get(w, [])) for w in members]
        groups.append((float(turn * constants.dispatch + preload), works))
    outcome = unit.run(groups, studied.resident, limit)
    time_us = constants.launch_us + outcome.clocks / constants.clock_ghz / 1000
    last_start = max((start for start, _ in groups), default=0.0)
    busy = outcome.busy | {"dispatch": last_start / max(1.0, outcome.clocks)}
    name, use = max(busy.items(), key=lambda item: item[1])
    if use >= BUSY:
        binding = f"{name} {use:.0%} busy"
    elif outcome.clocks / constants.clock_ghz / 1000 < constants.launch_us:
        binding = "launch"
    else:
        binding = f"latency: waves wait {outcome.waiting:.0%} ({name} {use:.0%})"
    waves = min(len(studied.workgroups), studied.resident) * per_group / constants.simds
    return Prediction(
        time_us, binding, busy, outcome.waiting, studied.levels.footprint, studied.levels.warm,
        studied.imbalance, waves,
    )  # fmt: skip


def predict(
    launch: Launch, buffers: Sequence[Buffer], *, warm: bool = True, constants: Constants | None = None
) -> Prediction:
    """Predict the time of any launch that the emulator can run.

    ``buffers``: as for emu.run; data that decides neither control flow nor addresses may be anything. ``warm``: see
    ``study``.
    """
    constants = constants or Constants()
    return evaluate(study(launch, buffers, warm=warm, constants=constants), constants)
