"""Check instructions that move data between lanes.

Sources: "AMD Instinct CDNA3 ISA" and "CDNA4 ISA" reference guides, sections "Data parallel primitives", "V_READLANE",
"V_PERMLANE16_SWAP", "DS_BPERMUTE"; LLVM's "Syntax of AMDGPU instruction modifiers" for what a control is called.
"""

from __future__ import annotations

import pytest
from conformance import ALL, Case, Module

CASES: list[Case] = []
one = CASES.append

LANES = range(64)
SRC = [100 + lane for lane in LANES]
OLD = 7


def moved(source, *, otherwise=OLD) -> list[int]:
    """Return what each lane holds after reading lane ``source(lane)``; None there means ``otherwise``."""
    return [otherwise if source(lane) is None else SRC[source(lane)] for lane in LANES]


def dpp(name: str, control: str, source, *, otherwise: int = OLD, exec_mask: int = ALL) -> None:
    before = {"v1": SRC, "v3": OLD}
    if exec_mask != ALL:
        before["exec"] = exec_mask
    one(Case(name, f"v_mov_b32_dpp v3, v1 {control}", before, {"v3": moved(source, otherwise=otherwise)}))


# -- swaps of half waves and rows --------------------------------------------------------------------------------------
A, B = [1000 + lane for lane in LANES], [2000 + lane for lane in LANES]
one(
    Case(
        "v_permlane32_swap_b32",
        "v_permlane32_swap_b32 v1, v2",
        {"v1": A, "v2": B},
        # lanes 32-63 of the first change places with lanes 0-31 of the second
        {"v1": A[:32] + B[:32], "v2": A[32:] + B[32:]},
    )
)
one(
    Case(
        "v_permlane16_swap_b32",
        "v_permlane16_swap_b32 v1, v2",
        {"v1": A, "v2": B},
        # odd rows of 16 of the first change places with even rows of the second
        {"v1": A[:16] + B[:16] + A[32:48] + B[32:48], "v2": A[16:32] + B[16:32] + A[48:] + B[48:]},
    )
)
one(
    Case(
        "v_permlane32_swap_b32_e64",
        "v_permlane32_swap_b32_e64 v1, v2",
        {"v1": A, "v2": B},
        {"v1": A[:32] + B[:32], "v2": A[32:] + B[32:]},
    )
)
one(Case("v_swap_b32", "v_swap_b32 v1, v2", {"v1": A, "v2": B}, {"v1": B, "v2": A}))

# -- data parallel primitives ------------------------------------------------------------------------------------------
FULL = "row_mask:0xf bank_mask:0xf"
ZERO = FULL + " bound_ctrl:1"


def in_row(lane: int, source: int) -> int | None:
    """Return lane ``source`` of the same row, None when it lies outside of it."""
    return lane // 16 * 16 + source if 0 <= source < 16 else None


dpp("quad_perm_rotate", f"quad_perm:[1,2,3,0] {FULL}", lambda i: i // 4 * 4 + (1, 2, 3, 0)[i % 4])
dpp("quad_perm_broadcast", f"quad_perm:[2,2,2,2] {FULL}", lambda i: i // 4 * 4 + 2)
dpp("row_shl_1", f"row_shl:1 {FULL}", lambda i: in_row(i, i % 16 + 1))
dpp("row_shl_15_zero", f"row_shl:15 {ZERO}", lambda i: in_row(i, i % 16 + 15), otherwise=0)
dpp("row_shr_1", f"row_shr:1 {FULL}", lambda i: in_row(i, i % 16 - 1))
dpp("row_shr_8_zero", f"row_shr:8 {ZERO}", lambda i: in_row(i, i % 16 - 8), otherwise=0)
dpp("row_ror_1", f"row_ror:1 {FULL}", lambda i: in_row(i, (i % 16 - 1) % 16))
dpp("row_ror_12", f"row_ror:12 {FULL}", lambda i: in_row(i, (i % 16 - 12) % 16))
dpp("wave_shl_1", f"wave_shl:1 {FULL}", lambda i: i + 1 if i < 63 else None)
dpp("wave_shr_1", f"wave_shr:1 {FULL}", lambda i: i - 1 if i else None)
dpp("wave_shr_1_zero", f"wave_shr:1 {ZERO}", lambda i: i - 1 if i else None, otherwise=0)
dpp("wave_rol_1", f"wave_rol:1 {FULL}", lambda i: (i + 1) % 64)
dpp("wave_ror_1", f"wave_ror:1 {FULL}", lambda i: (i - 1) % 64)
dpp("row_mirror", f"row_mirror {FULL}", lambda i: in_row(i, 15 - i % 16))
dpp("row_half_mirror", f"row_half_mirror {FULL}", lambda i: i // 8 * 8 + 7 - i % 8)
dpp(
    "row_bcast_15", "row_bcast:15 row_mask:0xa bank_mask:0xf", lambda i: i // 16 * 16 - 1 if i // 16 in (1, 3) else None
)
dpp("row_bcast_31", "row_bcast:31 row_mask:0xc bank_mask:0xf", lambda i: 31 if i >= 32 else None)
dpp("row_newbcast_5", f"row_newbcast:5 {FULL}", lambda i: in_row(i, 5))
# A bit of row_mask turns off 16 lanes, a bit of bank_mask 4 lanes of every row.
dpp("row_mask", "quad_perm:[0,1,2,3] row_mask:0x5 bank_mask:0xf", lambda i: i if i // 16 in (0, 2) else None)
dpp("bank_mask", "quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0x6", lambda i: i if i % 16 // 4 in (1, 2) else None)
dpp("lanes_off", f"row_ror:8 {FULL}", lambda i: (i + 8) % 16 if i < 16 else None, exec_mask=0xFFFF)
# A lane that EXEC turns off is no valid source. Here lanes 0, 1 and 3 are on.
# Lane 0 has no source, lane 1 reads lane 0, lane 3 would read lane 2, which is off.
ON = {"v1": SRC, "v3": OLD, "exec": 0b1011}
one(Case("source_off", f"v_mov_b32_dpp v3, v1 row_shr:1 {FULL}", ON, {"v3": [OLD, 100, OLD, OLD]}))
one(Case("source_off_zero", f"v_mov_b32_dpp v3, v1 row_shr:1 {ZERO}", ON, {"v3": [0, 100, OLD, 0, OLD]}))
one(
    Case(
        "dpp_add",
        f"v_add_u32_dpp v3, v1, v2 row_shr:1 {ZERO}",
        {"v1": SRC, "v2": [lane * 1000 for lane in LANES]},
        {"v3": [lane * 1000 + (100 + lane - 1 if lane % 16 else 0) for lane in LANES]},
    )
)
one(
    Case(
        "dpp_abs_neg",
        f"v_add_f32_dpp v3, -v1, |v2| quad_perm:[1,0,3,2] {FULL}",
        {"v1": [1.0, 2.0, 3.0, 4.0], "v2": [-10.0, -20.0, -30.0, -40.0]},
        {"v3": [8.0, 19.0, 26.0, 37.0, 36.0]},
    )
)
# The sum over a wave, the way compilers reduce on gfx9.
one(
    Case(
        "dpp_wave_sum",
        f"v_add_u32_dpp v1, v1, v1 row_shr:1 {ZERO}; s_nop 1; v_add_u32_dpp v1, v1, v1 row_shr:2 {ZERO}; s_nop 1;"
        f"v_add_u32_dpp v1, v1, v1 row_shr:4 {ZERO}; s_nop 1; v_add_u32_dpp v1, v1, v1 row_shr:8 {ZERO}; s_nop 1;"
        "v_add_u32_dpp v1, v1, v1 row_bcast:15 row_mask:0xa bank_mask:0xf; s_nop 1;"
        "v_add_u32_dpp v1, v1, v1 row_bcast:31 row_mask:0xc bank_mask:0xf; s_nop 1; v_readlane_b32 s4, v1, 63",
        {"v1": [lane + 1 for lane in LANES]},
        {"s4": 64 * 65 // 2},
    )
)

# -- one lane ----------------------------------------------------------------------------------------------------------
one(Case("v_readlane_b32", "v_readlane_b32 s4, v1, 17", {"v1": SRC, "exec": 1}, {"s4": 117}))
one(Case("v_readlane_b32_sgpr", "v_readlane_b32 s5, v1, s4", {"v1": SRC, "s4": 64 + 3}, {"s5": 103}))
one(Case("v_readfirstlane_b32", "v_readfirstlane_b32 s4, v1", {"v1": SRC, "exec": 0xF000}, {"s4": 112}))
one(Case("v_readfirstlane_b32_none_on", "v_readfirstlane_b32 s4, v1", {"v1": SRC, "exec": 0}, {"s4": 100}))
one(
    Case(
        "v_writelane_b32",
        "v_writelane_b32 v1, s4, 5; v_writelane_b32 v1, -1, s5",
        {"v1": SRC, "s4": 9, "s5": 63, "exec": 1},
        {"v1": [*SRC[:5], 9, *SRC[6:63], -1]},
    )
)

# -- through the LDS crossbar ------------------------------------------------------------------------------------------
one(
    Case(
        "ds_bpermute_b32",
        "ds_bpermute_b32 v3, v2, v1",
        {"v1": SRC, "v2": [4 * ((lane * 5 + 1) % 64) for lane in LANES]},
        {"v3": [SRC[(lane * 5 + 1) % 64] for lane in LANES]},
    )
)
one(
    Case(
        "ds_bpermute_b32_offset_and_wrap",
        "ds_bpermute_b32 v3, v2, v1 offset:8",
        {"v1": SRC, "v2": [4 * lane for lane in LANES]},
        {"v3": [SRC[(lane + 2) % 64] for lane in LANES]},
    )
)
one(
    Case(
        "ds_bpermute_b32_source_off",
        "ds_bpermute_b32 v3, v2, v1",
        {"v1": SRC, "v2": [4, 0, 12], "v3": OLD, "exec": 0b0111},
        # Lane 3 is off: what is read from it is 0.
        {"v3": [101, 100, 0, OLD]},
    )
)
one(
    Case(
        "ds_permute_b32",
        "ds_permute_b32 v3, v2, v1",
        {"v1": SRC, "v2": [4 * ((lane + 3) % 64) for lane in LANES]},
        {"v3": [SRC[(lane - 3) % 64] for lane in LANES]},
    )
)
for _name, _pattern, _source in [
    ("quad", "QUAD_PERM,3,2,1,0", lambda i: i // 4 * 4 + 3 - i % 4),
    ("swap_4", "SWAP,4", lambda i: i ^ 4),
    ("swap_16", "SWAP,16", lambda i: i ^ 16),
    ("reverse_8", "REVERSE,8", lambda i: i ^ 7),
    ("broadcast", "BROADCAST,8,3", lambda i: i // 8 * 8 + 3),
    ("bitmask", 'BITMASK_PERM,"0p1i0"', lambda i: i // 32 * 32 + (i & 8 | 4 | ~i & 2)),
]:
    one(
        Case(
            f"ds_swizzle_b32_{_name}",
            f"ds_swizzle_b32 v3, v1 offset:swizzle({_pattern})",
            {"v1": SRC},
            {"v3": moved(_source)},
        )
    )

# -- counting lanes ----------------------------------------------------------------------------------------------------
one(
    Case(
        "v_mbcnt_lane_number",
        "v_mbcnt_lo_u32_b32 v2, -1, 0; v_mbcnt_hi_u32_b32 v3, -1, v2",
        {},
        {"v2": [min(lane, 32) for lane in LANES], "v3": list(LANES)},
    )
)
one(
    Case(
        "v_mbcnt_of_a_mask",
        "v_mbcnt_lo_u32_b32 v2, s4, v1; v_mbcnt_hi_u32_b32 v3, s5, v1",
        {"s4": 0b10110, "s5": 0b1, "v1": 100},
        # Set bits below the own lane: of bits 1, 2, 4 and of bit 32.
        {"v2": [100, 100, 101, 102, 102, 103], "v3": [100] * 33 + [101]},
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
