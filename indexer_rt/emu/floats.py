"""Do float arithmetic that numpy lacks: fused multiply-add, 8- and 16-bit formats, rounding with saturation."""

from __future__ import annotations

from typing import Any

import numpy as np

f16, f32, f64 = np.float16, np.float32, np.float64
u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64
_HALFWAY, _LOW29 = u64(0x1000_0000), u64(0x1FFF_FFFF)
_TINY32 = f64(np.finfo(f32).tiny)


def odd_sum(p: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Add two float64 with rounding to odd, so that rounding the result once more to a narrow type is exact."""
    s = np.asarray(p + c)
    back = s - p
    error = (p - (s - back)) + (c - back)
    bits = s.view(np.int64)
    inexact = (error != 0) & np.isfinite(s) & (bits & 1 == 0)
    away = (error > 0) == (s > 0)
    return (bits + np.where(inexact, np.where(away, 1, -1), 0)).view(f64)


def fma32(a: Any, b: Any, c: Any) -> np.ndarray:
    """Compute a * b + c in float32 with one rounding.

    The product of two float32 is exact in float64. The sum is rounded to 53 bits and then to 24: that differs from one
    rounding only when the 53-bit sum lies on a midpoint of float32, or is subnormal there; those lanes are done again
    with rounding to odd.
    """
    product = np.asarray(a).astype(f64) * np.asarray(b).astype(f64)
    wide = np.asarray(c).astype(f64)
    total = np.asarray(product + wide)
    result = total.astype(f32)
    doubtful = ((total.view(u64) & _LOW29) == _HALFWAY) | ((np.abs(total) < _TINY32) & (total != 0))
    if doubtful.any():
        if result.ndim == 0:
            return odd_sum(product, wide).astype(f32)
        product, wide = np.broadcast_to(product, total.shape), np.broadcast_to(wide, total.shape)
        result[doubtful] = odd_sum(product[doubtful], wide[doubtful]).astype(f32)
    return result


def fma16(a: Any, b: Any, c: Any) -> np.ndarray:
    """Compute a * b + c in float16 with one rounding."""
    product = np.asarray(a).astype(f64) * np.asarray(b).astype(f64)
    return odd_sum(product, np.asarray(c).astype(f64)).astype(f16)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    splitter = f64(134217729.0)

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = splitter * x
        high = high - (high - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def fma64(a: Any, b: Any, c: Any) -> np.ndarray:
    """Compute a * b + c in float64 with one rounding.

    Error-free product and sums, then rounding to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums"); lanes near overflow or underflow, where the method fails, go through exact rationals.
    """
    a, b, c = np.broadcast_arrays(*(np.asarray(x, f64) for x in (a, b, c)))
    uh, ul = _two_product(a, b)
    th, tl = _two_sum(c, ul)
    vh, vl = _two_sum(uh, th)
    result = np.asarray(vh + odd_sum(tl, vl))
    plain = np.asarray(a * b + c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = np.where(finite, result, plain)
    # An infinite addend stands, even where the product of finite factors overflows float64.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    zero = (a == 0) | (b == 0)
    result = np.where(zero, plain, result)
    magnitudes = [np.abs(x) for x in (a, b, a * b)]
    risky = (
        finite
        & ~zero
        & (
            (magnitudes[0] > 1e290)
            | (magnitudes[1] > 1e290)
            | (magnitudes[2] > 1e290)
            | (magnitudes[2] < 1e-270)
            | (np.abs(c) > 1e300)
        )
    )
    if risky.any():
        result = np.array(result)
        for place in zip(*np.nonzero(np.atleast_1d(risky)), strict=True):
            at = place if result.ndim else ()
            result[at] = _exact_fma(float(a[at]), float(b[at]), float(c[at]))
    return result


def _exact_fma(a: float, b: float, c: float) -> float:
    from fractions import Fraction

    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


# --- 8-bit formats (OCP): e4m3 has no infinity and NaN at 0x7f and 0xff; e5m2 is a short float16 --------------------


def _e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code & 0x80, -value, value)


FP8_VALUES = _e4m3_values()
BF8_VALUES = (np.arange(256, dtype=u16) << u16(8)).view(f16).astype(f64)


def to_fp8(value: np.ndarray, is_bf8: bool) -> np.ndarray:
    """Round float32 to the nearest e4m3 (or e5m2) code, ties to even; beyond the range: NaN (e4m3), infinity (e5m2)."""
    value = np.asarray(value, f32)
    mantissa_bits, bias, largest = (2, 15, 57344.0) if is_bf8 else (3, 7, 448.0)
    magnitude = np.abs(value).astype(f64)
    _, exponent = np.frexp(np.where(np.isfinite(magnitude) & (magnitude > 0), magnitude, 1.0))
    step = np.exp2(np.maximum(exponent - 1, 1 - bias) - mantissa_bits)
    rounded = np.rint(magnitude / step) * step
    table = np.abs((BF8_VALUES if is_bf8 else FP8_VALUES)[:128])
    finite = int(np.searchsorted(table, largest))
    code = np.searchsorted(table[: finite + 1], np.minimum(rounded, largest)).astype(u8)
    over = rounded > largest
    code = np.where(over, u8(0x7C if is_bf8 else 0x7F), code)
    code = np.where(np.isnan(value), u8(0x7F), code)
    return (code | (np.signbit(value).astype(u8) << u8(7))).astype(u8)


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


def to_bf16(value: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 bits (uint16), ties to even, NaN kept quiet."""
    bits = np.ascontiguousarray(value, f32).view(u32)
    rounded = (bits + u32(0x7FFF) + (bits >> u32(16) & u32(1))) >> u32(16)
    return np.where(np.isnan(value), bits >> u32(16) | u32(0x40), rounded).astype(u16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Widen bfloat16 bits (any unsigned type) to float32."""
    return (np.asarray(bits).astype(u32) << u32(16)).view(f32)


# --- minimum and maximum ----------------------------------------------------------------------------------------------


def _ordered(a: Any, b: Any, pick: Any, is_max: bool, ieee: bool) -> np.ndarray:
    """Return the number of a pair with one NaN; -0 is below +0; in IEEE mode a signalling NaN wins, made quiet."""
    result = pick(a, b)
    zeros = result == 0
    if zeros.any() and not (np.ndim(b) == 0 and is_max and b == 0 and not np.signbit(b)):
        both = (np.asarray(a) == 0) & (np.asarray(b) == 0)
        negative = np.signbit(a) & np.signbit(b) if is_max else np.signbit(a) | np.signbit(b)
        result = np.where(both, np.where(negative, -np.abs(result), np.abs(result)), result)
    elif zeros.any():
        result = np.where(zeros, np.abs(result), result) if np.ndim(result) else np.abs(result)
    if ieee:
        for source in (b, a):
            signalling = is_signalling(source)
            if signalling.any():
                result = np.where(signalling, quiet(source), result)
    return result


def is_signalling(value: Any) -> np.ndarray:
    """Tell signalling NaNs by the clear top mantissa bit."""
    value = np.asarray(value)
    nan = np.isnan(value)
    if not nan.any():
        return nan
    bits, top = (
        value.view(f"u{value.dtype.itemsize}"),
        {2: 0x200, 4: 0x400000, 8: 0x8000000000000}[value.dtype.itemsize],
    )
    return nan & (bits & bits.dtype.type(top) == 0)


def quiet(value: Any) -> np.ndarray:
    """Set the quiet bit of every NaN."""
    value = np.asarray(value)
    bits, top = (
        value.view(f"u{value.dtype.itemsize}"),
        {2: 0x200, 4: 0x400000, 8: 0x8000000000000}[value.dtype.itemsize],
    )
    return np.where(np.isnan(value), bits | bits.dtype.type(top), bits).view(value.dtype)


def maximum(a: Any, b: Any, ieee: bool) -> np.ndarray:
    """v_max: the larger; a NaN loses against a number."""
    return _ordered(a, b, np.fmax, True, ieee)


def minimum(a: Any, b: Any, ieee: bool) -> np.ndarray:
    """v_min: the smaller; a NaN loses against a number."""
    return _ordered(a, b, np.fmin, False, ieee)


# --- conversion to integers -------------------------------------------------------------------------------------------


def to_integer(value: Any, dtype: Any) -> np.ndarray:
    """Truncate to an integer type, saturating; NaN becomes 0."""
    info = np.iinfo(dtype)
    wide = np.trunc(np.asarray(value).astype(f64))
    clipped = np.clip(np.where(np.isnan(wide), 0.0, wide), float(info.min), float(info.max))
    return clipped.astype(np.int64).astype(dtype)
