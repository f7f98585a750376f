"""Check the matrix instructions: which lane and register holds which element, number formats, accumulation.

Sources: "AMD Instinct CDNA3 ISA" and "CDNA4 ISA" reference guides, chapter "Matrix arithmetic instructions", and AMD's
matrix instruction calculator for the layouts. The layouts below are written out from there:

* A: lane l holds row l % M, and k = K / parts * part + k_run * (l / M) + j for its elements j of each part, where the
  8-register f8f6f4 operand has two parts of 16 bytes and every other operand one. B is the same with columns.
* D, 16 rows: register v of lane l is row 4 * (l / 16) + v, column l % 16.
* D, 32 rows: register v of lane l is row 8 * (v / 4) + 4 * (l / 32) + v % 4, column l % 32.

A row of A (or a column of B) with a single one in it picks a row of B (a column of A), so that every sum has one
non-zero product and is exact whatever the accumulation order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from conformance import NAN, Case, Module, f16, f32

CASES: list[Case] = []
one = CASES.append

LANES = range(64)


def fp8(byte: int) -> float:
    """Return the value of an OCP e4m3 byte: bias 7, S.1111.111 is NaN, no infinity."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return NAN
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


def bf8(byte: int) -> float:
    """Return the value of a finite OCP e5m2 byte: bias 15."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, byte >> 2 & 31, byte & 3
    return sign * (mantissa * 2.0**-16 if exponent == 0 else (4 + mantissa) * 2.0 ** (exponent - 17))


def bf16(value: float) -> int:
    """Return the upper half of a single-precision number that has no more bits."""
    return f32(value) >> 16


@dataclass(frozen=True)
class Shape:
    """Describe a matrix instruction: ``k_run`` elements of ``bits`` bits follow each other in one part of a lane."""

    text: str
    rows: int
    k: int
    bits: int
    k_run: int
    parts: int = 1

    @property
    def registers(self) -> int:
        return self.parts * self.k_run * self.bits // 32

    def place(self, line: int, k: int) -> tuple[int, int]:
        """Return the lane and the element within it that hold row (or column) ``line`` and ``k``."""
        part, rest = divmod(k, self.k // self.parts)
        return line + self.rows * (rest // self.k_run), part * self.k_run + rest % self.k_run

    def operand(self, elements: dict[tuple[int, int], int], fill=None) -> list[int]:
        """Return a register range per lane from ``elements[line, k]``, raw bits each."""
        lanes = [0] * 64
        for line in range(self.rows):
            for k in range(self.k):
                value = elements.get((line, k), 0) if fill is None else fill(line, k)
                lane, element = self.place(line, k)
                lanes[lane] |= value << (self.bits * element)
        return lanes

    def result(self, value) -> list[int]:
        """Return the D registers per lane from ``value(row, column)``, raw bits of 32 each."""
        lanes = []
        for lane in LANES:
            words = 0
            for v in range(self.rows * self.rows // 64):
                if self.rows == 16:
                    row, column = 4 * (lane // 16) + v, lane % 16
                else:
                    row, column = 8 * (v // 4) + 4 * (lane // 32) + v % 4, lane % 32
                words |= value(row, column) << (32 * v)
            lanes.append(words)
        return lanes

    @property
    def result_registers(self) -> int:
        return self.rows * self.rows // 64


def span(first: int, count: int, file: str = "v") -> str:
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


def mfma(name: str, shape: Shape, a: list[int], b: list[int], want: list[int], *, c=0, mods: str = "", **extra) -> None:
    """Add a case: v[16:] holds A, v[32:] B, v[64:] C and the result."""
    n, m = shape.registers, shape.result_registers
    regs = {span(16, n): a, span(32, n): b}
    text = f"{shape.text} {span(64, m)}, {span(16, n)}, {span(32, n)}, {span(64, m) if c is not None else 0} {mods}"
    if c is not None:
        regs[span(64, m)] = c
    one(Case(name, text, {**regs, **extra}, {span(64, m): want}))


F8_16 = Shape("v_mfma_f32_16x16x128_f8f6f4", 16, 128, 8, 16, parts=2)
F8_32 = Shape("v_mfma_f32_32x32x64_f8f6f4", 32, 64, 8, 16, parts=2)
SHAPES = [
    # shape, bits of one, how an element's code becomes its bits, how the bits become the float product with one
    (F8_16, 0x38, lambda n: n % 127, fp8),
    (F8_32, 0x38, lambda n: n % 127, fp8),
    (Shape("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 8, 8), 0x38, lambda n: n % 127, fp8),
    (Shape("v_mfma_f32_32x32x16_fp8_fp8", 32, 16, 8, 8), 0x38, lambda n: n % 127, fp8),
    (Shape("v_mfma_f32_16x16x32_bf8_bf8", 16, 32, 8, 8), 0x3C, lambda n: n % 124, bf8),
    (Shape("v_mfma_f32_16x16x32_bf16", 16, 32, 16, 8), bf16(1.0), lambda n: bf16(float(n % 256)), None),
    (Shape("v_mfma_f32_32x32x16_bf16", 32, 16, 16, 8), bf16(1.0), lambda n: bf16(float(n % 256)), None),
    (Shape("v_mfma_f32_16x16x32_f16", 16, 32, 16, 8), f16(1.0), lambda n: f16(float(n % 2048)), None),
    (Shape("v_mfma_f32_32x32x16_f16", 32, 16, 16, 8), f16(1.0), lambda n: f16(float(n % 2048)), None),
    (Shape("v_mfma_f32_16x16x16_f16", 16, 16, 16, 4), f16(1.0), lambda n: f16(float(n % 2048)), None),
    (Shape("v_mfma_f32_32x32x8_f16", 32, 8, 16, 4), f16(1.0), lambda n: f16(float(n % 2048)), None),
    (Shape("v_mfma_f32_16x16x16_bf16", 16, 16, 16, 4), bf16(1.0), lambda n: bf16(float(n % 256)), None),
    (Shape("v_mfma_f32_32x32x8_bf16", 32, 8, 16, 4), bf16(1.0), lambda n: bf16(float(n % 256)), None),
    (Shape("v_mfma_f32_16x16x4_f32", 16, 4, 32, 1), f32(1.0), lambda n: f32(float(n)), None),
    (Shape("v_mfma_f32_32x32x2_f32", 32, 2, 32, 1), f32(1.0), lambda n: f32(float(n)), None),
    (Shape("v_mfma_i32_16x16x64_i8", 16, 64, 8, 16), 1, lambda n: n % 127, int),
    (Shape("v_mfma_i32_32x32x32_i8", 32, 32, 8, 16), 1, lambda n: n % 127, int),
    (Shape("v_mfma_i32_16x16x32_i8", 16, 32, 8, 8), 1, lambda n: n % 127, int),
    (Shape("v_mfma_i32_32x32x16_i8", 32, 16, 8, 8), 1, lambda n: n % 127, int),
]


def product(shape: Shape, meaning, bits: int) -> int:
    """Return the bits of D when the only product is the element ``bits`` times one."""
    if meaning is int:
        return bits
    if meaning is not None:
        return f32(meaning(bits))
    if shape.bits == 32:
        return bits
    return bits << 16 if "bf16" in shape.text else f32(float(np.uint16(bits).view(np.float16)))


for _shape, _unit, _code, _meaning in SHAPES:
    _rows, _k = _shape.rows, _shape.k
    # Enough rounds that every k of some row is picked once, two at least.
    _rounds = max(2, -(-_k // _rows)) if _shape in (F8_16, F8_32) else 2
    for _round in range(_rounds):
        _pick = [
            (line * 5 + _round * _rows) % _k if _rounds == 2 else (line + _round * _rows) % _k for line in range(_rows)
        ]

        def _fill(line: int, k: int, code=_code) -> int:
            return code(line * 37 + k * 11 + 1)

        def _want(shape=_shape, meaning=_meaning, pick=_pick, fill=_fill, transposed=False):
            def value(row: int, column: int) -> int:
                line, k = (row, pick[column]) if transposed else (column, pick[row])
                return product(shape, meaning, fill(line, k))

            return shape.result(value)

        _hot = _shape.operand({(line, k): _unit for line, k in enumerate(_pick)})
        _dense = _shape.operand({}, fill=_fill)
        _name = f"{_shape.text.removeprefix('v_mfma_')}-round{_round}"
        mfma(f"{_name}-a-one-hot", _shape, _hot, _dense, _want())
        mfma(f"{_name}-b-one-hot", _shape, _dense, _hot, _want(transposed=True))

# -- numbers, 16x16x128 and 32x32x64 in fp8 ----------------------------------------------------------------------------
for _shape in (F8_16, F8_32):
    _tag = _shape.text.removeprefix("v_mfma_f32_").removesuffix("_f8f6f4")
    _ones = _shape.operand({}, fill=lambda line, k: 0x38)
    _c = _shape.result(lambda row, column: f32(float(100 * row + column)))
    mfma(f"{_tag}-sum-of-ones", _shape, _ones, _ones, _shape.result(lambda row, column, k=_shape.k: f32(float(k))))
    mfma(
        f"{_tag}-accumulates-c",
        _shape,
        _ones,
        _ones,
        _shape.result(lambda row, column, k=_shape.k: f32(float(100 * row + column + k))),
        c=_c,
    )
    mfma(f"{_tag}-inline-c", _shape, _ones, _ones, _shape.result(lambda row, column, k=_shape.k: f32(float(k))), c=None)
    # Row r is r - 8 everywhere (0x38 is 1), column c is 2 everywhere: K * 2 * (r - 8), small integers, exact.
    _small = {value: byte for byte in range(0x80) for value in (fp8(byte),)}
    _small |= {-value: byte | 0x80 for value, byte in _small.items()}
    mfma(
        f"{_tag}-signed-rows",
        _shape,
        _shape.operand({}, fill=lambda line, k, small=_small: small[float(line % 16 - 8)]),
        _shape.operand({}, fill=lambda line, k: 0x40),
        _shape.result(lambda row, column, k=_shape.k: f32(float(k * 2 * (row % 16 - 8)))),
    )
    # 2^-9 * 2^-9 * K: the least subnormals are kept.
    mfma(
        f"{_tag}-subnormals",
        _shape,
        _shape.operand({}, fill=lambda line, k: 0x01),
        _shape.operand({}, fill=lambda line, k: 0x81),
        _shape.result(lambda row, column, k=_shape.k: f32(-k * 2.0**-18)),
    )
    # 448 * 448 * K stays exact: 448 = 7 * 2^6.
    mfma(
        f"{_tag}-largest",
        _shape,
        _shape.operand({}, fill=lambda line, k: 0x7E),
        _shape.operand({}, fill=lambda line, k: 0xFE),
        _shape.result(lambda row, column, k=_shape.k: f32(-448.0 * 448.0 * k)),
    )
    # One NaN in row 3 of A and one in column 5 of B.
    for _byte in (0x7F, 0xFF):
        one(
            Case(
                f"{_tag}-nan-{_byte:02x}",
                f"{_shape.text} {span(64, _shape.result_registers)}, v[16:23], v[32:39], 0; s_nop 15; s_nop 7;"
                # is it a NaN? compare the sums with themselves
                + "".join(
                    f"v_cmp_u_f32_e64 s[{4 + 2 * v}:{5 + 2 * v}], v{64 + v}, v{64 + v};"
                    for v in range(_shape.result_registers)
                ),
                {
                    "v[16:23]": _shape.operand({(3, 77 % _shape.k): _byte}),
                    "v[32:39]": _shape.operand({(5, 10): _byte}),
                },
                {
                    f"s[{4 + 2 * v}:{5 + 2 * v}]": sum(
                        1 << lane
                        for lane in LANES
                        if (
                            (4 * (lane // 16) + v == 3 or lane % 16 == 5)
                            if _shape.rows == 16
                            else (8 * (v // 4) + 4 * (lane // 32) + v % 4 == 3 or lane % 32 == 5)
                        )
                    )
                    for v in range(_shape.result_registers)
                },
            )
        )
    # EXEC is ignored: every lane multiplies and every lane is written.
    mfma(
        f"{_tag}-ignores-exec",
        _shape,
        _ones,
        _ones,
        _shape.result(lambda row, column, k=_shape.k: f32(float(100 * row + column + k))),
        c=_c,
        exec=0b1,
    )
    # cbsz = 1 reads A as e5m2, blgp = 1 reads B so. 0x3c is 1.0 in e5m2 and 1.5 in e4m3.
    _k = _shape.k
    _3c = _shape.operand({}, fill=lambda line, k: 0x3C)
    for _mods, _value in [("", 2.25), ("cbsz:1", 1.5), ("blgp:1", 1.5), ("cbsz:1 blgp:1", 1.0)]:
        mfma(
            f"{_tag}-formats-{_mods.replace(' ', '-').replace(':', '') or 'fp8'}",
            _shape,
            _3c,
            _3c,
            _shape.result(lambda row, column, value=_value * _k: f32(value)),
            mods=_mods,
        )
    # The two operands are not exchanged: A e5m2 0x40 = 2, B e4m3 0x48 = 4 (the other way round 2 and 8).
    mfma(
        f"{_tag}-format-belongs-to-its-operand",
        _shape,
        _shape.operand({}, fill=lambda line, k: 0x40),
        _shape.operand({}, fill=lambda line, k: 0x48),
        _shape.result(lambda row, column, value=8.0 * _k: f32(value)),
        mods="cbsz:1",
    )

one(
    Case(
        "16x16x128-agprs",
        "v_mfma_f32_16x16x128_f8f6f4 a[0:3], a[8:15], v[32:39], a[0:3]",
        {
            "a[0:3]": F8_16.result(lambda row, column: f32(float(row))),
            "a[8:15]": F8_16.operand({}, fill=lambda line, k: 0x38),
            "v[32:39]": F8_16.operand({}, fill=lambda line, k: 0x38),
        },
        {"a[0:3]": F8_16.result(lambda row, column: f32(128.0 + row))},
    )
)
# Two in a row on the same accumulator: no wait is needed between them.
one(
    Case(
        "16x16x128-chained",
        "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], 0\n"
        "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], v[64:67]",
        {
            "v[16:23]": F8_16.operand({}, fill=lambda line, k: 0x38),
            "v[32:39]": F8_16.operand({}, fill=lambda line, k: 0x38),
        },
        {"v[64:67]": F8_16.result(lambda row, column: f32(256.0))},
    )
)
# The two formats by name.
for _pair, _bits_a, _bits_b in [("bf8_fp8", 0x40, 0x48), ("fp8_bf8", 0x48, 0x40)]:
    for _rows, _k in ((16, 32), (32, 16)):
        _shape = Shape(f"v_mfma_f32_{_rows}x{_rows}x{_k}_{_pair}", _rows, _k, 8, 8)
        mfma(
            f"{_rows}x{_rows}x{_k}-{_pair}",
            _shape,
            _shape.operand({}, fill=lambda line, k, bits=_bits_a: bits),
            _shape.operand({}, fill=lambda line, k, bits=_bits_b: bits),
            # 2 (e5m2 0x40) times 4 (e4m3 0x48)
            _shape.result(lambda row, column, value=8.0 * _k: f32(value)),
        )

# Several small products at once: block b's row r of A is in lane rows * b + r, all of its k side by side. Its D starts
# at register b * rows * rows / 64 for 16 and 32 rows; with 4 rows, register v of lane 4 * b + c is row v, column c.
for _text, _rows, _blocks, _k, _bits, _unit, _bits_of in [
    ("f32_4x4x1_16b_f32", 4, 16, 1, 32, f32(1.0), lambda n: f32(float(n))),
    ("f32_16x16x1_4b_f32", 16, 4, 1, 32, f32(1.0), lambda n: f32(float(n))),
    ("f32_32x32x1_2b_f32", 32, 2, 1, 32, f32(1.0), lambda n: f32(float(n))),
    ("f32_4x4x4_16b_f16", 4, 16, 4, 16, f16(1.0), lambda n: f16(float(n))),
    ("f32_16x16x4_4b_f16", 16, 4, 4, 16, f16(1.0), lambda n: f16(float(n))),
    ("f32_32x32x4_2b_f16", 32, 2, 4, 16, f16(1.0), lambda n: f16(float(n))),
    ("f32_4x4x4_16b_bf16", 4, 16, 4, 16, bf16(1.0), lambda n: bf16(float(n))),
    ("f32_16x16x4_4b_bf16", 16, 4, 4, 16, bf16(1.0), lambda n: bf16(float(n))),
    ("f32_32x32x4_2b_bf16", 32, 2, 4, 16, bf16(1.0), lambda n: bf16(float(n))),
    ("i32_4x4x4_16b_i8", 4, 16, 4, 8, 1, int),
    ("i32_16x16x4_4b_i8", 16, 4, 4, 8, 1, int),
    ("i32_32x32x4_2b_i8", 32, 2, 4, 8, 1, int),
]:
    # Row r of A picks k = r % K; B counts up.
    _number = lambda block, k, column: (block * 61 + k * 17 + column * 5 + 3) % 127  # noqa: E731
    _a, _b, _d = [0] * 64, [0] * 64, [0] * 64
    for _lane in LANES:
        _block, _line = divmod(_lane, _rows)
        _a[_lane] = _unit << (_bits * (_line % _k))
        _b[_lane] = sum(_bits_of(_number(_block, k, _line)) << (_bits * k) for k in range(_k))
    _count = _rows * _rows * _blocks // 64
    _out = int if _text.startswith("i32") else lambda n: f32(float(n))
    for _lane in LANES:
        for _v in range(_count):
            if _rows == 4:
                _block, _row, _column = _lane // 4, _v, _lane % 4
            elif _rows == 16:
                _block, _row, _column = _v // 4, 4 * (_lane // 16) + _v % 4, _lane % 16
            else:
                _inner = _v % 16
                _block, _row, _column = _v // 16, 8 * (_inner // 4) + 4 * (_lane // 32) + _inner % 4, _lane % 32
            _d[_lane] |= _out(_number(_block, _row % _k, _column)) << (32 * _v)
    _n = max(1, _k * _bits // 32)
    _c = span(64, _count)
    one(
        Case(
            f"blocks-{_text}",
            f"v_mfma_{_text} {_c}, {span(16, _n)}, {span(32, _n)}, 0",
            {span(16, _n): _a, span(32, _n): _b},
            {_c: _d},
        )
    )

# v_mfma_i32: signed bytes.
I8 = Shape("v_mfma_i32_16x16x64_i8", 16, 64, 8, 16)
mfma(
    "i8-signed",
    I8,
    I8.operand({}, fill=lambda line, k: 0x80),
    I8.operand({}, fill=lambda line, k: 0x7F),
    I8.result(lambda row, column: (7 - 128 * 127 * 64) & 0xFFFFFFFF),
    c=I8.result(lambda row, column: 7),
)


# -- an operand that changes between two uses --------------------------------------------------------------------------
# B is all ones, A is zero at first. After the first product, one word of A becomes four ones in every lane (or in the
# lanes said): sixteen ones in every row, four from each of the four lanes that hold it.
FOUR_ONES = 0x38383838
EVERY = dict.fromkeys(range(16), 16.0)
LANE_WORDS = {"v1": [lane * 4 for lane in LANES], "v2": FOUR_ONES}
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)"
MEM = f"global_store_dword v1, v2, s[94:95]; {WAIT};"
LDS = f"ds_write_b32 v1, v2; {WAIT}"
for _name, _writer, _rows_of_sums in [
    ("v_mov", "v_mov_b32 v20, v2", EVERY),
    ("v_mov_some_lanes", "s_mov_b64 exec, 0xf; v_mov_b32 v20, v2; s_mov_b64 exec, -1", dict.fromkeys(range(4), 4.0)),
    ("v_writelane", "v_writelane_b32 v20, s4, 17", {1: 4.0}),
    ("v_swap", "v_swap_b32 v20, v2", EVERY),
    ("v_permlane32_swap", "v_permlane32_swap_b32 v20, v2", dict.fromkeys(range(16), 8.0)),
    ("v_permlane32_swap_second", "v_permlane32_swap_b32 v2, v20", dict.fromkeys(range(16), 8.0)),
    ("dpp", "v_mov_b32_dpp v20, v2 row_shl:1 row_mask:0xf bank_mask:0xf", dict.fromkeys(range(15), 16.0)),
    ("sdwa", "v_mov_b32_sdwa v20, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0",
     dict.fromkeys(range(16), 4.0)),
    ("v_lshlrev_b64", "v_mov_b32 v3, 0; v_lshlrev_b64 v[20:21], 0, v[2:3]", EVERY),
    ("v_accvgpr_read", "v_accvgpr_write_b32 a0, v2; s_nop 1; v_accvgpr_read_b32 v20, a0", EVERY),
    ("global_load", f"{MEM} global_load_dword v20, v1, s[94:95]; {WAIT}", EVERY),
    ("global_load_d16", f"{MEM} global_load_short_d16 v20, v1, s[94:95]; {WAIT}",
     dict.fromkeys(range(16), 8.0)),
    ("buffer_load", f"{MEM} buffer_load_dword v20, v1, s[96:99], 0 offen; {WAIT}",
     EVERY),
    ("global_atomic", f"{MEM} global_atomic_add v20, v1, v2, s[94:95] sc0; {WAIT}",
     EVERY),
    ("ds_read", f"{LDS}; ds_read_b32 v20, v1; {WAIT}", EVERY),
    ("ds_bpermute", f"ds_bpermute_b32 v20, v1, v2; {WAIT}", EVERY),
    ("ds_add_rtn", f"{LDS}; ds_add_rtn_u32 v20, v1, v2; {WAIT}", EVERY),
    ("other_matrix_result", "v_mfma_i32_16x16x64_i8 v[20:23], v[40:43], v[40:43], v[4:7]; s_nop 7;"
     "v_mov_b32 v21, 0; v_mov_b32 v22, 0; v_mov_b32 v23, 0", EVERY),
]:  # fmt: skip
    _product = "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], {}; s_nop 15"
    _before = {**LANE_WORDS, "v[16:23]": 0, "v[32:39]": sum(FOUR_ONES << (32 * n) for n in range(8)), "s4": FOUR_ONES}
    _before |= {"v[40:43]": 0, "v[4:7]": sum(FOUR_ONES << (32 * n) for n in range(4))}
    one(
        Case(
            f"operand-rewritten-by-{_name}",
            f"{_product.format(0)}; {_writer}; {_product.format('v[64:67]')}",
            _before,
            {"v[64:67]": F8_16.result(lambda row, column, sums=_rows_of_sums: f32(sums.get(row, 0.0)))},
        )
    )
# The same in a loop: the accumulator sees 16, then 32 and 48 as one more word of A fills up each time round.
one(
    Case(
        "operand-rewritten-in-a-loop",
        "s_mov_b32 s5, 3\n1:\nv_mfma_f32_16x16x128_f8f6f4 v[64:67], v[16:23], v[32:39], v[64:67]\n"
        "v_mov_b32 v18, v17\nv_mov_b32 v17, v16\ns_sub_u32 s5, s5, 1\ns_cmp_lg_u32 s5, 0\ns_cbranch_scc1 1b",
        {
            "v[16:23]": FOUR_ONES,
            "v[32:39]": sum(FOUR_ONES << (32 * n) for n in range(8)),
            "v[64:67]": 0,
        },
        {"v[64:67]": F8_16.result(lambda row, column: f32(96.0))},
    )
)

# -- block scales ------------------------------------------------------------------------------------------------------
# A scale is an exponent byte with bias 127. op_sel is the low and op_sel_hi the high bit of which byte of the register.
for _mods, _factor in [
    ("op_sel_hi:[0,0,0]", 0.5),
    ("op_sel:[1,0,0] op_sel_hi:[0,0,0]", 1.0),
    ("op_sel_hi:[1,0,0]", 2.0),
    ("op_sel:[1,0,0] op_sel_hi:[1,0,0]", 8.0),
    ("op_sel_hi:[0,1,0]", 0.5 * 4.0),
]:
    for _shape in (F8_16, F8_32):
        _count = _shape.result_registers
        one(
            Case(
                f"{_shape.text.removeprefix('v_mfma_f32_')}-scaled-{_mods.replace(' ', '-')}",
                f"{_shape.text.replace('v_mfma_', 'v_mfma_scale_')} {span(64, _count)}, v[16:23], v[32:39],"
                f"{span(64, _count)}, v10, v11 {_mods}",
                {
                    "v[16:23]": sum(FOUR_ONES << (32 * n) for n in range(8)),
                    "v[32:39]": sum(FOUR_ONES << (32 * n) for n in range(8)),
                    span(64, _count): _shape.result(lambda row, column: f32(1.0)),
                    "v10": 0x82807F7E,
                    "v11": 0x7F817F7F,
                },
                {span(64, _count): _shape.result(lambda row, column, sum_=1.0 + _factor * _shape.k: f32(sum_))},
            )
        )


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_hand_computed_one(module: Module, case: Case) -> None:
    module.check(case)


def test_fp8_helpers_follow_the_published_tables() -> None:
    assert [fp8(byte) for byte in (0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0xFE)] == [
        0.0, 2.0**-9, 7 * 2.0**-9, 2.0**-6, 1.0, 448.0, -448.0,
    ]  # fmt: skip
    assert [bf8(byte) for byte in (0x00, 0x01, 0x04, 0x3C, 0x7B)] == [0.0, 2.0**-16, 2.0**-14, 1.0, 57344.0]
    assert struct.pack("<I", bf16(1.5) << 16) == struct.pack("<f", 1.5)
