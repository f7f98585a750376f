"""Run VOP3P: two halves of a register at a time, dot products, mixed precision, AGPR moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import floats
from .memory import merge_half
from .operands import F16, F32, I16, I32, PK_B32, PK_F32, U16, U32, Operand, Type
from .registers import fetch_raw, fetch_scalar, put, write_vector
from .table import Entry, add, vop3p
from .vector import clamp01, flush

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

f16, f32, f64 = np.float16, np.float32, np.float64
i16, i32, i64, u16, u32 = np.int16, np.int32, np.int64, np.uint16, np.uint32


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """Compile one instruction to a function of the convoy."""
    kind = instruction.traits.get("packed")
    if kind is None:
        return _build_plain(program, instruction)
    if kind == "move":
        return _build_move(program, instruction)
    if kind == "mix":
        return _build_mix(program, instruction)
    return _build_halves(program, instruction, instruction.traits["element"])


def _build_plain(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """AGPR moves and dot products: whole words in, one word out."""
    entry, fields = instruction.entry, instruction.fields
    fetches = [fetch_raw(program, operand) for operand in instruction.src.values()]
    write = write_vector(program, instruction.dst[0])
    wants_instruction = any(name == "i" for name, _ in entry.params)
    clamps = fields["clamp"] and entry.dst[0] is F32

    def run(m: Convoy) -> None:
        words = [fetch(m) for fetch in fetches]
        result = entry.body(*words, instruction) if wants_instruction else entry.body(*words)
        write(m, clamp01(m, result, np.dtype(f32)) if clamps else result, m.mask)

    return run


def halves(instruction: Instruction, position: int) -> tuple[int, int, bool, bool]:
    """Return (half for the low result, half for the high result, negate low, negate high) of a source."""
    fields = instruction.fields
    op_sel_hi = fields["op_sel_hi"] | fields["op_sel_hi2"] << 2
    return (
        fields["op_sel"] >> position & 1, op_sel_hi >> position & 1,
        bool(fields["neg"] >> position & 1), bool(fields["neg_hi"] >> position & 1),
    )  # fmt: skip


def _build_halves(program: Program, instruction: Instruction, element: Type) -> Callable[[Convoy], None]:
    """Packed arithmetic: the body runs once on the low and once on the high elements."""
    entry, fields = instruction.entry, instruction.fields
    operands = [instruction.src[name] for name, _ in entry.sources]
    picks = [_half_fetch(program, operand, element, *halves(instruction, n)) for n, operand in enumerate(operands)]
    dst = instruction.dst[0]
    row, body, dtype = program.row(dst), entry.body, element.dtype
    clamps = bool(fields["clamp"])
    wants_machine = any(name == "m" for name, _ in entry.params)

    def one(m: Convoy, sources: list[Any]) -> Any:
        if element is F32 and m.flush32:
            sources = [flush(s) for s in sources]
        result = body(*sources, m) if wants_machine else body(*sources)
        if not element.is_float:
            info = np.iinfo(dtype)
            return np.asarray(np.clip(result, info.min, info.max) if clamps else result).astype(dtype)
        result = np.asarray(result, dtype)
        return clamp01(m, result, dtype) if clamps else result

    def run(m: Convoy) -> None:
        low = one(m, [pick(m, 0) for pick in picks])
        high = one(m, [pick(m, 1) for pick in picks])
        program.touch(m, row)
        if element.bits == 16:
            word = low.view(u16).astype(u32) | high.view(u16).astype(u32) << u32(16)
            put(m, row, word, m.mask)
        else:
            program.touch(m, row + 1)
            put(m, row, low.view(u32), m.mask)
            put(m, row + 1, high.view(u32), m.mask)

    return run


def _half_fetch(
    program: Program, operand: Operand, element: Type, low: int, high: int, negate_low: bool, negate_high: bool
) -> Callable[[Convoy, int], Any]:
    """Compile the fetch of one element of a packed source: half 0 or 1 of the result asks for its own."""
    choices, negates = (low, high), (negate_low and element.is_float, negate_high and element.is_float)
    if element.bits == 32:
        words = [_word(program, operand, n) for n in range(2)]

        def fetch32(m: Convoy, half: int) -> Any:
            value = np.asarray(words[choices[half]](m)).view(element.dtype)
            return -value if negates[half] else value

        return fetch32
    raw = fetch_raw(program, operand)
    # NOTE: a float inline constant is a float16 in the low half and zero above it.
    if operand.kind == "const" and 240 <= operand.index <= 248:
        bits = u32(operand.having(type=F16).constant_bits())

        def raw(m: Convoy) -> Any:
            return bits

    def fetch16(m: Convoy, half: int) -> Any:
        word = np.asarray(raw(m)) >> u32(16 * choices[half])
        value = word.astype(u16).view(element.dtype)
        return -value if negates[half] else value

    return fetch16


def _word(program: Program, operand: Operand, n: int) -> Callable[[Convoy], Any]:
    if operand.kind in "va":
        row = program.row(operand) + n
        return lambda m: m.V[row, m.sel]
    if operand.kind == "s":
        scalar = fetch_scalar(operand.having(index=operand.index + n, type=U32))
        return lambda m: scalar(m)[:, None]
    # NOTE: a constant fills the low word; op_sel reads the same word for both halves.
    value = u32(operand.having(type=U32).constant_bits())
    return lambda m: value


def _packed(
    opcode: int,
    mnemonic: str,
    element: Type,
    count: int,
    body: Callable[..., Any],
    machine: bool = False,
    **traits: Any,
) -> None:
    type_ = (PK_F32 if element is F32 else PK_B32) if element.bits == 32 else U32
    params = tuple((name, type_) for name in "abc"[:count]) + ((("m", None),) if machine else ())
    add(Entry("VOP3P", opcode, mnemonic, (type_,), params, body, {"packed": "halves", "element": element, **traits}))


def _wide(a: Any) -> Any:
    return np.asarray(a).astype(i64)


def _shift(a: Any) -> Any:
    return np.asarray(a) & np.asarray(a).dtype.type(15)


_packed(0x00, "v_pk_mad_i16", I16, 3, lambda a, b, c: _wide(a) * _wide(b) + _wide(c))
_packed(0x01, "v_pk_mul_lo_u16", U16, 2, lambda a, b: a * b)
_packed(0x02, "v_pk_add_i16", I16, 2, lambda a, b: _wide(a) + _wide(b))
_packed(0x03, "v_pk_sub_i16", I16, 2, lambda a, b: _wide(a) - _wide(b))
_packed(0x04, "v_pk_lshlrev_b16", U16, 2, lambda a, b: b << _shift(a))
_packed(0x05, "v_pk_lshrrev_b16", U16, 2, lambda a, b: b >> _shift(a))
_packed(0x06, "v_pk_ashrrev_i16", I16, 2, lambda a, b: b >> _shift(a))
_packed(0x07, "v_pk_max_i16", I16, 2, np.maximum)
_packed(0x08, "v_pk_min_i16", I16, 2, np.minimum)
_packed(0x09, "v_pk_mad_u16", U16, 3, lambda a, b, c: _wide(a) * _wide(b) + _wide(c))
_packed(0x0A, "v_pk_add_u16", U16, 2, lambda a, b: _wide(a) + _wide(b))
_packed(0x0B, "v_pk_sub_u16", U16, 2, lambda a, b: _wide(a) - _wide(b))
_packed(0x0C, "v_pk_max_u16", U16, 2, np.maximum)
_packed(0x0D, "v_pk_min_u16", U16, 2, np.minimum)
_packed(0x0E, "v_pk_fma_f16", F16, 3, floats.fma16)
_packed(0x0F, "v_pk_add_f16", F16, 2, lambda a, b: a + b)
_packed(0x10, "v_pk_mul_f16", F16, 2, lambda a, b: a * b)
_packed(0x11, "v_pk_min_f16", F16, 2, lambda a, b, m: floats.minimum(a, b, m.ieee), machine=True)
_packed(0x12, "v_pk_max_f16", F16, 2, lambda a, b, m: floats.maximum(a, b, m.ieee), machine=True)
_packed(0x30, "v_pk_fma_f32", F32, 3, floats.fma32)
_packed(0x31, "v_pk_mul_f32", F32, 2, lambda a, b: a * b)
_packed(0x32, "v_pk_add_f32", F32, 2, lambda a, b: a + b)


def _spread(pick: Callable[..., Any]) -> Callable[..., Any]:
    def body(a: Any, b: Any, c: Any) -> Any:
        result = pick(pick(a, b, False), c, False)
        for source in (c, b, a):
            result = np.where(np.isnan(source), floats.quiet(source), result)
        return result

    return body


_packed(0x1B, "v_pk_minimum3_f16", F16, 3, _spread(floats.minimum))
_packed(0x1C, "v_pk_maximum3_f16", F16, 3, _spread(floats.maximum))


def _build_move(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """v_pk_mov_b32: the low result is op_sel's word of the first source, the high one that of the second."""
    low, high = (
        _word(program, instruction.src[name], instruction.fields["op_sel"] >> n & 1) for n, name in enumerate("ab")
    )
    row = program.row(instruction.dst[0])

    def run(m: Convoy) -> None:
        first, second = np.array(low(m)), np.array(high(m))
        for n, value in enumerate((first, second)):
            program.touch(m, row + n)
            put(m, row + n, value, m.mask)

    return run


add(
    Entry(
        "VOP3P",
        0x33,
        "v_pk_mov_b32",
        (PK_B32,),
        (("a", PK_B32), ("b", PK_B32)),
        None,
        {"packed": "move", "moves": True},
    )
)

# --- AGPR moves -----------------------------------------------------------------------------------------------------


@vop3p(0x58, "v_accvgpr_read_b32", acc_src=True, moves=True)
def _(a: U32) -> U32:
    return a


@vop3p(0x59, "v_accvgpr_write_b32", acc_dst=True, moves=True)
def _(a: U32) -> U32:
    return a


# --- mixed precision ------------------------------------------------------------------------------------------------


def _build_mix(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """v_fma_mix*: each source is a float32, or (op_sel_hi) one half of the word as float16."""
    fields = instruction.fields
    op_sel_hi = fields["op_sel_hi"] | fields["op_sel_hi2"] << 2
    fetches = []
    for n, name in enumerate("abc"):
        operand = instruction.src[name]
        raw = fetch_raw(program, operand.having(type=U32))
        is_half, shift = op_sel_hi >> n & 1, u32(16 * (fields["op_sel"] >> n & 1))
        fetches.append(_mix_source(raw, bool(is_half), shift, operand))
    row = program.row(instruction.dst[0])
    target = instruction.name

    def run(m: Convoy) -> None:
        result = floats.fma32(*[fetch(m) for fetch in fetches])
        if fields["clamp"]:
            result = clamp01(m, result, np.dtype(f32))
        program.touch(m, row)
        if target == "v_fma_mix_f32":
            put(m, row, result.view(u32), m.mask)
            return
        half = result.astype(f16).view(u16).astype(u32)
        held = m.V[row, m.sel]
        high = target == "v_fma_mixhi_f16"
        put(m, row, merge_half(held, half, high), m.mask)

    return run


def _mix_source(raw: Callable[[Convoy], Any], is_half: bool, shift: Any, operand: Operand) -> Callable[[Convoy], Any]:
    if is_half and operand.kind == "const" and 240 <= operand.index <= 248:
        bits = u32(operand.having(type=F16).constant_bits())
    else:
        bits = None

    def fetch(m: Convoy) -> Any:
        word = np.asarray(raw(m) if bits is None else bits)
        value = (word >> shift).astype(u16).view(f16).astype(f32) if is_half else word.view(f32)
        value = np.abs(value) if operand.absolute else value
        return -value if operand.negate else value

    return fetch


for _opcode, _name in ((0x20, "v_fma_mix_f32"), (0x21, "v_fma_mixlo_f16"), (0x22, "v_fma_mixhi_f16")):
    _params = tuple((name, U32) for name in "abc") + (() if _opcode == 0x20 else (("d", U32),))
    add(Entry("VOP3P", _opcode, _name, (U32,), _params, None, {"packed": "mix", "mix": True}))

# --- dot products ---------------------------------------------------------------------------------------------------


def _integers(word: Any, bits: int, is_signed: bool) -> list[Any]:
    word = np.asarray(word)
    out = []
    for n in range(32 // bits):
        top = word << u32(32 - bits - n * bits)
        out.append(top.view(i32).astype(i64) >> i64(32 - bits) if is_signed else (top >> u32(32 - bits)).astype(i64))
    return out


def _integer_dot(opcode: int, mnemonic: str, bits: int, is_signed: bool, traits: dict[str, Any]) -> None:
    low, high = (-(2**31), 2**31 - 1) if is_signed else (0, 2**32 - 1)
    dtype = i32 if is_signed else u32

    def body(a: Any, b: Any, c: Any, i: Any) -> Any:
        pairs = zip(_integers(a, bits, is_signed), _integers(b, bits, is_signed), strict=True)
        total = sum(x * y for x, y in pairs) + np.asarray(c).view(dtype).astype(i64)
        return (np.clip(total, low, high) if i.fields["clamp"] else total).astype(dtype)

    params = (("a", U32), ("b", U32), ("c", U32), ("i", None))
    add(Entry("VOP3P", opcode, mnemonic, (I32 if is_signed else U32,), params, body, {"is_dot": True, **traits}))


_integer_dot(0x26, "v_dot2_i32_i16", 16, True, {})
_integer_dot(0x27, "v_dot2_u32_u16", 16, False, {})
_integer_dot(0x28, "v_dot4_i32_i8", 8, True, {"no_op_sel": True})
_integer_dot(0x29, "v_dot4_u32_u8", 8, False, {"no_op_sel": True})
_integer_dot(0x2A, "v_dot8_i32_i4", 4, True, {"no_op_sel": True})
_integer_dot(0x2B, "v_dot8_u32_u4", 4, False, {"no_op_sel": True})


def _float_dot(widen: Callable[[Any], Any]) -> Callable[..., Any]:
    """d = a.lo * b.lo + a.hi * b.hi + c; the hardware's inner rounding is not published, float64 is used here."""

    def body(a: Any, b: Any, c: Any, i: Any) -> Any:
        fields = i.fields
        sources = []
        for n, word in enumerate((a, b)):
            low, high, negate_low, negate_high = halves(i, n)
            pair = [widen(np.asarray(word) >> u32(16 * half) & u32(0xFFFF)) for half in (low, high)]
            sources.append([-v if negate else v for v, negate in zip(pair, (negate_low, negate_high), strict=True)])
        addend = np.asarray(c).view(f32).astype(f64)
        addend = np.abs(addend) if fields["neg_hi"] >> 2 & 1 else addend
        addend = -addend if fields["neg"] >> 2 & 1 else addend
        return (sources[0][0] * sources[1][0] + sources[0][1] * sources[1][1] + addend).astype(f32)

    return body


def _widen16(bits: Any) -> Any:
    return bits.astype(u16).view(f16).astype(f64)


def _widen_bf16(bits: Any) -> Any:
    return floats.from_bf16(bits).astype(f64)


for _opcode, _name, _widen in ((0x23, "v_dot2_f32_f16", _widen16), (0x1A, "v_dot2_f32_bf16", _widen_bf16)):
    _params = (("a", U32), ("b", U32), ("c", U32), ("i", None))
    add(Entry("VOP3P", _opcode, _name, (F32,), _params, _float_dot(_widen), {"is_dot": True}))


def _dot2c(opcode: int, name: str, widen: Callable[[Any], Any]) -> None:
    def body(a: Any, b: Any, d: Any) -> Any:
        pairs = [[widen(np.asarray(w) >> u32(16 * h) & u32(0xFFFF)) for h in range(2)] for w in (a, b)]
        return (pairs[0][0] * pairs[1][0] + pairs[0][1] * pairs[1][1] + np.asarray(d).astype(f64)).astype(f32)

    for format_name, code in (("VOP2", opcode), ("VOP3", 0x100 + opcode)):
        traits = {"base": "VOP2", "suffixed": True, "is_dot": True, "modifiers": True}
        add(Entry(format_name, code, name, (F32,), (("a", U32), ("b", U32), ("d", F32)), body, traits))


_dot2c(0x37, "v_dot2c_f32_f16", _widen16)
_dot2c(0x16, "v_dot2c_f32_bf16", _widen_bf16)


def _pk_fmac(a: Any, b: Any, d: Any) -> Any:
    out: Any = u32(0)
    for n in range(2):
        x, y, z = (np.asarray(w >> u32(16 * n)).astype(u16).view(f16) for w in (a, b, d))
        out = out | floats.fma16(x, y, z).view(u16).astype(u32) << u32(16 * n)
    return out


for _format, _code in (("VOP2", 0x3C), ("VOP3", 0x13C)):
    _params = (("a", U32), ("b", U32), ("d", U32))
    add(
        Entry(
            _format,
            _code,
            "v_pk_fmac_f16",
            (U32,),
            _params,
            _pk_fmac,
            {"base": "VOP2", "suffixed": True, "modifiers": True},
        )
    )
