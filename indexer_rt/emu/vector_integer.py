"""Say what the integer, bit and lane vector instructions compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import lanes
from .operands import F16, F32, I16, I32, I64, MASK, U16, U32, U64
from .scalar import count_leading_zeros, count_sign_bits, find_first_one, reverse_bits
from .table import Entry, add, vop1, vop2, vop3
from .text import truth_table

i16, i32, i64 = np.int16, np.int32, np.int64
u16, u32, u64 = np.uint16, np.uint32, np.uint64


def wide(a: Any) -> Any:
    return np.asarray(a).astype(i64)


def uwide(a: Any) -> Any:
    return np.asarray(a).astype(u64)


# --- moves ----------------------------------------------------------------------------------------------------------


@vop1(0x01, "v_mov_b32", moves=True)
def _(a: U32) -> U32:
    return a


@vop1(0x38, "v_mov_b64", moves=True)
def _(a: U64) -> U64:
    return a


@vop1(0x52, "v_accvgpr_mov_b32", e64=False, acc=True, moves=True)
def _(a: U32) -> U32:
    return a


add(Entry("VOP1", 0x00, "v_nop", traits={"base": "VOP1", "suffixed": False, "kind": "nop"}, body=lambda: None))


@vop2(0x00, "v_cndmask_b32", moves=True, raw=True)
def _(a: F32, b: F32, carry: MASK) -> F32:
    return np.where(carry, b, a)


@vop1(0x51, "v_swap_b32", e64=False, swap=True)
def _(d: U32, a: U32) -> (U32, U32):
    return np.array(a), np.array(d)


def _lowest_active(m: Any) -> Any:
    """Number of the lowest active lane of each wave, 0 where EXEC is 0."""
    return None if m.mask is None else np.argmax(m.mask, axis=1)


@vop1(0x02, "v_readfirstlane_b32", e64=False, sdst=True)
def _(a: U32, m: None) -> U32:
    lowest = _lowest_active(m)
    return _pick_lane(a, m, 0 if lowest is None else lowest)


def _pick_lane(a: Any, m: Any, lane: Any) -> Any:
    a = np.asarray(a)
    if a.ndim < 2 or a.shape[1] == 1:
        return a.reshape(-1) if a.ndim else a
    return a[:, 0] if np.ndim(lane) == 0 and lane == 0 else a[np.arange(m.n), lane]


@vop3(0x289, "v_readlane_b32", sdst=True)
def _(a: U32, b: U32, m: None) -> U32:
    return _pick_lane(a, m, (np.broadcast_to(np.asarray(b).reshape(-1), (m.n,)) & u32(63)).astype(i64))


@vop3(0x28A, "v_writelane_b32", ignores_exec=True)
def _(a: U32, b: U32, d: U32) -> U32:
    return np.where(lanes.LANES == (b & u32(63)), a, d)


# --- lane exchange --------------------------------------------------------------------------------------------------


@vop1(0x59, "v_permlane16_swap_b32", swap=True, permlane=True)
def _(d: U32, a: U32, m: None, i: None) -> (U32, U32):
    return _permlane_swap(d, a, m, i, 16)


@vop1(0x5A, "v_permlane32_swap_b32", swap=True, permlane=True)
def _(d: U32, a: U32, m: None, i: None) -> (U32, U32):
    return _permlane_swap(d, a, m, i, 32)


def _permlane_swap(d: Any, a: Any, m: Any, i: Any, row: int) -> Any:
    """Swap rows; a lane whose partner is inactive keeps its value unless fi (fetch inactive) is set.

    The partner rule without fi is not published; a partly active EXEC that tells the two readings apart is a fault.
    """
    if m.mask is not None and not (i.entry.format == "VOP3" and i.fields["op_sel"] & 1):
        partner = m.mask[:, lanes.LANES ^ row]
        odd = (m.mask != partner).any(axis=1)
        if odd.any():
            wave = int(m.waves[np.argmax(odd)])
            raise m.batch.machine.fault(
                m, "swaps with lanes that EXEC disables; what the hardware does then is not published", wave
            )
    return lanes.swap_rows(np.asarray(d), np.asarray(a), row)


# --- 32-bit arithmetic ----------------------------------------------------------------------------------------------


def _saturated(i: Any, exact: Any, dtype: Any) -> Any:
    """Clamp an exact int64 result when the instruction says so, else wrap."""
    fields = i.extra if i.variant == "sdwa" else i.fields if i.entry.format == "VOP3" else {}
    if fields.get("clamp"):
        info = np.iinfo(dtype)
        exact = np.clip(exact, info.min, info.max)
    return exact.astype(dtype)


def _clamps(i: Any) -> bool:
    return bool((i.extra if i.variant == "sdwa" else i.fields if i.entry.format == "VOP3" else {}).get("clamp"))


@vop2(0x34, "v_add_u32", clamped=True)
def _(a: U32, b: U32, i: None) -> U32:
    return _saturated(i, wide(a) + wide(b), u32) if _clamps(i) else a + b


@vop2(0x35, "v_sub_u32", clamped=True)
def _(a: U32, b: U32, i: None) -> U32:
    return _saturated(i, wide(a) - wide(b), u32) if _clamps(i) else a - b


@vop2(0x36, "v_subrev_u32", clamped=True)
def _(a: U32, b: U32, i: None) -> U32:
    return _saturated(i, wide(b) - wide(a), u32) if _clamps(i) else b - a


@vop3(0x29C, "v_add_i32", clamped=True, omod=False)
def _(a: I32, b: I32, i: None) -> I32:
    return _saturated(i, wide(a) + wide(b), i32)


@vop3(0x29D, "v_sub_i32", clamped=True, omod=False)
def _(a: I32, b: I32, i: None) -> I32:
    return _saturated(i, wide(a) - wide(b), i32)


@vop2(0x19, "v_add_co_u32")
def _(a: U32, b: U32) -> (U32, MASK):
    r = a + b
    return r, r < a


@vop2(0x1A, "v_sub_co_u32")
def _(a: U32, b: U32) -> (U32, MASK):
    return a - b, b > a


@vop2(0x1B, "v_subrev_co_u32")
def _(a: U32, b: U32) -> (U32, MASK):
    return b - a, a > b


@vop2(0x1C, "v_addc_co_u32")
def _(a: U32, b: U32, carry: MASK) -> (U32, MASK):
    r = uwide(a) + uwide(b) + carry
    return r.astype(u32), r >> u64(32) != 0


@vop2(0x1D, "v_subb_co_u32")
def _(a: U32, b: U32, carry: MASK) -> (U32, MASK):
    r = wide(a) - wide(b) - carry
    return r.astype(u32), r < 0


@vop2(0x1E, "v_subbrev_co_u32")
def _(a: U32, b: U32, carry: MASK) -> (U32, MASK):
    r = wide(b) - wide(a) - carry
    return r.astype(u32), r < 0


def _signed24(a: Any) -> Any:
    return (np.asarray(a).astype(i32) << i32(8)) >> i32(8)


def _unsigned24(a: Any) -> Any:
    return np.asarray(a) & u32(0xFFFFFF)


@vop2(0x06, "v_mul_i32_i24")
def _(a: I32, b: I32) -> I32:
    return (wide(_signed24(a)) * wide(_signed24(b))).astype(i32)


@vop2(0x07, "v_mul_hi_i32_i24")
def _(a: I32, b: I32) -> I32:
    return (wide(_signed24(a)) * wide(_signed24(b)) >> i64(32)).astype(i32)


@vop2(0x08, "v_mul_u32_u24")
def _(a: U32, b: U32) -> U32:
    return _unsigned24(a) * _unsigned24(b)


@vop2(0x09, "v_mul_hi_u32_u24")
def _(a: U32, b: U32) -> U32:
    return (uwide(_unsigned24(a)) * uwide(_unsigned24(b)) >> u64(32)).astype(u32)


@vop3(0x1C2, "v_mad_i32_i24", omod=False)
def _(a: I32, b: I32, c: I32) -> I32:
    return (wide(_signed24(a)) * wide(_signed24(b)) + wide(c)).astype(i32)


@vop3(0x1C3, "v_mad_u32_u24", omod=False)
def _(a: U32, b: U32, c: U32) -> U32:
    return _unsigned24(a) * _unsigned24(b) + c


@vop3(0x285, "v_mul_lo_u32")
def _(a: U32, b: U32) -> U32:
    return a * b


@vop3(0x286, "v_mul_hi_u32")
def _(a: U32, b: U32) -> U32:
    return (uwide(a) * uwide(b) >> u64(32)).astype(u32)


@vop3(0x287, "v_mul_hi_i32")
def _(a: I32, b: I32) -> I32:
    return (wide(a) * wide(b) >> i64(32)).astype(i32)


@vop3(0x1E8, "v_mad_u64_u32", omod=False)
def _(a: U32, b: U32, c: U64) -> (U64, MASK):
    product = uwide(a) * uwide(b)
    r = product + c
    return r, r < product


@vop3(0x1E9, "v_mad_i64_i32", omod=False)
def _(a: I32, b: I32, c: I64) -> (I64, MASK):
    product = wide(a) * wide(b)
    r = product + c
    return r, ((product ^ r) & (c ^ r)) < 0


@vop3(0x208, "v_lshl_add_u64")
def _(a: U64, b: U32, c: U64) -> U64:
    return (a << uwide(b & u32(7))) + c


_MINMAX = {"min": np.minimum, "max": np.maximum}
for _opcode, _name, _type in (
    (0x0C, "v_min_i32", I32), (0x0D, "v_max_i32", I32), (0x0E, "v_min_u32", U32), (0x0F, "v_max_u32", U32),
    (0x2F, "v_max_u16", U16), (0x30, "v_max_i16", I16), (0x31, "v_min_u16", U16), (0x32, "v_min_i16", I16),
):  # fmt: skip
    for _format, _code in (("VOP2", _opcode), ("VOP3", 0x100 + _opcode)):
        _traits = {"base": "VOP2", "suffixed": True}
        add(Entry(_format, _code, _name, (_type,), (("a", _type), ("b", _type)), _MINMAX[_name[2:5]], _traits))


def _median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


_THREE = {
    "min3": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "max3": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "med3": _median,
}
for _first, _stem in ((0x1D0, "min3"), (0x1D3, "max3"), (0x1D6, "med3")):
    for _n, _type in ((1, I32), (2, U32)):
        _params = (("a", _type), ("b", _type), ("c", _type))
        add(
            Entry(
                "VOP3",
                _first + _n,
                f"v_{_stem}_{_type.name.lower()}",
                (_type,),
                _params,
                _THREE[_stem],
                {"omod": False},
            )
        )
for _first, _stem in ((0x1F4, "min3"), (0x1F7, "max3"), (0x1FA, "med3")):
    for _n, _type in ((1, I16), (2, U16)):
        _params = (("a", _type), ("b", _type), ("c", _type))
        _traits = {"omod": False, "op_sel": True}
        add(Entry("VOP3", _first + _n, f"v_{_stem}_{_type.name.lower()}", (_type,), _params, _THREE[_stem], _traits))

# --- bits -----------------------------------------------------------------------------------------------------------


@vop2(0x10, "v_lshrrev_b32")
def _(a: U32, b: U32) -> U32:
    return b >> (a & u32(31))


@vop2(0x11, "v_ashrrev_i32")
def _(a: U32, b: I32) -> I32:
    return b >> np.asarray(a & u32(31)).astype(i32)


@vop2(0x12, "v_lshlrev_b32")
def _(a: U32, b: U32) -> U32:
    return b << (a & u32(31))


@vop2(0x13, "v_and_b32")
def _(a: U32, b: U32) -> U32:
    return a & b


@vop2(0x14, "v_or_b32")
def _(a: U32, b: U32) -> U32:
    return a | b


@vop2(0x15, "v_xor_b32")
def _(a: U32, b: U32) -> U32:
    return a ^ b


@vop2(0x3D, "v_xnor_b32")
def _(a: U32, b: U32) -> U32:
    return ~(a ^ b)


@vop3(0x28F, "v_lshlrev_b64")
def _(a: U32, b: U64) -> U64:
    return b << uwide(a & u32(63))


@vop3(0x290, "v_lshrrev_b64")
def _(a: U32, b: U64) -> U64:
    return b >> uwide(a & u32(63))


@vop3(0x291, "v_ashrrev_i64")
def _(a: U32, b: I64) -> I64:
    return b >> wide(a & u32(63))


@vop1(0x2B, "v_not_b32")
def _(a: U32) -> U32:
    return ~a


@vop1(0x2C, "v_bfrev_b32")
def _(a: U32) -> U32:
    return reverse_bits(a, u32)


@vop1(0x2D, "v_ffbh_u32")
def _(a: U32) -> I32:
    return count_leading_zeros(a, 32)


@vop1(0x2E, "v_ffbl_b32")
def _(a: U32) -> I32:
    return find_first_one(a)


@vop1(0x2F, "v_ffbh_i32")
def _(a: I32) -> I32:
    return count_sign_bits(a, 32)


def _field(a: Any, offset: Any, width: Any, is_signed: bool) -> Any:
    offset, width = offset & u32(31), width & u32(31)
    shifted = (
        uwide(a) >> uwide(offset) if not is_signed else uwide(wide(np.asarray(a).view(i32)).view(u64) >> uwide(offset))
    )
    if not is_signed:
        return (shifted & ((u64(1) << uwide(width)) - u64(1))).astype(u32)
    top = uwide(u32(64) - width) % u64(64)
    value = (shifted << top).view(i64) >> top.astype(i64)
    return np.where(width == 0, i64(0), value).astype(i32)


@vop3(0x1C8, "v_bfe_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return _field(a, b, c, False)


@vop3(0x1C9, "v_bfe_i32")
def _(a: I32, b: U32, c: U32) -> I32:
    return _field(a, b, c, True)


@vop3(0x1CA, "v_bfi_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return (a & b) | (~a & c)


@vop3(0x1CE, "v_alignbit_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return ((uwide(a) << u64(32) | uwide(b)) >> uwide(c & u32(31))).astype(u32)


@vop3(0x1CF, "v_alignbyte_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return ((uwide(a) << u64(32) | uwide(b)) >> uwide((c & u32(3)) * u32(8))).astype(u32)


@vop3(0x1ED, "v_perm_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    """Pick four bytes: 0..3 of b, 4..7 of a, 8..11 signs of halves, 12 zero, above 0xff."""
    both = uwide(a) << u64(32) | uwide(b)
    out: Any = u32(0)
    for n in range(4):
        select = c >> u32(8 * n) & u32(255)
        byte = (both >> uwide((select & u32(7)) * u32(8)) & u64(255)).astype(u32)
        # select 8, 9, 10, 11: the sign of bytes 1, 3, 5, 7
        sign = (both >> (uwide(select & u32(3)) * u64(16) + u64(15)) & u64(1)).astype(u32) * u32(255)
        value = np.where(select < 8, byte, np.where(select < 12, sign, np.where(select == 12, u32(0), u32(255))))
        out = out | value << u32(8 * n)
    return out


@vop3(0x293, "v_bfm_b32")
def _(a: U32, b: U32) -> U32:
    return ((u32(1) << (a & u32(31))) - u32(1)) << (b & u32(31))


@vop3(0x1F3, "v_xad_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return (a ^ b) + c


@vop3(0x1FD, "v_lshl_add_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return (a << (b & u32(31))) + c


@vop3(0x1FE, "v_add_lshl_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return (a + b) << (c & u32(31))


@vop3(0x1FF, "v_add3_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return a + b + c


@vop3(0x200, "v_lshl_or_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return a << (b & u32(31)) | c


@vop3(0x201, "v_and_or_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return (a & b) | c


@vop3(0x202, "v_or3_b32")
def _(a: U32, b: U32, c: U32) -> U32:
    return a | b | c


@vop3(0x234, "v_bitop3_b32", bitop3=True, omod=False)
def _(a: U32, b: U32, c: U32, i: None) -> U32:
    return _truth_table(a, b, c, i, u32)


@vop3(0x233, "v_bitop3_b16", bitop3=True, omod=False)
def _(a: U16, b: U16, c: U16, i: None) -> U16:
    return _truth_table(a, b, c, i, u16)


def _truth_table(a: Any, b: Any, c: Any, i: Any, dtype: Any) -> Any:
    """Apply the eight-entry table: entry (a << 2 | b << 1 | c) of each bit position."""
    table = truth_table(i.fields)
    out: Any = dtype(0)
    for entry in range(8):
        if table >> entry & 1:
            out = out | ((a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c))
    return np.asarray(out, dtype)


@vop3(0x28B, "v_bcnt_u32_b32")
def _(a: U32, b: U32) -> U32:
    return np.bitwise_count(a).astype(u32) + b


_BELOW = (np.uint64(1) << np.arange(64, dtype=u64)) - np.uint64(1)


@vop3(0x28C, "v_mbcnt_lo_u32_b32")
def _(a: U32, b: U32) -> U32:
    return np.bitwise_count(a & _BELOW.astype(u32)).astype(u32) + b


@vop3(0x28D, "v_mbcnt_hi_u32_b32")
def _(a: U32, b: U32) -> U32:
    return np.bitwise_count(a & (_BELOW >> u64(32)).astype(u32)).astype(u32) + b


# --- 16-bit ---------------------------------------------------------------------------------------------------------


@vop2(0x26, "v_add_u16", clamped=True)
def _(a: U16, b: U16, i: None) -> U16:
    return _saturated(i, wide(a) + wide(b), u16)


@vop2(0x27, "v_sub_u16", clamped=True)
def _(a: U16, b: U16, i: None) -> U16:
    return _saturated(i, wide(a) - wide(b), u16)


@vop2(0x28, "v_subrev_u16", clamped=True)
def _(a: U16, b: U16, i: None) -> U16:
    return _saturated(i, wide(b) - wide(a), u16)


@vop3(0x29E, "v_add_i16", clamped=True, omod=False, op_sel=True)
def _(a: I16, b: I16, i: None) -> I16:
    return _saturated(i, wide(a) + wide(b), i16)


@vop3(0x29F, "v_sub_i16", clamped=True, omod=False, op_sel=True)
def _(a: I16, b: I16, i: None) -> I16:
    return _saturated(i, wide(a) - wide(b), i16)


@vop2(0x29, "v_mul_lo_u16")
def _(a: U16, b: U16) -> U16:
    return a * b


@vop2(0x2A, "v_lshlrev_b16")
def _(a: U16, b: U16) -> U16:
    return b << (a & u16(15))


@vop2(0x2B, "v_lshrrev_b16")
def _(a: U16, b: U16) -> U16:
    return b >> (a & u16(15))


@vop2(0x2C, "v_ashrrev_i16")
def _(a: U16, b: I16) -> I16:
    return b >> np.asarray(a & u16(15)).astype(i16)


for _opcode, _name, _type, _traits in (
    (0x204, "v_mad_u16", U16, {"op_sel": True, "preserves_high": True}), (0x205, "v_mad_i16", I16, {"op_sel": True,
    "preserves_high": True}), (0x1EB, "v_mad_legacy_u16", U16, {}), (0x1EC, "v_mad_legacy_i16", I16, {}),
):  # fmt: skip

    def _(a: Any, b: Any, c: Any, i: Any, _dtype: Any = _type.dtype.type) -> Any:
        return _saturated(i, wide(a) * wide(b) + wide(c), _dtype)

    _params = (("a", _type), ("b", _type), ("c", _type), ("i", None))
    add(Entry("VOP3", _opcode, _name, (_type,), _params, _, {"clamped": True, "omod": False, **_traits}))


@vop3(0x1F1, "v_mad_u32_u16", op_sel=True, omod=False)
def _(a: U16, b: U16, c: U32) -> U32:
    return np.asarray(a).astype(u32) * np.asarray(b).astype(u32) + c


@vop3(0x1F2, "v_mad_i32_i16", op_sel=True, omod=False)
def _(a: I16, b: I16, c: I32) -> I32:
    return np.asarray(a).astype(i32) * np.asarray(b).astype(i32) + c


@vop3(0x2A0, "v_pack_b32_f16", op_sel=True)
def _(a: F16, b: F16) -> U32:
    return np.asarray(a).view(u16).astype(u32) | np.asarray(b).view(u16).astype(u32) << u32(16)


@vop3(0x297, "v_cvt_pk_u16_u32")
def _(a: U32, b: U32) -> U32:
    return np.minimum(a, u32(0xFFFF)) | np.minimum(b, u32(0xFFFF)) << u32(16)


@vop3(0x298, "v_cvt_pk_i16_i32")
def _(a: I32, b: I32) -> U32:
    low, high = (np.clip(x, -32768, 32767).astype(i16).view(u16).astype(u32) for x in (np.asarray(a), np.asarray(b)))
    return low | high << u32(16)


@vop1(0x4F, "v_sat_pk_u8_i16")
def _(a: U32) -> U16:
    halves = [np.clip(np.asarray(a >> u32(16 * n)).astype(u16).view(i16), 0, 255).astype(u16) for n in range(2)]
    return halves[0] | halves[1] << u16(8)


for _opcode, _name, _low, _high in ((0x265, "v_ashr_pk_i8_i32", -128, 127), (0x266, "v_ashr_pk_u8_i32", 0, 255)):

    def _(a: Any, b: Any, c: Any, _low: int = _low, _high: int = _high) -> Any:
        shift = np.asarray(c & u32(31)).astype(i32)
        parts = [(np.clip(x >> shift, _low, _high) & i32(255)).astype(u16) for x in (np.asarray(a), np.asarray(b))]
        return parts[0] | parts[1] << u16(8)

    add(Entry("VOP3", _opcode, _name, (U16,), (("a", I32), ("b", I32), ("c", U32)), _, {"omod": False}))


# --- sums of absolute differences -----------------------------------------------------------------------------------


def _bytes(a: Any) -> list[Any]:
    return [np.asarray(a >> u32(8 * n) & u32(255)).astype(i32) for n in range(4)]


def _sad8(a: Any, b: Any) -> Any:
    return sum(np.abs(x - y) for x, y in zip(_bytes(a), _bytes(b), strict=True)).astype(u32)


@vop3(0x1D9, "v_sad_u8")
def _(a: U32, b: U32, c: U32) -> U32:
    return _sad8(a, b) + c


@vop3(0x1DA, "v_sad_hi_u8")
def _(a: U32, b: U32, c: U32) -> U32:
    return (_sad8(a, b) << u32(16)) + c


@vop3(0x1DB, "v_sad_u16")
def _(a: U32, b: U32, c: U32) -> U32:
    halves = [np.abs(wide(a >> u32(s) & u32(0xFFFF)) - wide(b >> u32(s) & u32(0xFFFF))).astype(u32) for s in (0, 16)]
    return halves[0] + halves[1] + c


@vop3(0x1DC, "v_sad_u32")
def _(a: U32, b: U32, c: U32) -> U32:
    return np.abs(wide(a) - wide(b)).astype(u32) + c


@vop3(0x1CD, "v_lerp_u8")
def _(a: U32, b: U32, c: U32) -> U32:
    out: Any = u32(0)
    for n in range(4):
        x, y, round_up = (v >> u32(8 * n) & u32(255 if k < 2 else 1) for k, v in enumerate((a, b, c)))
        out = out | ((x + y + round_up) >> u32(1)) << u32(8 * n)
    return out


def _vop2_dot(opcode: int, name: str, bits: int) -> None:
    """v_dot*c_i32: d += sum of products of packed signed integers."""

    def body(a: Any, b: Any, d: Any) -> Any:
        total = d
        for n in range(32 // bits):
            drop = i32(32 - bits)
            x = (np.asarray(a).view(i32) << i32(32 - bits - n * bits)) >> drop
            y = (np.asarray(b).view(i32) << i32(32 - bits - n * bits)) >> drop
            total = total + x * y
        return total

    for format_name, code in (("VOP2", opcode), ("VOP3", 0x100 + opcode)):
        add(
            Entry(
                format_name,
                code,
                name,
                (I32,),
                (("a", U32), ("b", U32), ("d", I32)),
                body,
                {"base": "VOP2", "suffixed": True, "is_dot": True},
            )
        )


_vop2_dot(0x38, "v_dot2c_i32_i16", 16)
_vop2_dot(0x39, "v_dot4c_i32_i8", 8)
_vop2_dot(0x3A, "v_dot8c_i32_i4", 4)
