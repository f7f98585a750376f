"""Check every vector comparison of every type: v_cmp to SGPRs, v_cmpx to EXEC as well, and the class tests.

Source: "AMD Instinct CDNA3 ISA" reference guide, section "VOPC". The operand pairs are one for each way two values can
compare, so that a relation is known by the set of those ways for which it holds.
"""

from __future__ import annotations

import pytest
from conformance import NAN, Case, Module, f16, f32, f64

LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
FLOAT_RELATIONS = {
    "f": 0, "lt": LESS, "eq": EQUAL, "le": LESS | EQUAL, "gt": GREATER, "lg": LESS | GREATER, "ge": GREATER | EQUAL,
    "o": LESS | EQUAL | GREATER, "u": UNORDERED, "nge": LESS | UNORDERED, "nlg": EQUAL | UNORDERED,
    "ngt": LESS | EQUAL | UNORDERED, "nle": GREATER | UNORDERED, "neq": LESS | GREATER | UNORDERED,
    "nlt": EQUAL | GREATER | UNORDERED, "tru": LESS | EQUAL | GREATER | UNORDERED,
}  # fmt: skip
INTEGER_RELATIONS = {
    "f": 0, "lt": LESS, "eq": EQUAL, "le": LESS | EQUAL, "gt": GREATER, "ne": LESS | GREATER, "ge": GREATER | EQUAL,
    "t": LESS | EQUAL | GREATER,
}  # fmt: skip


def float_pairs(bits) -> list[tuple[int, int, int]]:
    return [
        (bits(1.0), bits(2.0), LESS),
        (bits(-2.0), bits(1.0), LESS),
        (bits(-2.0), bits(-1.0), LESS),
        (1, 2, LESS),  # denormals
        (bits(3.0), bits(3.0), EQUAL),
        (bits(0.0), bits(-0.0), EQUAL),
        (bits(2.0), bits(1.0), GREATER),
        (bits(1.0), 1, GREATER),
        (bits(NAN), bits(1.0), UNORDERED),
        (bits(1.0), bits(NAN), UNORDERED),
        (bits(NAN), bits(NAN), UNORDERED),
    ]


def integer_pairs(width: int, is_signed: bool) -> list[tuple[int, int, int]]:
    low, high = 1, 1 << (width - 1) | 1  # the same number, but for the sign bit
    return [
        (1, 2, LESS),
        (7, 7, EQUAL),
        (2, 1, GREATER),
        (low, high, GREATER if is_signed else LESS),
        (high, low, LESS if is_signed else GREATER),
        (high, high, EQUAL),
        (0, (1 << width) - 1, GREATER if is_signed else LESS),
    ]


TYPES = {
    "f16": (1, FLOAT_RELATIONS, float_pairs(f16)),
    "f32": (1, FLOAT_RELATIONS, float_pairs(f32)),
    "f64": (2, FLOAT_RELATIONS, float_pairs(f64)),
    "i16": (1, INTEGER_RELATIONS, integer_pairs(16, True)),
    "u16": (1, INTEGER_RELATIONS, integer_pairs(16, False)),
    "i32": (1, INTEGER_RELATIONS, integer_pairs(32, True)),
    "u32": (1, INTEGER_RELATIONS, integer_pairs(32, False)),
    "i64": (2, INTEGER_RELATIONS, integer_pairs(64, True)),
    "u64": (2, INTEGER_RELATIONS, integer_pairs(64, False)),
}

CASES: list[Case] = []
for _type, (_words, _relations, _pairs) in TYPES.items():
    _a, _b = ("v1", "v2") if _words == 1 else ("v[2:3]", "v[4:5]")
    _before = {_a: [pair[0] for pair in _pairs], _b: [pair[1] for pair in _pairs]}
    _on = (1 << len(_pairs)) - 1
    for _relation, _holds in _relations.items():
        _want = sum(1 << lane for lane, pair in enumerate(_pairs) if pair[2] & _holds)
        _name = f"{_relation}_{_type}"
        CASES.append(
            Case(
                _name,
                f"v_cmp_{_name}_e64 s[4:5], {_a}, {_b}; v_cmp_{_name}_e32 vcc, {_a}, {_b}; s_mov_b64 s[6:7], vcc;"
                f"v_cmpx_{_name}_e64 s[8:9], {_a}, {_b}; s_mov_b64 s[10:11], exec; s_mov_b64 exec, s[12:13];"
                f"v_cmpx_{_name}_e32 vcc, {_a}, {_b}",
                {**_before, "s[12:13]": _on, "exec": _on},
                {"s[4:5]": _want, "s[6:7]": _want, "s[8:9]": _want, "s[10:11]": _want, "vcc": _want, "exec": _want},
            )
        )

# Class bits: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
CLASSES = {
    "f16": ("v1", [0x7D00, 0x7E00, 0xFC00, 0xBC00, 0x8001, 0x8000, 0x0000, 0x0001, 0x3C00, 0x7C00]),
    "f32": (
        "v1",
        [0x7FA00000, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x3F800000, 0x7F800000],
    ),
    "f64": (
        "v[2:3]",
        [
            0x7FF4 << 48, 0x7FF8 << 48, 0xFFF0 << 48, 0xBFF0 << 48, 1 << 63 | 1,
            1 << 63, 0, 1, 0x3FF0 << 48, 0x7FF0 << 48,
        ],
    ),
}  # fmt: skip
for _type, (_reg, _values) in CLASSES.items():
    CASES.append(
        Case(
            f"class_{_type}",
            f"v_cmp_class_{_type}_e64 s[4:5], {_reg}, v6; v_cmp_class_{_type}_e64 s[6:7], {_reg}, v7;"
            f"v_cmpx_class_{_type}_e64 s[8:9], {_reg}, v6",
            # v6 asks each lane for its own class, v7 for all the others.
            {
                _reg: _values,
                "v6": [1 << n for n in range(10)],
                "v7": [0x3FF ^ 1 << n for n in range(10)],
                "exec": 0x3FF,
            },
            {"s[4:5]": 0x3FF, "s[6:7]": 0, "s[8:9]": 0x3FF, "exec": 0x3FF},
        )
    )


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)
