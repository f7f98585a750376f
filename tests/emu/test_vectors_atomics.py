"""Check the atomics of every address space: what memory holds afterwards and what a returning form gives back.

Source: "AMD Instinct CDNA3 ISA" reference guide, sections "Data share instructions" and "Memory buffer instructions".
"""

from __future__ import annotations

import pytest
from conformance import Case, Module, f32, f64, pack16

CASES: list[Case] = []

# Operation: (memory before, operand, memory after) as numbers of the operation's width.
INTEGER = {
    "swap": [(-3, 5, 5), (3, 5, 5)],
    "add": [(-3, 5, 2), (3, 5, 8)],
    "sub": [(-3, 5, -8), (3, 5, -2)],
    "rsub": [(-3, 5, 8), (3, 5, 2)],
    "smin": [(-3, 5, -3), (3, 5, 3)],
    "smax": [(-3, 5, 5), (3, 5, 5)],
    "umin": [(-3, 5, 5), (3, 5, 3)],
    "umax": [(-3, 5, -3), (3, 5, 5)],
    "and": [(-3, 5, 5), (3, 5, 1)],
    "or": [(-3, 5, -3), (3, 5, 7)],
    "xor": [(-3, 5, -8), (3, 5, 6)],
    # inc wraps to 0 at the operand, dec wraps to the operand at 0 or above it
    "inc": [(4, 5, 5), (5, 5, 0), (-3, 5, 0), (0, 5, 1)],
    "dec": [(4, 5, 3), (0, 5, 5), (-3, 5, 5), (5, 5, 4)],
}
DS_NAMES = {
    "swap": "wrxchg_rtn_b", "add": "add_u", "sub": "sub_u", "rsub": "rsub_u", "smin": "min_i", "smax": "max_i",
    "umin": "min_u", "umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "inc": "inc_u", "dec": "dec_u",
}  # fmt: skip
FLOAT = {
    ("add", 32): [(f32(1.5), f32(2.0), f32(3.5)), (f32(1.0), f32(-1.0), 0)],
    ("min", 32): [(f32(1.5), f32(-2.0), f32(-2.0)), (f32(1.0), f32(3.0), f32(1.0))],
    ("max", 32): [(f32(1.5), f32(-2.0), f32(1.5)), (f32(1.0), f32(3.0), f32(3.0))],
    ("add", 64): [(f64(1.5), f64(2.0), f64(3.5)), (f64(1.0), f64(-1.0), 0)],
    ("min", 64): [(f64(1.5), f64(-2.0), f64(-2.0)), (f64(1.0), f64(3.0), f64(1.0))],
    ("max", 64): [(f64(1.5), f64(-2.0), f64(1.5)), (f64(1.0), f64(3.0), f64(3.0))],
}
PACKED = {
    "f16": [(pack16(1.0, 2.0), pack16(0.5, -3.0), pack16(1.5, -1.0))],
    "bf16": [(0x40003F80, 0xC0403F00, 0xBF803FC0)],  # (1, 2) + (0.5, -3) = (1.5, -1)
}


def atomic(name: str, bits: int, table: list[tuple[int, int, int]], forms: dict[str, str], operand=None) -> None:
    """Add one case per form: each lane works on its own place, the lanes after the table's rows are off.

    In a form {a} is the address, {d} the operand, {r} the returned value. ``operand`` makes the operand's bits.
    """
    words, mask = bits // 32, (1 << bits) - 1
    rows = [tuple(value & mask for value in row) for row in table]
    size = bits // 8
    memory = b"".join(row[0].to_bytes(size, "little") for row in rows)
    after = b"".join(row[2].to_bytes(size, "little") for row in rows)
    data = [operand(row) if operand else row[1] for row in rows]
    wide = words * (2 if operand else 1)
    d = "v4" if wide == 1 else f"v[4:{3 + wide}]"
    r = "v8" if words == 1 else "v[8:9]"
    for form, text in forms.items():
        text = text.format(a="v1", d=d, r=r, b=words * 4)
        before = {"v1": [lane * size for lane in range(len(rows))], d: data, "exec": (1 << len(rows)) - 1}
        wanted = {r: [row[0] for row in rows] + [0]} if r in text else {}
        if wanted:
            before[r] = 0
        if form.startswith("buffer"):
            returned = f"v[4:{3 + words}]" if words > 1 else "v4"
            wanted = {returned: [row[0] for row in rows] + [data[-1] & mask]} if "sc0" in text else {}
        if form.startswith("ds"):
            # Memory comes to LDS first and goes back afterwards.
            move = "b32" if words == 1 else "b64"
            width = "dword" if words == 1 else "dwordx2"
            wait = "s_waitcnt vmcnt(0) lgkmcnt(0)"
            v = "v12" if words == 1 else "v[12:13]"
            text = (
                f"global_load_{width} {v}, v1, s[94:95]; {wait}; ds_write_{move} v1, {v}; {wait}; {text}; {wait};"
                f"ds_read_{move} {v}, v1; {wait}; global_store_{width} v1, {v}, s[94:95]"
            )
        CASES.append(Case(f"{form}_{name}_{bits}", text, before, wanted, mem=memory, mem_after=after + bytes(16)))


def vector_forms(stem: str) -> dict[str, str]:
    """Return the global, flat and buffer forms of an atomic, without and with a returned value."""
    flat = (
        "v_mov_b32 v2, s94; v_mov_b32 v3, s95; v_add_co_u32_e32 v2, vcc, v2, v1; v_addc_co_u32_e32 v3, vcc, 0, v3, vcc;"
    )
    return {
        "global": f"global_atomic_{stem} {{a}}, {{d}}, s[94:95]",
        "global_rtn": f"global_atomic_{stem} {{r}}, {{a}}, {{d}}, s[94:95] sc0",
        "flat": f"{flat} flat_atomic_{stem} v[2:3], {{d}}",
        "flat_rtn": f"{flat} flat_atomic_{stem} {{r}}, v[2:3], {{d}} sc0",
        "buffer": f"buffer_atomic_{stem} {{d}}, {{a}}, s[96:99], 0 offen",
        "buffer_rtn": f"buffer_atomic_{stem} {{d}}, {{a}}, s[96:99], 0 offen sc0",
    }


def lds_forms(stem: str) -> dict[str, str]:
    """Return the LDS forms of ``add_u32`` and its kind."""
    if "_rtn_" in stem:
        return {"ds_rtn": f"ds_{stem} {{r}}, {{a}}, {{d}}"}
    head, tail = stem.rsplit("_", 1)
    return {"ds": f"ds_{stem} {{a}}, {{d}}", "ds_rtn": f"ds_{head}_rtn_{tail} {{r}}, {{a}}, {{d}}"}


for _op, _table in INTEGER.items():
    for _bits in (32, 64):
        if _op != "rsub":
            atomic(_op, _bits, _table, vector_forms(_op + ("_x2" if _bits == 64 else "")))
        atomic(_op, _bits, _table, lds_forms(f"{DS_NAMES[_op]}{_bits}"))
for (_op, _bits), _table in FLOAT.items():
    atomic(f"{_op}_f", _bits, _table, lds_forms(f"{_op}_f{_bits}"))
    if _bits == 64 or _op == "add":
        atomic(f"{_op}_f", _bits, _table, vector_forms(f"{_op}_f{_bits}"))
for _type, _table in PACKED.items():
    atomic(f"pk_add_{_type}", 32, _table, lds_forms(f"pk_add_{_type}") | vector_forms(f"pk_add_{_type}"))
# Compare and swap: the new value comes first, what memory is compared with second. In LDS it is the other way round.
SWAPS = [(7, 7, 9), (7, 8, 7)]  # before, compared with, after
for _bits in (32, 64):
    _forms = vector_forms("cmpswap" + ("_x2" if _bits == 64 else ""))
    atomic("cmpswap", _bits, SWAPS, _forms, operand=lambda row, bits=_bits: row[1] << bits | 9)
    _pair = ("v4, v5", "v[4:5], v[6:7]")[_bits // 64]
    atomic(
        "cmpst",
        _bits,
        SWAPS,
        {"ds": f"ds_cmpst_b{_bits} {{a}}, {_pair}", "ds_rtn": f"ds_cmpst_rtn_b{_bits} {{r}}, {{a}}, {_pair}"},
        operand=lambda row, bits=_bits: 9 << bits | row[1],
    )
# Lanes that meet at one place are all counted.
CASES.append(
    Case(
        "lanes_at_one_place",
        "v_mov_b32 v1, 0; v_mov_b32 v2, 1; global_atomic_add v1, v2, s[94:95];"
        "global_atomic_smax v1, v3, s[94:95] offset:4",
        {"v3": [lane ^ 21 for lane in range(64)]},
        mem_after=(64).to_bytes(4, "little") + (63).to_bytes(4, "little") + bytes(8),
    )
)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
