"""Simulate the waves of one compute unit, instruction by instruction.

Each wave issues in order, one instruction every 4 clocks. Per SIMD: a vector port, a scalar port and a matrix unit. Per
CU: the vector memory port with the address unit behind it, the LDS port, the L1, and the CU's share of L2, Infinity
Cache and HBM bandwidth. vmcnt is one in-order queue of loads and stores; lgkmcnt counts LDS and scalar loads.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from indexer_rt.emu import Instruction
from indexer_rt.flow import kind_of, wait_counts

from .caches import Levels
from .constants import Constants
from .trace import SECTOR_BYTES, Access, Stretch

SECTORS_PER_PAGE = (2 << 20) // SECTOR_BYTES
SALU, VALU, PACKED, MFMA, NOP, WAIT, LOAD, STORE, SCALAR_LOAD, LDS, BRANCH, BARRIER, END, HINT = range(14)
_QUARTER = ("v_mad_u64_u32", "v_mad_i64_i32", "v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_rcp", "v_rsq",
            "v_sqrt", "v_exp", "v_log", "v_sin", "v_cos")  # fmt: skip


def compile_instruction(instruction: Instruction, constants: Constants) -> tuple[int, int, int]:
    """Return (what, cost, detail): the port's clocks, or counts of a wait, or passes of an MFMA."""
    kind, name = kind_of(instruction), instruction.name
    if kind == "mfma":
        shape = instruction.traits["mfma"]
        passes = shape.passes
        if shape.is_f8f6f4 and min(instruction.fields["cbsz"], instruction.fields["blgp"]) > 1:
            passes //= 2
        return MFMA, constants.mfma_port, passes * constants.matrix_pass
    if kind == "packed":
        return PACKED, constants.valu, 0
    if kind == "valu":
        cost = constants.swap if name.startswith("v_permlane") else constants.valu
        if name.startswith(_QUARTER):
            cost = constants.quarter
        return VALU, cost, 0
    if kind == "nop":
        return NOP, constants.issue * (instruction.fields["simm16"] + 1), 0
    if kind == "wait":
        vmcnt, lgkmcnt = wait_counts(instruction)
        return WAIT, vmcnt, lgkmcnt
    if kind in ("load", "load_lds", "atomic"):
        return LOAD, 0, instruction.offset
    if kind == "store":
        return STORE, 0, instruction.offset
    if kind == "scalar_load":
        return SCALAR_LOAD, 0, instruction.offset
    if kind == "lds":
        size = instruction.traits.get("size", 4) * (2 if instruction.traits.get("two") else 1)
        return LDS, max(constants.issue, 64 * size // 128), 0
    codes = {"branch": BRANCH, "barrier": BARRIER, "end": END, "salu": SALU}
    return codes.get(kind, HINT), constants.issue, 0


@dataclass
class WaveWork:
    """Be one wave's path and its memory instructions, in order."""

    path: Sequence[int]
    accesses: Sequence[Access]


@dataclass
class Outcome:
    """Hold how long the CU took, and what was busy. ``busy``: clocks per resource (of the busiest SIMD where there are
    four); ``waiting``: share of the waves' time spent in waits for memory.
    """

    clocks: float
    busy: dict[str, float]
    waiting: float
    instructions: int


@dataclass
class _Wave:
    simd: int
    group: int
    start: float
    work: WaveWork
    stretch: int = 0
    at: int = 0
    memory: int = 0
    issued: int = 0
    total: int = 0
    vm: deque[float] = field(default_factory=deque)
    lgkm: list[float] = field(default_factory=list)
    last_vm: float = 0.0
    mark: tuple[float, int] = (0.0, 0)
    ended: float | None = None


class ComputeUnit:
    """Run workgroups on one CU."""

    def __init__(
        self,
        constants: Constants,
        stretches: dict[int, Stretch],
        levels: Levels,
        share: Callable[[float], float],
    ) -> None:
        """``share``: of device bandwidth this CU gets once it has fetched so many bytes."""
        self.constants, self.levels, self.share = constants, levels, share
        self.code = {
            pc: [compile_instruction(i, constants) for i in stretch.instructions] for pc, stretch in stretches.items()
        }
        self.ends = {pc: stretch.end for pc, stretch in stretches.items()}
        self.carry: dict[int, list[float]] = {}
        self.l1: OrderedDict[int, float] = OrderedDict()
        self.scalar: OrderedDict[int, float] = OrderedDict()
        self.pages: OrderedDict[int, None] = OrderedDict()
        self.l1_room = constants.l1_bytes // SECTOR_BYTES
        self.scalar_room = constants.scalar_cache_bytes // SECTOR_BYTES
        self.address_free = self.l2_free = self.infinity_free = self.hbm_free = 0.0
        self.fetched = 0.0
        self.busy = dict.fromkeys(("address unit", "L2", "Infinity Cache", "HBM"), 0.0)
        per_clock = 1e12 / (constants.clock_ghz * 1e9)
        self.infinity_rate = constants.infinity_tbps * per_clock
        self.hbm_rate = constants.hbm_tbps * per_clock
        self.latencies = (constants.l2_latency, constants.infinity_latency, constants.hbm_latency)

    # --- memory ---

    def _split(self, pc: int, sectors: int) -> tuple[int, tuple[float, float]]:
        """Return (slowest level that serves some of these sectors, bytes from the Infinity Cache, bytes from HBM).

        Shares are turned into whole sectors by carrying the remainder on to the next instruction at this pc.
        """
        latency, traffic = self.levels.of(pc)
        carry = self.carry.setdefault(pc, [0.0, 0.0])
        slowest = 0
        for level in (2, 1):
            wanted = latency[level] * sectors
            if level == 2:
                carry[0] += wanted
                if carry[0] >= 0.999:
                    carry[0] -= min(carry[0], sectors)
                    slowest = 2
            else:
                carry[1] += wanted
                if carry[1] >= 0.999:
                    carry[1] -= min(carry[1], sectors)
                    slowest = max(slowest, 1)
        bytes_ = sectors * SECTOR_BYTES
        return slowest, (bytes_ * (traffic[1] + traffic[2]), bytes_ * traffic[2])

    def _fetch(self, arrival: float, pc: int, sectors: int) -> float:
        """Bring sectors to the CU; return when the last is there."""
        level, (infinity, hbm) = self._split(pc, sectors)
        bytes_ = sectors * SECTOR_BYTES
        self.l2_free = max(arrival, self.l2_free) + bytes_ / self.constants.l2_rate
        self.busy["L2"] += bytes_ / self.constants.l2_rate
        done = self.l2_free + self.latencies[level]
        if infinity:
            self.fetched += infinity
            share = self.share(self.fetched)
            clocks = infinity / (self.infinity_rate * share)
            self.infinity_free = max(arrival, self.infinity_free) + clocks
            self.busy["Infinity Cache"] += clocks
            done = max(done, self.infinity_free + self.latencies[max(level, 1)])
            if hbm:
                clocks = hbm / (self.hbm_rate * share)
                self.hbm_free = max(arrival, self.hbm_free) + clocks
                self.busy["HBM"] += clocks
                done = max(done, self.hbm_free + self.latencies[2])
        return done

    def vector_access(self, now: float, pc: int, access: Access, is_store: bool) -> tuple[float, float]:
        """Issue a vector memory instruction at ``now``: (when the wave goes on, when the counter falls)."""
        issued = max(now, self.address_free - self.constants.address_queue)
        start = max(issued, self.address_free)
        clocks = access.clocks + self._translate(access)
        self.address_free = start + clocks
        self.busy["address unit"] += clocks
        arrival = self.address_free
        if is_store:
            # L2 acknowledges a store once it has the data; what it later writes back still takes bandwidth.
            if access.sectors:
                self._fetch(arrival, pc, len(access.sectors))
            return issued, arrival + self.constants.l2_latency
        l1, missing, ready = self.l1, [], arrival + self.constants.l1_latency
        for sector in access.sectors:
            filled = l1.get(sector)
            if filled is None:
                missing.append(sector)
            else:
                l1.move_to_end(sector)
                ready = max(ready, filled)
        if missing:
            done = self._fetch(arrival, pc, len(missing))
            ready = max(ready, done)
            for sector in missing:
                l1[sector] = done
            while len(l1) > self.l1_room:
                l1.popitem(last=False)
        return issued, ready

    def _translate(self, access: Access) -> float:
        """Look pages up in the CU's translation cache; return the clocks that misses take of the address unit."""
        pages, missed = self.pages, 0
        for page in {sector // SECTORS_PER_PAGE for sector in access.sectors}:
            if page in pages:
                pages.move_to_end(page)
            else:
                missed += 1
                pages[page] = None
                if len(pages) > self.constants.page_entries:
                    pages.popitem(last=False)
        return missed * self.constants.translation

    def scalar_access(self, now: float, pc: int, access: Access) -> float:
        """Issue a scalar load at ``now``; return when the data is there."""
        cache, ready, missing = self.scalar, now + self.constants.scalar_latency, 0
        for sector in access.sectors:
            filled = cache.get(sector)
            if filled is None:
                missing += 1
            else:
                cache.move_to_end(sector)
                ready = max(ready, filled)
        if missing:
            level, (infinity, hbm) = self._split(pc, missing)
            self.fetched += infinity + hbm
            ready = max(ready, now + self.latencies[level])
            for sector in access.sectors:
                cache.setdefault(sector, ready)
            while len(cache) > self.scalar_room:
                cache.popitem(last=False)
        return ready

    # --- waves ---

    def run(self, groups: Sequence[tuple[float, Sequence[WaveWork]]], resident: int, limit: int = 10**9) -> Outcome:
        """Run workgroups (each with the clock at which it may start) in order, ``resident`` at once.

        After ``limit`` instructions the rest is extrapolated: each wave goes on at the pace it had in the last two
        thirds of what was simulated.
        """
        constants, code = self.constants, self.code
        simds = constants.simds
        vector_free, scalar_free, matrix_free = [0.0] * simds, [0.0] * simds, [0.0] * simds
        vector_busy, scalar_busy, matrix_busy = [0.0] * simds, [0.0] * simds, [0.0] * simds
        lds_free = lds_busy = 0.0
        issue, taken = constants.issue, constants.branch
        queue: list[tuple[float, int]] = []
        waves: list[_Wave] = []
        pending = deque(enumerate(groups))
        alive: dict[int, int] = {}
        barrier: dict[int, list[tuple[float, int]]] = {}
        load = [0] * simds
        waited = wave_time = 0.0
        count, end = 0, 0.0
        first_mark = limit // 3

        def admit(now: float) -> None:
            while pending and len(alive) < resident:
                group, (start, members) = pending.popleft()
                alive[group] = len(members)
                for member in members:
                    simd = min(range(simds), key=lambda s: load[s])
                    load[simd] += 1
                    begin = max(now, start)
                    wave = _Wave(simd, group, begin, member, total=sum(len(code[pc]) for pc in member.path))
                    wave.mark = (begin, 0)
                    waves.append(wave)
                    heapq.heappush(queue, (begin, len(waves) - 1))

        admit(0.0)
        marked = False
        while queue:
            if count >= limit:
                break
            if not marked and count >= first_mark:
                marked = True
                for now, index in queue:
                    waves[index].mark = (now, waves[index].issued)
            now, index = heapq.heappop(queue)
            wave = waves[index]
            simd, path, accesses = wave.simd, wave.work.path, wave.work.accesses
            instructions = code[path[wave.stretch]]
            horizon = queue[0][0] if queue else float("inf")
            while True:
                if wave.at == len(instructions):
                    wave.stretch += 1
                    wave.at = 0
                    instructions = code[path[wave.stretch]]
                what, cost, detail = instructions[wave.at]
                wave.at += 1
                wave.issued += 1
                count += 1
                if what == VALU:
                    if vector_free[simd] > now:
                        now = vector_free[simd]
                    vector_free[simd] = now + cost
                    vector_busy[simd] += cost
                    now += issue if cost < issue else cost
                elif what == SALU:
                    if scalar_free[simd] > now:
                        now = scalar_free[simd]
                    scalar_free[simd] = now + cost
                    scalar_busy[simd] += cost
                    now += issue
                elif what == MFMA:
                    now = max(now, vector_free[simd], matrix_free[simd])
                    vector_free[simd] = now + cost
                    vector_busy[simd] += cost
                    matrix_free[simd] = now + detail
                    matrix_busy[simd] += detail
                    now += issue
                elif what == NOP:
                    now += cost
                elif what == WAIT:
                    reached = now
                    vm = wave.vm
                    while len(vm) > cost:
                        done = vm.popleft()
                        if done > now:
                            now = done
                    if detail < len(wave.lgkm):
                        # Scalar loads return in any order: a count other than 0 waits for the earliest.
                        wave.lgkm.sort()
                        done = wave.lgkm[len(wave.lgkm) - detail - 1]
                        del wave.lgkm[: len(wave.lgkm) - detail]
                        now = max(now, done)
                    waited += now - reached
                    now += issue
                elif what in (LOAD, STORE):
                    access = accesses[wave.memory]
                    wave.memory += 1
                    now, done = self.vector_access(now, detail, access, what == STORE)
                    wave.last_vm = max(wave.last_vm, done)
                    wave.vm.append(wave.last_vm)
                    now += issue
                elif what == SCALAR_LOAD:
                    access = accesses[wave.memory]
                    wave.memory += 1
                    if scalar_free[simd] > now:
                        now = scalar_free[simd]
                    scalar_free[simd] = now + issue
                    wave.lgkm.append(self.scalar_access(now, detail, access))
                    now += issue
                elif what == BRANCH:
                    jumps = wave.stretch + 1 < len(path) and path[wave.stretch + 1] != self.ends[path[wave.stretch]]
                    now += taken if jumps else issue
                elif what == PACKED:
                    now = max(now, vector_free[simd], matrix_free[simd])
                    vector_free[simd] = now + cost
                    vector_busy[simd] += cost
                    now += issue
                elif what == LDS:
                    now = max(now, lds_free)
                    lds_free = now + cost
                    lds_busy += cost
                    wave.lgkm.append(now + cost + constants.lds_latency)
                    now += issue
                elif what == BARRIER:
                    arrived = barrier.setdefault(wave.group, [])
                    arrived.append((now, index))
                    if len(arrived) == alive[wave.group]:
                        latest = max(t for t, _ in arrived) + issue
                        for _, other in barrier.pop(wave.group):
                            heapq.heappush(queue, (latest, other))
                    break
                elif what == END:
                    wave.ended = now
                    end = max(end, now)
                    wave_time += now - wave.start
                    load[simd] -= 1
                    alive[wave.group] -= 1
                    arrived = barrier.get(wave.group, [])
                    if arrived and len(arrived) == alive[wave.group]:
                        latest = max(t for t, _ in arrived) + issue
                        for _, other in barrier.pop(wave.group):
                            heapq.heappush(queue, (max(latest, now), other))
                    if not alive[wave.group]:
                        del alive[wave.group]
                        admit(now)
                    break
                else:
                    now += issue
                if now > horizon or count >= limit:
                    heapq.heappush(queue, (now, index))
                    break
        busy = dict(self.busy) | {
            "vector port": max(vector_busy), "matrix unit": max(matrix_busy), "scalar port": max(scalar_busy),
            "LDS": lds_busy,
        }  # fmt: skip
        simulated = max([end, *(t for t, _ in queue)])
        clocks = simulated
        for now, index in queue:
            wave = waves[index]
            wave_time += now - wave.start
            since, issued = wave.mark
            pace = (now - since) / max(1, wave.issued - issued)
            clocks = max(clocks, now + pace * (wave.total - wave.issued))
        if pending:
            rest = sum(sum(len(code[pc]) for pc in member.path) for _, (_, members) in pending for member in members)
            clocks += rest * simulated / max(1, count)
        return Outcome(
            clocks,
            {k: v / simulated for k, v in busy.items()} if simulated else busy,
            waited / max(1.0, wave_time),
            count,
        )
