"""Say from which level of memory each memory instruction is served, from a sample of all sectors of a launch.

The L2 of an XCD and the Infinity Cache are least-recently-used sets of the sampled sectors, shrunk as the sample is;
waves are taken to advance together. What was there before the launch: nothing in L2 (a launch begins by invalidating),
and, of a launch repeated on the same buffers, what random replacement leaves of the footprint in the Infinity Cache.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass

import numpy as np

from .constants import Constants
from .trace import SECTOR_BYTES, Samples

L2, INFINITY, HBM = 0, 1, 2
MAX_SAMPLES = 400_000
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Levels:
    """Hold, per pc, shares of its sectors by level: ``latency`` of where the data is when asked for (a sector that
    another wave asked for a moment ago is still on its way), ``traffic`` of where it is fetched from.
    """

    latency: dict[int, tuple[float, float, float]]
    traffic: dict[int, tuple[float, float, float]]
    footprint: int
    warm: float

    def of(self, pc: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the shares of a pc. One that no sample met touches little memory: waited for, but no traffic."""
        default = (0.0, self.warm, 1.0 - self.warm)
        return self.latency.get(pc, default), self.traffic.get(pc, (1.0, 0.0, 0.0))


def warm_share(footprint: float, capacity: float) -> float:
    """Return the share of a footprint, swept over again and again, that random replacement keeps in a cache.

    A line survives a sweep of (1 - share) * footprint misses with probability exp(-misses / capacity).
    """
    if footprint <= capacity:
        return 1.0
    share = 0.0
    for _ in range(200):
        share = math.exp(-(1 - share) * footprint / capacity)
    return share


def levels_of(samples: Samples, constants: Constants, waves_per_workgroup: int, resident: int, warm: bool) -> Levels:
    """Run the sampled accesses through the caches. ``resident``: workgroups that the device holds at once."""
    modulus = samples.modulus
    keep = np.ones(len(samples.sector), bool)
    while keep.sum() > MAX_SAMPLES:
        modulus *= 2
        keep = (samples.sector * np.uint64(_SPREAD) >> np.uint64(24)) % np.uint64(modulus // samples.modulus) == 0
    columns = [column[keep] for column in (samples.sector, samples.order, samples.wave, samples.pc, samples.store)]
    sector, order, wave, pc, store = columns
    footprint = len(np.unique(sector)) * modulus * SECTOR_BYTES
    kept = warm_share(footprint, constants.infinity_bytes) if warm else 0.0

    group = wave // waves_per_workgroup
    turn = group // max(1, resident)
    span = int(order.max(initial=0)) + 2
    time = turn.astype(np.int64) * span + order
    xcd = group % constants.num_xcds
    sequence = np.argsort(time, kind="stable")
    l2: list[OrderedDict[int, tuple[int, int]]] = [OrderedDict() for _ in range(constants.num_xcds)]
    l2_room = max(1, constants.l2_bytes // SECTOR_BYTES // modulus)
    infinity: OrderedDict[int, int] = OrderedDict()
    infinity_room = max(1, constants.infinity_bytes // SECTOR_BYTES // modulus)
    luck = (sector * np.uint64(0xD1B54A32D192ED03) >> np.uint64(40)).astype(np.float64) / 2.0**24
    latency: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    traffic: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for what, when, where, at, writes, chance in zip(
        *(column[sequence].tolist() for column in (sector, time, xcd, pc, store, luck)), strict=True
    ):
        cache = l2[where]
        hit = cache.get(what)
        if hit is not None:
            cache.move_to_end(what)
            fill_time, level = hit
            latency[at][level if when - fill_time <= 1 else L2] += 1
            traffic[at][L2] += 1
            continue
        seen = infinity.get(what)
        level = INFINITY if seen is not None or chance < kept else HBM
        # A sector that another XCD asked HBM for a moment ago is still on its way.
        slow = HBM if seen is not None and seen < 0 and when + seen + 1 <= 1 else level
        latency[at][slow] += 1
        traffic[at][level] += 1
        if seen is None:
            infinity[what] = -when - 1 if level == HBM else when
            if len(infinity) > infinity_room:
                infinity.popitem(last=False)
        else:
            infinity.move_to_end(what)
        cache[what] = (when, L2 if writes else slow)
        if len(cache) > l2_room:
            cache.popitem(last=False)

    def shares(counts: dict[int, list[int]]) -> dict[int, tuple[float, float, float]]:
        return {at: tuple(n / sum(c) for n in c) for at, c in counts.items()}  # type: ignore[misc]

    return Levels(shares(latency), shares(traffic), footprint, kept)
