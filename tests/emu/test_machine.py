"""Check what the machine does with whole workgroups: scheduling, barriers, memory, and the text of every fault.

Each kernel is a few instructions in ``KERNELS``. ``ADDRESS`` loads both pointers and puts 4 * work-item into v1.
"""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from assembled_kernels import assemble

from indexer_rt.emu import Buffer, run
from indexer_rt.emu.operands import U32
from indexer_rt.emu.table import TABLE, Entry, add
from indexer_rt.errors import EmulatorFault
from indexer_rt.launch import Launch

INPUT, OUTPUT = 0x10_0000, 0x20_0000
ADDRESS = "s_load_dwordx4 s[4:7], s[0:1], 0x0; v_lshlrev_b32 v1, 2, v0; s_waitcnt lgkmcnt(0); "
STORE = "global_store_dword v1, v2, s[6:7]; "
MFMA = "v_mfma_f32_16x16x128_f8f6f4 v[16:19], v[4:11], v[4:11], 0; "
FILL = "".join(f"v_mov_b32 v{n}, 0; " for n in range(4, 12))
LOAD = "global_load_dword v2, v1, s[4:5]; "
LOAD_LDS = "s_mov_b32 m0, 0; global_load_lds_dword v1, s[4:5]; "

KERNELS = {
    # input[work-item] of every workgroup, 256 bytes apart
    "copy": f"{ADDRESS} s_lshl_b32 s8, s2, 8; v_add_u32 v1, s8, v1; {LOAD} s_waitcnt vmcnt(0); {STORE}",
    "wide": f"{ADDRESS} global_load_dwordx4 v[4:7], v1, s[4:5] offset:192",
    "far": f"{ADDRESS} v_mov_b32 v4, 0; v_mov_b32 v5, 0x7777; global_load_dword v2, v[4:5], off",
    "past_arguments": "s_load_dword s4, s[0:1], 0x10",
    "write_input": f"{ADDRESS} v_mov_b32 v2, 0; global_store_dword v1, v2, s[4:5]",
    "lds_overrun": "v_lshlrev_b32 v1, 4, v0; ds_write_b32 v1, v0 offset:16",
    "lds_unwritten": "v_lshlrev_b32 v1, 2, v0; ds_read_b32 v2, v1 offset:64",
    "lds_race": "v_lshlrev_b32 v1, 2, v0; ds_write_b32 v1, v0; v_xor_b32 v1, 0x100, v1; ds_read_b32 v2, v1",
    "lds_exchange": f"{ADDRESS} ds_write_b32 v1, v0; s_waitcnt lgkmcnt(0); s_barrier; v_xor_b32 v3, 0x100, v1; "
    f"ds_read_b32 v2, v3; s_waitcnt lgkmcnt(0); {STORE}",
    "lds_unwaited": f"{ADDRESS} ds_write_b32 v1, v0; s_barrier; v_xor_b32 v3, 0x100, v1; ds_read_b32 v2, v3",
    "load_lds_unwaited": f"{ADDRESS} {LOAD_LDS} ds_read_b32 v2, v1",
    "load_lds": f"{ADDRESS} {LOAD_LDS} s_waitcnt vmcnt(0); ds_read_b32 v2, v1; s_waitcnt lgkmcnt(0); {STORE}",
    "unknown": ".long 0x7e05ff02",
    "unwaited": f"{ADDRESS} {LOAD} {STORE}",
    "overwritten": f"{ADDRESS} {LOAD} v_mov_b32 v2, 0",
    "scalar_unwaited": "s_load_dword s4, s[0:1], 0x0; s_load_dword s5, s[0:1], 0x4; s_waitcnt lgkmcnt(1); "
    "s_mov_b32 s6, s4",
    "matrix_early": f"{FILL} {MFMA} s_nop 10; v_mov_b32 v2, v16",
    "matrix_in_time": f"{ADDRESS} {FILL} {MFMA} s_nop 11; v_mov_b32 v2, v16; {STORE}",
    "never_written": "v_add_u32 v3, 1, v2",
    "endless": "again:; s_branch again",
    "scratch": "s_nop 0",
    "scratch_load": "scratch_load_dword v2, off, off offset:4",
    "off_the_end": "s_branch 0x7000",
    # A wave loads only if it is even; all meet; even waves wait, odd ones overwrite the register: nothing is wrong.
    "split": f"{ADDRESS} v_readfirstlane_b32 s8, v0; s_bitcmp1_b32 s8, 6; s_cbranch_scc1 odd; {LOAD} odd:; "
    "s_bitcmp1_b32 s8, 6; s_cbranch_scc1 set; s_waitcnt vmcnt(0); s_branch meet; set:; v_mov_b32 v2, -1; meet:; "
    f"{STORE}",
    # One wave of two runs a loop of 100 before the barrier.
    "late": f"{ADDRESS} v_readfirstlane_b32 s8, v0; s_cmp_eq_u32 s8, 0; s_cbranch_scc1 arrive; s_movk_i32 s9, 100; "
    "spin:; s_sub_u32 s9, s9, 1; s_cmp_lg_u32 s9, 0; s_cbranch_scc1 spin; arrive:; v_mov_b32 v2, v0; s_barrier; "
    f"{STORE}",
    # buffer resource over the first 64 bytes of the input, then over 128 of the output
    "buffer": f"{ADDRESS} s_mov_b64 s[8:9], s[4:5]; s_movk_i32 s10, 64; s_mov_b32 s11, 0x27fac; "
    "buffer_load_dword v2, v1, s[8:11], 0 offen; s_mov_b64 s[8:9], s[6:7]; s_movk_i32 s10, 128; s_waitcnt vmcnt(0); "
    "buffer_store_dword v2, v1, s[8:11], 0 offen",
}

# Dwords 1 to 3 of the arguments come preloaded in s[2:4], the workgroup id in s5. Firmware that preloads none starts at
# the code's start and not 256 bytes in. Both ways store a number of their own, dword 2 and the workgroup id.
KERNELS["preloaded"] = (
    "s_load_dword s2, s[0:1], 0x4; s_load_dword s3, s[0:1], 0x8; s_load_dword s4, s[0:1], 0xc; "
    "s_waitcnt lgkmcnt(0); s_movk_i32 s8, 11; "
    "s_branch together; .p2align 8; s_movk_i32 s8, 22; together:; v_mov_b32 v1, 0; v_mov_b32 v2, s8; v_mov_b32 v3, s3; "
    "v_mov_b32 v4, s5; s_mov_b32 s6, s3; s_mov_b32 s7, s4; global_store_dwordx3 v1, v[2:4], s[6:7]"
)


@pytest.fixture(scope="module")
def code_object(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    return assemble(KERNELS, folder, scratch={"scratch": 64}, preload={"preloaded": (3, 1)})


@pytest.mark.parametrize(("preload", "way"), [(True, 22), (False, 11)])
def test_arguments_are_preloaded_where_the_firmware_can(code_object, preload, way):
    outcome = Outcome(code_object, "preloaded", preload=preload)
    assert outcome.result[:4].tolist() == [way, OUTPUT, 0, 7]


class Outcome:
    def __init__(self, code_object, name, *, grid=1, block=64, words=1024, **options):
        self.source = np.arange(words, dtype=np.uint32) + 1000
        self.result = np.full(words, 7, np.uint32)
        buffers = [
            Buffer("source", INPUT, self.source.view(np.uint8)),
            Buffer("result", OUTPUT, self.result.view(np.uint8), writable=True),
        ]
        launch = Launch(code_object.kernels[name], (grid, 1, 1), (block, 1, 1), 0, struct.pack("<QQ", INPUT, OUTPUT))
        self.stats = run(launch, buffers, **options)


FAULTS = {
    "out of a buffer": (
        "wide", {"words": 64},
        r"global_load_dwordx4 at wide\+0x10, workgroup 0 wave 0 lane 13: 16 bytes at address 0x1000f4: "
        r"4 bytes past the end of 'source' \(256 bytes\)",
    ),
    "in a later workgroup": (
        "copy", {"grid": 5, "words": 192},
        r"global_load_dword at copy\+0x18, workgroup 3 wave 0 lane 0: .* "
        r"4 bytes past the end of 'source' \(768 bytes\)",
    ),
    "in a later wave": (
        "copy", {"block": 256, "words": 100},
        r"workgroup 0 wave 1 lane 36: .* past the end of 'source'",
    ),
    "far from every buffer": ("far", {}, r"4 bytes at address 0x777700000000, near no buffer"),
    # Within the last 16 bytes of the segment a kernel may read past the arguments; here the arguments fill them.
    "past the arguments": ("past_arguments", {}, r"4 bytes past the end of 'the kernarg segment' \(16 bytes\)"),
    "a write to an input": ("write_input", {}, r"lane 0: writes to the input 'source', which is read-only"),
    "LDS overrun": (
        "lds_overrun", {}, r"lane 63: LDS address 1024 \+ 4 bytes is outside the workgroup's 1024 bytes of LDS"
    ),
    "LDS never written": ("lds_unwritten", {}, r"reads LDS that was never written, at byte 64"),
    "LDS shared without a barrier": (
        "lds_race", {"block": 128}, r"wave 0 lane 0: touches LDS that another wave wrote since the last s_barrier"
    ),
    "LDS written without a wait": (
        "lds_unwaited", {"block": 128},
        r"wave 0 lane 0: reads LDS whose writer did not wait for the write \(s_waitcnt lgkmcnt\) before s_barrier",
    ),
    "LDS still loading": ("load_lds_unwaited", {}, r"reads LDS that global_load_lds_dword is still loading"),
    "an unknown instruction": ("unknown", {}, r"vop1 opcode 0xff \(7e05ff02\) at unknown\+0x0 is not in the table\. "
        r"Add it to emu/vector_float.py or emu/vector_integer.py. Reached by workgroup 0 wave 0"),
    "a register read too soon": (
        "unwaited", {},
        r"global_store_dword at unwaited\+0x18, .* reads v2 while global_load_dword v2, v1, s\[4:5\] at \+0x10 is "
        r"outstanding: no s_waitcnt vmcnt has waited",
    ),
    "a register overwritten too soon": ("overwritten", {}, r"overwrites v2 while global_load_dword .* vmcnt"),
    "scalar loads out of order": ("scalar_unwaited", {}, r"reads s4 while s_load_dword s4, .* lgkmcnt"),
    "a matrix result read too soon": (
        "matrix_early", {}, r"uses v16 11 wait states after v_mfma_f32_16x16x128_f8f6f4 .*; it needs 12"
    ),
    "a register never written": ("never_written", {}, r"reads v2, which was never written \(v_add_u32_e32 v3, 1, v2\)"),
    "a step limit": ("endless", {"step_limit": 1000}, r"more than 1000 instructions in one wave"),
    "a kernel with scratch": ("scratch", {}, r"scratch: wants 64 bytes of scratch per lane"),
    "a scratch instruction": ("scratch_load", {}, r"uses scratch memory, which the emulator does not have"),
    "a jump out of the code": ("off_the_end", {}, r"the program counter left the code"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS, ids=lambda name: name.replace(" ", "_"))
def test_fault_says_what_and_where(code_object, case):
    name, options, message = FAULTS[case]
    with pytest.raises(EmulatorFault, match=message):
        Outcome(code_object, name, **options)


# What only strict mode checks must run through in fast mode; bounds stay.
@pytest.mark.parametrize(
    "name", ["unwaited", "overwritten", "matrix_early", "never_written", "lds_unwritten", "scalar_unwaited"]
)
def test_fast_mode_skips_hazards(code_object, name):
    Outcome(code_object, name, strict=False)


@pytest.mark.parametrize("case", ["out of a buffer", "a write to an input", "LDS overrun"])
def test_fast_mode_keeps_bounds(code_object, case):
    name, options, message = FAULTS[case]
    with pytest.raises(EmulatorFault, match=re.compile(message)):
        Outcome(code_object, name, **options, strict=False)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_every_workgroup_runs_whatever_the_order(code_object, seed):
    outcome = Outcome(code_object, "copy", grid=16, wave_order_seed=seed)
    np.testing.assert_array_equal(outcome.result, outcome.source)
    assert outcome.stats.counts["global_load_dword"] == 16
    assert outcome.stats.lane_instructions == 64 * outcome.stats.instructions == 64 * sum(outcome.stats.counts.values())


def test_last_wave_runs_only_its_work_items(code_object):
    outcome = Outcome(code_object, "copy", block=100)
    np.testing.assert_array_equal(outcome.result[:100], outcome.source[:100])
    assert (outcome.result[100:] == 7).all()


def test_lds_carries_values_over_a_barrier(code_object):
    outcome = Outcome(code_object, "lds_exchange", block=128)
    np.testing.assert_array_equal(outcome.result[:128], np.arange(128) ^ 64)


def test_barrier_waits_for_the_slow_wave(code_object):
    outcome = Outcome(code_object, "late", block=128)
    np.testing.assert_array_equal(outcome.result[:128], np.arange(128))
    assert outcome.stats.counts["s_sub_u32"] == 100


def test_load_to_lds_is_there_after_its_wait(code_object):
    outcome = Outcome(code_object, "load_lds")
    np.testing.assert_array_equal(outcome.result[:64], outcome.source[:64])


def test_matrix_result_is_there_after_its_wait_states(code_object):
    assert (Outcome(code_object, "matrix_in_time").result[:64] == 0).all()


def test_waves_that_split_keep_their_own_loads(code_object):
    outcome = Outcome(code_object, "split", block=256)
    wanted = outcome.source[:256].copy()
    wanted[64:128] = wanted[192:] = 0xFFFFFFFF
    np.testing.assert_array_equal(outcome.result[:256], wanted)


def test_buffer_loads_return_zero_and_stores_are_dropped_out_of_range(code_object):
    outcome = Outcome(code_object, "buffer")
    np.testing.assert_array_equal(outcome.result[:16], outcome.source[:16])
    assert (outcome.result[16:32] == 0).all()
    assert (outcome.result[32:] == 7).all()


def test_observer_sees_every_step(code_object):
    seen = []
    outcome = Outcome(
        code_object, "copy", grid=2, observer=lambda pc, what, waves: seen.append((pc, str(what), list(waves)))
    )
    assert seen[0] == (0, "s_load_dwordx4 s[4:7], s[0:1], 0x0", [0, 1])
    assert len(seen) == outcome.stats.steps and seen[-1][1] == "s_endpgm"


def test_launch_is_checked(code_object):
    with pytest.raises(ValueError, match="at most 1024 work-items"):
        Outcome(code_object, "copy", block=2048)
    launch = Launch(code_object.kernels["copy"], (1, 1, 1), (64, 1, 1), 0, b"")
    with pytest.raises(ValueError, match="kernarg has 0 bytes, the kernel takes 16"):
        run(launch, [])


def test_buffers_are_checked():
    with pytest.raises(TypeError, match="contiguous one-dimensional uint8"):
        Buffer("x", 0, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="data is read-only"):
        Buffer("x", 0, b"abcd", writable=True)


def test_overlapping_buffers_are_refused(code_object):
    launch = Launch(code_object.kernels["copy"], (1, 1, 1), (64, 1, 1), 0, bytes(16))
    with pytest.raises(ValueError, match=r"'a' .* and 'b' .* overlap"):
        run(launch, [Buffer("a", 4096, bytes(100)), Buffer("b", 4100, bytes(100))])


def test_a_taken_opcode_is_refused_and_both_are_named():
    taken = TABLE["VOP2", 0x01]
    with pytest.raises(ValueError, match="VOP2 opcode 0x1 is both v_add_f32 and v_second"):
        add(Entry("VOP2", 0x01, "v_second", (U32,)))
    assert TABLE["VOP2", 0x01] is taken
