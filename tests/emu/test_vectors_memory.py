"""Check LDS, global and buffer accesses: sizes, sign extension, offsets, EXEC, range checks.

Source: "AMD Instinct CDNA3 ISA" reference guide, chapters "Vector memory", "Flat memory", "Local data share".
"""

from __future__ import annotations

import struct

import pytest
from conformance import MEM_RECORDS, Case, Module

CASES: list[Case] = []
one = CASES.append

LANES = range(64)
BYTES = bytes(i ^ 0x80 if i % 3 == 0 else i for i in range(256)) * 8
WORDS = struct.pack("<512I", *(0xC0DE0000 + i for i in range(512)))
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)"


def word(data: bytes, at: int, size: int = 4) -> int:
    """Return the little-endian number of ``size`` bytes at ``at``."""
    return int.from_bytes(data[at : at + size], "little")


def signed(value: int, bits: int) -> int:
    """Return the number that ``bits`` bits of two's complement mean."""
    return value - (1 << bits) if value >> (bits - 1) else value


# -- the three ways to vector memory -----------------------------------------------------------------------------------
# Each lane's byte offset is in v1. Flat needs whole addresses: v[2:3].
FLAT = "v_mov_b32 v2, s94; v_mov_b32 v3, s95; v_add_co_u32 v2, vcc, v2, v1; v_addc_co_u32 v3, vcc, 0, v3, vcc;"


def load(space: str, kind: str, register: str, offset: int = 0) -> str:
    """Return the text that loads ``register`` from the lane's place in ``mem``."""
    return {
        "global": f"global_load_{kind} {register}, v1, s[94:95] offset:{offset}",
        "flat": f"{FLAT} flat_load_{kind} {register}, v[2:3] offset:{offset}",
        "buffer": f"buffer_load_{kind} {register}, v1, s[96:99], 0 offen offset:{offset}",
    }[space]


def store(space: str, kind: str, register: str, offset: int = 0) -> str:
    """Return the text that stores ``register`` to the lane's place in ``mem``."""
    return {
        "global": f"global_store_{kind} v1, {register}, s[94:95] offset:{offset}",
        "flat": f"{FLAT} flat_store_{kind} v[2:3], {register} offset:{offset}",
        "buffer": f"buffer_store_{kind} {register}, v1, s[96:99], 0 offen offset:{offset}",
    }[space]


SUB_DWORD = {
    "ubyte": lambda at: BYTES[at],
    "sbyte": lambda at: signed(BYTES[at], 8),
    "ushort": lambda at: word(BYTES, at, 2),
    "sshort": lambda at: signed(word(BYTES, at, 2), 16),
    "dword": lambda at: word(BYTES, at),
}
# The other half of the register keeps its bits.
HALF = {
    "ubyte_d16": lambda old, at: old & 0xFFFF0000 | BYTES[at],
    "ubyte_d16_hi": lambda old, at: old & 0xFFFF | BYTES[at] << 16,
    "sbyte_d16": lambda old, at: old & 0xFFFF0000 | signed(BYTES[at], 8) & 0xFFFF,
    "sbyte_d16_hi": lambda old, at: old & 0xFFFF | (signed(BYTES[at], 8) & 0xFFFF) << 16,
    "short_d16": lambda old, at: old & 0xFFFF0000 | word(BYTES, at, 2),
    "short_d16_hi": lambda old, at: old & 0xFFFF | word(BYTES, at, 2) << 16,
}
ODD, EVEN = [lane * 3 for lane in LANES], [lane * 4 for lane in LANES]
for _space in ("global", "flat", "buffer"):
    # Buffer addresses stay aligned: what an unaligned buffer access does depends on a mode the frame does not set.
    _at, _offset = (EVEN, 4) if _space == "buffer" else (ODD, 5)
    for _name, _value in SUB_DWORD.items():
        one(
            Case(
                f"{_space}_load_{_name}",
                load(_space, _name, "v4", _offset),
                {"v1": _at},
                {"v4": [_value(at + _offset) for at in _at]},
                mem=BYTES,
            )
        )
    for _name, _value in HALF.items():
        one(
            Case(
                f"{_space}_load_{_name}",
                load(_space, _name, "v4"),
                {"v1": _at, "v4": 0x5A5A3C3C},
                {"v4": [_value(0x5A5A3C3C, at) for at in _at]},
                mem=BYTES,
            )
        )
    for _name, _size, _shift in [
        ("byte", 1, 0), ("byte_d16_hi", 1, 16), ("short", 2, 0), ("short_d16_hi", 2, 16), ("dword", 4, 0),
    ]:  # fmt: skip
        _numbers = [0x01020304 * (lane % 60 + 1) for lane in LANES]
        one(
            Case(
                f"{_space}_store_{_name}",
                store(_space, _name, "v4", 4),
                {"v1": EVEN, "v4": _numbers},
                mem=bytes(4 + 4 * 64),
                mem_after=bytes(4)
                + b"".join((n >> _shift).to_bytes(4, "little")[:_size].ljust(4, b"\0") for n in _numbers)
                + bytes(4),
            )
        )
    for _words in (2, 3, 4):
        _register = f"v[4:{3 + _words}]"
        _twelve = [lane * 12 for lane in LANES]
        one(
            Case(
                f"{_space}_load_dwordx{_words}",
                load(_space, f"dwordx{_words}", _register),
                {"v1": _twelve},
                {_register: [word(WORDS, at, 4 * _words) for at in _twelve]},
                mem=WORDS,
            )
        )
        _data = [sum((0x100 * lane + w + 1) << (32 * w) for w in range(_words)) for lane in LANES]
        one(
            Case(
                f"{_space}_store_dwordx{_words}",
                store(_space, f"dwordx{_words}", _register),
                {"v1": [lane * 16 for lane in LANES], _register: _data},
                mem_after=b"".join(value.to_bytes(16, "little") for value in _data),
            )
        )

# -- global accesses ---------------------------------------------------------------------------------------------------
one(
    Case(
        "global_load_64_bit_address",
        "v_mov_b32 v4, s94; v_mov_b32 v5, s95; v_lshl_add_u64 v[2:3], v[6:7], 2, v[4:5];"
        "global_load_dword v8, v[2:3], off;"
        "global_load_dword v9, v[2:3], off offset:-8",
        {"v[6:7]": [lane + 2 for lane in LANES]},
        {"v8": [0xC0DE0002 + lane for lane in LANES], "v9": [0xC0DE0000 + lane for lane in LANES]},
        mem=WORDS,
    )
)
one(
    Case(
        "global_load_to_agpr",
        "global_load_dwordx2 a[4:5], v1, s[94:95]",
        {"v1": [lane * 8 for lane in LANES]},
        {"a[4:5]": [word(WORDS, lane * 8, 8) for lane in LANES]},
        mem=WORDS,
    )
)
one(
    Case(
        "global_load_lanes_off",
        "global_load_dword v2, v1, s[94:95]",
        # Lane 1 is off: its address would fault.
        {"v1": [0, 0x7FFFFFFF, 8], "v2": 77, "exec": 0b101},
        {"v2": [0xC0DE0000, 77, 0xC0DE0002, 77]},
        mem=WORDS,
    )
)
one(
    Case(
        "global_store_lanes_off",
        "global_store_dword v1, v2, s[94:95]",
        {"v1": [lane * 4 for lane in LANES], "v2": 9, "exec": 0b0110},
        mem_after=struct.pack("<5I", 0, 9, 9, 0, 0),
    )
)
one(
    Case(
        "global_store_from_agpr",
        "global_store_dword v1, a2, s[94:95]",
        {"v1": [lane * 4 for lane in LANES], "a2": [lane + 1 for lane in LANES]},
        mem_after=struct.pack("<64I", *range(1, 65)),
    )
)
# -- buffer accesses: out of range reads 0 and writes nothing ----------------------------------------------------------
END = MEM_RECORDS
one(
    Case(
        "buffer_load_range",
        "buffer_load_dword v2, v1, s[96:99], 0 offen",
        {"v1": [0, 4, END - 4, END, END + 4, 0x7FFFFFF0, 8]},
        {"v2": [0xC0DE0000, 0xC0DE0001, 0xC0DE0000 + END // 4 - 1, 0, 0, 0, 0xC0DE0002]},
        mem=WORDS,
    )
)
one(
    Case(
        "buffer_load_offsets",
        "buffer_load_dword v2, off, s[96:99], s4 offset:8; buffer_load_dword v3, v1, s[96:99], s4 offen offset:4",
        {"v1": [lane * 4 for lane in LANES], "s4": 16},
        {"v2": 0xC0DE0006, "v3": [0xC0DE0005 + lane for lane in LANES]},
        mem=WORDS,
    )
)
one(
    Case(
        "buffer_store_range",
        "buffer_store_dword v2, v1, s[96:99], 0 offen",
        {"v1": [0, END - 4, END, END + 8, 0x7FFFFFF0], "v2": [1, 2, 3, 4, 5]},
        mem_after=struct.pack("<I", 1) + bytes(END - 8) + struct.pack("<I", 2) + bytes(64),
    )
)

# -- memory straight to LDS --------------------------------------------------------------------------------------------
# The wave writes from LDS offset M0 on, lane after lane.
for _words in (1, 4):
    _suffix = "dword" if _words == 1 else f"dwordx{_words}"
    one(
        Case(
            f"global_load_lds_{_suffix}",
            f"global_load_lds_{_suffix} v1, s[94:95]; {WAIT}; v_mov_b32 v2, s4;"
            "ds_read_b32 v4, v2; ds_read_b32 v5, v2 offset:28",
            {"v1": [8 * (63 - lane) for lane in LANES], "m0": 512, "s4": 512},
            {
                "v4": word(WORDS, 8 * 63),
                "v5": word(WORDS, 8 * (63 - 7)) if _words == 1 else word(WORDS, 8 * 62 + 12),
            },
            mem=WORDS,
        )
    )

# -- LDS ---------------------------------------------------------------------------------------------------------------
SLOT = [lane * 16 for lane in LANES]


def lds(name: str, write: str, read: str, before: dict, after: dict) -> None:
    one(Case(name, f"{write}; {WAIT}; {read}", {"v1": SLOT, **before}, after))


NUMBERS = [0x01020384 * (lane % 60 + 1) & 0xFFFFFFFF for lane in LANES]
lds("ds_b32", "ds_write_b32 v1, v2", "ds_read_b32 v3, v1", {"v2": NUMBERS}, {"v3": NUMBERS})
for _bits in (64, 96, 128):
    _words = _bits // 32
    _data = [sum((0x100 * lane + w + 1) << (32 * w) for w in range(_words)) for lane in LANES]
    lds(
        f"ds_b{_bits}",
        f"ds_write_b{_bits} v1, v[4:{3 + _words}]",
        f"ds_read_b{_bits} v[8:{7 + _words}], v1",
        {f"v[4:{3 + _words}]": _data},
        {f"v[8:{7 + _words}]": _data},
    )
lds(
    "ds_offset",
    "ds_write_b32 v1, v2 offset:4; ds_write_b32 v1, v3 offset:8",
    "ds_read_b64 v[4:5], v1 offset:4",
    {"v2": 0x11, "v3": NUMBERS},
    {"v[4:5]": [number << 32 | 0x11 for number in NUMBERS]},
)
# offset0 and offset1 count elements; with st64 they count 64 elements.
lds(
    "ds_write2_read2_b32",
    "ds_write2_b32 v1, v2, v3 offset0:1 offset1:3",
    "ds_read2_b32 v[4:5], v1 offset0:3 offset1:1; ds_read_b32 v6, v1 offset:12",
    {"v2": NUMBERS, "v3": 5},
    {"v[4:5]": [number << 32 | 5 for number in NUMBERS], "v6": 5},
)
lds(
    "ds_write2_read2_b64",
    "ds_write2_b64 v1, v[2:3], v[4:5] offset1:1",
    "ds_read2_b64 v[8:11], v1 offset1:1",
    {"v[2:3]": [lane << 40 | 7 for lane in LANES], "v[4:5]": 0x123456789ABC},
    {"v[8:11]": [0x123456789ABC << 64 | lane << 40 | 7 for lane in LANES]},
)
lds(
    "ds_st64",
    "v_lshrrev_b32 v1, 2, v1; ds_write2st64_b32 v1, v2, v3 offset0:1 offset1:3",
    "ds_read_b32 v4, v1 offset:256; ds_read_b32 v5, v1 offset:768; ds_read2st64_b32 v[6:7], v1 offset0:3 offset1:1",
    {"v2": NUMBERS, "v3": 5},
    {"v4": NUMBERS, "v5": 5, "v[6:7]": [number << 32 | 5 for number in NUMBERS]},
)
lds(
    "ds_sub_dword_loads",
    "ds_write_b32 v1, v2",
    "ds_read_u8 v3, v1; ds_read_i8 v4, v1; ds_read_u16 v5, v1; ds_read_i16 v6, v1;"
    "ds_read_u8 v7, v1 offset:3; ds_read_i16 v8, v1 offset:2",
    {"v2": [0x80FF8081, 0x7F017F01]},
    {
        "v3": [0x81, 1],
        "v4": [0xFFFFFF81, 1],
        "v5": [0x8081, 0x7F01],
        "v6": [0xFFFF8081, 0x7F01],
        "v7": [0x80, 0x7F],
        "v8": [0xFFFF80FF, 0x7F01],
    },
)
lds(
    "ds_sub_dword_stores",
    "ds_write_b32 v1, v4; ds_write_b8 v1, v2; ds_write_b16 v1, v2 offset:2",
    "ds_read_b32 v3, v1",
    {"v2": 0xAABBCCDD, "v4": 0},
    {"v3": 0xCCDD00DD},
)
lds(
    "ds_d16_hi_stores",
    "ds_write_b32 v1, v4; ds_write_b8_d16_hi v1, v2; ds_write_b16_d16_hi v1, v2 offset:2",
    "ds_read_b32 v3, v1",
    {"v2": 0xAABBCCDD, "v4": 0},
    {"v3": 0xAABB00BB},
)
lds(
    "ds_d16_loads",
    "ds_write_b32 v1, v2",
    "ds_read_u16_d16 v3, v1; ds_read_u16_d16_hi v4, v1; ds_read_i8_d16 v5, v1; ds_read_u8_d16_hi v6, v1",
    {"v2": 0x11228384, "v3": 0x55556666, "v4": 0x55556666, "v5": 0x55556666, "v6": 0x55556666},
    {"v3": 0x55558384, "v4": 0x83846666, "v5": 0x5555FF84, "v6": 0x00846666},
)
lds(
    "ds_lanes_off",
    f"ds_write_b32 v1, v2; {WAIT}; s_mov_b64 exec, 0b0110; ds_write_b32 v1, v3; {WAIT}; s_mov_b64 exec, -1",
    "ds_read_b32 v4, v1",
    {"v2": 1, "v3": 2},
    {"v4": [1, 2, 2, 1]},
)
lds(
    "ds_add",
    f"ds_write_b32 v1, v2; {WAIT}; ds_add_u32 v1, v3; ds_add_rtn_u32 v4, v1, v3",
    "ds_read_b32 v5, v1",
    {"v2": list(LANES), "v3": 10},
    {"v4": [lane + 10 for lane in LANES], "v5": [lane + 20 for lane in LANES]},
)
lds(
    "ds_other_lanes_data",
    "ds_write_b32 v1, v2",
    "v_mov_b32 v3, 0; ds_read_b32 v4, v3 offset:16",
    {"v2": NUMBERS},
    {"v4": NUMBERS[1]},
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
