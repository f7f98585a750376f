"""Say what the floating-point vector instructions compute. Approximate ones (rcp, rsq, exp, log, sin) are computed in
float64 and rounded: the hardware promises 1 ulp, this gives the correctly rounded value nearly always.

Sources: CDNA3 ISA, "Vector ALU Instructions"; gfx950 additions by their names in LLVM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import floats
from .floats import fma16, fma32, fma64, maximum, minimum, to_integer
from .memory import merge_half
from .operands import BF16, F16, F32, F64, I16, I32, MASK, PK_F32, U16, U32, VCC
from .table import Entry, add, vop1, vop2, vop3

f16, f32, f64, i32, u8, u16, u32 = np.float16, np.float32, np.float64, np.int32, np.uint8, np.uint16, np.uint32

# --- add, multiply, fused -------------------------------------------------------------------------------------------


@vop2(0x01, "v_add_f32")
def _(a: F32, b: F32) -> F32:
    return a + b


@vop2(0x02, "v_sub_f32")
def _(a: F32, b: F32) -> F32:
    return a - b


@vop2(0x03, "v_subrev_f32")
def _(a: F32, b: F32) -> F32:
    return b - a


@vop2(0x05, "v_mul_f32")
def _(a: F32, b: F32) -> F32:
    return a * b


@vop3(0x2A1, "v_mul_legacy_f32")
def _(a: F32, b: F32) -> F32:
    return np.where((np.asarray(a) == 0) | (np.asarray(b) == 0), f32(0), a * b)


@vop2(0x3B, "v_fmac_f32")
def _(a: F32, b: F32, d: F32) -> F32:
    return fma32(a, b, d)


@vop2(0x04, "v_fmac_f64")
def _(a: F64, b: F64, d: F64) -> F64:
    return fma64(a, b, d)


@vop2(0x17, "v_fmamk_f32", e64=False)
def _(a: F32, k: F32, b: F32) -> F32:
    return fma32(a, k, b)


@vop2(0x18, "v_fmaak_f32", e64=False)
def _(a: F32, b: F32, k: F32) -> F32:
    return fma32(a, b, k)


@vop3(0x1CB, "v_fma_f32")
def _(a: F32, b: F32, c: F32) -> F32:
    return fma32(a, b, c)


@vop3(0x1CC, "v_fma_f64")
def _(a: F64, b: F64, c: F64) -> F64:
    return fma64(a, b, c)


@vop3(0x280, "v_add_f64")
def _(a: F64, b: F64) -> F64:
    return a + b


@vop3(0x281, "v_mul_f64")
def _(a: F64, b: F64) -> F64:
    return a * b


@vop2(0x1F, "v_add_f16")
def _(a: F16, b: F16) -> F16:
    return a + b


@vop2(0x20, "v_sub_f16")
def _(a: F16, b: F16) -> F16:
    return a - b


@vop2(0x21, "v_subrev_f16")
def _(a: F16, b: F16) -> F16:
    return b - a


@vop2(0x22, "v_mul_f16")
def _(a: F16, b: F16) -> F16:
    return a * b


@vop2(0x23, "v_mac_f16")
def _(a: F16, b: F16, d: F16) -> F16:
    return a * b + d


@vop2(0x24, "v_madmk_f16", e64=False)
def _(a: F16, k: F16, b: F16) -> F16:
    return a * k + b


@vop2(0x25, "v_madak_f16", e64=False)
def _(a: F16, b: F16, k: F16) -> F16:
    return a * b + k


@vop3(0x203, "v_mad_f16", op_sel=True, preserves_high=True)
def _(a: F16, b: F16, c: F16) -> F16:
    return a * b + c


@vop3(0x206, "v_fma_f16", op_sel=True, preserves_high=True)
def _(a: F16, b: F16, c: F16) -> F16:
    return fma16(a, b, c)


@vop3(0x1EA, "v_mad_legacy_f16")
def _(a: F16, b: F16, c: F16) -> F16:
    return a * b + c


@vop3(0x1EE, "v_fma_legacy_f16")
def _(a: F16, b: F16, c: F16) -> F16:
    return fma16(a, b, c)


# --- minimum, maximum, median ---------------------------------------------------------------------------------------

for _float, _opcodes in ((F32, (0x0B, 0x0A)), (F16, (0x2D, 0x2E))):
    for _opcode, _stem, _body in zip(_opcodes, ("max", "min"), (maximum, minimum), strict=True):

        def _(a: Any, b: Any, m: Any, _body: Any = _body) -> Any:
            return _body(a, b, m.ieee)

        for _format, _code in (("VOP2", _opcode), ("VOP3", 0x100 + _opcode)):
            _params = (("a", _float), ("b", _float), ("m", None))
            add(
                Entry(
                    _format,
                    _code,
                    f"v_{_stem}_{_float.name.lower()}",
                    (_float,),
                    _params,
                    _,
                    {"base": "VOP2", "suffixed": True},
                )
            )


@vop3(0x283, "v_max_f64")
def _(a: F64, b: F64, m: None) -> F64:
    return maximum(a, b, m.ieee)


@vop3(0x282, "v_min_f64")
def _(a: F64, b: F64, m: None) -> F64:
    return minimum(a, b, m.ieee)


def _median(a: Any, b: Any, c: Any, m: Any) -> Any:
    """v_med3: with a NaN among the sources it is the minimum of the three, as min3 gives it."""
    largest = maximum(maximum(a, b, False), c, False)
    middle = np.where(
        largest == a, maximum(b, c, False), np.where(largest == b, maximum(a, c, False), maximum(a, b, False))
    )
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, minimum(minimum(a, b, m.ieee), c, m.ieee), middle)


def _max3(a: Any, b: Any, c: Any, m: Any) -> Any:
    return maximum(maximum(a, b, m.ieee), c, m.ieee)


def _min3(a: Any, b: Any, c: Any, m: Any) -> Any:
    return minimum(minimum(a, b, m.ieee), c, m.ieee)


for _opcode, _name, _float, _body in (
    (0x1D0, "v_min3_f32", F32, _min3), (0x1D3, "v_max3_f32", F32, _max3), (0x1D6, "v_med3_f32", F32, _median),
    (0x1F4, "v_min3_f16", F16, _min3), (0x1F7, "v_max3_f16", F16, _max3), (0x1FA, "v_med3_f16", F16, _median),
):  # fmt: skip
    _traits = {"op_sel": True} if _float is F16 else {}
    add(
        Entry(
            "VOP3",
            _opcode,
            _name,
            (_float,),
            (("a", _float), ("b", _float), ("c", _float), ("m", None)),
            _body,
            _traits,
        )
    )

# IEEE-2019 minimum and maximum: a NaN wins.


@vop3(0x2A8, "v_minimum3_f32")
def _(a: F32, b: F32, c: F32) -> F32:
    return _spread_nan(minimum(minimum(a, b, False), c, False), a, b, c)


@vop3(0x2A9, "v_maximum3_f32")
def _(a: F32, b: F32, c: F32) -> F32:
    return _spread_nan(maximum(maximum(a, b, False), c, False), a, b, c)


def _spread_nan(result: Any, *sources: Any) -> Any:
    for source in reversed(sources):
        result = np.where(np.isnan(source), floats.quiet(source), result)
    return result


# --- rounding and parts of a float ----------------------------------------------------------------------------------


def _fract(a: Any) -> Any:
    """a - floor(a), kept below 1."""
    largest_below_one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.where(np.isinf(a), a.dtype.type(np.nan), np.fmin(a - np.floor(a), largest_below_one)).astype(a.dtype)


def _frexp_mantissa(a: Any) -> Any:
    return np.where(np.isfinite(a), np.frexp(np.asarray(a))[0], a).astype(np.asarray(a).dtype)


def _frexp_exponent(a: Any) -> Any:
    return np.where(np.isfinite(a) & (np.asarray(a) != 0), np.frexp(np.asarray(a))[1], 0).astype(i32)


_ROUNDINGS = {"trunc": np.trunc, "ceil": np.ceil, "rndne": np.rint, "floor": np.floor, "fract": _fract}
for _float, _opcodes in (
    (F64, {"trunc": 0x17, "ceil": 0x18, "rndne": 0x19, "floor": 0x1A, "fract": 0x32}),
    (F32, {"fract": 0x1B, "trunc": 0x1C, "ceil": 0x1D, "rndne": 0x1E, "floor": 0x1F}),
    (F16, {"floor": 0x44, "ceil": 0x45, "trunc": 0x46, "rndne": 0x47, "fract": 0x48}),
):
    for _stem, _opcode in _opcodes.items():
        for _format, _code in (("VOP1", _opcode), ("VOP3", 0x140 + _opcode)):
            _traits = {"base": "VOP1", "suffixed": True}
            add(
                Entry(
                    _format,
                    _code,
                    f"v_{_stem}_{_float.name.lower()}",
                    (_float,),
                    (("a", _float),),
                    _ROUNDINGS[_stem],
                    _traits,
                )
            )


@vop1(0x33, "v_frexp_exp_i32_f32")
def _(a: F32) -> I32:
    return _frexp_exponent(a)


@vop1(0x34, "v_frexp_mant_f32")
def _(a: F32) -> F32:
    return _frexp_mantissa(a)


@vop1(0x30, "v_frexp_exp_i32_f64")
def _(a: F64) -> I32:
    return _frexp_exponent(a)


@vop1(0x31, "v_frexp_mant_f64")
def _(a: F64) -> F64:
    return _frexp_mantissa(a)


@vop1(0x42, "v_frexp_mant_f16")
def _(a: F16) -> F16:
    return _frexp_mantissa(a)


@vop1(0x43, "v_frexp_exp_i16_f16")
def _(a: F16) -> I16:
    return _frexp_exponent(a).astype(np.int16)


@vop3(0x288, "v_ldexp_f32")
def _(a: F32, b: I32) -> F32:
    return np.ldexp(a, np.clip(b, -4200, 4200)).astype(f32)


@vop3(0x284, "v_ldexp_f64")
def _(a: F64, b: I32) -> F64:
    return np.ldexp(a, np.clip(b, -4200, 4200))


@vop2(0x33, "v_ldexp_f16")
def _(a: F16, b: I16) -> F16:
    return np.ldexp(np.asarray(a).astype(f32), np.asarray(b).astype(i32)).astype(f16)


# --- approximate functions ------------------------------------------------------------------------------------------


def _rcp(a: Any) -> Any:
    return 1.0 / a


def _rsq(a: Any) -> Any:
    return 1.0 / np.sqrt(a)


def _cycles(function: Any) -> Any:
    """sin and cos take turns, not radians; infinities give NaN."""
    return lambda a: function(2.0 * np.pi * (a - np.floor(a)))


_FUNCTIONS = {
    "exp": np.exp2, "log": np.log2, "rcp": _rcp, "rcp_iflag": _rcp, "rsq": _rsq, "sqrt": np.sqrt,
    "sin": _cycles(np.sin), "cos": _cycles(np.cos), "exp_legacy": np.exp2, "log_legacy": np.log2,
}  # fmt: skip
for _float, _opcodes in (
    (F32, {"exp": 0x20, "log": 0x21, "rcp": 0x22, "rcp_iflag": 0x23, "rsq": 0x24, "sqrt": 0x27, "sin": 0x29, "cos":
    0x2A, "exp_legacy": 0x4B, "log_legacy": 0x4C}),
    (F64, {"rcp": 0x25, "rsq": 0x26, "sqrt": 0x28}),
    (F16, {"rcp": 0x3D, "sqrt": 0x3E, "rsq": 0x3F, "log": 0x40, "exp": 0x41, "sin": 0x49, "cos": 0x4A}),
):  # fmt: skip
    for _stem, _opcode in _opcodes.items():

        def _(a: Any, _function: Any = _FUNCTIONS[_stem], _dtype: Any = _float.dtype) -> Any:
            return _function(np.asarray(a).astype(f64)).astype(_dtype)

        for _format, _code in (("VOP1", _opcode), ("VOP3", 0x140 + _opcode)):
            _traits = {"base": "VOP1", "suffixed": True}
            add(Entry(_format, _code, f"v_{_stem}_{_float.name.lower()}", (_float,), (("a", _float),), _, _traits))

# --- conversions ----------------------------------------------------------------------------------------------------


@vop1(0x05, "v_cvt_f32_i32")
def _(a: I32) -> F32:
    return np.asarray(a).astype(f32)


@vop1(0x06, "v_cvt_f32_u32")
def _(a: U32) -> F32:
    return np.asarray(a).astype(f32)


@vop1(0x07, "v_cvt_u32_f32")
def _(a: F32) -> U32:
    return to_integer(a, u32)


@vop1(0x08, "v_cvt_i32_f32")
def _(a: F32) -> I32:
    return to_integer(a, i32)


@vop1(0x0C, "v_cvt_rpi_i32_f32")
def _(a: F32) -> I32:
    return to_integer(np.floor(np.asarray(a).astype(f64) + 0.5), i32)


@vop1(0x0D, "v_cvt_flr_i32_f32")
def _(a: F32) -> I32:
    return to_integer(np.floor(a), i32)


@vop1(0x0A, "v_cvt_f16_f32")
def _(a: F32) -> F16:
    return np.asarray(a).astype(f16)


@vop1(0x0B, "v_cvt_f32_f16")
def _(a: F16) -> F32:
    return np.asarray(a).astype(f32)


@vop1(0x0E, "v_cvt_off_f32_i4")
def _(a: U32) -> F32:
    nibble = (a & u32(15)).astype(i32)
    return (np.where(nibble > 7, nibble - 16, nibble) / 16.0).astype(f32)


@vop1(0x0F, "v_cvt_f32_f64")
def _(a: F64) -> F32:
    return np.asarray(a).astype(f32)


@vop1(0x10, "v_cvt_f64_f32")
def _(a: F32) -> F64:
    return np.asarray(a).astype(f64)


@vop1(0x03, "v_cvt_i32_f64")
def _(a: F64) -> I32:
    return to_integer(a, i32)


@vop1(0x04, "v_cvt_f64_i32")
def _(a: I32) -> F64:
    return np.asarray(a).astype(f64)


@vop1(0x15, "v_cvt_u32_f64")
def _(a: F64) -> U32:
    return to_integer(a, u32)


@vop1(0x16, "v_cvt_f64_u32")
def _(a: U32) -> F64:
    return np.asarray(a).astype(f64)


for _n in range(4):

    def _(a: Any, _shift: int = 8 * _n) -> Any:
        return (a >> u32(_shift) & u32(255)).astype(f32)

    for _format, _code in (("VOP1", 0x11 + _n), ("VOP3", 0x151 + _n)):
        add(Entry(_format, _code, f"v_cvt_f32_ubyte{_n}", (F32,), (("a", U32),), _, {"base": "VOP1", "suffixed": True}))


@vop1(0x39, "v_cvt_f16_u16")
def _(a: U16) -> F16:
    return np.asarray(a).astype(f16)


@vop1(0x3A, "v_cvt_f16_i16")
def _(a: I16) -> F16:
    return np.asarray(a).astype(f16)


@vop1(0x3B, "v_cvt_u16_f16")
def _(a: F16) -> U16:
    return to_integer(a, u16)


@vop1(0x3C, "v_cvt_i16_f16")
def _(a: F16) -> I16:
    return to_integer(a, np.int16)


def _normalised(a: Any, top: int, dtype: Any) -> Any:
    low = -1.0 if top == 32767 else 0.0
    return to_integer(np.rint(np.clip(np.asarray(a).astype(f64), low, 1.0) * top), dtype)


@vop1(0x4D, "v_cvt_norm_i16_f16")
def _(a: F16) -> I16:
    return _normalised(a, 32767, np.int16)


@vop1(0x4E, "v_cvt_norm_u16_f16")
def _(a: F16) -> U16:
    return _normalised(a, 65535, u16)


def join16(low: Any, high: Any) -> Any:
    """Join two arrays of 16-bit elements into uint32."""
    return np.asarray(low).view(u16).astype(u32) | np.asarray(high).view(u16).astype(u32) << u32(16)


@vop3(0x294, "v_cvt_pknorm_i16_f32")
def _(a: F32, b: F32) -> U32:
    return join16(_normalised(a, 32767, np.int16), _normalised(b, 32767, np.int16))


@vop3(0x295, "v_cvt_pknorm_u16_f32")
def _(a: F32, b: F32) -> U32:
    return join16(_normalised(a, 65535, u16), _normalised(b, 65535, u16))


@vop3(0x296, "v_cvt_pkrtz_f16_f32")
def _(a: F32, b: F32) -> U32:
    return join16(_toward_zero16(a), _toward_zero16(b))


def _toward_zero16(a: Any) -> Any:
    """Round float32 to float16 toward zero; beyond the range gives the largest finite value."""
    a = np.asarray(a)
    near = a.astype(f16)
    too_far = np.abs(near.astype(f32)) > np.abs(a)
    stepped = (near.view(u16) - too_far.astype(u16)).view(f16)
    return np.where(np.isinf(a), near, stepped)


@vop3(0x267, "v_cvt_pk_f16_f32")
def _(a: F32, b: F32) -> U32:
    return join16(np.asarray(a).astype(f16), np.asarray(b).astype(f16))


@vop3(0x268, "v_cvt_pk_bf16_f32")
def _(a: F32, b: F32) -> U32:
    return join16(floats.to_bf16(a), floats.to_bf16(b))


@vop1(0x5B, "v_cvt_f32_bf16")
def _(a: BF16) -> F32:
    return floats.from_bf16(a)


# 8-bit floats: the byte (or pair) to convert is chosen by SDWA's select; the other forms take the lowest.


@vop1(0x54, "v_cvt_f32_fp8", no_dst_sel=True)
def _(a: U32) -> F32:
    return floats.FP8_VALUES[np.asarray(a) & u32(255)].astype(f32)


@vop1(0x55, "v_cvt_f32_bf8", no_dst_sel=True)
def _(a: U32) -> F32:
    return floats.BF8_VALUES[np.asarray(a) & u32(255)].astype(f32)


@vop1(0x56, "v_cvt_pk_f32_fp8", no_dst_sel=True)
def _(a: U32) -> PK_F32:
    return _pair(a, floats.FP8_VALUES)


@vop1(0x57, "v_cvt_pk_f32_bf8", no_dst_sel=True)
def _(a: U32) -> PK_F32:
    return _pair(a, floats.BF8_VALUES)


def _pair(a: Any, table: Any) -> Any:
    word = np.asarray(a)
    return np.stack([table[word & u32(255)], table[word >> u32(8) & u32(255)]]).astype(f32)


def _pack8(a: Any, b: Any, d: Any, i: Any, is_bf8: bool) -> Any:
    """v_cvt_pk_*8_f32: two bytes into the low or (op_sel[3]) high half; the other half stays."""
    pair = floats.to_fp8(a, is_bf8).astype(u32) | floats.to_fp8(b, is_bf8).astype(u32) << u32(8)
    high = i.fields["op_sel"] >> 3 & 1
    return merge_half(d, pair, high)


@vop3(0x2A2, "v_cvt_pk_fp8_f32", op_sel=True, omod=False, d_is_fill=True)
def _(a: F32, b: F32, d: U32, i: None) -> U32:
    return _pack8(a, b, d, i, False)


@vop3(0x2A3, "v_cvt_pk_bf8_f32", op_sel=True, omod=False, d_is_fill=True)
def _(a: F32, b: F32, d: U32, i: None) -> U32:
    return _pack8(a, b, d, i, True)


@vop3(0x1DD, "v_cvt_pk_u8_f32")
def _(a: F32, b: U32, c: U32) -> U32:
    shift = (b & u32(3)) * u32(8)
    byte = to_integer(np.rint(a), u8).astype(u32)
    return (c & ~(u32(255) << shift)) | byte << shift


# --- division helpers -----------------------------------------------------------------------------------------------


def _exponent_bits(a: Any) -> Any:
    a = np.asarray(a)
    if a.dtype == f32:
        return (a.view(u32) >> u32(23) & u32(0xFF)).astype(i32)
    return (a.view(np.uint64) >> np.uint64(52) & np.uint64(0x7FF)).astype(i32)


def _div_scale(s0: Any, s1: Any, s2: Any, is_double: bool) -> Any:
    """v_div_scale: s0 is the value to scale (equal to s1, the denominator, or to s2, the numerator)."""
    s0, s1, s2 = (np.asarray(x) for x in (s0, s1, s2))
    dtype = f64 if is_double else f32
    power, far, near, tiny = (128, 768, 53, 1022) if is_double else (64, 96, 23, 126)
    denominator, numerator = _exponent_bits(s1), _exponent_bits(s2)
    is_subnormal_den = (np.abs(s1) < dtype(2.0**-tiny)) & (s1 != 0)
    inverse_subnormal = np.abs(1.0 / s1.astype(f64)) < 2.0**-tiny if not is_double else np.abs(s1) > 2.0**tiny
    ratio = s2.astype(np.longdouble) / s1.astype(np.longdouble)
    quotient_subnormal = np.isfinite(ratio) & (ratio != 0) & (np.abs(ratio) < np.longdouble(2.0) ** -tiny)
    is_den = s0 == s1
    is_num = s0 == s2
    shape = np.broadcast_shapes(s0.shape, s1.shape, s2.shape)
    result = np.broadcast_to(s0, shape).astype(dtype)
    vcc = np.zeros(shape, bool)
    zero = (s1 == 0) | (s2 == 0)
    cases = [
        (zero, lambda: (np.full(shape, np.nan, dtype), vcc)),
        (numerator - denominator >= far, lambda: (np.where(is_den, np.ldexp(s0, power), s0), np.ones(shape, bool))),
        (is_subnormal_den, lambda: (np.ldexp(s0, power), vcc)),
        # NOTE: the denominator is huge here, so it is scaled down; v_div_fmas then scales the quotient down as well.
        (
            inverse_subnormal & quotient_subnormal,
            lambda: (np.where(is_den, np.ldexp(s0, -power), s0), np.ones(shape, bool)),
        ),
        (inverse_subnormal, lambda: (np.ldexp(s0, -power), vcc)),
        (quotient_subnormal, lambda: (np.where(is_num, np.ldexp(s0, power), s0), np.ones(shape, bool))),
        (numerator <= near, lambda: (np.ldexp(s0, power), vcc)),
    ]
    undecided = np.ones(shape, bool)
    for condition, compute in cases:
        chosen = undecided & condition
        if chosen.any():
            value, flag = compute()
            result = np.where(chosen, value, result)
            vcc = np.where(chosen, flag, vcc)
        undecided &= ~condition
    return result.astype(dtype), vcc


@vop3(0x1E0, "v_div_scale_f32")
def _(a: F32, b: F32, c: F32) -> (F32, MASK):
    return _div_scale(a, b, c, False)


@vop3(0x1E1, "v_div_scale_f64")
def _(a: F64, b: F64, c: F64) -> (F64, MASK):
    return _div_scale(a, b, c, True)


def _fmas_power(quotient: Any, power: int) -> Any:
    """v_div_scale scaled the operands: a quotient above 1 was made too small, one below 1 too large."""
    bias = 127 if power == 64 else 1023
    return np.where(_exponent_bits(quotient) > bias, power, -power)


@vop3(0x1E2, "v_div_fmas_f32", implicit_vcc=True, reads_rows=(VCC, VCC + 1))
def _(a: F32, b: F32, c: F32, carry: MASK) -> F32:
    product = np.asarray(a).astype(f64) * np.asarray(b).astype(f64)
    scaled = np.ldexp(floats.odd_sum(product, np.asarray(c).astype(f64)), _fmas_power(c, 64)).astype(f32)
    return np.where(carry, scaled, fma32(a, b, c))


@vop3(0x1E3, "v_div_fmas_f64", implicit_vcc=True, reads_rows=(VCC, VCC + 1))
def _(a: F64, b: F64, c: F64, carry: MASK) -> F64:
    r = fma64(a, b, c)
    return np.where(carry, np.ldexp(r, _fmas_power(c, 128)), r)


def _div_fixup(quotient: Any, denominator: Any, numerator: Any, dtype: Any) -> Any:
    """v_div_fixup: put the special cases of numerator / denominator in place of an approximate quotient."""
    q, d, n = (np.asarray(x, dtype) for x in (quotient, denominator, numerator))
    sign = np.signbit(d) ^ np.signbit(n)
    infinity, zero = dtype(np.inf), dtype(0)
    result = np.where(sign, -np.abs(q), np.abs(q))
    if dtype is not f16:
        gap, top = _exponent_bits(n) - _exponent_bits(d), 255 if dtype is f32 else 2047
        result = np.where(gap < (-150 if dtype is f32 else -1075), np.where(sign, -zero, zero), result)
        # NOTE: where the true quotient overflows, the refinement of an infinite estimate leaves a NaN.
        result = np.where(_exponent_bits(q) == top, np.where(sign, -infinity, infinity), result)
    result = np.where(np.isinf(d) | (n == 0), np.where(sign, -zero, zero), result)
    result = np.where(np.isinf(n) | (d == 0), np.where(sign, -infinity, infinity), result)
    invalid = ((n == 0) & (d == 0)) | (np.isinf(n) & np.isinf(d))
    result = np.where(invalid, -dtype(np.nan), result)
    result = np.where(np.isnan(d), floats.quiet(d), result)
    return np.where(np.isnan(n), floats.quiet(n), result).astype(dtype)


@vop3(0x1DE, "v_div_fixup_f32")
def _(a: F32, b: F32, c: F32) -> F32:
    return _div_fixup(a, b, c, f32)


@vop3(0x1DF, "v_div_fixup_f64")
def _(a: F64, b: F64, c: F64) -> F64:
    return _div_fixup(a, b, c, f64)


@vop3(0x207, "v_div_fixup_f16", op_sel=True, preserves_high=True)
def _(a: F16, b: F16, c: F16) -> F16:
    return _div_fixup(a, b, c, f16)


@vop3(0x1EF, "v_div_fixup_legacy_f16")
def _(a: F16, b: F16, c: F16) -> F16:
    return _div_fixup(a, b, c, f16)
