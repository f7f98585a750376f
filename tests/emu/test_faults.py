"""Check that the emulator stops at what the hardware leaves undefined, and not one wait state earlier.

Sources: "AMD Instinct CDNA3 ISA" reference guide, sections "Data dependency resolution" (s_waitcnt) and "Required
independent instructions" (matrix results). How many wait states gfx950 needs is read off what LLVM's code generator
puts between a matrix instruction and the first reader: 5, 8, 12 and 20 after 2, 4, 8 and 16 passes, 10 after the 8-pass
f32 form; fewer for a matrix instruction whose addend overlaps the result. ``s_nop n`` is n + 1 wait states, any other
instruction one.
"""

from __future__ import annotations

import re
import struct

import pytest
from conformance import MEM_BYTES, Case, Module, f32

from indexer_rt.errors import EmulatorFault

CASES: list[Case] = []
one = CASES.append

LANES = range(64)
MEM = struct.pack("<256I", *(0xC0DE0000 + i for i in range(256)))
SLOT = {"v1": [lane * 4 for lane in LANES]}
FIRST = [0xC0DE0000 + lane for lane in LANES]
SECOND = [0xC0DE0040 + lane for lane in LANES]


def good(name: str, text: str, before: dict, after: dict) -> None:
    one(Case(name, text, before, after, mem=MEM))


def bad(name: str, text: str, before: dict, fault: str) -> None:
    one(Case(name, text, before, mem=MEM, fault=fault))


# -- vmcnt: vector memory, loads and stores in one queue ---------------------------------------------------------------
LOAD = "global_load_dword v2, v1, s[94:95]"
LOAD2 = "global_load_dword v3, v1, s[94:95] offset:256"
STORE = "global_store_dword v1, v6, s[94:95] offset:512"
bad("load_used_at_once", f"{LOAD}; v_mov_b32 v4, v2", SLOT, "vmcnt")
good("load_waited_for", f"{LOAD}; s_waitcnt vmcnt(0); v_mov_b32 v4, v2", SLOT, {"v4": FIRST})
bad("load_waited_on_the_wrong_counter", f"{LOAD}; s_waitcnt lgkmcnt(0); v_mov_b32 v4, v2", SLOT, "vmcnt")
bad("two_loads_one_too_many_left", f"{LOAD}; {LOAD2}; s_waitcnt vmcnt(1); v_mov_b32 v4, v3", SLOT, "vmcnt")
good("two_loads_older_done", f"{LOAD}; {LOAD2}; s_waitcnt vmcnt(1); v_mov_b32 v4, v2", SLOT, {"v4": FIRST})
bad("two_loads_count_one_too_high", f"{LOAD}; {LOAD2}; s_waitcnt vmcnt(2); v_mov_b32 v4, v2", SLOT, "vmcnt")
good(
    "store_after_load_counts",
    f"{LOAD}; {STORE}; s_waitcnt vmcnt(1); v_mov_b32 v4, v2",
    {**SLOT, "v6": 1},
    {"v4": FIRST},
)
bad(
    "load_after_store_is_not_done", f"{STORE}; {LOAD}; s_waitcnt vmcnt(1); v_mov_b32 v4, v2", {**SLOT, "v6": 1}, "vmcnt"
)
bad("pending_load_stored", f"{LOAD}; global_store_dword v1, v2, s[94:95] offset:512", SLOT, "vmcnt")
bad("pending_load_as_address", f"{LOAD}; global_load_dword v3, v2, s[94:95]", SLOT, "vmcnt")
bad("pending_load_overwritten", f"{LOAD}; v_mov_b32 v2, 0", SLOT, "vmcnt")
bad("pending_load_read_by_readfirstlane", f"{LOAD}; v_readfirstlane_b32 s4, v2", SLOT, "vmcnt")
bad("pending_load_in_mfma", f"{LOAD}; v_mfma_f32_16x16x4_f32 v[8:11], v2, v1, 0", SLOT, "vmcnt")
bad("second_word_of_a_pending_load", "global_load_dwordx2 v[2:3], v1, s[94:95]; v_mov_b32 v4, v3", SLOT, "vmcnt")
bad("buffer_load_used_at_once", "buffer_load_dword v2, v1, s[96:99], 0 offen; v_mov_b32 v4, v2", SLOT, "vmcnt")
good("other_registers_are_free", f"{LOAD}; v_mov_b32 v4, v1; v_mov_b32 v5, v4", SLOT, {"v5": SLOT["v1"]})

# -- lgkmcnt: scalar loads return in any order, LDS in order -----------------------------------------------------------
SLOAD = "s_load_dword s4, s[94:95], 0x0"
SLOAD2 = "s_load_dwordx2 s[6:7], s[94:95], 0x8"
bad("s_load_used_at_once", f"{SLOAD}; s_mov_b32 s8, s4", {}, "lgkmcnt")
good("s_load_waited_for", f"{SLOAD}; s_waitcnt lgkmcnt(0); s_mov_b32 s8, s4", {}, {"s8": 0xC0DE0000})
bad("s_load_waited_on_the_wrong_counter", f"{SLOAD}; s_waitcnt vmcnt(0); s_mov_b32 s8, s4", {}, "lgkmcnt")
bad("s_loads_have_no_order", f"{SLOAD}; {SLOAD2}; s_waitcnt lgkmcnt(1); s_mov_b32 s8, s4", {}, "lgkmcnt")
bad("s_load_used_by_vector", f"{SLOAD}; v_mov_b32 v2, s4", {}, "lgkmcnt")
bad("s_load_second_word", f"{SLOAD2}; s_mov_b32 s8, s7", {}, "lgkmcnt")
bad("s_load_as_address", f"s_load_dwordx2 s[4:5], s[94:95], 0x0; {SLOAD2.replace('s[94:95]', 's[4:5]')}", {}, "lgkmcnt")
WRITE = "ds_write_b32 v1, v1; ds_write_b32 v1, v1 offset:256; s_waitcnt lgkmcnt(0)"
READ = "ds_read_b32 v2, v1"
READ2 = "ds_read_b32 v3, v1 offset:256"
bad("ds_read_used_at_once", f"{WRITE}; {READ}; v_mov_b32 v4, v2", SLOT, "lgkmcnt")
good("ds_read_waited_for", f"{WRITE}; {READ}; s_waitcnt lgkmcnt(0); v_mov_b32 v4, v2", SLOT, {"v4": SLOT["v1"]})
good("ds_reads_in_order", f"{WRITE}; {READ}; {READ2}; s_waitcnt lgkmcnt(1); v_mov_b32 v4, v2", SLOT, {"v4": SLOT["v1"]})
bad("ds_reads_one_too_many_left", f"{WRITE}; {READ}; {READ2}; s_waitcnt lgkmcnt(1); v_mov_b32 v4, v3", SLOT, "lgkmcnt")
bad("ds_bpermute_used_at_once", "ds_bpermute_b32 v2, v1, v1; v_mov_b32 v4, v2", SLOT, "lgkmcnt")

# -- matrix results ----------------------------------------------------------------------------------------------------


def nops(states: int) -> str:
    """Return s_nop instructions worth ``states`` wait states."""
    return "".join(f"s_nop {min(states - done, 16) - 1};" for done in range(0, states, 16))


F8 = {"v[16:23]": 0, "v[32:39]": 0}
for _name, _text, _before, _states in [
    ("16x16x128_fp8", "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], 1.0", F8, 12),
    ("32x32x64_fp8", "v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[16:23], v[32:39], 1.0", F8, 20),
    ("16x16x32_fp8_fp8", "v_mfma_f32_16x16x32_fp8_fp8 v[64:67], v[16:17], v[32:33], 1.0", F8, 8),
    ("32x32x16_fp8_fp8", "v_mfma_f32_32x32x16_fp8_fp8 v[64:79], v[16:17], v[32:33], 1.0", F8, 12),
    ("16x16x32_bf16", "v_mfma_f32_16x16x32_bf16 v[64:67], v[16:19], v[32:35], 1.0", F8, 8),
    ("16x16x4_f32", "v_mfma_f32_16x16x4_f32 v[64:67], v16, v32, 1.0", F8, 10),
]:
    for _reader, _use, _after in [
        ("valu", "v_mov_b32 v3, v66", {"v3": f32(1.0)}),
        ("store", "global_store_dword v1, v66, s[94:95]", None),
    ]:
        _before = {**_before, **SLOT}
        bad(f"{_name}_read_by_{_reader}_one_state_early", f"{_text}; {nops(_states - 1)} {_use}", _before, "wait state")
        if _after is not None:
            good(f"{_name}_read_by_{_reader}_in_time", f"{_text}; {nops(_states)} {_use}", _before, _after)
        else:
            one(
                Case(
                    f"{_name}_read_by_{_reader}_in_time",
                    f"{_text}; {nops(_states)} {_use}",
                    _before,
                    mem_after=struct.pack("<64f", *[1.0] * 64),
                )
            )
    bad(f"{_name}_read_at_once", f"{_text}; v_mov_b32 v3, v64", _before, "wait state")
MFMA = "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], 1.0"
bad("matrix_result_overwritten_early", f"{MFMA}; v_mov_b32 v64, 0", F8, "wait state")
bad("matrix_result_as_factor_early", f"{MFMA}; v_mfma_f32_16x16x4_f32 v[8:11], v64, v16, 0", F8, "wait state")
# An addend that overlaps the result without being it: states needed, by what reads it (LLVM 22, gfx950).
F8_TO_F8 = "v_mfma_f32_16x16x128_f8f6f4 v[8:11], v[16:23], v[32:39], v[66:69]"
for _name, _first, _second, _result, _states in [
    ("8_pass_to_xdl", MFMA, F8_TO_F8, "v8", 10),
    ("2_pass_to_xdl", "v_mfma_f32_4x4x4_16b_f16 v[68:71], v[16:17], v[32:33], 1.0",
     "v_mfma_f32_32x32x8_f16 v[64:79], v[16:17], v[32:33], v[64:79]", "v68", 4),
    ("4_pass_to_xdl", "v_mfma_f32_16x16x32_f16 v[68:71], v[16:19], v[32:35], 1.0",
     "v_mfma_f32_32x32x16_f16 v[64:79], v[16:19], v[32:35], v[64:79]", "v68", 6),
    ("16_pass_to_xdl", "v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[16:23], v[32:39], 1.0",
     "v_mfma_f32_16x16x32_f16 v[80:83], v[16:19], v[32:35], v[68:71]", "v80", 18),
    ("2_pass_to_f32", "v_mfma_f32_4x4x4_16b_f16 v[68:71], v[16:17], v[32:33], 1.0",
     "v_mfma_f32_32x32x2_f32 v[64:79], v16, v32, v[64:79]", "v68", 3),
    ("4_pass_to_f32", "v_mfma_f32_16x16x32_f16 v[68:71], v[16:19], v[32:35], 1.0",
     "v_mfma_f32_32x32x2_f32 v[64:79], v16, v32, v[64:79]", "v68", 6),
    ("16_pass_to_f32", "v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[16:23], v[32:39], 1.0",
     "v_mfma_f32_16x16x4_f32 v[80:83], v16, v32, v[68:71]", "v80", 18),
    ("wider_than_the_result", "v_mfma_f32_16x16x32_f16 v[64:67], v[16:19], v[32:35], 1.0",
     "v_mfma_f32_32x32x16_f16 v[64:79], v[16:19], v[32:35], v[64:79]", "v64", 6),
    ("16_pass_f32_to_f32", "v_mfma_f32_32x32x2_f32 v[64:79], v16, v32, 1.0",
     "v_mfma_f32_16x16x4_f32 v[80:83], v16, v32, v[68:71]", "v80", 16),
]:  # fmt: skip
    _before = {**F8, "v[64:79]": 0}
    bad(f"{_name}_shifted_addend_early", f"{_first}; {nops(_states - 1)} {_second}", _before, f"needs {_states}")
    good(f"{_name}_shifted_addend_in_time", f"{_first}; {nops(_states)} {_second}; s_nop 15; s_nop 3", _before,
         {_result: f32(1.0)})  # fmt: skip
good(
    "f32_to_xdl_shifted_addend_needs_no_wait",
    "v_mfma_f32_32x32x2_f32 v[64:79], v16, v32, 1.0; v_mfma_f32_16x16x32_f16 v[80:83], v[16:19], v[32:35], v[68:71];"
    "s_nop 15; s_nop 3",
    {**F8, "v[64:79]": 0},
    {"v80": f32(1.0)},
)
good(
    "independent_matrix_instructions_need_no_wait",
    f"{MFMA}; v_mfma_f32_16x16x128_f8f6f4 v[8:11], v[16:23], v[32:39], 2.0;"
    f"v_mfma_f32_16x16x4_f32 v[12:15], v16, v32, v[4:7]; s_nop 15",
    {**F8, "v[4:7]": f32(3.0)},
    {"v64": f32(1.0), "v9": f32(2.0), "v12": f32(3.0), "v13": 0},
)
good(
    "other_instructions_count_one_state_each",
    f"{MFMA};" + "v_mov_b32 v3, 0;" * 12 + "v_mov_b32 v4, v64",
    F8,
    {"v4": f32(1.0)},
)
bad("eleven_instructions_are_too_few", f"{MFMA};" + "v_mov_b32 v3, 0;" * 11 + "v_mov_b32 v4, v64", F8, "wait state")
bad(
    "accvgpr_read_early",
    "v_mfma_f32_16x16x128_f8f6f4 a[0:3], v[16:23], v[32:39], 1.0; v_accvgpr_read_b32 v3, a1",
    F8,
    "wait state",
)

# -- memory bounds: the fault names the buffer -------------------------------------------------------------------------
bad("load_past_the_end", LOAD, {"v1": [0, MEM_BYTES]}, "'mem'")
bad("load_straddles_the_end", "global_load_dwordx4 v[4:7], v1, s[94:95]", {"v1": [0, MEM_BYTES - 8]}, "'mem'")
bad("load_before_the_start", "global_load_dword v2, v1, s[94:95] offset:-4", {"v1": 0}, "'mem'")
bad("store_past_the_end", STORE, {"v1": [0, MEM_BYTES], "v6": 0}, "'mem'")
bad("write_to_an_input", "s_load_dwordx2 s[4:5], s[0:1], 0x0; s_waitcnt lgkmcnt(0); global_store_dword v1, v1, s[4:5]",
    {"v1": 0}, "'in'")  # fmt: skip
bad("load_from_nowhere", "global_load_dword v2, v[4:5], off", {"v[4:5]": 0x1000}, "0x1000")
bad("s_load_past_the_end", "s_load_dword s4, s[94:95], 0x1000", {}, "'mem'")
bad("lds_write_past_the_end", "ds_write_b32 v1, v1", {"v1": [0, 8192]}, "(?i)lds")
bad("lds_read_past_the_end", "ds_read_b32 v2, v1", {"v1": [0, 8190]}, "(?i)lds")
bad("lds_read_before_written", "ds_read_b32 v2, v1; s_waitcnt lgkmcnt(0); v_mov_b32 v3, v2", SLOT, "(?i)lds")
good("masked_lanes_may_point_anywhere", f"{LOAD}; s_waitcnt vmcnt(0)", {"v1": [0, MEM_BYTES], "v2": 5, "exec": 1},
     {"v2": [0xC0DE0000, 5]})  # fmt: skip

# -- instructions that do not exist ------------------------------------------------------------------------------------
bad("unassigned_vop1_opcode", ".long 0x7e05ff02", {}, "7e05ff02")
bad("unassigned_sop1_opcode", ".long 0xbe84ff02", {}, "be84ff02")


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.fault is None], ids=lambda case: case.name)
def test_defined_behaviour_gives_the_value(module: Module, case: Case) -> None:
    module.check(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.fault is not None], ids=lambda case: case.name)
def test_undefined_behaviour_faults(module: Module, case: Case) -> None:
    with pytest.raises(EmulatorFault, match=case.fault):
        module.execute(case)


def test_fault_names_kernel_pc_mnemonic_workgroup_and_wave(module: Module) -> None:
    with pytest.raises(EmulatorFault) as caught:
        module.execute(module.cases["load_past_the_end"])
    message = str(caught.value)
    for wanted in (r"case_\d+", r"\+0x[0-9a-f]+", "global_load_dword", "workgroup 0", "wave 0", "lane 1"):
        assert re.search(wanted, message), f"{wanted} is not in: {message}"


def test_fast_mode_checks_bounds_but_no_waits(module: Module) -> None:
    got, _ = module.execute(module.cases["load_waited_for"], strict=False)
    assert got["v4"] == FIRST
    module.execute(module.cases["load_used_at_once"], strict=False)
    with pytest.raises(EmulatorFault, match="'mem'"):
        module.execute(module.cases["load_past_the_end"], strict=False)
