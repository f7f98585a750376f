"""Check what several waves and workgroups see: identifiers, barriers, shared LDS, diverging loops, partial waves.

Sources: "AMD Instinct CDNA3 ISA" reference guide, chapter "Program organization"; LLVM's "User Guide for AMDGPU
Backend", section "Initial kernel execution state".
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from conformance import IN_ADDRESS, MEM_ADDRESS, OUT_ADDRESS, build

from indexer_rt.emu import Buffer, run
from indexer_rt.errors import EmulatorFault
from indexer_rt.launch import Launch

# out[s4 + work-item] = v2, in 32-bit words
STORE = """
s_load_dwordx2 s[6:7], s[0:1], 0x8
v_add_u32_e32 v10, s4, v1
v_lshlrev_b32_e32 v10, 2, v10
s_waitcnt lgkmcnt(0)
global_store_dword v10, v2, s[6:7]
"""
BODIES = {
    # Each work-item leaves a number in LDS and picks up its mirror image's, from another wave.
    "exchange": """
        v_and_b32_e32 v1, 0x3ff, v0
        v_lshlrev_b32_e32 v3, 2, v1
        v_mad_u32_u24 v4, v1, 3, s2
        ds_write_b32 v3, v4
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_sub_u32_e32 v3, 0x3fc, v3
        ds_read_b32 v2, v3
        s_lshl_b32 s4, s2, 8
        s_waitcnt lgkmcnt(0)
    """
    + STORE,
    # v2 = x + 100 y of the work-item + 10000 (x + 10 y of the workgroup)
    "identifiers": """
        v_and_b32_e32 v4, 0x3ff, v0
        v_bfe_u32 v5, v0, 10, 10
        v_mul_u32_u24_e32 v2, 0x64, v5
        v_add_u32_e32 v2, v2, v4
        s_mul_i32 s5, s3, 10
        s_add_u32 s5, s5, s2
        s_mul_i32 s5, s5, 0x2710
        v_add_u32_e32 v2, s5, v2
        v_lshl_add_u32 v1, v5, 4, v4
        s_mul_i32 s4, s3, 2
        s_add_u32 s4, s4, s2
        s_lshl_b32 s4, s4, 6
    """
    + STORE,
    # Wave w of workgroup g goes round g + w + 1 times.
    "diverging_loops": """
        v_and_b32_e32 v1, 0x3ff, v0
        v_lshrrev_b32_e32 v3, 6, v1
        v_mov_b32_e32 v2, 0
        v_readfirstlane_b32 s5, v3
        s_add_u32 s5, s5, s2
    1:
        v_add_u32_e32 v2, 1, v2
        s_sub_u32 s5, s5, 1
        s_cbranch_scc0 1b
        s_lshl_b32 s4, s2, 8
    """
    + STORE,
    # 100 work-items: the second wave has 36 lanes on.
    "partial_wave": """
        v_and_b32_e32 v1, 0x3ff, v0
        s_bcnt1_i32_b64 s5, exec
        v_mov_b32_e32 v2, s5
        s_mov_b32 s4, 0
    """
    + STORE,
    "waits_for_nobody": """
        v_and_b32_e32 v1, 0x3ff, v0
        s_mov_b32 s4, 1
    1:
        s_cmp_lg_u32 s4, 0
        s_cbranch_scc1 1b
    """,
}


@pytest.fixture(scope="module")
def kernels() -> dict:
    return build(BODIES).kernels


def launch(kernel, grid: tuple[int, int, int], block: tuple[int, int, int], words: int, **kwargs) -> np.ndarray:
    """Run a kernel and return ``out``, ``words`` 32-bit numbers that start as 0xa5a5a5a5."""
    out = np.full(4 * words, 0xA5, np.uint8)
    buffers = [
        Buffer("in", IN_ADDRESS, np.zeros(4, np.uint8), False),
        Buffer("out", OUT_ADDRESS, out, True),
        Buffer("mem", MEM_ADDRESS, np.zeros(4, np.uint8), True),
    ]
    run(Launch(kernel, grid, block, 0, struct.pack("<QQQ", IN_ADDRESS, OUT_ADDRESS, MEM_ADDRESS)), buffers, **kwargs)
    return out.view(np.uint32)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_waves_exchange_through_lds_across_a_barrier(kernels, seed: int | None) -> None:
    out = launch(kernels["exchange"], (3, 1, 1), (256, 1, 1), 768, wave_order_seed=seed)
    assert out.tolist() == [(255 - item) * 3 + group for group in range(3) for item in range(256)]


def test_identifiers_are_where_the_abi_puts_them(kernels) -> None:
    out = launch(kernels["identifiers"], (2, 3, 1), (16, 4, 1), 6 * 64)
    wanted = [
        x + 100 * y + 10000 * (gx + 10 * gy) for gy in range(3) for gx in range(2) for y in range(4) for x in range(16)
    ]
    assert out.tolist() == wanted


def test_waves_leave_a_loop_one_by_one(kernels) -> None:
    out = launch(kernels["diverging_loops"], (5, 1, 1), (256, 1, 1), 5 * 256)
    assert out.tolist() == [group + item // 64 + 1 for group in range(5) for item in range(256)]


def test_last_wave_of_a_workgroup_may_be_partial(kernels) -> None:
    out = launch(kernels["partial_wave"], (1, 1, 1), (100, 1, 1), 128)
    assert out.tolist() == [64] * 64 + [36] * 36 + [0xA5A5A5A5] * 28


def test_a_loop_without_end_meets_the_step_limit(kernels) -> None:
    with pytest.raises(EmulatorFault, match=r"(?i)step"):
        launch(kernels["waits_for_nobody"], (1, 1, 1), (64, 1, 1), 1, step_limit=1000)
