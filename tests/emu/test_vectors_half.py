"""Check 16-bit arithmetic, packed and unpacked, and the byte instructions, against numbers worked out by hand.

Source: "AMD Instinct CDNA3 ISA" reference guide, chapters "Vector ALU" and "Instruction details". Results of 16-bit
instructions are compared in their low half only.
"""

from __future__ import annotations

import pytest
from conformance import INF, NAN, Case, Module, f16, pack16, rows

CASES: list[Case] = []
add = CASES.extend

H_NAN = 0x7E00


def low(text: str, *registers: str) -> str:
    """Return the text with the upper halves of these result registers cleared after it."""
    return text + "".join(f"; v_and_b32_e32 {register}, 0xffff, {register}" for register in registers)


# -- half precision ----------------------------------------------------------------------------------------------------
add(
    rows(
        "f16_pairs",
        low(
            "v_sub_f16_e32 v3, v1, v2; v_subrev_f16_e32 v4, v1, v2; v_min_f16_e32 v5, v1, v2; v_max_f16_e32 v6, v1, v2",
            "v3",
            "v4",
            "v5",
            "v6",
        ),
        "v1 v2 -> v3 v4 v5 v6",
        [
            (f16(5.0), f16(3.0), f16(2.0), f16(-2.0), f16(3.0), f16(5.0)),
            (f16(-65504.0), f16(65504.0), 0xFC00, 0x7C00, f16(-65504.0), f16(65504.0)),
            (f16(1.0), f16(2.0**-11), f16(1 - 2.0**-11), f16(-(1 - 2.0**-11)), f16(2.0**-11), f16(1.0)),
            (0x8000, 0x0000, 0x8000, 0x0000, 0x8000, 0x0000),
        ],
    )
)
add(
    rows(
        "f16_triples",
        low(
            "v_mad_f16 v4, v1, v2, v3; v_min3_f16 v5, v1, v2, v3; v_max3_f16 v6, v1, v2, v3; v_med3_f16 v7, v1, v2, v3",
            "v4",
            "v5",
            "v6",
            "v7",
        ),
        "v1 v2 v3 -> v4 v5 v6 v7",
        [(f16(2.0), f16(3.0), f16(-1.0), f16(5.0), f16(-1.0), f16(3.0), f16(2.0))],
    )
)
add(
    rows(
        "f16_mac_madmk_madak",
        low(
            "v_mov_b32_e32 v4, v3; v_mac_f16_e32 v4, v1, v2;"
            "v_madmk_f16 v5, v1, 0x4200, v2; v_madak_f16 v6, v1, v2, 0x4200",
            "v4",
            "v5",
            "v6",
        ),
        # 0x4200 is 3.0
        "v1 v2 v3 -> v4 v5 v6",
        [(f16(2.0), f16(5.0), f16(1.0), f16(11.0), f16(11.0), f16(13.0))],
    )
)
add(
    rows(
        "f16_op_sel",
        # op_sel[0..2] picks the half of a source, op_sel[3] the half written; the other half is kept.
        "v_fma_f16 v4, v1, v2, v3 op_sel:[1,0,0,0]; v_fma_f16 v5, v1, v2, v3 op_sel:[0,0,0,1]",
        "v1 v2 v3 v4 v5 -> v4 v5",
        [
            (
                pack16(2.0, 3.0),
                pack16(5.0, 9.0),
                pack16(1.0, 9.0),
                0xABCD0000,
                0x0000ABCD,
                0xABCD0000 | f16(16.0),
                f16(11.0) << 16 | 0xABCD,
            )
        ],
    )
)
add(
    rows(
        "f16_whole_numbers",
        low(
            "v_rndne_f16_e32 v2, v1; v_floor_f16_e32 v3, v1; v_ceil_f16_e32 v4, v1; v_trunc_f16_e32 v5, v1;"
            "v_fract_f16_e32 v6, v1",
            "v2",
            "v3",
            "v4",
            "v5",
            "v6",
        ),
        "v1 -> v2 v3 v4 v5 v6",
        [
            (f16(2.5), f16(2.0), f16(2.0), f16(3.0), f16(2.0), f16(0.5)),
            (f16(-1.25), f16(-1.0), f16(-2.0), f16(-1.0), f16(-1.0), f16(0.75)),
        ],
    )
)
add(
    rows(
        "f16_transcendentals",
        low(
            "v_rcp_f16_e32 v2, v1; v_sqrt_f16_e32 v3, v1; v_rsq_f16_e32 v4, v1;"
            "v_log_f16_e32 v5, v1; v_exp_f16_e32 v6, v5",
            "v2",
            "v3",
            "v4",
            "v5",
            "v6",
        ),
        "v1 -> v2 v3 v4 v5 v6",
        [
            (f16(4.0), f16(0.25), f16(2.0), f16(0.5), f16(2.0), f16(4.0)),
            (f16(0.25), f16(4.0), f16(0.5), f16(2.0), f16(-2.0), f16(0.25)),
        ],
    )
)
add(
    rows(
        "f16_scale",
        low("v_ldexp_f16_e32 v3, v1, v2; v_frexp_mant_f16_e32 v4, v1;v_frexp_exp_i16_f16_e32 v5, v1", "v3", "v4", "v5"),
        "v1 v2 -> v3 v4 v5",
        [
            (f16(1.5), 3, f16(12.0), f16(0.75), 1),
            (f16(-12.0), 0xFFFF, f16(-6.0), f16(-0.75), 4),
            (1, 24, f16(1.0), f16(0.5), 0xFFE9),
        ],
    )
)
add(
    rows(
        "f16_conversions",
        low(
            "v_cvt_f16_u16_e32 v3, v1; v_cvt_f16_i16_e32 v4, v1; v_cvt_u16_f16_e32 v5, v2; v_cvt_i16_f16_e32 v6, v2",
            "v3",
            "v4",
            "v5",
            "v6",
        ),
        "v1 v2 -> v3 v4 v5 v6",
        [
            (5, f16(2.75), f16(5.0), f16(5.0), 2, 2),
            (0xFFFF, f16(-2.75), 0x7C00, f16(-1.0), 0, 0xFFFE),  # 65535 rounds past 65504
            (2049, 0x7C00, f16(2048.0), f16(2048.0), 0xFFFF, 0x7FFF),  # a tie, to even; saturation
            (0x8000, H_NAN, f16(32768.0), f16(-32768.0), 0, 0),
        ],
    )
)
add(
    rows(
        "normalised_conversions",
        "v_cvt_pknorm_i16_f32 v3, v1, v2; v_cvt_pknorm_u16_f32 v4, v1, v2",
        "v1 v2 -> v3 v4",
        [(1.0, -1.0, 0x80017FFF, 0x0000FFFF), (0.0, 2.0, 0x7FFF0000, 0xFFFF0000), (-7.0, NAN, 0x00008001, 0x00000000)],
    )
)
add(
    rows(
        "v_cvt_pk_u8_f32",
        "v_cvt_pk_u8_f32 v4, v1, v2, v3",
        # byte v2 of v3 becomes v1, saturated
        "v1 v2 v3 -> v4",
        [(3.0, 0, 0x44332211, 0x44332203), (300.0, 2, 0x44332211, 0x44FF2211), (-1.0, 3, 0x44332211, 0x00332211)],
    )
)
add(
    rows(
        "v_cvt_off_f32_i4",
        "v_cvt_off_f32_i4_e32 v2, v1",
        # a signed nibble in sixteenths
        "v1 -> v2",
        [(0, 0.0), (1, 0.0625), (7, 0.4375), (8, -0.5), (15, -0.0625)],
    )
)
add(
    rows(
        "v_cvt_f32_bf16",
        "v_cvt_f32_bf16_e32 v2, v1",
        "v1 -> v2",
        [(0x3F80, 1.0), (0xC040, -3.0), (0x7F80, INF), (0x7FC0, NAN), (0xFFFF3F80, 1.0), (0x0001, 0x00010000)],
    )
)
add(
    rows(
        "v_fma_mixlo_mixhi",
        "v_fma_mixlo_f16 v4, v1, v2, v3 op_sel_hi:[1,0,0]; v_fma_mixhi_f16 v5, v1, v2, v3 op_sel_hi:[1,0,0]",
        "v1 v2 v3 v4 v5 -> v4 v5",
        [(pack16(2.0, 8.0), 3.0, 1.0, 0xABCD1234, 0x1234ABCD, 0xABCD0000 | f16(7.0), f16(7.0) << 16 | 0xABCD)],
    )
)
add(
    rows(
        "dot_f16_bf16",
        "v_dot2_f32_f16 v4, v1, v2, v3; v_mov_b32_e32 v5, v3; v_dot2c_f32_f16_e32 v5, v1, v2;"
        "v_dot2_f32_bf16 v8, v6, v7, v3; v_mov_b32_e32 v9, v3; v_dot2c_f32_bf16_e32 v9, v6, v7",
        "v1 v2 v3 v6 v7 -> v4 v5 v8 v9",
        # 2*5 + 3*7 + 1 = 32; the bf16 operands are (1, 2) and (0.5, -3): 0.5 - 6 + 1
        [(pack16(2.0, 3.0), pack16(5.0, 7.0), 1.0, 0x40003F80, 0xC0403F00, 32.0, 32.0, -4.5, -4.5)],
    )
)
add(
    rows(
        "v_pk_fmac_f16",
        "v_pk_fmac_f16 v3, v1, v2",
        "v1 v2 v3 -> v3",
        [(pack16(2.0, 3.0), pack16(5.0, 7.0), pack16(1.0, -1.0), pack16(11.0, 20.0))],
    )
)
add(
    rows(
        "v_pk_minimum3_maximum3_f16",
        "v_pk_minimum3_f16 v4, v1, v2, v3; v_pk_maximum3_f16 v5, v1, v2, v3",
        "v1 v2 v3 -> v4 v5",
        [(pack16(1.0, 4.0), pack16(2.0, 5.0), pack16(3.0, -1.0), pack16(1.0, -1.0), pack16(3.0, 5.0))],
    )
)

# -- 16-bit integers ---------------------------------------------------------------------------------------------------
add(
    rows(
        "u16_arithmetic",
        low(
            "v_add_u16_e32 v3, v1, v2; v_sub_u16_e32 v4, v1, v2; v_subrev_u16_e32 v5, v1, v2;"
            "v_mul_lo_u16_e32 v6, v1, v2;"
            "v_add_i16 v7, v1, v2 clamp; v_sub_i16 v8, v1, v2 clamp",
            "v3",
            "v4",
            "v5",
            "v6",
            "v7",
            "v8",
        ),
        "v1 v2 -> v3 v4 v5 v6 v7 v8",
        [
            (3, 5, 8, 0xFFFE, 2, 15, 8, 0xFFFE),
            (0xFFFF, 2, 1, 0xFFFD, 3, 0xFFFE, 1, 0xFFFD),
            (0x7FFF, 1, 0x8000, 0x7FFE, 0x8002, 0x7FFF, 0x7FFF, 0x7FFE),
            (0x8000, 1, 0x8001, 0x7FFF, 0x8001, 0x8000, 0x8001, 0x8000),
        ],
    )
)
add(
    rows(
        "u16_order",
        low(
            "v_min_i16_e32 v3, v1, v2; v_max_i16_e32 v4, v1, v2; v_min_u16_e32 v5, v1, v2; v_max_u16_e32 v6, v1, v2",
            "v3",
            "v4",
            "v5",
            "v6",
        ),
        "v1 v2 -> v3 v4 v5 v6",
        [(0xFFFF, 1, 0xFFFF, 1, 1, 0xFFFF), (2, 7, 2, 7, 2, 7)],
    )
)
add(
    rows(
        "u16_order_of_three",
        low(
            "v_min3_i16 v4, v1, v2, v3; v_max3_i16 v5, v1, v2, v3; v_med3_i16 v6, v1, v2, v3;"
            "v_min3_u16 v7, v1, v2, v3; v_max3_u16 v8, v1, v2, v3; v_med3_u16 v9, v1, v2, v3",
            "v4",
            "v5",
            "v6",
            "v7",
            "v8",
            "v9",
        ),
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9",
        [(0xFFFF, 5, 2, 0xFFFF, 5, 2, 2, 0xFFFF, 5)],
    )
)
add(
    rows(
        "u16_shifts",
        low(
            "v_lshlrev_b16_e32 v3, v1, v2; v_lshrrev_b16_e32 v4, v1, v2; v_ashrrev_i16_e32 v5, v1, v2",
            "v3",
            "v4",
            "v5",
        ),
        "v1 v2 -> v3 v4 v5",
        # the low four bits count
        [(4, 0x8001, 0x0010, 0x0800, 0xF800), (20, 0x8001, 0x0010, 0x0800, 0xF800)],
    )
)
add(
    rows(
        "u16_multiply_add",
        low("v_mad_u16 v4, v1, v2, v3; v_mad_i16 v5, v1, v2, v3", "v4", "v5")
        + "; v_mad_u32_u16 v6, v1, v2, v3; v_mad_i32_i16 v7, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6 v7",
        [(3, 5, 7, 22, 22, 22, 22), (0xFFFF, 2, 1, 0xFFFF, 0xFFFF, 0x1FFFF, -1)],
    )
)
add(
    rows(
        "v_pk_u16",
        "v_pk_mad_u16 v4, v1, v2, v3; v_pk_mad_i16 v5, v1, v2, v3; v_pk_add_i16 v6, v1, v2; v_pk_sub_u16 v7, v1, v2;"
        "v_pk_max_u16 v8, v1, v2; v_pk_min_i16 v9, v1, v2",
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9",
        [(0xFFFF0003, 0x00020005, 0x00010007, 0xFFFF0016, 0xFFFF0016, 0x00010008, 0xFFFDFFFE, 0xFFFF0005, 0xFFFF0003)],
    )
)
add(
    rows(
        "v_pk_u16_clamp",
        "v_pk_add_u16 v3, v1, v2 clamp; v_pk_sub_u16 v4, v1, v2 clamp; v_pk_add_i16 v5, v1, v2 clamp",
        "v1 v2 -> v3 v4 v5",
        [
            (0xFFFF0003, 0x00020005, 0xFFFF0008, 0xFFFD0000, 0x00010008),
            (0x7FFF8000, 0x00018000, 0x8000FFFF, 0x7FFE0000, 0x7FFF8000),
        ],
    )
)
add(
    rows(
        "v_pk_shifts",
        "v_pk_lshrrev_b16 v3, v1, v2; v_pk_ashrrev_i16 v4, v1, v2",
        "v1 v2 -> v3 v4",
        [(0x00010004, 0x80018001, 0x40000800, 0xC000F800)],
    )
)

# -- bytes -------------------------------------------------------------------------------------------------------------
add(
    rows(
        "v_lerp_u8",
        "v_lerp_u8 v4, v1, v2, v3",
        # (a + b + the low bit of c) >> 1, byte by byte
        "v1 v2 v3 -> v4",
        [
            (0x01020304, 0x02020202, 0x00000001, 0x01020203),
            (0xFF01FF01, 0xFF02FF02, 0x01010101, 0xFF02FF02),
            (0xFF01FF01, 0xFF02FF02, 0xFEFEFEFE, 0xFF01FF01),
        ],
    )
)
add(rows("v_sad_hi_u8", "v_sad_hi_u8 v4, v1, v2, v3", "v1 v2 v3 -> v4", [(0x01020304, 0x04030201, 7, (8 << 16) + 7)]))
add(
    rows(
        "v_sat_pk_u8_i16",
        low("v_sat_pk_u8_i16_e32 v2, v1", "v2"),
        "v1 -> v2",
        [(0x00050007, 0x0507), (0x0123FFFF, 0xFF00), (0x800000FF, 0x00FF)],
    )
)
add(
    rows(
        "dot_accumulating",
        "v_mov_b32_e32 v4, v3; v_dot4c_i32_i8_e32 v4, v1, v2; v_mov_b32_e32 v5, v3; v_dot2c_i32_i16_e32 v5, v1, v2;"
        "v_mov_b32_e32 v6, v3; v_dot8c_i32_i4_e32 v6, v1, v2",
        "v1 v2 v3 -> v4 v5 v6",
        [
            (0x000000FF, 0x00000002, 10, 8, 520, 8),
            (0x04030201, 0x01010101, 100, 110, 100 + 0x201 * 0x101 + 0x403 * 0x101, 110),
        ],
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
