"""Count what ran: calls of each variant on each device, modules loaded, bytes of code loaded."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import dataclass

_log = logging.getLogger("indexer_rt")

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stats:
    """Hold the counts of this process.

    ``calls``: launches made, by (variant, device), e.g. ``("fp8_paged_mqa_logits_h32_r2_page", "cuda:0")``; the
    emulator's device is "emulator". ``module_loads``: code objects loaded, by device. ``code_bytes``: their bytes, in
    all.
    """

    calls: dict[Key, int]
    module_loads: dict[str, int]
    code_bytes: int


class Cell:
    """Count the calls that one thread makes of one variant on one device."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class _OwnCells(threading.local):
    """Hold one thread's cells. Each thread counts for itself: an addition shared by two could lose one."""

    def __init__(self) -> None:
        self.cells: dict[Key, Cell] = {}
        with _lock:
            _fold_finished()
            _threads.append((weakref.ref(threading.current_thread()), self.cells))


def cell(variant: str, device: str) -> Cell:
    """Return the calling thread's cell. The first of a variant and device in the process is logged."""
    cells, key = _own.cells, (variant, device)
    if key not in cells:
        with _lock:
            is_first = key not in _seen
            _seen.add(key)
        if is_first:
            _log.info("first use of %s on %s", variant, device)
        cells[key] = Cell()
    return cells[key]


def count_load(device: str, code_bytes: int) -> None:
    """Count one module loaded on a device."""
    global _code_bytes
    with _lock:
        _module_loads[device] = _module_loads.get(device, 0) + 1
        _code_bytes += code_bytes


def stats() -> Stats:
    """Return what this process has run so far."""
    with _lock:
        calls = dict(_finished)
        for _, cells in _threads:
            _add(calls, cells)
        return Stats({key: count for key, count in sorted(calls.items()) if count}, dict(_module_loads), _code_bytes)


def _fold_finished() -> None:
    """Add up the cells of threads that have ended, and forget the threads."""
    running = []
    for entry in _threads:
        thread = entry[0]()
        if thread is not None and thread.is_alive():
            running.append(entry)
        else:
            _add(_finished, entry[1])
    _threads[:] = running


def _add(total: dict[Key, int], cells: dict[Key, Cell]) -> None:
    for key, one in list(cells.items()):
        total[key] = total.get(key, 0) + one.calls


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that does not exist here may have held it


_lock = threading.Lock()
_threads: list[tuple[weakref.ref[threading.Thread], dict[Key, Cell]]] = []
_finished: dict[Key, int] = {}
_seen: set[Key] = set()
_module_loads: dict[str, int] = {}
_code_bytes = 0
_own = _OwnCells()
os.register_at_fork(after_in_child=_renew_lock)
