"""Check scalar instructions, branches and scalar loads against numbers worked out by hand.

Source: "AMD Instinct CDNA3 ISA" reference guide, chapters "Scalar ALU", "Program flow" and "Instruction details".
"""

from __future__ import annotations

import struct

import pytest
from conformance import Case, Module, rows

CASES: list[Case] = []
add = CASES.extend
one = CASES.append

M = 0xFFFFFFFF
M64 = (1 << 64) - 1

# -- add and subtract, SCC is the carry or the signed overflow ---------------------------------------------------------
BINARY = "s4 s5 -> s6 scc"
add(rows("s_add_u32", "s_add_u32 s6, s4, s5", BINARY, [(M, 1, 0, 1), (1, 2, 3, 0), (0x80000000, 0x80000000, 0, 1)]))
add(rows("s_sub_u32", "s_sub_u32 s6, s4, s5", BINARY, [(0, 1, M, 1), (5, 3, 2, 0), (4, 4, 0, 0)]))
add(
    rows(
        "s_add_i32",
        "s_add_i32 s6, s4, s5",
        BINARY,
        [(0x7FFFFFFF, 1, 0x80000000, 1), (-1, 1, 0, 0), (0x80000000, -1, 0x7FFFFFFF, 1), (-5, -6, -11, 0)],
    )
)
add(
    rows(
        "s_sub_i32",
        "s_sub_i32 s6, s4, s5",
        BINARY,
        [(0x80000000, 1, 0x7FFFFFFF, 1), (3, 5, -2, 0), (0, 0x80000000, 0x80000000, 1)],
    )
)
CARRY = "s4 s5 scc -> s6 scc"
add(
    rows(
        "s_addc_u32",
        "s_addc_u32 s6, s4, s5",
        CARRY,
        [(M, 0, 1, 0, 1), (M, 0, 0, M, 0), (M, M, 1, M, 1), (1, 2, 1, 4, 0)],
    )
)
add(
    rows(
        "s_subb_u32",
        "s_subb_u32 s6, s4, s5",
        CARRY,
        [(0, 0, 1, M, 1), (5, 5, 0, 0, 0), (5, 4, 1, 0, 0), (0, M, 1, 0, 1)],
    )
)
add(
    rows(
        "s_add64",
        "s_add_u32 s8, s4, s6; s_addc_u32 s9, s5, s7",
        "s[4:5] s[6:7] -> s[8:9] scc",
        [(M, 1, 0x1_0000_0000, 0), (-1, 1, 0, 1)],
    )
)
add(rows("s_addk_i32", "s_addk_i32 s4, 0xffff", "s4 -> s4 scc", [(5, 4, 0), (0x80000000, 0x7FFFFFFF, 1)]))
add(rows("s_mulk_i32", "s_mulk_i32 s4, 0xfffd", "s4 scc -> s4 scc", [(5, 1, -15, 1)]))
add(rows("s_movk_i32", "s_movk_i32 s4, 0x8000", "s4 -> s4", [(0, 0xFFFF8000)]))
add(rows("s_cmovk_i32", "s_cmovk_i32 s4, 0x7", "s4 scc -> s4", [(1, 0, 1), (1, 1, 7)]))
add(
    rows(
        "s_mul",
        "s_mul_i32 s6, s4, s5; s_mul_hi_u32 s7, s4, s5; s_mul_hi_i32 s8, s4, s5",
        "s4 s5 -> s6 s7 s8",
        [(M, M, 1, 0xFFFFFFFE, 0), (-5, 7, -35, 6, -1), (0x10000, 0x30000, 0, 3, 3)],
    )
)
add(
    rows(
        "s_lshl_add",
        "s_lshl1_add_u32 s6, s4, s5; s_cselect_b32 s7, 1, 0; s_lshl4_add_u32 s8, s4, s5; s_cselect_b32 s9, 1, 0",
        "s4 s5 -> s6 s7 s8 s9",
        [(3, 5, 11, 0, 53, 0), (0x80000000, 1, 1, 1, 1, 1)],
    )
)
add(rows("s_absdiff_i32", "s_absdiff_i32 s6, s4, s5", BINARY, [(3, 5, 2, 1), (5, 3, 2, 1), (4, 4, 0, 0)]))
add(
    rows(
        "s_abs_i32", "s_abs_i32 s6, s4", "s4 -> s6 scc", [(-5, 5, 1), (0, 0, 0), (7, 7, 1), (0x80000000, 0x80000000, 1)]
    )
)

# -- minimum, maximum, select ------------------------------------------------------------------------------------------
add(rows("s_min_i32", "s_min_i32 s6, s4, s5", BINARY, [(-1, 1, -1, 1), (1, -1, -1, 0)]))
add(rows("s_max_i32", "s_max_i32 s6, s4, s5", BINARY, [(-1, 1, 1, 0), (1, -1, 1, 1)]))
add(rows("s_min_u32", "s_min_u32 s6, s4, s5", BINARY, [(-1, 1, 1, 0), (1, -1, 1, 1)]))
add(rows("s_max_u32", "s_max_u32 s6, s4, s5", BINARY, [(-1, 1, -1, 1), (1, -1, -1, 0)]))
add(
    rows(
        "s_cselect",
        "s_cselect_b32 s6, s4, s5; s_cselect_b64 s[8:9], -1, 0",
        "s4 s5 scc -> s6 s[8:9] scc",
        [(1, 2, 1, 1, -1, 1), (1, 2, 0, 2, 0, 0)],
    )
)
add(
    rows(
        "s_cmov",
        "s_cmov_b32 s4, s5; s_cmov_b64 s[8:9], s[6:7]",
        "s4 s5 s[6:7] s[8:9] scc -> s4 s[8:9]",
        [(1, 2, 3, 4, 1, 2, 3), (1, 2, 3, 4, 0, 1, 4)],
    )
)

# -- logic, SCC says the result is not zero ----------------------------------------------------------------------------
A, B = 0xFF00FF00, 0x0FF00FF0
for _op, _want in [
    ("and", 0x0F000F00), ("or", 0xFFF0FFF0), ("xor", 0xF0F0F0F0), ("andn2", 0xF000F000), ("orn2", 0xFF0FFF0F),
    ("nand", 0xF0FFF0FF), ("nor", 0x000F000F), ("xnor", 0x0F0F0F0F),
]:  # fmt: skip
    add(rows(f"s_{_op}_b32", f"s_{_op}_b32 s6, s4, s5", BINARY, [(A, B, _want, 1)]))
    add(
        rows(
            f"s_{_op}_b64",
            f"s_{_op}_b64 s[8:9], s[4:5], s[6:7]",
            "s[4:5] s[6:7] -> s[8:9] scc",
            [(A << 32 | A, B << 32 | B, _want << 32 | _want, 1)],
        )
    )
add(rows("s_and_b32_zero", "s_and_b32 s6, s4, s5", BINARY, [(A, 0x00FF00FF, 0, 0)]))
add(rows("s_and_b64_high", "s_and_b64 s[6:7], s[4:5], -1", "s[4:5] -> s[6:7] scc", [(1 << 40, 1 << 40, 1), (0, 0, 0)]))
add(rows("s_not_b32", "s_not_b32 s6, s4", "s4 -> s6 scc", [(A, 0x00FF00FF, 1), (M, 0, 0)]))
add(rows("s_not_b64", "s_not_b64 s[6:7], s[4:5]", "s[4:5] -> s[6:7] scc", [(1, M64 - 1, 1), (M64, 0, 0)]))

# -- shifts and bit fields ---------------------------------------------------------------------------------------------
add(rows("s_lshl_b32", "s_lshl_b32 s6, s4, s5", BINARY, [(1, 4, 16, 1), (1, 36, 16, 1), (0x80000000, 1, 0, 0)]))
add(rows("s_lshr_b32", "s_lshr_b32 s6, s4, s5", BINARY, [(0x80000000, 31, 1, 1), (1, 1, 0, 0)]))
add(rows("s_ashr_i32", "s_ashr_i32 s6, s4, s5", BINARY, [(0x80000000, 31, -1, 1), (0x40000000, 30, 1, 1)]))
SHIFT64 = "s[4:5] s6 -> s[8:9] scc"
add(
    rows(
        "s_lshl_b64",
        "s_lshl_b64 s[8:9], s[4:5], s6",
        SHIFT64,
        [(3, 33, 3 << 33, 1), (3, 68, 48, 1), (1 << 63, 1, 0, 0)],
    )
)
add(rows("s_lshr_b64", "s_lshr_b64 s[8:9], s[4:5], s6", SHIFT64, [(M64, 60, 15, 1), (1, 1, 0, 0)]))
add(rows("s_ashr_i64", "s_ashr_i64 s[8:9], s[4:5], s6", SHIFT64, [(1 << 63, 60, -8, 1), (5, 2, 1, 1)]))
# Offset in bits 4:0 (5:0), width in bits 22:16.
add(
    rows(
        "s_bfe_u32",
        "s_bfe_u32 s6, s4, s5",
        BINARY,
        [(0xABCDEF12, 0x080008, 0xEF, 1), (0xABCDEF12, 0x000008, 0, 0), (0xABCDEF12, 0x08001C, 0xA, 1)],
    )
)
add(rows("s_bfe_i32", "s_bfe_i32 s6, s4, s5", BINARY, [(0xABCDEF12, 0x080008, 0xFFFFFFEF, 1), (0x12, 0x040000, 2, 1)]))
add(
    rows(
        "s_bfe_64",
        "s_bfe_u64 s[8:9], s[4:5], s6; s_bfe_i64 s[10:11], s[4:5], s6",
        "s[4:5] s6 -> s[8:9] s[10:11]",
        [
            (0xFEDCBA9876543210, 0x0C0030, 0xEDC, 0xFFFFFFFFFFFFFEDC),
            (0xFEDCBA9876543210, 0x200010, 0xBA987654, 0xFFFFFFFFBA987654),
        ],
    )
)
add(
    rows(
        "s_bfm",
        "s_bfm_b32 s6, s4, s5; s_bfm_b64 s[8:9], s4, s5",
        "s4 s5 -> s6 s[8:9]",
        [(4, 8, 0xF00, 0xF00), (32, 4, 0, 0xFFFFFFFF0)],
    )
)
add(rows("s_pack", "s_pack_ll_b32_b16 s6, s4, s5; s_pack_lh_b32_b16 s7, s4, s5; s_pack_hh_b32_b16 s8, s4, s5",
         "s4 s5 -> s6 s7 s8", [(0x11112222, 0x33334444, 0x44442222, 0x33332222, 0x33331111)]))  # fmt: skip
add(
    rows(
        "s_sext",
        "s_sext_i32_i8 s6, s4; s_sext_i32_i16 s7, s4",
        "s4 -> s6 s7",
        [(0x12348081, 0xFFFFFF81, 0xFFFF8081), (0x7F, 0x7F, 0x7F)],
    )
)
add(
    rows(
        "s_counts",
        "s_ff1_i32_b32 s6, s4; s_flbit_i32_b32 s7, s4; s_flbit_i32 s8, s4; s_brev_b32 s9, s4; s_bcnt1_i32_b32 s10, s4",
        "s4 -> s6 s7 s8 s9 s10 scc",
        [
            (0x00F00010, 4, 8, 8, 0x08000F00, 5, 1),
            (0, -1, -1, -1, 0, 0, 0),
            (M, 0, 0, -1, M, 32, 1),
            (0xFFFF0000, 16, 0, 16, 0x0000FFFF, 16, 1),
        ],
    )
)
add(
    rows(
        "s_counts_64",
        "s_ff1_i32_b64 s6, s[4:5]; s_flbit_i32_b64 s7, s[4:5]; s_bcnt1_i32_b64 s8, s[4:5]; s_bcnt0_i32_b64 s9, s[4:5]",
        "s[4:5] -> s6 s7 s8 s9 scc",
        [(1 << 40, 40, 23, 1, 63, 1), (0, -1, -1, 0, 64, 1), (M64, 0, 0, 64, 0, 0)],
    )
)
add(
    rows(
        "s_lshl2_lshl3_add",
        "s_lshl2_add_u32 s6, s4, s5; s_lshl3_add_u32 s7, s4, s5",
        "s4 s5 -> s6 s7 scc",
        [(3, 5, 17, 29, 0), (0x20000000, 1, 0x80000001, 1, 1)],
    )
)
add(
    rows(
        "s_more_counts",
        "s_ff0_i32_b32 s6, s4; s_bcnt0_i32_b32 s7, s4; s_wqm_b32 s8, s4; s_quadmask_b32 s9, s4",
        "s4 -> s6 s7 s8 s9 scc",
        [(0x00000317, 3, 26, 0x00000FFF, 7, 1), (M, -1, 0, M, 0xFF, 1), (0, 0, 32, 0, 0, 0)],
    )
)
add(
    rows(
        "s_more_counts_64",
        "s_ff0_i32_b64 s6, s[4:5]; s_flbit_i32_i64 s7, s[4:5]; s_brev_b64 s[8:9], s[4:5];"
        "s_quadmask_b64 s[10:11], s[4:5]",
        "s[4:5] -> s6 s7 s[8:9] s[10:11]",
        [(0x0000_0001_FFFF_FFFF, 33, 31, 0xFFFFFFFF80000000, 0x1FF), (M64, -1, -1, M64, 0xFFFF)],
    )
)
add(
    rows(
        "s_bitset_b64",
        "s_bitset1_b64 s[4:5], s8; s_bitset0_b64 s[6:7], s8",
        "s[4:5] s[6:7] s8 -> s[4:5] s[6:7]",
        [(0, M64, 40, 1 << 40, M64 ^ 1 << 40)],
    )
)
add(
    rows(
        "s_bitreplicate_b64_b32",
        "s_bitreplicate_b64_b32 s[6:7], s4",
        "s4 -> s[6:7]",
        [(0x80000005, 0xC000000000000033)],
    )
)
add(
    rows(
        "s_bitset",
        "s_bitset1_b32 s4, s5; s_bitset0_b32 s6, s5",
        "s4 s5 s6 -> s4 s6",
        [(0, 3, M, 8, 0xFFFFFFF7), (0, 35, M, 8, 0xFFFFFFF7)],
    )
)

# -- comparisons -------------------------------------------------------------------------------------------------------
for _op, _text, _table in [
    ("eq_u32", "s_cmp_eq_u32 s4, s5", [(1, 1, 1), (1, 2, 0)]),
    ("lg_u32", "s_cmp_lg_u32 s4, s5", [(1, 1, 0), (1, 2, 1)]),
    ("eq_i32", "s_cmp_eq_i32 s4, s5", [(-1, -1, 1), (1, -1, 0)]),
    ("lg_i32", "s_cmp_lg_i32 s4, s5", [(-1, -1, 0), (1, -1, 1)]),
    ("gt_i32", "s_cmp_gt_i32 s4, s5", [(1, -1, 1), (-1, 1, 0), (1, 1, 0)]),
    ("ge_i32", "s_cmp_ge_i32 s4, s5", [(1, -1, 1), (-1, 1, 0), (1, 1, 1)]),
    ("lt_i32", "s_cmp_lt_i32 s4, s5", [(1, -1, 0), (-1, 1, 1), (1, 1, 0)]),
    ("le_i32", "s_cmp_le_i32 s4, s5", [(1, -1, 0), (-1, 1, 1), (1, 1, 1)]),
    ("gt_u32", "s_cmp_gt_u32 s4, s5", [(1, -1, 0), (-1, 1, 1), (1, 1, 0)]),
    ("ge_u32", "s_cmp_ge_u32 s4, s5", [(1, -1, 0), (-1, 1, 1), (1, 1, 1)]),
    ("lt_u32", "s_cmp_lt_u32 s4, s5", [(1, -1, 1), (-1, 1, 0), (1, 1, 0)]),
    ("le_u32", "s_cmp_le_u32 s4, s5", [(1, -1, 1), (-1, 1, 0), (1, 1, 1)]),
    ("bitcmp1", "s_bitcmp1_b32 s4, s5", [(8, 3, 1), (8, 2, 0), (8, 35, 1)]),
    ("bitcmp0", "s_bitcmp0_b32 s4, s5", [(8, 3, 0), (8, 2, 1)]),
]:
    add(rows(f"s_cmp_{_op}", _text, "s4 s5 -> scc", _table))
add(
    rows(
        "s_cmp_u64",
        "s_cmp_eq_u64 s[4:5], s[6:7]; s_cselect_b32 s8, 1, 0; s_cmp_lg_u64 s[4:5], s[6:7]",
        "s[4:5] s[6:7] -> s8 scc",
        [(1 << 40, 1 << 40, 1, 0), (1 << 40, 0, 0, 1)],
    )
)
add(
    rows(
        "s_bitcmp_b64",
        "s_bitcmp1_b64 s[4:5], s6; s_cselect_b32 s7, 1, 0; s_bitcmp0_b64 s[4:5], s6",
        "s[4:5] s6 -> s7 scc",
        [(1 << 40, 40, 1, 0), (1 << 40, 39, 0, 1)],
    )
)
for _op, _holds in [
    ("lg", (1, 0, 1)), ("gt", (0, 0, 1)), ("ge", (0, 1, 1)), ("lt", (1, 0, 0)), ("le", (1, 1, 0)),
]:  # fmt: skip
    # below, equal to and above the constant
    def _rows_of(*values: int, holds=_holds) -> list[tuple[int, int]]:
        return list(zip(values, holds, strict=True))

    add(
        rows(
            f"s_cmpk_{_op}_i32_all",
            f"s_cmpk_{_op}_i32 s4, 0xfffb",
            "s4 -> scc",
            _rows_of(-6, -5, -4),
        )
    )
    add(
        rows(
            f"s_cmpk_{_op}_u32_all",
            f"s_cmpk_{_op}_u32 s4, 0xfffb",
            "s4 -> scc",
            _rows_of(7, 0xFFFB, M),
        )
    )
# The constant is sign-extended for the signed forms and zero-extended for the unsigned ones.
add(rows("s_cmpk_eq_i32", "s_cmpk_eq_i32 s4, 0xffff", "s4 -> scc", [(-1, 1), (0xFFFF, 0)]))
add(rows("s_cmpk_eq_u32", "s_cmpk_eq_u32 s4, 0xffff", "s4 -> scc", [(-1, 0), (0xFFFF, 1)]))
add(rows("s_cmpk_gt_i32", "s_cmpk_gt_i32 s4, 0xfff0", "s4 -> scc", [(-15, 1), (-17, 0), (0, 1)]))
add(rows("s_cmpk_lt_u32", "s_cmpk_lt_u32 s4, 0x10", "s4 -> scc", [(15, 1), (16, 0), (-1, 0)]))

# -- EXEC --------------------------------------------------------------------------------------------------------------
# D = EXEC, then EXEC = the source combined with the old EXEC; SCC says the new EXEC is not zero.
for _op, _want in [
    ("and", 0b0010), ("or", 0b1110), ("xor", 0b1100), ("andn2", 0b1000), ("orn2", ~0b0100), ("nand", ~0b0010),
    ("nor", ~0b1110), ("xnor", ~0b1100), ("andn1", 0b0100), ("orn1", ~0b1000),
]:  # fmt: skip
    one(
        Case(
            f"s_{_op}_saveexec_b64",
            f"s_{_op}_saveexec_b64 s[6:7], s[4:5]",
            {"s[4:5]": 0b1010, "exec": 0b0110},
            {"s[6:7]": 0b0110, "exec": _want, "scc": 1},
        )
    )
one(
    Case(
        "s_and_saveexec_b64_none",
        "s_and_saveexec_b64 s[6:7], s[4:5]",
        {"s[4:5]": 0b1000, "exec": 0b0110},
        {"s[6:7]": 0b0110, "exec": 0, "scc": 0},
    )
)
one(
    Case(
        "s_mov_exec",
        "s_mov_b64 exec, s[4:5]; v_mov_b32 v2, 5",
        {"s[4:5]": 0x8000000000000001, "v2": 1},
        {"v2": [5] + [1] * 62 + [5], "exec": 0x8000000000000001},
    )
)
one(
    Case(
        "s_wqm_b64",
        "s_wqm_b64 s[6:7], s[4:5]",
        {"s[4:5]": 0x810},
        {"s[6:7]": 0xFF0, "scc": 1},
    )
)

one(
    Case(
        "s_andn2_wrexec_b64",
        "s_andn2_wrexec_b64 s[6:7], s[4:5]",
        # EXEC and D become the source without EXEC's lanes.
        {"s[4:5]": 0b1010, "exec": 0b0110},
        {"s[6:7]": 0b1000, "exec": 0b1000, "scc": 1},
    )
)
one(
    Case(
        "s_andn1_wrexec_b64",
        "s_andn1_wrexec_b64 s[6:7], s[4:5]",
        {"s[4:5]": 0b1010, "exec": 0b0110},
        {"s[6:7]": 0b0100, "exec": 0b0100, "scc": 1},
    )
)

# -- the mode register -------------------------------------------------------------------------------------------------
# Bits 3:0 rounding, 7:4 denormals, 8 DX10_CLAMP, 9 IEEE: what the frame's kernel descriptor asks for.
one(Case("s_getreg_mode", "s_getreg_b32 s4, hwreg(HW_REG_MODE, 0, 10)", {}, {"s4": 0x3F0}))
one(Case("s_getreg_mode_field", "s_getreg_b32 s4, hwreg(HW_REG_MODE, 8, 2)", {}, {"s4": 3}))
one(
    Case(
        "s_setreg_flushes_denormals",
        "v_add_f32 v3, v1, v2; s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0;"
        "v_add_f32 v4, v1, v2; v_mul_f32 v5, 1.0, v1;"
        "s_getreg_b32 s4, hwreg(HW_REG_MODE, 0, 10); s_setreg_b32 hwreg(HW_REG_MODE, 4, 2), s5; v_add_f32 v6, v1, v2",
        {"v1": 1, "v2": 2, "s5": 3},
        {"v3": 3, "v4": 0, "v5": 0, "s4": 0x3C0, "v6": 3},
    )
)

# -- branches ----------------------------------------------------------------------------------------------------------
for _branch, _before in [
    ("s_branch", ({}, None)),
    ("s_cbranch_scc1", ({"scc": 1}, {"scc": 0})),
    ("s_cbranch_scc0", ({"scc": 0}, {"scc": 1})),
    ("s_cbranch_vccz", ({"vcc": 0}, {"vcc": 1 << 63})),
    ("s_cbranch_vccnz", ({"vcc": 1 << 63}, {"vcc": 0})),
    ("s_cbranch_execz", ({"exec": 0}, {"exec": 1 << 63})),
    ("s_cbranch_execnz", ({"exec": 1 << 63}, {"exec": 0})),
]:
    for _taken, _state in zip((True, False), _before, strict=True):
        if _state is not None:
            one(
                Case(
                    f"{_branch}_{'taken' if _taken else 'falls_through'}",
                    f"s_mov_b32 s6, 1\n{_branch} 1f\ns_mov_b32 s6, 2\n1:\ns_nop 0",
                    _state,
                    {"s6": 1 if _taken else 2},
                )
            )
one(
    Case(
        "loop_backwards",
        "s_mov_b32 s6, 0\n1:\ns_add_u32 s6, s6, 3\ns_sub_u32 s4, s4, 1\ns_cmp_lg_u32 s4, 0\ns_cbranch_scc1 1b",
        {"s4": 5},
        {"s6": 15, "s4": 0},
    )
)
one(
    Case(
        "s_getpc_setpc",
        # s_getpc gives the address of the next instruction.
        "s_mov_b32 s6, 1\ns_getpc_b64 s[8:9]\n1:\ns_add_u32 s8, s8, 2f-1b\ns_addc_u32 s9, s9, 0\ns_setpc_b64 s[8:9]\n"
        "s_mov_b32 s6, 2\n2:\ns_nop 0",
        {},
        {"s6": 1},
    )
)

one(
    Case(
        "s_swappc_b64",
        "s_mov_b32 s6, 1\ns_getpc_b64 s[8:9]\n1:\ns_add_u32 s8, s8, 2f-1b\ns_addc_u32 s9, s9, 0\n"
        "s_swappc_b64 s[10:11], s[8:9]\n3:\ns_mov_b32 s6, 2\n2:\ns_sub_u32 s7, s8, s10",
        {},
        # From the instruction behind s_swappc to the target lies one instruction.
        {"s6": 1, "s7": 4},
    )
)
one(
    Case(
        "s_call_b64",
        "s_mov_b32 s6, 1\ns_call_b64 s[10:11], 2f\n1:\ns_mov_b32 s6, 2\ns_branch 3f\n"
        "2:\ns_mov_b32 s7, 5\ns_setpc_b64 s[10:11]\n3:\ns_nop 0",
        {},
        {"s6": 2, "s7": 5},
    )
)

# -- scalar memory -----------------------------------------------------------------------------------------------------
WORDS = struct.pack("<32I", *(0x1000 + i for i in range(32)))
one(
    Case(
        "s_load",
        "s_load_dword s4, s[94:95], 0x4; s_load_dwordx2 s[6:7], s[94:95], 0x8; s_load_dwordx4 s[8:11], s[94:95], 0x10;"
        "s_load_dwordx8 s[12:19], s[94:95], 0x20; s_load_dwordx16 s[20:35], s[94:95], 0x40",
        {},
        {
            "s4": 0x1001,
            "s[6:7]": 0x1003_0000_1002,
            "s8": 0x1004,
            "s11": 0x1007,
            "s12": 0x1008,
            "s19": 0x100F,
            "s20": 0x1010,
            "s35": 0x101F,
        },
        mem=WORDS,
    )
)
one(
    Case(
        "s_load_offsets",
        "s_load_dword s6, s[94:95], s4; s_load_dword s7, s[8:9], -0x8; s_load_dword s10, s[94:95], s4 offset:0x8",
        {"s4": 0xC, "s[8:9]": 0x7F20_0000_0014},
        {"s6": 0x1003, "s7": 0x1003, "s10": 0x1005},
        mem=WORDS,
    )
)
one(
    Case(
        "s_load_ignores_the_low_address_bits",
        "s_load_dword s6, s[8:9], 0x0",
        {"s[8:9]": 0x7F20_0000_0007},
        {"s6": 0x1001},
        mem=WORDS,
    )
)
one(
    Case(
        "s_buffer_load",
        "s_buffer_load_dword s6, s[96:99], 0x8; s_buffer_load_dwordx4 s[8:11], s[96:99], 0x10;"
        "s_buffer_load_dwordx2 s[12:13], s[96:99], 0x10; s_buffer_load_dwordx8 s[16:23], s[96:99], 0x20;"
        "s_buffer_load_dwordx16 s[24:39], s[96:99], 0x40",
        {},
        {
            "s6": 0x1002,
            "s8": 0x1004,
            "s11": 0x1007,
            "s13": 0x1005,
            "s16": 0x1008,
            "s23": 0x100F,
            "s24": 0x1010,
            "s39": 0x101F,
        },
        mem=WORDS,
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
