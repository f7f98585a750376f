"""Compile operand access: functions that fetch an operand's array from a convoy and write results back.

A fetcher takes the running convoy ``m`` and returns an array [waves, 64] (vector), [waves, 1] (a scalar seen by a
vector instruction), [waves] (a scalar seen by a scalar one) or a numpy scalar (a constant). Views are returned where
the waves are neighbours, so bodies must not write into their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from .operands import BF16, EXEC, SGPR_ROWS, VCC, Operand, Type

if TYPE_CHECKING:
    from .convoy import Convoy
    from .program import Program

Fetch = Callable[["Convoy"], Any]
Write = Callable[["Convoy", Any, "np.ndarray | None"], None]
U32, U64 = np.uint32, np.uint64
_SHIFT32 = U64(32)


def join64(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Join two uint32 arrays of one shape into uint64."""
    out = np.empty((*low.shape, 2), U32)
    out[..., 0] = low
    out[..., 1] = high
    return out.view(U64)[..., 0]


def pack_mask(mask: np.ndarray) -> np.ndarray:
    """Turn bools [waves, 64] into uint32 words [waves, 2], lane 0 in bit 0."""
    return np.packbits(mask, axis=-1, bitorder="little").view(U32)


def unpack_mask(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Turn two uint32 arrays [waves] into bools [waves, 64]."""
    words = np.empty((len(low), 2), U32)
    words[:, 0] = low
    words[:, 1] = high
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(bool)


def constant(operand: Operand) -> Any:
    """Return a constant operand as a numpy scalar of its type."""
    type_ = operand.type
    if type_.name in ("PK_F32", "PK_B32"):
        return np.array(operand.constant_bits(), U32).view(type_.dtype)[()]
    return np.array(operand.constant_bits(), f"u{type_.bits // 8}").view(type_.dtype)[()]


def fetch_scalar(operand: Operand) -> Fetch:
    """Compile the fetch of an operand for a scalar instruction: [waves] or a numpy scalar."""
    type_, row = operand.type, operand.index
    if operand.kind == "s":
        if type_.name == "MASK":
            type_ = Type("U64", np.dtype(U64), 2, 64)
        if type_.regs == 1:
            return lambda m: m.S[row, m.sel].view(type_.dtype)
        if type_.regs == 2:
            _check_scalar_range(operand)
            return lambda m: join64(m.S[row, m.sel], m.S[row + 1, m.sel]).view(type_.dtype)
        return lambda m: m.S[row : row + type_.regs, m.sel]
    if operand.kind == "const" and row in (251, 252, 253):
        return lambda m: _condition(m, row).astype(type_.dtype)
    value = constant(operand)
    return lambda m: value


def _check_scalar_range(operand: Operand) -> None:
    if operand.index + operand.type.regs > SGPR_ROWS:
        raise EmulatorFault(f"scalar register range {operand} runs past the register file.")


def _condition(m: Convoy, code: int) -> np.ndarray:
    if code == 253:
        return m.scc[m.sel]
    row = VCC if code == 251 else EXEC
    return (m.S[row, m.sel] | m.S[row + 1, m.sel]) == 0


def write_scalar(operand: Operand) -> Callable[[Convoy, Any], None]:
    """Compile the write of a scalar result (an array [waves], or a numpy scalar)."""
    row, type_ = operand.index, operand.type
    touches_exec = row + type_.regs > EXEC
    if type_.regs == 1:

        def write(m: Convoy, value: Any) -> None:
            m.S[row, m.sel] = np.asarray(value, type_.dtype).view(U32)
            if touches_exec:
                m.exec_changed()

        return write
    _check_scalar_range(operand)

    def write_pair(m: Convoy, value: Any) -> None:
        bits = np.asarray(value, type_.dtype).view(U64)
        m.S[row, m.sel] = bits.astype(U32)
        m.S[row + 1, m.sel] = (bits >> _SHIFT32).astype(U32)
        if touches_exec:
            m.exec_changed()

    return write_pair


def write_mask(operand: Operand) -> Callable[[Convoy, np.ndarray], None]:
    """Compile the write of a bool per lane to a scalar pair; lanes outside EXEC become 0."""
    row = operand.index
    _check_scalar_range(operand)

    def write(m: Convoy, value: np.ndarray) -> None:
        active = m.mask
        if value.shape != (m.n, 64):
            value = np.broadcast_to(value, (m.n, 64))
        words = pack_mask(value if active is None else value & active)
        m.S[row, m.sel] = words[:, 0]
        m.S[row + 1, m.sel] = words[:, 1]
        if row == EXEC:
            m.exec_changed()

    return write


def fetch_raw(program: Program, operand: Operand) -> Fetch:
    """Compile the fetch of one 32-bit word per lane as uint32, whatever the operand's type."""
    if operand.kind in "va":
        row = program.row(operand)
        return lambda m: m.V[row, m.sel]
    scalar = fetch_scalar(operand.having(type=_WORD))
    return lambda m: _column(scalar(m))


_WORD = Type("U32", np.dtype(U32), 1, 32)


def _column(value: Any) -> Any:
    return value[:, None] if np.ndim(value) else value


def fetch_vector(program: Program, operand: Operand) -> Fetch:
    """Compile the fetch of an operand for a vector instruction, source modifiers included."""
    plain = _fetch_plain(program, operand)
    if not (operand.negate or operand.absolute):
        return plain
    if operand.type is BF16:
        clear, flip = np.uint16(0x7FFF if operand.absolute else 0xFFFF), np.uint16(0x8000 if operand.negate else 0)
        return lambda m: (plain(m) & clear) ^ flip
    if operand.type.dtype.kind != "f":
        raise EmulatorFault(f"the source modifiers of {operand} are not modelled here. Add them to the body in emu/.")
    if operand.absolute and operand.negate:
        return lambda m: -np.abs(plain(m))
    if operand.absolute:
        return lambda m: np.abs(plain(m))
    return lambda m: -plain(m)


def _fetch_plain(program: Program, operand: Operand) -> Fetch:
    type_ = operand.type
    if type_.name == "MASK":
        return _fetch_mask(operand)
    if operand.kind in "va":
        row, dtype = program.row(operand), type_.dtype
        if type_.bits == 16:
            half = slice(int(operand.high), None, 2)
            return lambda m: m.V[row, m.sel].view(dtype)[..., half]
        if type_.bits == 32:
            return lambda m: m.V[row, m.sel].view(dtype)
        if type_.name in ("PK_F32", "PK_B32"):
            return lambda m: m.V[row : row + 2, m.sel].view(dtype)
        return lambda m: join64(m.V[row, m.sel], m.V[row + 1, m.sel]).view(dtype)
    if type_.bits == 16 and (operand.kind == "s"):
        words = fetch_scalar(operand.having(type=_WORD))
        shift = U32(16 if operand.high else 0)
        return lambda m: _column((words(m) >> shift).astype(np.uint16).view(type_.dtype))
    if type_.name in ("PK_F32", "PK_B32") and operand.kind == "s":
        row = operand.index
        return lambda m: m.S[row : row + 2, m.sel, None].view(type_.dtype)
    scalar = fetch_scalar(operand)
    if type_.name in ("PK_F32", "PK_B32"):
        value = constant(operand)
        pair = np.array([value, value], type_.dtype)[:, None, None]
        return lambda m: pair
    return lambda m: _column(scalar(m))


def _fetch_mask(operand: Operand) -> Fetch:
    if operand.kind != "s":
        value = np.unpackbits(np.array([operand.constant_bits()], U64).view(np.uint8), bitorder="little").view(bool)[
            None
        ]
        return lambda m: value
    row = operand.index
    _check_scalar_range(operand)
    return lambda m: unpack_mask(m.S[row, m.sel], m.S[row + 1, m.sel])


def put(m: Convoy, row: int, bits: Any, mask: np.ndarray | None) -> None:
    """Write uint32 words to a vector register row, in the lanes of ``mask`` (None: all)."""
    if mask is None:
        m.V[row, m.sel] = bits
    elif isinstance(m.sel, slice):
        np.copyto(m.V[row, m.sel], bits, where=mask)
    else:
        held = m.V[row, m.sel]
        np.copyto(held, bits, where=mask)
        m.V[row, m.sel] = held


def write_vector(program: Program, operand: Operand) -> Write:
    """Compile the write of a vector result."""
    row, type_ = program.row(operand), operand.type
    dtype, version = type_.dtype, program.touch
    if type_.bits == 16:
        half = np.dtype(np.uint16)

        def write16(m: Convoy, value: Any, mask: np.ndarray | None) -> None:
            version(m, row)
            put(m, row, np.asarray(value, dtype).view(half).astype(U32), mask)

        return write16
    if type_.bits == 32:

        def write32(m: Convoy, value: Any, mask: np.ndarray | None) -> None:
            version(m, row)
            put(m, row, np.asarray(value, dtype).view(U32), mask)

        return write32
    if type_.name in ("PK_F32", "PK_B32"):

        def write_halves(m: Convoy, value: Any, mask: np.ndarray | None) -> None:
            for n in range(2):
                version(m, row + n)
                put(m, row + n, np.asarray(value[n], dtype).view(U32), mask)

        return write_halves

    def write64(m: Convoy, value: Any, mask: np.ndarray | None) -> None:
        bits = np.asarray(value, dtype).view(U64)
        version(m, row)
        version(m, row + 1)
        put(m, row, bits.astype(U32), mask)
        put(m, row + 1, (bits >> _SHIFT32).astype(U32), mask)

    return write64
