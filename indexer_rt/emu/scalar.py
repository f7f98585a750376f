"""Run SOP1, SOP2, SOPC and SOPK. A body sees arrays [waves]; it returns the result, or (result, scc)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .convoy import mode_problem
from .operands import EXEC, I32, I64, U32, U64
from .registers import fetch_scalar, write_scalar
from .table import Entry, add, operation
from .text import signed

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

u32, u64, i32, i64 = np.uint32, np.uint64, np.int32, np.int64


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """Compile one instruction to a function of the convoy."""
    special = instruction.traits.get("build")
    if special is not None:
        return special(program, instruction)
    entry = instruction.entry
    fetches = [_argument(instruction, name) for name, _ in entry.params]
    body, scc = entry.body, instruction.traits.get("scc", "none")
    write = write_scalar(instruction.dst[0]) if instruction.dst else None

    def run(m: Convoy) -> None:
        result = body(*[fetch(m) for fetch in fetches])
        if scc == "only":
            m.scc[m.sel] = result
            return
        if scc == "pair":
            result, condition = result
            m.scc[m.sel] = condition
        elif scc == "nonzero":
            m.scc[m.sel] = result != 0
        write(m, result)

    return run


def _argument(instruction: Instruction, name: str) -> Callable[[Convoy], Any]:
    if name == "scc":
        return lambda m: m.scc[m.sel]
    if name == "m":
        return lambda m: m
    if name == "k":
        value = np.int32(signed(instruction.fields["simm16"], 16))
        return lambda m: value
    if name == "ku":
        unsigned = np.uint32(instruction.fields["simm16"])
        return lambda m: unsigned
    return fetch_scalar(instruction.src[name])


def sop2(opcode: int, mnemonic: str, **traits: Any) -> Callable[..., Any]:
    return operation("SOP2", opcode, mnemonic, **traits)


def sop1(opcode: int, mnemonic: str, **traits: Any) -> Callable[..., Any]:
    return operation("SOP1", opcode, mnemonic, **traits)


def _wide(a: Any) -> Any:
    return np.asarray(a).astype(np.int64)


# --- SOP2 -------------------------------------------------------------------------------------------------------------


@sop2(0x00, "s_add_u32", scc="pair")
def _(a: U32, b: U32) -> U32:
    r = a + b
    return r, r < a


@sop2(0x01, "s_sub_u32", scc="pair")
def _(a: U32, b: U32) -> U32:
    return a - b, b > a


@sop2(0x02, "s_add_i32", scc="pair")
def _(a: I32, b: I32) -> I32:
    r = _wide(a) + _wide(b)
    return r.astype(i32), r != r.astype(i32)


@sop2(0x03, "s_sub_i32", scc="pair")
def _(a: I32, b: I32) -> I32:
    r = _wide(a) - _wide(b)
    return r.astype(i32), r != r.astype(i32)


@sop2(0x04, "s_addc_u32", scc="pair")
def _(a: U32, b: U32, scc: U32) -> U32:
    r = np.asarray(a).astype(u64) + np.asarray(b).astype(u64) + scc
    return r.astype(u32), r >> u64(32) != 0


@sop2(0x05, "s_subb_u32", scc="pair")
def _(a: U32, b: U32, scc: U32) -> U32:
    r = _wide(a) - _wide(b) - scc
    return r.astype(u32), r < 0


for _opcode, _name, _type, _pick in (
    (0x06, "s_min_i32", I32, np.less), (0x07, "s_min_u32", U32, np.less),
    (0x08, "s_max_i32", I32, np.greater), (0x09, "s_max_u32", U32, np.greater),
):  # fmt: skip

    def _(a: _type, b: _type, _pick: Any = _pick) -> _type:
        first = _pick(a, b)
        return np.where(first, a, b), first

    add(Entry("SOP2", _opcode, _name, (_type,), (("a", _type), ("b", _type)), _, {"scc": "pair"}))


@sop2(0x0A, "s_cselect_b32", moves=True)
def _(a: U32, b: U32, scc: U32) -> U32:
    return np.where(scc, a, b)


@sop2(0x0B, "s_cselect_b64", moves=True)
def _(a: U64, b: U64, scc: U32) -> U64:
    return np.where(scc, a, b)


# Bitwise operations come as b32 and b64 pairs at consecutive opcodes: mnemonic stem -> (first opcode, function).
_BITWISE = {
    "and": (0x0C, lambda a, b: a & b), "or": (0x0E, lambda a, b: a | b), "xor": (0x10, lambda a, b: a ^ b),
    "andn2": (0x12, lambda a, b: a & ~b), "orn2": (0x14, lambda a, b: a | ~b), "nand": (0x16, lambda a, b: ~(a & b)),
    "nor": (0x18, lambda a, b: ~(a | b)), "xnor": (0x1A, lambda a, b: ~(a ^ b)),
}  # fmt: skip
for _stem, (_opcode, _body) in _BITWISE.items():
    for _n, _type in enumerate((U32, U64)):
        add(
            Entry(
                "SOP2",
                _opcode + _n,
                f"s_{_stem}_b{_type.bits}",
                (_type,),
                (("a", _type), ("b", _type)),
                _body,
                {"scc": "nonzero"},
            )
        )


@sop2(0x1C, "s_lshl_b32", scc="nonzero")
def _(a: U32, b: U32) -> U32:
    return a << (b & u32(31))


@sop2(0x1D, "s_lshl_b64", scc="nonzero")
def _(a: U64, b: U32) -> U64:
    return a << _count(b)


@sop2(0x1E, "s_lshr_b32", scc="nonzero")
def _(a: U32, b: U32) -> U32:
    return a >> (b & u32(31))


@sop2(0x1F, "s_lshr_b64", scc="nonzero")
def _(a: U64, b: U32) -> U64:
    return a >> _count(b)


@sop2(0x20, "s_ashr_i32", scc="nonzero")
def _(a: I32, b: U32) -> I32:
    return a >> (b & u32(31)).astype(i32)


@sop2(0x21, "s_ashr_i64", scc="nonzero")
def _(a: I64, b: U32) -> I64:
    return a >> _count(b).astype(i64)


def _count(b: Any) -> Any:
    return np.asarray(b & u32(63)).astype(u64)


@sop2(0x22, "s_bfm_b32")
def _(a: U32, b: U32) -> U32:
    return ((u32(1) << (a & u32(31))) - u32(1)) << (b & u32(31))


@sop2(0x23, "s_bfm_b64")
def _(a: U32, b: U32) -> U64:
    return ((u64(1) << _count(a)) - u64(1)) << _count(b)


@sop2(0x24, "s_mul_i32")
def _(a: I32, b: I32) -> I32:
    return (_wide(a) * _wide(b)).astype(i32)


def _extract(value: Any, field: Any, bits: int, unsigned: Any, signed_type: Any = None) -> Any:
    """Take the field (offset in the low bits, width from bit 16) out of ``value``; sign-extend for a signed type."""
    offset = np.asarray(field & u32(bits - 1)).astype(unsigned)
    width = np.minimum(np.asarray(field >> u32(16) & u32(127)).astype(unsigned), unsigned(bits) - offset)
    drop = unsigned(bits) - width
    empty = width == 0
    safe = np.where(empty, unsigned(0), drop).astype(unsigned)
    top = np.asarray(value).view(unsigned) << (unsigned(bits) - width - offset) % unsigned(bits)
    if signed_type is not None:
        return np.where(empty, signed_type(0), top.view(signed_type) >> safe.view(signed_type))
    return np.where(empty, unsigned(0), top >> safe)


@sop2(0x25, "s_bfe_u32", scc="nonzero")
def _(a: U32, b: U32) -> U32:
    return _extract(a, b, 32, u32)


@sop2(0x26, "s_bfe_i32", scc="nonzero")
def _(a: I32, b: U32) -> I32:
    return _extract(a, b, 32, u32, i32)


@sop2(0x27, "s_bfe_u64", scc="nonzero")
def _(a: U64, b: U32) -> U64:
    return _extract(a, b, 64, u64)


@sop2(0x28, "s_bfe_i64", scc="nonzero")
def _(a: I64, b: U32) -> I64:
    return _extract(a, b, 64, u64, i64)


@sop2(0x2A, "s_absdiff_i32", scc="nonzero")
def _(a: I32, b: I32) -> I32:
    return np.abs((_wide(a) - _wide(b)).astype(i32))


@sop2(0x2C, "s_mul_hi_u32")
def _(a: U32, b: U32) -> U32:
    return (np.asarray(a).astype(u64) * np.asarray(b).astype(u64) >> u64(32)).astype(u32)


@sop2(0x2D, "s_mul_hi_i32")
def _(a: I32, b: I32) -> I32:
    return (_wide(a) * _wide(b) >> i64(32)).astype(i32)


for _n in range(1, 5):

    def _(a: U32, b: U32, _n: int = _n) -> U32:
        r = (np.asarray(a).astype(u64) << u64(_n)) + np.asarray(b).astype(u64)
        return r.astype(u32), r >> u64(32) != 0

    add(Entry("SOP2", 0x2D + _n, f"s_lshl{_n}_add_u32", (U32,), (("a", U32), ("b", U32)), _, {"scc": "pair"}))


@sop2(0x32, "s_pack_ll_b32_b16")
def _(a: U32, b: U32) -> U32:
    return (a & u32(0xFFFF)) | b << u32(16)


@sop2(0x33, "s_pack_lh_b32_b16")
def _(a: U32, b: U32) -> U32:
    return (a & u32(0xFFFF)) | (b & u32(0xFFFF0000))


@sop2(0x34, "s_pack_hh_b32_b16")
def _(a: U32, b: U32) -> U32:
    return a >> u32(16) | (b & u32(0xFFFF0000))


# --- SOP1 -------------------------------------------------------------------------------------------------------------


@sop1(0x00, "s_mov_b32", moves=True)
def _(a: U32) -> U32:
    return a


@sop1(0x01, "s_mov_b64", moves=True)
def _(a: U64) -> U64:
    return a


@sop1(0x02, "s_cmov_b32", moves=True)
def _(a: U32, d: U32, scc: U32) -> U32:
    return np.where(scc, a, d)


@sop1(0x03, "s_cmov_b64", moves=True)
def _(a: U64, d: U64, scc: U32) -> U64:
    return np.where(scc, a, d)


@sop1(0x04, "s_not_b32", scc="nonzero")
def _(a: U32) -> U32:
    return ~a


@sop1(0x05, "s_not_b64", scc="nonzero")
def _(a: U64) -> U64:
    return ~a


def _whole_quads(a: Any, unsigned: Any, bits: int) -> Any:
    quads = np.asarray(a)
    quads = quads | quads >> unsigned(1)
    quads = (quads | quads >> unsigned(2)) & unsigned(0x1111111111111111 & ((1 << bits) - 1))
    return quads * unsigned(15)


@sop1(0x06, "s_wqm_b32", scc="nonzero")
def _(a: U32) -> U32:
    return _whole_quads(a, u32, 32)


@sop1(0x07, "s_wqm_b64", scc="nonzero")
def _(a: U64) -> U64:
    return _whole_quads(a, u64, 64)


def reverse_bits(a: Any, unsigned: Any) -> Any:
    """Reverse the bit order of each element."""
    size = np.dtype(unsigned).itemsize
    raw = np.atleast_1d(np.ascontiguousarray(a, unsigned)).view(np.uint8).reshape(-1, size)
    bits = np.unpackbits(raw, axis=1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").view(unsigned).reshape(np.shape(a))


@sop1(0x08, "s_brev_b32")
def _(a: U32) -> U32:
    return reverse_bits(a, u32)


@sop1(0x09, "s_brev_b64")
def _(a: U64) -> U64:
    return reverse_bits(a, u64)


def find_first_one(a: Any) -> Any:
    """Number the lowest set bit of each element; -1 for zero."""
    a = np.asarray(a).astype(u64)
    return np.where(a == 0, -1, np.bitwise_count((a & (~a + u64(1))) - u64(1)).astype(i32)).astype(i32)


def count_leading_zeros(a: Any, bits: int) -> Any:
    """Leading zeros, -1 for zero."""
    a = np.asarray(a).astype(u64)
    for step in (1, 2, 4, 8, 16, 32):
        a = a | a >> u64(step)
    return np.where(a == 0, -1, bits - np.bitwise_count(a).astype(i32)).astype(i32)


def count_sign_bits(a: Any, bits: int) -> Any:
    """Position from the top of the first bit unlike the sign, -1 when there is none."""
    a = np.asarray(a)
    return count_leading_zeros(np.where(a < 0, ~a, a).view(f"u{bits // 8}"), bits)


_COUNTS = {
    0x0A: ("s_bcnt0_i32_b32", U32, lambda a: i32(32) - np.bitwise_count(a).astype(i32), "nonzero"),
    0x0B: ("s_bcnt0_i32_b64", U64, lambda a: i32(64) - np.bitwise_count(a).astype(i32), "nonzero"),
    0x0C: ("s_bcnt1_i32_b32", U32, lambda a: np.bitwise_count(a).astype(i32), "nonzero"),
    0x0D: ("s_bcnt1_i32_b64", U64, lambda a: np.bitwise_count(a).astype(i32), "nonzero"),
    0x0E: ("s_ff0_i32_b32", U32, lambda a: find_first_one(~a), "none"),
    0x0F: ("s_ff0_i32_b64", U64, lambda a: find_first_one(~a), "none"),
    0x10: ("s_ff1_i32_b32", U32, lambda a: find_first_one(a), "none"),
    0x11: ("s_ff1_i32_b64", U64, lambda a: find_first_one(a), "none"),
    0x12: ("s_flbit_i32_b32", U32, lambda a: count_leading_zeros(a, 32), "none"),
    0x13: ("s_flbit_i32_b64", U64, lambda a: count_leading_zeros(a, 64), "none"),
    0x14: ("s_flbit_i32", I32, lambda a: count_sign_bits(a, 32), "none"),
    0x15: ("s_flbit_i32_i64", I64, lambda a: count_sign_bits(a, 64), "none"),
    0x16: ("s_sext_i32_i8", I32, lambda a: np.asarray(a).astype(np.int8).astype(i32), "none"),
    0x17: ("s_sext_i32_i16", I32, lambda a: np.asarray(a).astype(np.int16).astype(i32), "none"),
}
for _opcode, (_name, _type, _body, _scc) in _COUNTS.items():
    add(Entry("SOP1", _opcode, _name, (I32,), (("a", _type),), _body, {"scc": _scc}))


@sop1(0x18, "s_bitset0_b32")
def _(a: U32, d: U32) -> U32:
    return d & ~(u32(1) << (a & u32(31)))


@sop1(0x19, "s_bitset0_b64")
def _(a: U32, d: U64) -> U64:
    return d & ~(u64(1) << _count(a))


@sop1(0x1A, "s_bitset1_b32")
def _(a: U32, d: U32) -> U32:
    return d | u32(1) << (a & u32(31))


@sop1(0x1B, "s_bitset1_b64")
def _(a: U32, d: U64) -> U64:
    return d | u64(1) << _count(a)


@sop1(0x30, "s_abs_i32", scc="nonzero")
def _(a: I32) -> I32:
    return np.abs(a)


@sop1(0x37, "s_bitreplicate_b64_b32")
def _(a: U32) -> U64:
    raw = np.atleast_1d(np.ascontiguousarray(a, u32)).view(np.uint8).reshape(-1, 4)
    bits = np.repeat(np.unpackbits(raw, axis=1, bitorder="little"), 2, axis=1)
    return np.packbits(bits, axis=1, bitorder="little").view(u64).reshape(np.shape(a))


def _quad_mask(a: Any, bits: int) -> Any:
    raw = np.atleast_1d(np.ascontiguousarray(a, f"u{bits // 8}")).view(np.uint8).reshape(-1, bits // 8)
    any_set = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(raw), -1, 4).any(axis=2)
    padded = np.zeros((len(raw), bits), bool)
    padded[:, : bits // 4] = any_set
    return np.packbits(padded, axis=1, bitorder="little").view(f"u{bits // 8}").reshape(np.shape(a))


@sop1(0x28, "s_quadmask_b32", scc="nonzero")
def _(a: U32) -> U32:
    return _quad_mask(a, 32)


@sop1(0x29, "s_quadmask_b64", scc="nonzero")
def _(a: U64) -> U64:
    return _quad_mask(a, 64)


# saveexec: D = old EXEC, EXEC = op(source, old EXEC). wrexec: D = EXEC = op(...).
_EXEC_OPERATIONS = {
    0x20: ("s_and_saveexec_b64", lambda a, e: a & e), 0x21: ("s_or_saveexec_b64", lambda a, e: a | e),
    0x22: ("s_xor_saveexec_b64", lambda a, e: a ^ e), 0x23: ("s_andn2_saveexec_b64", lambda a, e: a & ~e),
    0x24: ("s_orn2_saveexec_b64", lambda a, e: a | ~e), 0x25: ("s_nand_saveexec_b64", lambda a, e: ~(a & e)),
    0x26: ("s_nor_saveexec_b64", lambda a, e: ~(a | e)), 0x27: ("s_xnor_saveexec_b64", lambda a, e: ~(a ^ e)),
    0x33: ("s_andn1_saveexec_b64", lambda a, e: ~a & e), 0x34: ("s_orn1_saveexec_b64", lambda a, e: ~a | e),
    0x35: ("s_andn1_wrexec_b64", lambda a, e: ~a & e), 0x36: ("s_andn2_wrexec_b64", lambda a, e: a & ~e),
}  # fmt: skip


def _build_exec(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    del program
    source, write = fetch_scalar(instruction.src["a"]), write_scalar(instruction.dst[0])
    body, saves = instruction.entry.body, "saveexec" in instruction.name

    def run(m: Convoy) -> None:
        old = m.S[EXEC, m.sel].astype(u64) | m.S[EXEC + 1, m.sel].astype(u64) << u64(32)
        new = body(np.asarray(source(m)), old)
        m.scc[m.sel] = new != 0
        write(m, old if saves else new)
        m.S[EXEC, m.sel] = new.astype(u32)
        m.S[EXEC + 1, m.sel] = (new >> u64(32)).astype(u32)
        m.exec_changed()

    return run


for _opcode, (_name, _body) in _EXEC_OPERATIONS.items():
    add(
        Entry(
            "SOP1", _opcode, _name, (U64,), (("a", U64),), _body, {"build": _build_exec, "reads_rows": (EXEC, EXEC + 1)}
        )
    )


# --- jumps through registers ------------------------------------------------------------------------------------------


def _build_getpc(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    del program
    write = write_scalar(instruction.dst[0])
    return lambda m: write(m, np.uint64(m.batch.machine.entry_address + m.pc + instruction.size))


def _jump(m: Convoy, targets: np.ndarray) -> Any:
    """Go where each wave's 64-bit address says."""
    offsets = (np.asarray(targets) - u64(m.batch.machine.entry_address)).view(i64)
    pcs = np.unique(offsets)
    if len(pcs) == 1:
        return int(pcs[0])
    out, rest, left = [], m, offsets
    for pc in pcs[:-1]:
        chosen, rest = rest.split(left == pc)
        chosen.pc = int(pc)
        out.append(chosen)
        left = left[left != pc]
    rest.pc = int(pcs[-1])
    return (*out, rest)


def _build_setpc(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    del program
    source = fetch_scalar(instruction.src["a"])
    write = write_scalar(instruction.dst[0]) if instruction.dst else None

    def run(m: Convoy) -> Any:
        targets = source(m)
        if write is not None:
            write(m, np.uint64(m.batch.machine.entry_address + m.pc + instruction.size))
        return _jump(m, targets)

    return run


def _build_call(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    getpc = _build_getpc(program, instruction)
    words = signed(instruction.fields["simm16"], 16)

    def run(m: Convoy) -> int:
        getpc(m)
        return m.pc + instruction.size + 4 * words

    return run


add(Entry("SOP1", 0x1C, "s_getpc_b64", (U64,), (), None, {"build": _build_getpc}))
add(Entry("SOP1", 0x1D, "s_setpc_b64", (), (("a", U64),), None, {"build": _build_setpc}))
add(Entry("SOP1", 0x1E, "s_swappc_b64", (U64,), (("a", U64),), None, {"build": _build_setpc}))
add(Entry("SOPK", 0x15, "s_call_b64", (U64,), (), None, {"build": _build_call, "jump": True}))

# --- SOPC -------------------------------------------------------------------------------------------------------------

_COMPARISONS = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
for _n, (_stem, _body) in enumerate(_COMPARISONS.items()):
    for _first, _type in ((0x0, I32), (0x6, U32)):
        _params = (("a", _type), ("b", _type))
        add(Entry("SOPC", _first + _n, f"s_cmp_{_stem}_{_type.name.lower()}", (), _params, _body, {"scc": "only"}))
        _params = (("d", _type), ("k" if _type is I32 else "ku", None))
        add(
            Entry(
                "SOPK", 0x2 + _first + _n, f"s_cmpk_{_stem}_{_type.name.lower()}", (), _params, _body, {"scc": "only"}
            )
        )
for _n, _stem in enumerate(("eq", "lg")):
    add(
        Entry(
            "SOPC", 0x12 + _n, f"s_cmp_{_stem}_u64", (), (("a", U64), ("b", U64)), _COMPARISONS[_stem], {"scc": "only"}
        )
    )


@operation("SOPC", 0x0C, "s_bitcmp0_b32", scc="only")
def _(a: U32, b: U32) -> None:
    return (a >> (b & u32(31)) & u32(1)) == 0


@operation("SOPC", 0x0D, "s_bitcmp1_b32", scc="only")
def _(a: U32, b: U32) -> None:
    return (a >> (b & u32(31)) & u32(1)) == 1


@operation("SOPC", 0x0E, "s_bitcmp0_b64", scc="only")
def _(a: U64, b: U32) -> None:
    return (a >> _count(b) & u64(1)) == 0


@operation("SOPC", 0x0F, "s_bitcmp1_b64", scc="only")
def _(a: U64, b: U32) -> None:
    return (a >> _count(b) & u64(1)) == 1


# --- SOPK -------------------------------------------------------------------------------------------------------------


def _sopk(opcode: int, mnemonic: str, names: tuple[str, ...], body: Callable[..., Any], **traits: Any) -> None:
    types = {"d": I32, "k": None, "scc": U32}
    add(Entry("SOPK", opcode, mnemonic, (I32,), tuple((name, types[name]) for name in names), body, traits))


def _add_overflow(d: Any, k: Any) -> Any:
    r = _wide(d) + _wide(k)
    return r.astype(i32), r != r.astype(i32)


_sopk(0x00, "s_movk_i32", ("k",), lambda k: k)
_sopk(0x01, "s_cmovk_i32", ("d", "k", "scc"), lambda d, k, scc: np.where(scc, k, d), moves=True)
_sopk(0x0E, "s_addk_i32", ("d", "k"), _add_overflow, scc="pair")
_sopk(0x0F, "s_mulk_i32", ("d", "k"), lambda d, k: (_wide(d) * _wide(k)).astype(i32))

# Hardware registers: MODE is kept, the identity registers read as 0 (where a wave runs is not modelled).
_MODE, _READABLE = 1, {1, 2, 4, 5, 6, 20}


def _hwreg(simm16: int) -> tuple[int, int, int]:
    return simm16 & 63, simm16 >> 6 & 31, (simm16 >> 11 & 31) + 1


def _build_getreg(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    del program
    register, offset, size = _hwreg(instruction.fields["simm16"])
    write = write_scalar(instruction.dst[0])

    def run(m: Convoy) -> None:
        if register not in _READABLE:
            raise m.batch.machine.fault(m, f"{instruction} is not modelled")
        value = m.mode if register == _MODE else 0
        write(m, u32(value >> offset & ((1 << size) - 1)))

    return run


def _build_setreg(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    del program
    register, offset, size = _hwreg(instruction.fields["simm16"])
    field = ((1 << size) - 1) << offset
    source = None if "literal" in instruction.fields else fetch_scalar(instruction.src["a"])

    def apply(m: Convoy, value: int) -> None:
        if register != _MODE:
            raise m.batch.machine.fault(m, f"{instruction} is not modelled; only HW_REG_MODE can be set")
        mode = (m.mode & ~field) | (value << offset & field)
        problem = mode_problem(mode)
        if problem is not None:
            raise m.batch.machine.fault(m, f"{instruction} asks for {problem}, which is not modelled")
        m.mode = mode

    def run(m: Convoy) -> Any:
        if source is None:
            apply(m, instruction.fields["literal"])
            return None
        values = source(m)
        if np.ndim(values) == 0 or (values == values[0]).all():
            apply(m, int(np.atleast_1d(values)[0]))
            return None
        parts = m.split(values == values[0])
        for part in parts:
            part.instruction = instruction
            run(part)
            part.pc = m.pc + instruction.size
        return parts

    return run


add(Entry("SOPK", 0x11, "s_getreg_b32", (U32,), (), None, {"build": _build_getreg, "hwreg": "get"}))
add(Entry("SOPK", 0x12, "s_setreg_b32", (), (), None, {"build": _build_setreg, "hwreg": "set"}))
add(Entry("SOPK", 0x14, "s_setreg_imm32_b32", (), (), None, {"build": _build_setreg, "hwreg": "set", "literal": True}))
