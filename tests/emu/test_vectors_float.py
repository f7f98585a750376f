"""Check floating-point instructions against numbers worked out by hand.

Sources: "AMD Instinct CDNA3 ISA" and "CDNA4 ISA" reference guides, chapters "Vector ALU" and "Instruction details";
IEEE 754-2008 for rounding. The frame runs in IEEE mode, round to nearest even, denormals kept.
"""

from __future__ import annotations

import pytest
from conformance import INF, NAN, Case, Module, f16, f32, f64, pack16, pair, rows

QNAN, SNAN, NEG_QNAN = 0x7FC00000, 0x7F800001, 0xFFC00000
SNAN_QUIET = SNAN | 0x00400000
DENORM = 0x00000001  # 2^-149
MIN_NORMAL = 0x00800000  # 2^-126
MAX = 0x7F7FFFFF
ULP = 2.0**-23
D_SNAN = 0x7FF0000000000001

CASES: list[Case] = []
add = CASES.extend

# -- add, subtract, multiply -------------------------------------------------------------------------------------------
add(
    rows(
        "v_add_f32",
        "v_add_f32_e32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (1.0, 2.0, 3.0),
            (1.0, 2.0**-24, 1.0),  # halfway: to even
            (1.0 + ULP, 2.0**-24, 1.0 + 2 * ULP),  # halfway: to even, upwards
            (1.0, 2.0**-24 * 1.5, 1.0 + ULP),
            (-1.5, 1.5, 0x00000000),  # x - x is +0 when rounding to nearest
            (-0.0, -0.0, 0x80000000),
            (0.0, -0.0, 0x00000000),
            (DENORM, DENORM, 0x00000002),  # denormals are kept
            (0x007FFFFF, DENORM, MIN_NORMAL),
            (MIN_NORMAL, 0x80000001, 0x007FFFFF),
            (MAX, MAX, INF),
            (INF, 1.0, INF),
            (INF, -INF, NAN),
            (NAN, 1.0, NAN),
            (1.0, SNAN, NAN),
        ],
    )
)
add(rows("v_sub_f32", "v_sub_f32_e32 v3, v1, v2", "v1 v2 -> v3", [(5.0, 3.0, 2.0), (0.0, 0.0, 0), (1.0, -INF, INF)]))
add(rows("v_subrev_f32", "v_subrev_f32_e32 v3, v1, v2", "v1 v2 -> v3", [(5.0, 3.0, -2.0), (1.0, INF, INF)]))
add(
    rows(
        "v_mul_f32",
        "v_mul_f32_e32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (3.0, -2.0, -6.0),
            (1.0 + ULP, 1.0 + ULP, 1.0 + 2 * ULP),  # 1 + 2u + u^2: the square is below half an ulp
            (0x1000000, 1.0, 0x1000000),
            (MIN_NORMAL, 0.5, 0x00400000),
            (DENORM, 0.5, 0x00000000),  # halfway between 0 and the least denormal: to even
            (0x00000003, 0.5, 0x00000002),  # 1.5 denormal steps: to even
            (MAX, 2.0, INF),
            (0.0, -3.0, 0x80000000),
            (INF, 0.0, NAN),
            (NAN, 0.0, NAN),
        ],
    )
)
# The legacy multiply: 0 times anything is 0 (CDNA3 ISA, V_MUL_LEGACY_F32).
add(
    rows(
        "v_mul_legacy_f32",
        "v_mul_legacy_f32 v3, v1, v2",
        "v1 v2 -> v3",
        [(3.0, 2.0, 6.0), (0.0, INF, 0.0), (NAN, 0.0, 0.0), (INF, 2.0, INF)],
    )
)

# -- fused multiply-add: one rounding ----------------------------------------------------------------------------------
# (1+2^-12)^2 = 1 + 2^-11 + 2^-24. Rounded first, the 2^-24 is lost (a tie to even); fused with -(1+2^-11) it remains.
FMA = [
    (1.0 + 2.0**-12, 1.0 + 2.0**-12, -(1.0 + 2.0**-11), 2.0**-24),
    (2.0, 3.0, 4.0, 10.0),
    (MAX, 2.0, -INF, -INF),
    (MAX, 2.0, -3.4028234663852886e38, MAX),  # 2 * MAX - MAX: the product does not overflow
    (INF, 0.0, 1.0, NAN),
    (NAN, 0.0, 1.0, NAN),
    (0x00000001, 0.5, 0x00000001, 0x00000002),  # 1.5 denormal steps, to even
    (-1.0, 1.0, 1.0, 0x00000000),
]
add(rows("v_fma_f32", "v_fma_f32 v4, v1, v2, v3", "v1 v2 v3 -> v4", FMA))
add(rows("v_fmac_f32", "v_fmac_f32_e32 v3, v1, v2", "v1 v2 v3 -> v3", FMA))
add(
    rows(
        "v_fmac_f32_e64",
        "v_fmac_f32_e64 v3, -v1, |v2|",
        "v1 v2 v3 -> v3",
        [(2.0, -3.0, 1.0, -5.0), (-2.0, 3.0, 1.0, 7.0)],
    )
)
add(rows("v_fmamk_f32", "v_fmamk_f32 v4, v1, 0x40400000, v2", "v1 v2 -> v4", [(2.0, 1.0, 7.0), (-1.0, 3.0, 0.0)]))
add(rows("v_fmaak_f32", "v_fmaak_f32 v4, v1, v2, 0x40400000", "v1 v2 -> v4", [(2.0, 4.0, 11.0), (-1.0, 3.0, 0.0)]))
add(
    rows(
        "v_fma_f64",
        "v_fma_f64 v[8:9], v[2:3], v[4:5], v[6:7]",
        "v[2:3] v[4:5] v[6:7] -> v[8:9]",
        [
            # (1+2^-27)^2 = 1 + 2^-26 + 2^-54
            (1.0 + 2.0**-27, 1.0 + 2.0**-27, -(1.0 + 2.0**-26), 2.0**-54),
            (2.0, 3.0, 4.0, 10.0),
            (1e308, 10.0, -INF, -INF),
            (1.7976931348623157e308, 2.0, -1.7976931348623157e308, 1.7976931348623157e308),
            (INF, 0.0, 0.0, NAN),
        ],
    )
)
add(
    rows(
        "v_fma_f16",
        "v_fma_f16 v4, v1, v2, v3",
        "v1 v2 v3 -> v4",
        # (1+2^-6)^2 = 1 + 2^-5 + 2^-12. The upper half of the destination is cleared or kept by generation:
        # the inputs' own upper halves are zero and the result is read through a mask below.
        [(f16(2.0), f16(3.0), f16(1.0), f16(7.0)), (f16(1 + 2**-6), f16(1 + 2**-6), f16(-(1 + 2**-5)), f16(2.0**-12))],
        given={"v4": 0},
    )
)

# Sums that lie a hair beside a tie: rounding them to a wider format first gives the wrong neighbour.
# (1 + x)(1 - x + x^2) = 1 + x^3, so with x = 2^-12 the product below is 2^-24 + 2^-60; likewise for the other widths.
add(
    rows(
        "fma_f32_beside_a_tie",
        "v_fma_f32 v4, v1, v2, v3",
        "v1 v2 v3 -> v4",
        [
            (1 + 2.0**-12, 2.0**-24 * (1 - 2.0**-12 + 2.0**-24), 1.0, 1 + 2.0**-23),
            (-(1 + 2.0**-12), 2.0**-24 * (1 - 2.0**-12 + 2.0**-24), 1 + 2.0**-22, 1 + 2.0**-23),
            (1 + 2.0**-12, 2.0**-24 * (1 - 2.0**-12 + 2.0**-24), -1.0, -(1 - 2.0**-24)),
            (2.0**-24, 1.0, 1.0, 1.0),  # the tie itself, to even
            (2.0**-100, 2.0**-49, 1.0, 1.0),
            (2.0**-100, 2.0**-49, 0.0, DENORM),
            (1.5 * 2.0**-100, 2.0**-49, 0.0, 0x00000002),
            (1.0, -0.0, -0.0, 0x80000000),
            (1.0, 0.0, -0.0, 0x00000000),
        ],
    )
)
add(
    rows(
        "fma_f64_beside_a_tie",
        "v_fma_f64 v[8:9], v[2:3], v[4:5], v[6:7]",
        "v[2:3] v[4:5] v[6:7] -> v[8:9]",
        [
            (1 + 2.0**-26, 2.0**-53 * (1 - 2.0**-26 + 2.0**-52), 1.0, 1 + 2.0**-52),
            (-(1 + 2.0**-26), 2.0**-53 * (1 - 2.0**-26 + 2.0**-52), 1 + 2.0**-51, 1 + 2.0**-52),
            (2.0**-53, 1.0, 1.0, 1.0),
            (2.0**-537, 2.0**-537, 0.0, 0x0000000000000001),
            (1.5 * 2.0**-537, 2.0**-537, 0.0, 0x0000000000000002),
            (2.0**-540, 2.0**-540, 0.0, 0x0000000000000000),
            (1.0 + 2.0**-52, 1.0 - 2.0**-52, -1.0, -(2.0**-104)),
            (2.0**600, 2.0**600, -(2.0**1000), INF),
            (3.0, 5.0, -15.0, 0x0000000000000000),
            (1.0, -0.0, -0.0, 0x8000000000000000),
        ],
    )
)
add(
    rows(
        "fma_f16_beside_a_tie",
        "v_fma_f16 v4, v1, v2, v3; v_and_b32 v4, 0xffff, v4",
        "v1 v2 v3 -> v4",
        [
            (f16(1 + 2.0**-5), f16(2.0**-11 * (1 - 2.0**-5 + 2.0**-10)), f16(1.0), f16(1 + 2.0**-10)),
            (f16(2.0**-11), f16(1.0), f16(1.0), f16(1.0)),
        ],
        given={"v4": 0},
    )
)

# -- source and result modifiers ---------------------------------------------------------------------------------------
add(
    rows(
        "neg_abs",
        "v_add_f32_e64 v3, -v1, |v2|; v_add_f32_e64 v4, -|v1|, v2",
        "v1 v2 -> v3 v4",
        [(1.0, -4.0, 3.0, -5.0), (-1.0, 4.0, 5.0, 3.0), (-2.0, -3.0, 5.0, -5.0)],
    )
)
add(
    rows(
        "clamp",
        "v_add_f32_e64 v3, v1, v2 clamp",
        "v1 v2 -> v3",
        # DX10_CLAMP is set: NaN becomes 0.
        [(0.25, 0.5, 0.75), (1.0, 2.0, 1.0), (-1.0, 0.5, 0.0), (INF, 1.0, 1.0), (NAN, 1.0, 0.0)],
    )
)
add(
    rows(
        "neg_is_a_sign_flip",
        "v_max_f32_e64 v3, -v1, -v1",
        "v1 -> v3",
        [(0.0, 0x80000000), (-INF, INF), (2.5, -2.5), (DENORM, 0x80000001)],
    )
)

# -- minimum and maximum, IEEE mode ------------------------------------------------------------------------------------
# CDNA3 ISA V_MAX_F32: a signalling NaN is quieted and returned, a quiet NaN loses to a number, +0 is above -0.
add(
    rows(
        "v_max_f32",
        "v_max_f32_e32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (1.0, 2.0, 2.0),
            (-1.0, -2.0, -1.0),
            (QNAN, 0.0, 0.0),
            (0.0, QNAN, 0.0),
            (QNAN, -5.0, -5.0),
            (NEG_QNAN, 3.0, 3.0),
            (QNAN, QNAN, NAN),
            (SNAN, 1.0, SNAN_QUIET),
            (1.0, SNAN, SNAN_QUIET),
            (0.0, -0.0, 0x00000000),
            (-0.0, 0.0, 0x00000000),
            (INF, 1.0, INF),
            (-INF, 1.0, 1.0),
            (DENORM, 0.0, DENORM),
            (0x80000001, -0.0, 0x80000000),
        ],
    )
)
add(
    rows(
        "v_min_f32",
        "v_min_f32_e32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (1.0, 2.0, 1.0),
            (QNAN, 0.0, 0.0),
            (7.0, QNAN, 7.0),
            (SNAN, 1.0, SNAN_QUIET),
            (1.0, SNAN, SNAN_QUIET),
            (0.0, -0.0, 0x80000000),
            (-0.0, 0.0, 0x80000000),
            (-INF, 1.0, -INF),
            (0x80000001, 0.0, 0x80000001),
        ],
    )
)
add(
    rows(
        "relu_of_nan_is_zero",
        "v_max_f32_e32 v3, 0, v1",
        "v1 -> v3",
        [(QNAN, 0), (NEG_QNAN, 0), (-1.0, 0), (2.0, 2.0), (-INF, 0)],
    )
)
add(
    rows(
        "v_max3_min3_med3_f32",
        "v_max3_f32 v4, v1, v2, v3; v_min3_f32 v5, v1, v2, v3; v_med3_f32 v6, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6",
        [
            (1.0, 2.0, 3.0, 3.0, 1.0, 2.0),
            (3.0, 1.0, 2.0, 3.0, 1.0, 2.0),
            (2.0, 3.0, 1.0, 3.0, 1.0, 2.0),
            (-1.0, -1.0, 5.0, 5.0, -1.0, -1.0),
            (-INF, INF, 0.5, INF, -INF, 0.5),
        ],
    )
)
add(
    rows(
        "v_max_min_f64",
        "v_max_f64 v[6:7], v[2:3], v[4:5]; v_min_f64 v[8:9], v[2:3], v[4:5]",
        "v[2:3] v[4:5] -> v[6:7] v[8:9]",
        [
            (1.0, 2.0, 2.0, 1.0),
            (f64(NAN), 4.0, 4.0, 4.0),
            (0.0, -0.0, 0x0000000000000000, 0x8000000000000000),
            (D_SNAN, 4.0, D_SNAN | 1 << 51, D_SNAN | 1 << 51),
        ],
    )
)

# -- rounding to whole numbers -----------------------------------------------------------------------------------------
add(
    rows(
        "whole_numbers",
        "v_rndne_f32_e32 v2, v1; v_floor_f32_e32 v3, v1; v_ceil_f32_e32 v4, v1; v_trunc_f32_e32 v5, v1",
        "v1 -> v2 v3 v4 v5",
        [
            (0.5, 0.0, 0.0, 1.0, 0.0),
            (1.5, 2.0, 1.0, 2.0, 1.0),
            (2.5, 2.0, 2.0, 3.0, 2.0),
            (-0.5, 0x80000000, -1.0, 0x80000000, 0x80000000),
            (-2.75, -3.0, -3.0, -2.0, -2.0),
            (-0.0, 0x80000000, 0x80000000, 0x80000000, 0x80000000),
            (8388609.0, 8388609.0, 8388609.0, 8388609.0, 8388609.0),
            (INF, INF, INF, INF, INF),
            (NAN, NAN, NAN, NAN, NAN),
        ],
    )
)
add(
    rows(
        "v_fract_f32",
        "v_fract_f32_e32 v2, v1",
        "v1 -> v2",
        # x - floor(x), never reaching 1: the result for tiny negative x is the largest number below 1.
        [(1.25, 0.25), (-1.25, 0.75), (3.0, 0.0), (-(2.0**-30), 0x3F7FFFFF)],
    )
)
add(
    rows(
        "whole_numbers_f64",
        "v_rndne_f64_e32 v[4:5], v[2:3]; v_floor_f64_e32 v[6:7], v[2:3]; v_ceil_f64_e32 v[8:9], v[2:3];"
        "v_trunc_f64_e32 v[10:11], v[2:3]",
        "v[2:3] -> v[4:5] v[6:7] v[8:9] v[10:11]",
        [(2.5, 2.0, 2.0, 3.0, 2.0), (-3.5, -4.0, -4.0, -3.0, -3.0), (1e300, 1e300, 1e300, 1e300, 1e300)],
    )
)

# -- conversions -------------------------------------------------------------------------------------------------------
# V_CVT_I32_F32 and V_CVT_U32_F32 truncate, saturate, and turn NaN into 0.
add(
    rows(
        "v_cvt_i32_f32",
        "v_cvt_i32_f32_e32 v2, v1",
        "v1 -> v2",
        [
            (1.9, 1),
            (-1.9, -1),
            (-0.5, 0),
            (2147483520.0, 2147483520),
            (2147483648.0, 0x7FFFFFFF),
            (-2147483648.0, 0x80000000),
            (-3e9, 0x80000000),
            (INF, 0x7FFFFFFF),
            (-INF, 0x80000000),
            (NAN, 0),
            (DENORM, 0),
        ],
    )
)
add(
    rows(
        "v_cvt_u32_f32",
        "v_cvt_u32_f32_e32 v2, v1",
        "v1 -> v2",
        [
            (1.9, 1),
            (-0.9, 0),
            (-5.0, 0),
            (4294967040.0, 0xFFFFFF00),
            (4294967296.0, 0xFFFFFFFF),
            (3e9, 3000000000),
            (INF, 0xFFFFFFFF),
            (-INF, 0),
            (NAN, 0),
        ],
    )
)
add(
    rows(
        "v_cvt_f32_i32",
        "v_cvt_f32_i32_e32 v2, v1",
        "v1 -> v2",
        [
            (0, 0),
            (-1, -1.0),
            (16777217, 16777216.0),  # a tie, to even
            (16777219, 16777220.0),
            (0x7FFFFFFF, 2147483648.0),
            (0x80000000, -2147483648.0),
        ],
    )
)
add(
    rows(
        "v_cvt_f32_u32",
        "v_cvt_f32_u32_e32 v2, v1",
        "v1 -> v2",
        [
            (0, 0),
            (0xFFFFFFFF, 4294967296.0),
            (16777217, 16777216.0),
            (0x80000000, 2147483648.0),
            (0x80000080, 2147483648.0),
        ],
    )
)
add(
    rows(
        "v_cvt_f32_ubyte",
        "v_cvt_f32_ubyte0_e32 v2, v1; v_cvt_f32_ubyte1_e32 v3, v1; v_cvt_f32_ubyte2_e32 v4, v1;"
        "v_cvt_f32_ubyte3_e32 v5, v1",
        "v1 -> v2 v3 v4 v5",
        [(0x04030201, 1.0, 2.0, 3.0, 4.0), (0xFF008000, 0.0, 128.0, 0.0, 255.0)],
    )
)
add(
    rows(
        "v_cvt_rpi_flr_i32_f32",
        "v_cvt_rpi_i32_f32_e32 v2, v1; v_cvt_flr_i32_f32_e32 v3, v1",
        "v1 -> v2 v3",
        # floor(x + 0.5) and floor(x)
        [(1.5, 2, 1), (-1.5, -1, -2), (2.25, 2, 2), (-0.25, 0, -1)],
    )
)
add(
    rows(
        "v_cvt_f16_f32",
        "v_cvt_f16_f32_e32 v2, v1",
        "v1 v2 -> v2",
        [
            (1.0, 0, 0x3C00),
            (65504.0, 0, 0x7BFF),
            (65519.0, 0, 0x7BFF),
            (65520.0, 0, 0x7C00),  # halfway to 65536: overflows to infinity
            (1.0 + 2.0**-11, 0, 0x3C00),  # a tie, to even
            (1.0 + 3 * 2.0**-11, 0, 0x3C02),
            (2.0**-24, 0, 0x0001),
            (2.0**-25, 0, 0x0000),
            (2.0**-25 * 1.5, 0, 0x0001),
            (-(2.0**-15), 0, 0x8200),
            (-INF, 0, 0xFC00),
        ],
    )
)
add(
    rows(
        "v_cvt_f32_f16",
        "v_cvt_f32_f16_e32 v2, v1",
        "v1 -> v2",
        [
            (0x3C00, 1.0),
            (0xFBFF, -65504.0),
            (0x0001, 2.0**-24),
            (0x83FF, -1023 * 2.0**-24),
            (0x7C00, INF),
            (0x7E00, NAN),
            (0xFFFF3C00, 1.0),  # the upper half is not read
        ],
    )
)
add(
    rows(
        "v_cvt_pkrtz_f16_f32",
        "v_cvt_pkrtz_f16_f32 v3, v1, v2",
        "v1 v2 -> v3",
        # towards zero
        [
            (1.0, 2.0, 0x40003C00),
            (1.0 + 2.0**-10 * 1.99, -(1.0 + 2.0**-11), 0xBC003C01),
            (65519.0, 65535.0, 0x7BFF7BFF),
        ],
    )
)
add(
    rows(
        "v_cvt_f64",
        "v_cvt_f64_f32_e32 v[4:5], v1; v_cvt_f64_i32_e32 v[6:7], v2; v_cvt_f64_u32_e32 v[8:9], v2",
        "v1 v2 -> v[4:5] v[6:7] v[8:9]",
        [
            (1.5, -1, 1.5, -1.0, 4294967295.0),
            (DENORM, 7, 2.0**-149, 7.0, 7.0),
            (-INF, 0x80000000, -INF, -(2.0**31), 2.0**31),
        ],
    )
)
add(
    rows(
        "v_cvt_from_f64",
        "v_cvt_f32_f64_e32 v4, v[2:3]; v_cvt_i32_f64_e32 v5, v[2:3]; v_cvt_u32_f64_e32 v6, v[2:3]",
        "v[2:3] -> v4 v5 v6",
        [
            (1.5, 1.5, 1, 1),
            (-2.75, -2.75, -2, 0),
            (1.0 + 2.0**-24, 1.0, 1, 1),
            (1.0 + 2.0**-24 + 2.0**-50, 1.0 + ULP, 1, 1),
            (4294967295.0, 4294967296.0, 0x7FFFFFFF, 0xFFFFFFFF),
            (1e300, INF, 0x7FFFFFFF, 0xFFFFFFFF),
            (-1e300, -INF, 0x80000000, 0),
            (f64(NAN), NAN, 0, 0),
        ],
    )
)

# -- FP8 (OCP e4m3: bias 7, no infinity) and BF8 (OCP e5m2: bias 15) ---------------------------------------------------
add(
    rows(
        "v_cvt_f32_fp8",
        "v_cvt_f32_fp8_e32 v2, v1",
        "v1 -> v2",
        [
            (0x00, 0),
            (0x80, 0x80000000),
            (0x38, 1.0),
            (0xB8, -1.0),
            (0x01, 2.0**-9),
            (0x07, 7 * 2.0**-9),
            (0x08, 2.0**-6),
            (0x7E, 448.0),
            (0xFE, -448.0),
            (0x7F, NAN),
            (0xFF, NAN),
            (0x44, 3.0),
            (0xAABBCC38, 1.0),  # only byte 0 is read
        ],
    )
)
add(
    rows(
        "v_cvt_f32_bf8",
        "v_cvt_f32_bf8_e32 v2, v1",
        "v1 -> v2",
        [
            (0x00, 0),
            (0x3C, 1.0),
            (0xBC, -1.0),
            (0x01, 2.0**-16),
            (0x03, 3 * 2.0**-16),
            (0x04, 2.0**-14),
            (0x7B, 57344.0),
            (0x7C, INF),
            (0xFC, -INF),
            (0x7D, NAN),
            (0xFF, NAN),
        ],
    )
)
add(
    rows(
        "v_cvt_pk_f32_fp8",
        "v_cvt_pk_f32_fp8_e32 v[2:3], v1",
        "v1 -> v[2:3]",
        [(0x00003038, pair(1.0, 0.5)), (0xFFFF01FE, pair(-448.0, 2.0**-9))],
    )
)
add(
    rows(
        "v_cvt_pk_f32_bf8",
        "v_cvt_pk_f32_bf8_e32 v[2:3], v1",
        "v1 -> v[2:3]",
        [(0x0000383C, pair(1.0, 0.5)), (0xFFFF01FB, pair(-57344.0, 2.0**-16))],
    )
)
FP8_ROUND = [
    (1.0, 0x38),
    (448.0, 0x7E),
    (-448.0, 0xFE),
    (449.0, 0x7E),
    (1.0625, 0x38),  # halfway between 1 and 1.125: to even
    (1.1875, 0x3A),  # halfway between 1.125 and 1.25: to even
    (1.07, 0x39),
    (2.0**-9, 0x01),
    (2.0**-10, 0x00),  # halfway to the least subnormal: to even
    (1.5 * 2.0**-9, 0x02),
    (2.0**-10 * 1.25, 0x01),
    (-0.0, 0x80),
    (7.5 * 2.0**-9, 0x08),  # rounds up into the normal range
    (240.0, 0x77),
    (NAN, 0x7F),
]
add(
    rows(
        "v_cvt_pk_fp8_f32",
        "v_cvt_pk_fp8_f32 v3, v1, v2",
        # The low half is written, the high half keeps its old bits.
        "v1 v2 v3 -> v3",
        [(value, -2.0, 0xDEAD5555, 0xDEADC000 | byte) for value, byte in FP8_ROUND],
    )
)
add(
    rows(
        "v_cvt_pk_fp8_f32_high",
        "v_cvt_pk_fp8_f32 v3, v1, v2 op_sel:[0,0,1]",
        "v1 v2 v3 -> v3",
        [(1.0, 2.0, 0x5555DEAD, 0x4038DEAD)],
    )
)
add(
    rows(
        "v_cvt_pk_bf8_f32",
        "v_cvt_pk_bf8_f32 v3, v1, v2",
        "v1 v2 v3 -> v3",
        [
            (1.0, 2.0, 0xFFFF0000, 0xFFFF403C),
            (57344.0, -57344.0, 0, 0xFB7B),
            (1.125, 1.375, 0, 0x3E3C),  # ties to even: 1.0 and 1.5
            (2.0**-16, 2.0**-17, 0, 0x0001),
            (INF, -INF, 0, 0xFC7C),
        ],
    )
)

# -- ldexp, frexp, class -----------------------------------------------------------------------------------------------
add(
    rows(
        "v_ldexp_f32",
        "v_ldexp_f32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (1.5, 4, 24.0),
            (1.0, -149, DENORM),
            (1.0, -150, 0),
            (-3.0, -1, -1.5),
            (1.0, 128, INF),
            (DENORM, 149, 1.0),
            (0.0, 5, 0),
            (1.0, 0x7FFFFFFF, INF),
        ],
    )
)
add(rows("v_ldexp_f64", "v_ldexp_f64 v[4:5], v[2:3], v1", "v[2:3] v1 -> v[4:5]", [(1.5, 4, 24.0), (1.0, -1074, 1)]))
add(
    rows(
        "v_frexp_f32",
        "v_frexp_exp_i32_f32_e32 v2, v1; v_frexp_mant_f32_e32 v3, v1",
        "v1 -> v2 v3",
        # mantissa in [0.5, 1); 0, infinity and NaN have exponent 0 and are their own mantissa
        [
            (1.0, 1, 0.5),
            (-12.0, 4, -0.75),
            (DENORM, -148, 0.5),
            (0.0, 0, 0.0),
            (INF, 0, INF),
            (-INF, 0, -INF),
            (NAN, 0, NAN),
        ],
    )
)
add(
    rows(
        "v_frexp_f64",
        "v_frexp_exp_i32_f64_e32 v4, v[2:3]; v_frexp_mant_f64_e32 v[6:7], v[2:3]",
        "v[2:3] -> v4 v[6:7]",
        [(1.0, 1, 0.5), (-12.0, 4, -0.75), (1, -1073, 0.5)],
    )
)
# V_CMP_CLASS bits: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
for _name, _value, _bit in [
    ("snan", SNAN, 0),
    ("qnan", QNAN, 1),
    ("minus_inf", -INF, 2),
    ("minus_normal", -1.0, 3),
    ("minus_denormal", 0x80000001, 4),
    ("minus_zero", -0.0, 5),
    ("zero", 0.0, 6),
    ("denormal", DENORM, 7),
    ("normal", 1.0, 8),
    ("inf", INF, 9),
]:
    CASES.append(
        Case(
            f"v_cmp_class_f32_{_name}",
            "v_cmp_class_f32_e64 s[4:5], v1, v2",
            {"v1": _value, "v2": [1 << _bit, 0x3FF & ~(1 << _bit), 0x3FF, 0]},
            {"s[4:5]": 0b0101},
        )
    )

# -- reciprocals and roots where the answer is exact -------------------------------------------------------------------
add(
    rows(
        "v_rcp_f32",
        "v_rcp_f32_e32 v2, v1; v_rcp_iflag_f32_e32 v3, v1",
        "v1 -> v2 v3",
        [(4.0, 0.25, 0.25), (-0.5, -2.0, -2.0), (0.0, INF, INF), (-0.0, -INF, -INF), (INF, 0, 0), (NAN, NAN, NAN)],
    )
)
add(
    rows(
        "v_sqrt_rsq_f32",
        "v_sqrt_f32_e32 v2, v1; v_rsq_f32_e32 v3, v1",
        "v1 -> v2 v3",
        [(4.0, 2.0, 0.5), (0.25, 0.5, 2.0), (0.0, 0.0, INF), (-1.0, NAN, NAN), (INF, INF, 0)],
    )
)
add(
    rows(
        "v_exp_log_f32",
        "v_exp_f32_e32 v2, v1; v_log_f32_e32 v3, v2",
        "v1 -> v2 v3",
        [(0.0, 1.0, 0.0), (3.0, 8.0, 3.0), (-2.0, 0.25, -2.0), (-INF, 0.0, -INF), (INF, INF, INF)],
    )
)

# -- division --------------------------------------------------------------------------------------------------------
# The sequence that compilers emit for an exact a/b. V_DIV_SCALE sets VCC, V_DIV_FMAS reads it, V_DIV_FIXUP
# settles the special cases.
DIVIDE = """
v_div_scale_f32 v3, s[4:5], v2, v2, v1
v_div_scale_f32 v4, vcc, v1, v2, v1
v_rcp_f32_e32 v5, v3
v_fma_f32 v6, -v3, v5, 1.0
v_fmac_f32_e32 v5, v6, v5
v_mul_f32_e32 v6, v4, v5
v_fma_f32 v7, -v3, v6, v4
v_fmac_f32_e32 v6, v7, v5
v_fma_f32 v3, -v3, v6, v4
s_nop 4
v_div_fmas_f32 v3, v3, v5, v6
v_div_fixup_f32 v8, v3, v2, v1
"""
add(
    rows(
        "div_f32",
        DIVIDE,
        "v1 v2 -> v8",
        [
            (1.0, 3.0, 0x3EAAAAAB),
            (2.0, 3.0, 0x3F2AAAAB),
            (10.0, 5.0, 2.0),
            (-7.0, 2.0, -3.5),
            (1.0, 10.0, 0x3DCCCCCD),
            (1.0, 0.0, INF),
            (-1.0, 0.0, -INF),
            (0.0, 0.0, NAN),
            (0.0, 5.0, 0.0),
            (INF, 2.0, INF),
            (2.0, INF, 0.0),
            (INF, INF, NAN),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (3e38, 2.0**-120, INF),
            (2.0**-126, 2.0**100, 0),  # 2^-226 underflows
            (2.0**120, 2.0**-6, 2.0**126),
            (2.0**-120, 2.0**6, 2.0**-126),
            (3.0 * 2.0**-140, 3.0, 2.0**-140),  # denormal in and out
            (1.0, 2.0**-127, 2.0**127),
            (1.0, 2.0**127, 2.0**-127),
        ],
    )
)

# -- packed f32 --------------------------------------------------------------------------------------------------------
add(
    rows(
        "v_pk_f32",
        "v_pk_mul_f32 v[6:7], v[2:3], v[4:5]; v_pk_add_f32 v[8:9], v[2:3], v[4:5];"
        "v_pk_fma_f32 v[10:11], v[2:3], v[4:5], v[2:3]",
        "v[2:3] v[4:5] -> v[6:7] v[8:9] v[10:11]",
        [(pair(2.0, 3.0), pair(5.0, 7.0), pair(10.0, 21.0), pair(7.0, 10.0), pair(12.0, 24.0))],
    )
)
# op_sel picks the word for the low result, op_sel_hi for the high one. The defaults are 0 and 1.
for _name, _mods, _want in [
    ("low_low", "op_sel_hi:[0,1]", pair(2.0 * 5.0, 2.0 * 7.0)),
    ("high_high", "op_sel:[1,0]", pair(3.0 * 5.0, 3.0 * 7.0)),
    ("crossed", "op_sel:[1,1] op_sel_hi:[0,0]", pair(3.0 * 7.0, 2.0 * 5.0)),
    ("second_low", "op_sel_hi:[1,0]", pair(2.0 * 5.0, 3.0 * 5.0)),
    ("neg_lo", "neg_lo:[1,0]", pair(-10.0, 21.0)),
    ("neg_hi", "neg_hi:[0,1]", pair(10.0, -21.0)),
]:
    add(
        rows(
            f"v_pk_mul_f32_{_name}",
            f"v_pk_mul_f32 v[6:7], v[2:3], v[4:5] {_mods}",
            "v[2:3] v[4:5] -> v[6:7]",
            [(pair(2.0, 3.0), pair(5.0, 7.0), _want)],
        )
    )
add(
    rows(
        "v_pk_mov_b32",
        "v_pk_mov_b32 v[6:7], v[2:3], v[4:5]; v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[1,0]",
        "v[2:3] v[4:5] -> v[6:7] v[8:9]",
        # op_sel[0] picks the word of the first source for the low result, op_sel[1] that of the second for the high.
        [(0x2222222211111111, 0x4444444433333333, 0x3333333311111111, 0x3333333322222222)],
    )
)
add(
    rows(
        "v_pk_add_f32_sgpr",
        "v_pk_add_f32 v[6:7], v[2:3], s[4:5]; v_pk_mul_f32 v[8:9], v[2:3], s[4:5] op_sel_hi:[1,0]",
        "v[2:3] -> v[6:7] v[8:9]",
        [(pair(1.0, 2.0), pair(11.0, 22.0), pair(10.0, 20.0))],
        given={"s[4:5]": pair(10.0, 20.0)},
    )
)

add(
    rows(
        "v_pk_f32_inline_constant",
        "v_pk_add_f32 v[6:7], v[2:3], 1.0 op_sel_hi:[1,0]; v_pk_mul_f32 v[8:9], v[2:3], -4.0 op_sel_hi:[1,0];"
        "v_pk_fma_f32 v[10:11], v[2:3], 2.0, 0.5 op_sel_hi:[1,0,0]; v_pk_add_f32 v[12:13], v[2:3], 0",
        "v[2:3] -> v[6:7] v[8:9] v[10:11] v[12:13]",
        [(pair(2.0, 3.0), pair(3.0, 4.0), pair(-8.0, -12.0), pair(4.5, 6.5), pair(2.0, 3.0))],
    )
)

# -- new on gfx950 -----------------------------------------------------------------------------------------------------
add(
    rows(
        "v_cvt_pk_bf16_f32",
        "v_cvt_pk_bf16_f32 v3, v1, v2",
        "v1 v2 -> v3",
        [
            (1.0, -2.0, 0xC0003F80),
            (1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 0x3F823F80),  # ties, to even
            (MAX, INF, 0x7F807F80),  # rounds up to infinity
        ],
    )
)
add(
    rows(
        "v_minimum3_maximum3_f32",
        "v_minimum3_f32 v4, v1, v2, v3; v_maximum3_f32 v5, v1, v2, v3",
        "v1 v2 v3 -> v4 v5",
        # IEEE 754-2019 minimum and maximum: a NaN wins, -0 is below +0
        [(1.0, 3.0, 2.0, 1.0, 3.0), (1.0, NAN, 2.0, NAN, NAN), (0.0, -0.0, 0.0, 0x80000000, 0)],
    )
)

# -- packed and mixed halves -------------------------------------------------------------------------------------------
add(
    rows(
        "v_pk_f16",
        "v_pk_add_f16 v3, v1, v2; v_pk_mul_f16 v4, v1, v2; v_pk_fma_f16 v5, v1, v2, v1; v_pk_max_f16 v6, v1, v2;"
        "v_pk_min_f16 v7, v1, v2; v_pk_add_f16 v8, v1, v2 op_sel:[1,0] op_sel_hi:[0,1]",
        "v1 v2 -> v3 v4 v5 v6 v7 v8",
        [
            (
                pack16(1.0, 2.0),
                pack16(4.0, -3.0),
                pack16(5.0, -1.0),
                pack16(4.0, -6.0),
                pack16(5.0, -4.0),
                pack16(4.0, 2.0),
                pack16(1.0, -3.0),
                pack16(6.0, -2.0),
            )
        ],
    )
)
add(
    rows(
        "v_fma_mix_f32",
        # op_sel_hi says which sources are halves, op_sel which half.
        "v_fma_mix_f32 v4, v1, v2, v3 op_sel_hi:[1,0,0]; v_fma_mix_f32 v5, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,0,0]",
        "v1 v2 v3 -> v4 v5",
        [(pack16(2.0, 8.0), 3.0, 1.0, 7.0, 25.0)],
    )
)
add(
    rows(
        "f16_arithmetic",
        "v_add_f16_e32 v3, v1, v2; v_mul_f16_e32 v4, v1, v2; v_max_f16_e32 v5, v1, v2; v_and_b32 v3, 0xffff, v3;"
        "v_and_b32 v4, 0xffff, v4; v_and_b32 v5, 0xffff, v5",
        "v1 v2 -> v3 v4 v5",
        [
            (f16(1.5), f16(2.0), f16(3.5), f16(3.0), f16(2.0)),
            (f16(65504.0), f16(65504.0), 0x7C00, 0x7C00, 0x7BFF),
            (0x0001, 0x0001, 0x0002, 0x0000, 0x0001),  # halves keep their denormals
            (0x7E00, f16(-1.0), 0x7E00, 0x7E00, f16(-1.0)),
        ],
    )
)
add(
    rows(
        "f64_arithmetic",
        "v_add_f64 v[6:7], v[2:3], v[4:5]; v_mul_f64 v[8:9], v[2:3], v[4:5]; v_add_f64 v[10:11], -v[2:3], |v[4:5]|",
        "v[2:3] v[4:5] -> v[6:7] v[8:9] v[10:11]",
        [(1.5, -2.0, -0.5, -3.0, 0.5), (1.0, 2.0**-53, 1.0, 2.0**-53, -1.0 + 2.0**-53), (1, 1, 2, 0, 0)],
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)


def test_helpers_give_published_bit_patterns() -> None:
    assert (f32(1.0), f16(1.0), f64(1.0)) == (0x3F800000, 0x3C00, 0x3FF0000000000000)
