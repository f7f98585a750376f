"""Run VOP1, VOP2, VOPC and VOP3: operand fetch, DPP, SDWA, modifiers, EXEC and write-back, once for all bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from . import lanes
from .memory import merge_half
from .operands import MASK, Operand
from .registers import fetch_raw, fetch_vector, put, write_mask, write_scalar, write_vector

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

U32 = np.uint32
_OMOD_FACTOR = {1: 2.0, 2: 4.0, 3: 0.5}
_TINY = np.float32(np.finfo(np.float32).tiny)


def flush(value: Any) -> Any:
    """Turn float32 subnormals into zeros of the same sign."""
    if getattr(value, "dtype", None) != np.float32:
        return value
    return np.where(np.abs(value) < _TINY, np.copysign(np.float32(0), value), value)


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """Compile one instruction to a function of the convoy."""
    entry, traits = instruction.entry, instruction.traits
    body = entry.body
    fetches = [_argument(program, instruction, name) for name, _ in entry.params]
    if instruction.variant == "dpp":
        return _build_dpp(program, instruction, fetches)
    store = _results(program, instruction)
    flushes = not traits.get("raw") and any(t.name == "F32" for t in (*entry.dst, *(t for _, t in entry.params if t)))

    ignores_exec = traits.get("ignores_exec", False)

    def run(m: Convoy) -> None:
        arguments = [fetch(m) for fetch in fetches]
        mask = None if ignores_exec else m.mask
        if flushes and m.flush32:
            store(m, flush(body(*map(flush, arguments))), mask)
        else:
            store(m, body(*arguments), mask)

    return run


def _argument(program: Program, instruction: Instruction, name: str) -> Callable[[Convoy], Any]:
    if name == "m":
        return lambda m: m
    if name == "i":
        return lambda m: instruction
    operand = instruction.src[name]
    if instruction.variant == "sdwa" and name not in ("carry", "d"):
        return _sdwa_source(program, operand)
    return fetch_vector(program, operand)


def _results(program: Program, instruction: Instruction) -> Callable[[Convoy, Any, Any], None]:
    """Compile the write-back of a body's result or tuple of results."""
    entry, traits = instruction.entry, instruction.traits
    if traits.get("writes_exec"):
        pairs = [write_mask(operand) for operand in instruction.dst]

        def write_compare_exec(m: Convoy, value: Any, mask: Any) -> None:
            value = np.broadcast_to(value, (m.n, 64)) & m.active()
            pairs[0](m, value)
            pairs[-1](m, value)

        return write_compare_exec
    writers = [_result(program, instruction, operand) for operand in instruction.dst]
    if len(entry.dst) == 0:
        return lambda m, value, mask: None
    if len(writers) == 1:
        return writers[0]

    def write_all(m: Convoy, values: Any, mask: Any) -> None:
        for write, value in zip(writers, values, strict=True):
            write(m, value, mask)

    return write_all


def _result(program: Program, instruction: Instruction, operand: Operand) -> Callable[[Convoy, Any, Any], None]:
    if operand.type is MASK:
        write = write_mask(operand)
        return lambda m, value, mask: write(m, value)
    if operand.kind == "s":
        scalar = write_scalar(operand)
        return lambda m, value, mask: scalar(m, value)
    if instruction.variant == "sdwa":
        if instruction.extra["dst_sel"] != 6 and not instruction.traits.get("no_dst_sel"):
            return _modified(instruction, operand, _sdwa_result(program, instruction, operand))
    elif operand.type.bits == 16 and (instruction.traits.get("preserves_high") or _high_destination(instruction)):
        return _modified(instruction, operand, _half_result(program, operand, _high_destination(instruction)))
    return _modified(instruction, operand, write_vector(program, operand))


def _high_destination(instruction: Instruction) -> bool:
    return bool(
        instruction.entry.format == "VOP3" and instruction.traits.get("op_sel") and instruction.fields["op_sel"] >> 3
    )


def _half_result(program: Program, operand: Operand, high: bool) -> Callable[[Convoy, Any, Any], None]:
    """Write one 16-bit half of a register and keep the other."""
    row, dtype = program.row(operand), operand.type.dtype

    def write(m: Convoy, value: Any, mask: Any) -> None:
        bits = np.asarray(value, dtype).view(np.uint16).astype(U32)
        held = m.V[row, m.sel]
        program.touch(m, row)
        put(m, row, merge_half(held, bits, high), mask)

    return write


def _modified(
    instruction: Instruction, operand: Operand, write: Callable[[Convoy, Any, Any], None]
) -> Callable[[Convoy, Any, Any], None]:
    """Apply the output modifiers omod and clamp before a write."""
    fields = (
        instruction.extra
        if instruction.variant == "sdwa"
        else instruction.fields
        if instruction.entry.format == "VOP3"
        else {}
    )
    clamp = fields.get("clamp", 0)
    omod = fields.get("omod", 0) if instruction.traits.get("omod", True) else 0
    if not (clamp or omod):
        return write
    type_ = operand.type
    if not type_.is_float and type_.name != "PK_F32":
        if "clamped" in instruction.traits:
            return write
        raise EmulatorFault(
            f"{instruction}: clamp on this integer instruction is not modelled. Add it to its body in emu/."
        )

    def write_modified(m: Convoy, value: Any, mask: Any) -> None:
        if omod:
            value = value * type_.dtype.type(_OMOD_FACTOR[omod])
        if clamp:
            value = clamp01(m, value, type_.dtype)
        write(m, value, mask)

    return write_modified


def clamp01(m: Convoy, value: Any, dtype: np.dtype) -> Any:
    """Clamp to [0, 1]; with DX10_CLAMP a NaN becomes 0."""
    zero, one = dtype.type(0), dtype.type(1)
    clamped = np.where(value > zero, np.where(value < one, value, one), zero).astype(dtype)
    return clamped if m.dx10_clamp else np.where(np.isnan(value), value, clamped)


# --- DPP --------------------------------------------------------------------------------------------------------------


def _build_dpp(
    program: Program, instruction: Instruction, fetches: list[Callable[[Convoy], Any]]
) -> Callable[[Convoy], None]:
    extra, body = instruction.extra, instruction.entry.body
    source, in_range = lanes.dpp(extra["ctrl"])
    enabled = lanes.dpp_enabled(extra["row_mask"], extra["bank_mask"])
    zero_fill = bool(extra["bound_ctrl"])
    moved = next(n for n, (name, _) in enumerate(instruction.entry.params) if name not in ("d", "m", "i"))
    store = _results(program, instruction)

    def run(m: Convoy) -> None:
        arguments = [fetch(m) for fetch in fetches]
        value = np.asarray(arguments[moved])[..., source]
        valid = np.broadcast_to(in_range, (m.n, 64)) if m.mask is None else in_range & m.mask[:, source]
        if zero_fill:
            value = np.where(valid, value, value.dtype.type(0))
            writes = np.broadcast_to(enabled, (m.n, 64))
        else:
            writes = enabled & valid
        arguments[moved] = value
        result = body(*arguments)
        store(m, result, writes if m.mask is None else writes & m.mask)

    return run


# --- SDWA -------------------------------------------------------------------------------------------------------------

# select code -> (shift, width in bits)
_SELECT = {0: (0, 8), 1: (8, 8), 2: (16, 8), 3: (24, 8), 4: (0, 16), 5: (16, 16), 6: (0, 32)}


def _sdwa_source(program: Program, operand: Operand) -> Callable[[Convoy], Any]:
    raw = fetch_raw(program, operand)
    shift, width = _SELECT[operand.select]
    dtype = operand.type.dtype
    if operand.type.bits == 64:
        raise EmulatorFault(f"SDWA on the 64-bit operand {operand} is not modelled.")

    def fetch(m: Convoy) -> Any:
        bits = np.asarray(raw(m)) >> U32(shift)
        if width < 32:
            bits = bits & U32((1 << width) - 1)
            if operand.sext:
                sign = U32(1 << (width - 1))
                bits = (bits ^ sign) - sign
        value = bits.view(dtype) if dtype.itemsize == 4 else bits.astype(np.uint16).view(dtype)
        if operand.absolute:
            value = np.abs(value)
        return -value if operand.negate else value

    return fetch


def _sdwa_result(program: Program, instruction: Instruction, operand: Operand) -> Callable[[Convoy, Any, Any], None]:
    extra, row, dtype = instruction.extra, program.row(operand), operand.type.dtype
    shift, width = _SELECT[extra["dst_sel"]]
    field = U32((1 << width) - 1)
    unused = extra["dst_unused"]

    def write(m: Convoy, value: Any, mask: Any) -> None:
        bits = np.asarray(value, dtype)
        bits = bits.view(U32) if dtype.itemsize == 4 else bits.view(np.uint16).astype(U32)
        placed = (bits & field) << U32(shift)
        if unused == 2:
            placed = placed | (m.V[row, m.sel] & ~(field << U32(shift)))
        elif unused == 1:
            top = shift + width
            sign = (placed >> U32(top - 1) & U32(1)).astype(bool)
            placed = np.where(sign & (top < 32), placed | U32((0xFFFFFFFF << top) & 0xFFFFFFFF), placed)
        program.touch(m, row)
        put(m, row, placed, mask)

    return write
