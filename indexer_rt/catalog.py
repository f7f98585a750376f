"""Know which code objects there are and which one solves a problem.

A folder of code objects has a ``manifest.json`` (written by build.sh) or, when someone swaps in files of their own,
none; then a file's name says what it solves: ``fp8_paged_mqa_logits_h{heads}_r{rows}_{page|gather}.hsaco``.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import CodeObjectError
from .manifest import HEAD_DIM, STEP_TOKENS, shipped_folder
from .problem import Problem, why_not_block_stride

OPERATOR = "fp8_paged_mqa_logits"
GATHER_BLOCKS = (1, 2, 4, 8)
"""Block sizes that the gather kernels read, token by token."""
PAGE_MULTIPLE = 16
"""Block sizes that the page kernels read: every multiple of this."""
_MAX_BLOCK_KV = 2**31 // (HEAD_DIM + 4)  # offsets within a block are 32 bits
_MAX_GATHER_STRIDE = 2**32  # a gather kernel multiplies each lane's block id by a 32-bit stride

_FILE_NAME = re.compile(rf"{OPERATOR}_h(?P<heads>\d+)_r(?P<rows>\d+)_(?P<addressing>page|gather)")


@dataclass(frozen=True, slots=True)
class Entry:
    """Name one code object and say what it solves.

    ``addressing`` is "page" (block_kv a multiple of 16) or "gather" (block_kv 1, 2, 4 or 8). ``sha256`` is None for a
    file without a manifest. ``manifest`` is its whole line there, empty without one.
    """

    name: str
    path: Path
    symbol: str
    sha256: str | None
    num_heads: int
    head_dim: int
    rows_per_wave: int
    addressing: str
    manifest: dict[str, Any] = field(repr=False, default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Catalog:
    """List the code objects of one folder. Compared by content."""

    directory: Path
    entries: tuple[Entry, ...]

    @classmethod
    def shipped(cls) -> Catalog:
        """Read the code objects that came with the package (or lie beside it, in a checkout)."""
        return cls.read(shipped_folder())

    @classmethod
    def read(cls, directory: Path | str) -> Catalog:
        """Read a folder's manifest, or its file names where it has none. The files themselves are not opened.

        Raises CodeObjectError when there is no such folder, no code object in it, or a manifest that does not parse,
        lacks a key or names two code objects for the same problems.
        """
        directory = Path(directory)
        manifest = directory / "manifest.json"
        if not directory.is_dir():
            raise CodeObjectError(
                f"{directory}: no such folder of code objects. Run ./build.sh or reinstall the wheel."
            )
        entries = _from_manifest(manifest) if manifest.exists() else _from_names(directory)
        if not entries:
            raise CodeObjectError(
                f"{directory}: holds no code object of {OPERATOR}. Run ./build.sh, reinstall the wheel, or name your "
                f"files {OPERATOR}_h<heads>_r<rows>_<page|gather>.hsaco."
            )
        seen: dict[tuple[int, int, int, str], Entry] = {}
        for entry in entries:
            key = (entry.num_heads, entry.head_dim, entry.rows_per_wave, entry.addressing)
            if key in seen:
                raise CodeObjectError(
                    f"{directory}: {seen[key].name} and {entry.name} solve the same problems. Remove one."
                )
            seen[key] = entry
        return cls(directory, entries)

    def why_not(
        self,
        num_heads: int,
        head_dim: int,
        block_kv: int,
        preshuffle: bool,
        *,
        kv_block_stride: int | None = None,
        rows_per_wave: int | None = None,
    ) -> str | None:
        """Say why a problem is not covered, or None when it is. ``kv_block_stride`` in bytes, None for dense blocks."""
        for name, value in (("num_heads", num_heads), ("head_dim", head_dim), ("block_kv", block_kv)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name}: expected an int, got {type(value).__name__}.")
        dims = sorted({entry.head_dim for entry in self.entries})
        if head_dim not in dims:
            return f"head_dim: expected {_one_of(dims)}, got {head_dim}."
        heads = sorted({entry.num_heads for entry in self.entries if entry.head_dim == head_dim})
        if num_heads not in heads:
            return f"num_heads: expected {_one_of(heads)}, got {num_heads}."
        if block_kv not in GATHER_BLOCKS and (block_kv < 1 or block_kv % PAGE_MULTIPLE):
            return f"block_kv: expected {_one_of(GATHER_BLOCKS)} or a multiple of {PAGE_MULTIPLE}, got {block_kv}."
        if block_kv >= _MAX_BLOCK_KV:
            return (
                f"block_kv: expected less than {_MAX_BLOCK_KV} (a block's bytes are counted in 31 bits), got "
                f"{block_kv}."
            )
        if preshuffle and block_kv % PAGE_MULTIPLE:
            return (
                f"preshuffle: expected False for block_kv {block_kv}, got True. Preshuffled blocks are tiles of "
                f"{PAGE_MULTIPLE} tokens; smaller blocks are plain."
            )
        reason = None if kv_block_stride is None else why_not_block_stride(kv_block_stride)
        if reason is not None:
            return reason
        addressing = addressing_of(block_kv)
        if addressing == "gather" and kv_block_stride is not None and kv_block_stride >= _MAX_GATHER_STRIDE:
            return (
                f"kv_cache_fp8: expected a block stride below {_MAX_GATHER_STRIDE} bytes for block_kv {block_kv}, got "
                f"{kv_block_stride}."
            )
        rows = self.rows(num_heads, head_dim, addressing)
        if not rows:
            return (
                f"block_kv: no {addressing} kernel for {num_heads} heads in {self.directory}, which block_kv "
                f"{block_kv} needs."
            )
        if rows_per_wave is not None and rows_per_wave not in rows:
            return f"rows_per_wave: expected {_one_of(rows)} or None, got {rows_per_wave}."
        return None

    def rows(self, num_heads: int, head_dim: int, addressing: str) -> list[int]:
        """List the rows per wave that there are kernels for, rising."""
        return sorted(
            entry.rows_per_wave
            for entry in self.entries
            if (entry.num_heads, entry.head_dim, entry.addressing) == (num_heads, head_dim, addressing)
        )

    def units(self, problem: Problem) -> dict[int, int]:
        """Count the units of work that a problem could have, by the rows per wave that there are kernels for."""
        available = self.rows(problem.num_heads, problem.head_dim, addressing_of(problem.block_kv))
        return {rows: units_of(problem, rows, problem.reach) for rows in available}

    def choose(self, problem: Problem, rows_per_wave: int | None = None, *, num_cus: int) -> Entry:
        """Choose the code object for a problem on a device of ``num_cus`` compute units.

        Raises ValueError with the reason of ``why_not`` when there is none.
        """
        reason = self.why_not(
            problem.num_heads,
            problem.head_dim,
            problem.block_kv,
            problem.preshuffle,
            kv_block_stride=problem.kv_block_stride,
            rows_per_wave=rows_per_wave,
        )
        if reason is not None:
            raise ValueError(reason)
        rows = rows_per_wave or best_rows(self.units(problem), num_cus)
        wanted = (problem.num_heads, problem.head_dim, rows, addressing_of(problem.block_kv))
        return next(
            entry
            for entry in self.entries
            if (entry.num_heads, entry.head_dim, entry.rows_per_wave, entry.addressing) == wanted
        )


def addressing_of(block_kv: int) -> str:
    """Name the way a kernel addresses blocks of this size: by "page", or by "gather" of single tokens."""
    return "page" if block_kv % PAGE_MULTIPLE == 0 else "gather"


FEW_UNITS = {1: 6, 2: 12, 3: 16}
"""Rows per wave -> units of work per compute unit of the device up to which so few rows are chosen. Fitted: of all such
tables it costs least, in the geometric mean over modelled shapes (``python -m bench.timing_model choice``)."""


def units_of(problem: Problem, rows_per_wave: int, columns: int) -> int:
    """Count the units of work that a problem could have: 64 of ``columns`` cells of a group of rows of one sequence."""
    groups = problem.batch * -(-problem.next_n // rows_per_wave)
    if problem.is_packed:
        groups = min(groups, problem.num_rows)
    return groups * -(-columns // STEP_TOKENS)


def best_rows(units: dict[int, int], num_cus: int, few_units: dict[int, int] | None = None) -> int:
    """Choose the rows per wave among those of ``units``, which says how many units of work each would make.

    The smallest size whose units are few (``few_units``, by default FEW_UNITS) wins. Otherwise the keys decide, which
    each group of rows streams once: fewest groups win; among equals the smallest size, which wastes least in the last.
    """
    few = FEW_UNITS if few_units is None else few_units
    least = math.inf
    for rows in sorted(units):
        if units[rows] < least and rows in few and units[rows] <= few[rows] * num_cus:
            return rows
        least = min(least, units[rows])
    return min(units, key=lambda rows: (units[rows], rows))


def _one_of(values: list[int] | tuple[int, ...]) -> str:
    return str(values[0]) if len(values) == 1 else f"one of {', '.join(map(str, values))}"


def _from_names(directory: Path) -> tuple[Entry, ...]:
    entries = []
    for path in sorted(directory.glob("*.hsaco")):
        match = _FILE_NAME.fullmatch(path.stem)
        if match is None:
            raise CodeObjectError(
                f"{path}: its name does not say what it solves. Name it "
                f"{OPERATOR}_h<heads>_r<rows>_<page|gather>.hsaco or "
                "add a manifest.json."
            )
        entries.append(
            Entry(
                path.stem, path, path.stem, None, int(match["heads"]), HEAD_DIM, int(match["rows"]), match["addressing"]
            )
        )
    return tuple(entries)


def _from_manifest(path: Path) -> tuple[Entry, ...]:
    try:
        lines = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CodeObjectError(f"{path}: cannot be read: {error}. Run ./build.sh or reinstall the wheel.") from error
    if not isinstance(lines, list):
        raise CodeObjectError(f"{path}: expected a JSON array, got {type(lines).__name__}. Run ./build.sh.")
    return tuple(_entry(path, position, line) for position, line in enumerate(lines))


def _entry(path: Path, position: int, line: Any) -> Entry:
    def take(mapping: Any, key: str, kind: type) -> Any:
        value = mapping.get(key) if isinstance(mapping, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CodeObjectError(
                f"{path}: entry {position}: expected {key!r} of type {kind.__name__}, got {value!r}. Run ./build.sh."
            )
        return value

    problem = take(line, "problem", dict)
    file, addressing = take(line, "file", str), take(problem, "addressing", str)
    if Path(file).name != file:
        raise CodeObjectError(f"{path}: entry {position}: 'file' is {file!r}, expected a name in the same folder.")
    if addressing not in ("page", "gather"):
        raise CodeObjectError(f"{path}: entry {position}: 'addressing' is {addressing!r}, expected 'page' or 'gather'.")
    rows_per_wave = take(problem, "rows_per_wave", int)
    if rows_per_wave < 1:
        raise CodeObjectError(f"{path}: entry {position}: 'rows_per_wave' is {rows_per_wave}, expected at least 1.")
    return Entry(
        name=take(line, "name", str),
        path=path.parent / file,
        symbol=take(line, "symbol", str),
        sha256=take(line, "sha256", str),
        num_heads=take(problem, "num_heads", int),
        head_dim=take(problem, "head_dim", int),
        rows_per_wave=rows_per_wave,
        addressing=addressing,
        manifest=line,
    )
