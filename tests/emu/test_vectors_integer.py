"""Check integer vector instructions against numbers worked out by hand.

Source: "AMD Instinct CDNA3 ISA" reference guide, chapters "Vector ALU" and "Instruction details".
"""

from __future__ import annotations

import pytest
from conformance import ALL, Case, Module, rows

CASES: list[Case] = []
add = CASES.extend
one = CASES.append

M = 0xFFFFFFFF

# -- carry chains ------------------------------------------------------------------------------------------------------
one(
    Case(
        "v_add_co_u32",
        "v_add_co_u32_e32 v3, vcc, v1, v2",
        {"v1": [M, M, 1, 0x80000000, 0], "v2": [1, 0, 2, 0x80000000, 0]},
        {"v3": [0, M, 3, 0, 0], "vcc": 0b01001},
    )
)
one(
    Case(
        "v_sub_co_u32",
        "v_sub_co_u32_e32 v3, vcc, v1, v2",
        {"v1": [0, 5, 1, 7], "v2": [1, 3, M, 7]},
        {"v3": [M, 2, 2, 0], "vcc": 0b0101},
    )
)
one(
    Case(
        "v_subrev_co_u32",
        "v_subrev_co_u32_e32 v3, vcc, v1, v2",
        {"v1": [1, 3], "v2": [0, 5]},
        {"v3": [M, 2], "vcc": 0b1},
    )
)
one(
    Case(
        "v_addc_co_u32",
        "v_addc_co_u32_e32 v3, vcc, v1, v2, vcc",
        {"v1": [M, M, 1, 1, 0], "v2": [0, M, 2, 2, 0], "vcc": 0b01011},
        {"v3": [0, M, 3, 4, 0], "vcc": 0b00011},
    )
)
one(
    Case(
        "v_subb_co_u32",
        "v_subb_co_u32_e32 v3, vcc, v1, v2, vcc",
        {"v1": [0, 0, 5, 5], "v2": [0, 0, 5, 3], "vcc": 0b1101},
        {"v3": [M, 0, M, 1, 2], "vcc": 0b0101},
    )
)
one(
    Case(
        "v_subbrev_co_u32",
        "v_subbrev_co_u32_e32 v3, vcc, v1, v2, vcc",
        {"v1": [3, 5, 0], "v2": [5, 3, 0], "vcc": 0b01},
        {"v3": [1, 0xFFFFFFFE, 0], "vcc": 0b10},
    )
)
one(
    Case(
        "carry_through_an_sgpr_pair",
        "v_add_co_u32_e64 v3, s[4:5], v1, v2; v_addc_co_u32_e64 v6, s[8:9], v1, 0, s[4:5]",
        {"v1": [M, 1, M], "v2": [1, 1, 0]},
        {"v3": [0, 2, M], "v6": [0, 1, M], "s[4:5]": 0b001, "s[8:9]": 0b001},
    )
)
# 64-bit addition and subtraction in halves, the way compilers write them.
add(
    rows(
        "add64",
        "v_add_co_u32_e32 v6, vcc, v2, v4; v_addc_co_u32_e32 v7, vcc, v3, v5, vcc",
        "v[2:3] v[4:5] -> v[6:7]",
        [
            (0xFFFFFFFF, 1, 0x1_0000_0000),
            (-1, 1, 0),
            (0x123456789, 0xFEDCBA9876543210, 0xFEDCBA9999999999),
            (0x00000000FFFFFFFF, 0x00000001FFFFFFFF, 0x00000002FFFFFFFE),
        ],
    )
)
add(
    rows(
        "sub64",
        "v_sub_co_u32_e32 v6, vcc, v2, v4; v_subb_co_u32_e32 v7, vcc, v3, v5, vcc",
        "v[2:3] v[4:5] -> v[6:7]",
        [(0, 1, -1), (0x1_0000_0000, 1, 0xFFFFFFFF), (5, 3, 2)],
    )
)
# Lanes that EXEC turns off keep the destination; the carries of the others are as ever.
one(
    Case(
        "carry_with_lanes_off",
        "v_add_co_u32_e32 v3, vcc, v1, v2; s_and_b64 vcc, vcc, exec",
        {"v1": M, "v2": 1, "v3": 77, "exec": 0b0110, "vcc": 0},
        {"v3": [77, 0, 0, 77], "vcc": 0b0110},
    )
)
one(
    Case(
        "v_mad_u64_u32",
        "v_mad_u64_u32 v[6:7], s[4:5], v1, v2, v[8:9]",
        {"v1": [M, 3, M, 0x10000], "v2": [M, 5, M, 0x10000], "v[8:9]": [0, 7, -1, 0xFFFFFFFF00000000]},
        # (2^32-1)^2 = 0xfffffffe00000001
        {"v[6:7]": [0xFFFFFFFE00000001, 22, 0xFFFFFFFE00000000, 0], "s[4:5]": 0b1100 | ALL & ~0xF},
    )
)
one(
    Case(
        "v_mad_i64_i32",
        "v_mad_i64_i32 v[6:7], s[4:5], v1, v2, v[8:9]",
        {"v1": [-3, M, 0x7FFFFFFF], "v2": [5, M, 0x7FFFFFFF], "v[8:9]": [1, 0, 0]},
        {"v[6:7]": [-14, 1, 0x3FFFFFFF00000001]},
    )
)

# -- plain arithmetic --------------------------------------------------------------------------------------------------
add(rows("v_add_u32", "v_add_u32_e32 v3, v1, v2", "v1 v2 -> v3", [(M, 2, 1), (3, 4, 7)]))
add(rows("v_sub_u32", "v_sub_u32_e32 v3, v1, v2; v_subrev_u32_e32 v4, v1, v2", "v1 v2 -> v3 v4", [(3, 5, -2, 2)]))
add(rows("v_add_u32_clamp", "v_add_u32_e64 v3, v1, v2 clamp", "v1 v2 -> v3", [(M, 2, M), (3, 4, 7)]))
add(rows("v_sub_u32_clamp", "v_sub_u32_e64 v3, v1, v2 clamp", "v1 v2 -> v3", [(3, 5, 0), (5, 3, 2)]))
add(
    rows(
        "v_add_sub_i32_clamp",
        "v_add_i32 v3, v1, v2 clamp; v_sub_i32 v4, v1, v2 clamp",
        "v1 v2 -> v3 v4",
        [(0x7FFFFFFF, 1, 0x7FFFFFFF, 0x7FFFFFFE), (0x80000000, 1, 0x80000001, 0x80000000), (-4, 3, -1, -7)],
    )
)
add(
    rows(
        "v_mul",
        "v_mul_lo_u32 v3, v1, v2; v_mul_hi_u32 v4, v1, v2; v_mul_hi_i32 v5, v1, v2",
        "v1 v2 -> v3 v4 v5",
        [
            (M, M, 1, 0xFFFFFFFE, 0),
            (0x80000000, 2, 0, 1, -1),
            (0x10000, 0x10000, 0, 1, 1),
            (-5, 7, -35, 6, -1),
            (123456789, 987654321, 4227814277, 28389652, 28389652),
        ],
    )
)
add(
    rows(
        "v_mul_24",
        "v_mul_u32_u24_e32 v3, v1, v2; v_mul_i32_i24_e32 v4, v1, v2; v_mul_hi_u32_u24_e32 v5, v1, v2;"
        "v_mul_hi_i32_i24_e32 v6, v1, v2",
        "v1 v2 -> v3 v4 v5 v6",
        [
            (0xFF000003, 5, 15, 15, 0, 0),  # the top byte is not read
            (0x00FFFFFF, 0x00FFFFFF, 0xFE000001, 1, 0xFFFF, 0),
            (0x00800000, 2, 0x01000000, 0xFF000000, 0, -1),
        ],
    )
)
add(
    rows(
        "v_mad_24",
        "v_mad_u32_u24 v4, v1, v2, v3; v_mad_i32_i24 v5, v1, v2, v3",
        "v1 v2 v3 -> v4 v5",
        [(3, 5, 7, 22, 22), (0x00FFFFFF, 2, 10, 0x02000008, 8)],
    )
)
add(
    rows(
        "v_lshl_add_u64",
        "v_lshl_add_u64 v[6:7], v[2:3], 4, v[4:5]",
        "v[2:3] v[4:5] -> v[6:7]",
        [(1, 2, 18), (0x0FFFFFFFFFFFFFFF, 0x10, 0), (-1, 0, -16), (0x12345678, 0x100000000, 0x223456780)],
    )
)
add(
    rows(
        "v_lshl_add_u64_shift",
        "v_lshl_add_u64 v[6:7], v[2:3], v1, v[4:5]; v_lshl_add_u64 v[8:9], s[4:5], 0, v[4:5]",
        "v[2:3] v1 v[4:5] -> v[6:7] v[8:9]",
        [(3, 0, 4, 7, 0x7F0000000004), (3, 2, 4, 16, 0x7F0000000004)],
        given={"s[4:5]": 0x7F0000000000},
    )
)
add(
    rows(
        "three_operand",
        "v_add3_u32 v4, v1, v2, v3; v_lshl_add_u32 v5, v1, v2, v3; v_add_lshl_u32 v6, v1, v2, v3;"
        "v_lshl_or_b32 v7, v1, v2, v3; v_and_or_b32 v8, v1, v2, v3; v_or3_b32 v9, v1, v2, v3;"
        "v_xad_u32 v10, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9 v10",
        [
            # 6+3+5; (6<<3)+5; (6+3)<<5; 6<<3|5; 6&3|5; 6|3|5; (6^3)+5
            (6, 3, 5, 14, 53, 288, 53, 7, 7, 10),
            # shifts use the low five bits
            (1, 33, 34, 68, 36, 136, 34, 35, 35, 66),
        ],
    )
)
add(
    rows(
        "v_sad",
        "v_sad_u32 v4, v1, v2, v3; v_sad_u16 v5, v1, v2, v3; v_sad_u8 v6, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6",
        [(0x00000005, 0x00000009, 1, 5, 5, 5), (0x00030001, 0x00010005, 0, 0x1FFFC, 6, 6)],
    )
)
add(
    rows(
        "min_max_integers",
        "v_min_i32_e32 v3, v1, v2; v_max_i32_e32 v4, v1, v2; v_min_u32_e32 v5, v1, v2; v_max_u32_e32 v6, v1, v2",
        "v1 v2 -> v3 v4 v5 v6",
        [(-1, 1, -1, 1, 1, -1), (0x80000000, 0x7FFFFFFF, 0x80000000, 0x7FFFFFFF, 0x7FFFFFFF, 0x80000000)],
    )
)
add(
    rows(
        "three_way_integers",
        "v_min3_i32 v4, v1, v2, v3; v_max3_i32 v5, v1, v2, v3; v_med3_i32 v6, v1, v2, v3;"
        "v_min3_u32 v7, v1, v2, v3; v_max3_u32 v8, v1, v2, v3; v_med3_u32 v9, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9",
        [(-1, 5, 2, -1, 5, 2, 2, -1, 5), (7, 7, 1, 1, 7, 7, 1, 7, 7)],
    )
)

# -- shifts and bits ---------------------------------------------------------------------------------------------------
add(
    rows(
        "shifts",
        "v_lshlrev_b32_e32 v3, v1, v2; v_lshrrev_b32_e32 v4, v1, v2; v_ashrrev_i32_e32 v5, v1, v2",
        "v1 v2 -> v3 v4 v5",
        [
            (4, 0x80000001, 0x10, 0x08000000, 0xF8000000),
            (36, 0x80000001, 0x10, 0x08000000, 0xF8000000),
            (0, 9, 9, 9, 9),
        ],
    )
)
add(
    rows(
        "shifts_64",
        "v_lshlrev_b64 v[6:7], v1, v[2:3]; v_lshrrev_b64 v[8:9], v1, v[2:3]; v_ashrrev_i64 v[10:11], v1, v[2:3]",
        "v1 v[2:3] -> v[6:7] v[8:9] v[10:11]",
        [
            (4, 0x8000000000000001, 0x10, 0x0800000000000000, 0xF800000000000000),
            (68, 0x8000000000000001, 0x10, 0x0800000000000000, 0xF800000000000000),
            (32, 0x1122334455667788, 0x5566778800000000, 0x11223344, 0x11223344),
        ],
    )
)
add(
    rows(
        "logic",
        "v_and_b32_e32 v3, v1, v2; v_or_b32_e32 v4, v1, v2; v_xor_b32_e32 v5, v1, v2;"
        "v_xnor_b32_e32 v6, v1, v2; v_not_b32_e32 v7, v1",
        "v1 v2 -> v3 v4 v5 v6 v7",
        [(0xFF00FF00, 0x0FF00FF0, 0x0F000F00, 0xFFF0FFF0, 0xF0F0F0F0, 0x0F0F0F0F, 0x00FF00FF)],
    )
)
add(
    rows(
        "bit_fields",
        "v_bfe_u32 v4, v1, v2, v3; v_bfe_i32 v5, v1, v2, v3",
        "v1 v2 v3 -> v4 v5",
        [
            (0xABCDEF12, 8, 8, 0xEF, 0xFFFFFFEF),
            (0xABCDEF12, 4, 4, 0x1, 0x1),
            (0xABCDEF12, 28, 8, 0xA, 0xFFFFFFFA),  # the field runs past bit 31
            (0xABCDEF12, 0, 0, 0, 0),
            (0xABCDEF12, 40, 40, 0xEF, 0xFFFFFFEF),  # low five bits of offset and width
        ],
    )
)
add(rows("v_bfi_b32", "v_bfi_b32 v4, v1, v2, v3", "v1 v2 v3 -> v4", [(0x0000FFFF, 0x12345678, 0xABCDEF01, 0xABCD5678)]))
add(rows("v_bfm_b32", "v_bfm_b32 v3, v1, v2", "v1 v2 -> v3", [(4, 8, 0xF00), (32, 0, 0), (31, 1, 0xFFFFFFFE)]))
add(
    rows(
        "bit_counts",
        "v_bcnt_u32_b32 v3, v1, v2; v_bfrev_b32_e32 v4, v1; v_ffbh_u32_e32 v5, v1; v_ffbl_b32_e32 v6, v1;"
        "v_ffbh_i32_e32 v7, v1",
        "v1 v2 -> v3 v4 v5 v6 v7",
        [
            (0x00F00001, 100, 105, 0x80000F00, 8, 0, 8),
            (0, 1, 1, 0, -1, -1, -1),
            (M, 0, 32, M, 0, 0, -1),
            (0xFFFF0000, 0, 16, 0x0000FFFF, 0, 16, 16),
        ],
    )
)
add(
    rows(
        "v_perm_b32",
        "v_perm_b32 v4, v1, v2, v3",
        "v1 v2 v3 -> v4",
        # Selectors 0-3 are bytes of the second source, 4-7 of the first, 8-11 signs, 12 is 0x00, above it 0xff.
        [
            (0x44332211, 0x88776655, 0x03020100, 0x88776655),
            (0x44332211, 0x88776655, 0x07060504, 0x44332211),
            (0x44332211, 0x88776655, 0x00040703, 0x55114488),
            (0x44332211, 0x88776655, 0x0C0D0C0F, 0x00FF00FF),
            # sign of bytes 1 and 3 of the second source, then of bytes 1 and 3 of the first
            (0x80007FFF, 0x7FFF8000, 0x0B0A0908, 0xFF0000FF),
        ],
    )
)
add(
    rows(
        "v_align",
        "v_alignbit_b32 v4, v1, v2, v3; v_alignbyte_b32 v5, v1, v2, v3",
        "v1 v2 v3 -> v4 v5",
        [
            (0x11223344, 0x55667788, 8, 0x44556677, 0x55667788),
            (0x11223344, 0x55667788, 1, 0x2AB33BC4, 0x44556677),
            (0x11223344, 0x55667788, 3, 0x8AACCEF1, 0x22334455),
        ],
    )
)

# -- halves and bytes --------------------------------------------------------------------------------------------------
add(
    rows(
        "v_pk_integers",
        "v_pk_add_u16 v3, v1, v2; v_pk_sub_i16 v4, v1, v2; v_pk_mul_lo_u16 v5, v1, v2; v_pk_max_i16 v6, v1, v2;"
        "v_pk_min_u16 v7, v1, v2; v_pk_lshlrev_b16 v8, v2, v1",
        "v1 v2 -> v3 v4 v5 v6 v7 v8",
        [(0xFFFF0003, 0x00020004, 0x00010007, 0xFFFDFFFF, 0xFFFE000C, 0x00020004, 0x00020003, 0xFFFC0030)],
    )
)
add(rows("v_pack_b32_f16", "v_pack_b32_f16 v3, v1, v2", "v1 v2 -> v3", [(0xAAAA3C00, 0xBBBB4000, 0x40003C00)]))
add(
    rows(
        "v_cvt_pack",
        "v_cvt_pk_u16_u32 v3, v1, v2; v_cvt_pk_i16_i32 v4, v1, v2",
        "v1 v2 -> v3 v4",
        # saturating
        [
            (1, 2, 0x00020001, 0x00020001),
            (70000, -1, 0xFFFFFFFF, 0xFFFF7FFF),
            (0xFFFF8000, 40000, 0x9C40FFFF, 0x7FFF8000),
        ],
    )
)
add(
    rows(
        "dot_products",
        "v_dot4_i32_i8 v4, v1, v2, v3; v_dot4_u32_u8 v5, v1, v2, v3; v_dot2_i32_i16 v6, v1, v2, v3;"
        "v_dot2_u32_u16 v7, v1, v2, v3;"
        "v_dot8_i32_i4 v8, v1, v2, v3; v_dot8_u32_u4 v9, v1, v2, v3",
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9",
        [
            # bytes 1*5+2*6+3*7+4*8 = 70; halves 0x0201*0x0605 + 0x0403*0x0807; nibbles as bytes here
            (
                0x04030201,
                0x08070605,
                100,
                170,
                170,
                100 + 0x0201 * 0x0605 + 0x0403 * 0x0807,
                100 + 0x0201 * 0x0605 + 0x0403 * 0x0807,
                # 8 is -8 as a signed nibble: 5+12+21-32
                106,
                170,
            ),
            # -1 * 2 in the lowest byte, half or nibble
            (0x000000FF, 0x00000002, 0, -2, 510, 510, 510, -2, 30),
            (0x0000FFFF, 0x00000002, 0, -2, 510, -2, 131070, -2, 30),
        ],
    )
)

# -- sub-dword addressing ----------------------------------------------------------------------------------------------
add(
    rows(
        "sdwa_sources",
        "v_add_u32_sdwa v3, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1;"
        "v_add_u32_sdwa v4, sext(v1), v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:DWORD",
        "v1 v2 -> v3 v4",
        [(0x11223344, 0xAABBCCDD, 0xAAEE, 0xAABBCCEE), (0xFF00FE00, 5, 0xFE, 4)],
    )
)
for _name, _sel, _want in [
    ("byte_2_preserve", "dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0", 0x55845555),
    ("word_1_preserve", "dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0", 0x33845555),
    ("word_1_pad", "dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0", 0x33840000),
    ("byte_1_pad", "dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0", 0x00008400),
    ("byte_1_sext", "dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_0", 0xFFFF8400),
    ("word_0_sext", "dst_sel:WORD_0 dst_unused:UNUSED_SEXT src0_sel:BYTE_1", 0x00000033),
    ("byte_3", "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3", 0x00000091),
]:
    add(rows(f"sdwa_{_name}", f"v_mov_b32_sdwa v3, v1 {_sel}", "v1 v3 -> v3", [(0x91223384, 0x55555555, _want)]))
one(
    Case(
        "sdwa_compare",
        "v_cmp_eq_u32_sdwa vcc, v1, v2 src0_sel:BYTE_0 src1_sel:BYTE_3;"
        "v_cmp_lt_i32_sdwa s[4:5], sext(v1), v2 src0_sel:BYTE_0 src1_sel:DWORD",
        {"v1": [0x81, 0x01, 0x7F], "v2": [0x81000000, 0x02000000, 0x7F000000], "exec": 0b111},
        {"vcc": 0b101, "s[4:5]": 0b110},
    )
)

# -- new on gfx950 -----------------------------------------------------------------------------------------------------
# The truth table's index is src0 << 2 | src1 << 1 | src2 bit by bit, so 0xf0, 0xcc and 0xaa are the sources themselves.
add(
    rows(
        "v_bitop3_b32",
        "v_bitop3_b32 v4, v1, v2, v3 bitop3:0xf0; v_bitop3_b32 v5, v1, v2, v3 bitop3:0xcc;"
        "v_bitop3_b32 v6, v1, v2, v3 bitop3:0xaa; v_bitop3_b32 v7, v1, v2, v3 bitop3:0x96;"
        "v_bitop3_b32 v8, v1, v2, v3 bitop3:0xe8; v_bitop3_b32 v9, v1, v2, v3 bitop3:0x40",
        "v1 v2 v3 -> v4 v5 v6 v7 v8 v9",
        # itself, itself, itself, exclusive or, majority, v1 & v2 & ~v3
        [(0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0x96969696, 0xE8E8E8E8, 0x40404040)],
    )
)
add(
    rows(
        "v_ashr_pk",
        "v_ashr_pk_i8_i32 v4, v1, v2, v3; v_ashr_pk_u8_i32 v5, v1, v2, v3; v_and_b32 v4, 0xffff, v4;"
        "v_and_b32 v5, 0xffff, v5",
        "v1 v2 v3 -> v4 v5",
        # (v1 >> v3) and (v2 >> v3), saturated to a byte each
        [(0x100, 0x230, 4, 0x2310, 0x2310), (-0x100, 0x7FFFFFFF, 4, 0x7FF0, 0xFF00), (300, -300, 0, 0x807F, 0x00FF)],
    )
)

# -- selects and comparisons -------------------------------------------------------------------------------------------
one(
    Case(
        "v_cndmask_b32",
        "v_cndmask_b32_e32 v3, v1, v2, vcc; v_cndmask_b32_e64 v4, v1, v2, s[4:5]; v_cndmask_b32_e64 v5, 0, -1, s[4:5]",
        {"v1": 1, "v2": 2, "vcc": 0b0101, "s[4:5]": 0b0010},
        {"v3": [2, 1, 2, 1], "v4": [1, 2, 1], "v5": [0, -1, 0]},
    )
)
one(
    Case(
        "v_cndmask_b32_neg",
        "v_cndmask_b32_e64 v5, -v1, |v2|, s[4:5]",
        {"v1": 1.0, "v2": -2.0, "s[4:5]": 0b01},
        {"v5": [2.0, -1.0]},
    )
)
ORDER = {"v1": [1, 2, 3, -1], "v2": [2, 2, 2, 2]}  # signed: < = > <, unsigned: < = > >
for _name, _want in [
    ("lt_i32", 0b1001), ("eq_i32", 0b0010), ("le_i32", 0b1011), ("gt_i32", 0b0100), ("ne_i32", 0b1101),
    ("ge_i32", 0b0110), ("lt_u32", 0b0001), ("eq_u32", 0b0010), ("le_u32", 0b0011), ("gt_u32", 0b1100),
    ("ne_u32", 0b1101), ("ge_u32", 0b1110),
]:  # fmt: skip
    one(Case(f"v_cmp_{_name}", f"v_cmp_{_name}_e32 vcc, v1, v2", {**ORDER, "exec": 0xF}, {"vcc": _want}))
FLOATS = {"v1": [1.0, 2.0, 3.0, float("nan")], "v2": [2.0, 2.0, 2.0, 2.0]}
for _name, _want in [
    ("lt", 0b0001), ("eq", 0b0010), ("le", 0b0011), ("gt", 0b0100), ("lg", 0b0101), ("ge", 0b0110), ("o", 0b0111),
    ("u", 0b1000), ("nge", 0b1001), ("nlg", 0b1010), ("ngt", 0b1011), ("nle", 0b1100), ("neq", 0b1101), ("nlt", 0b1110),
    ("f", 0b0000), ("tru", 0b1111),
]:  # fmt: skip
    one(Case(f"v_cmp_{_name}_f32", f"v_cmp_{_name}_f32_e64 s[4:5], v1, v2", {**FLOATS, "exec": 0xF}, {"s[4:5]": _want}))
one(
    Case(
        "v_cmp_64",
        "v_cmp_lt_u64_e64 s[4:5], v[2:3], v[4:5]; v_cmp_lt_i64_e64 s[6:7], v[2:3], v[4:5];"
        "v_cmp_eq_u64_e64 s[8:9], v[2:3], v[4:5]",
        {"v[2:3]": [-1, 0x1_0000_0000, 5], "v[4:5]": [1, 0x2_0000_0000, 5], "exec": 0b111},
        {"s[4:5]": 0b010, "s[6:7]": 0b011, "s[8:9]": 0b100},
    )
)
one(
    Case(
        "v_cmp_writes_zero_for_lanes_off",
        "v_cmp_eq_u32_e32 vcc, v1, v1",
        {"v1": 3, "vcc": -1, "exec": 0xF0},
        {"vcc": 0xF0},
    )
)
one(
    Case(
        "v_cmpx_narrows_exec",
        "v_cmpx_gt_u32_e32 vcc, v1, v2; v_mov_b32 v3, 9",
        {"v1": [5, 1, 5, 1], "v2": 3, "v3": 7, "exec": 0b0111},
        {"v3": [9, 7, 9, 7], "exec": 0b0101, "vcc": 0b0101},
    )
)
one(
    Case(
        "v_cmpx_to_sgprs_narrows_exec",
        "v_cmpx_ne_u32_e64 s[4:5], v1, v2",
        {"v1": [5, 3, 5], "v2": 3, "exec": 0b011},
        {"exec": 0b001, "s[4:5]": 0b001},
    )
)

# -- write-back under EXEC ---------------------------------------------------------------------------------------------
one(
    Case(
        "lanes_off_keep_their_value",
        "v_mov_b32 v3, 42; v_add_u32 v4, v4, v4; v_lshlrev_b64 v[6:7], 1, v[6:7]",
        {"v3": 1, "v4": 10, "v[6:7]": 0x180000000, "exec": 0b10},
        {"v3": [1, 42, 1], "v4": [10, 20, 10], "v[6:7]": [0x180000000, 0x300000000, 0x180000000]},
    )
)
one(
    Case(
        "no_lane_on",
        "v_mov_b32 v3, 42",
        {"v3": 1, "exec": 0},
        {"v3": 1},
    )
)
add(
    rows(
        "inline_constants",
        "v_mov_b32 v2, -16; v_mov_b32 v3, 64; v_mov_b32 v4, 0.5; v_mov_b32 v5, -4.0;"
        "v_mov_b32 v6, 0.15915494; v_mov_b32 v7, 0x12345678",
        "v1 -> v2 v3 v4 v5 v6 v7",
        [(0, -16, 64, 0.5, -4.0, 0x3E22F983, 0x12345678)],
    )
)
add(
    rows(
        "inline_constants_64",
        "v_lshl_add_u64 v[4:5], v[2:3], 0, -1; v_add_f64 v[6:7], v[2:3], 1.0; v_rndne_f64_e32 v[8:9], 0x40080000",
        "v[2:3] -> v[4:5] v[6:7] v[8:9]",
        # A literal fills the upper half of a 64-bit float: 3.0.
        [(0, -1, 1.0, 3.0)],
    )
)
one(
    Case(
        "v_accvgpr",
        "v_accvgpr_read_b32 v2, a1; v_accvgpr_write_b32 a3, v1; v_accvgpr_mov_b32 a4, a1",
        {"a1": 11, "v1": 12},
        {"v2": 11, "a3": 12, "a4": 11},
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
