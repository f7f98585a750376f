"""Run the MFMA family: D = A * B + C per wave, whatever EXEC says.

A wave's lane l holds of A the row l % M and of B the column l % N, for the k (or the block) that l / M selects; every
permutation of k that A and B share gives the same sum, so k is numbered as the registers hold it. D and C: register
v of lane l is row 8 * (v / 4) + 4 * (l / 32) + v % 4 of column l % 32 (32x32), row 4 * (l / 16) + v of column l % 16
(16x16).

Products and sums are made in float64 (exact for the 8-bit formats) and rounded once, with C, to float32. The hardware's
order and inner rounding are not published: expect agreement within float32 tolerance, not to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from . import floats
from .operands import F32, F64, I32, Operand, Type
from .registers import fetch_raw
from .table import Entry, add

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

f32, f64, i32 = np.float32, np.float64, np.int32

# Decoded operands kept per batch, to bound memory: a batch of 256 waves holds 4 MB in each.
DECODED_KEPT = 48

# cbsz and blgp of the f8f6f4 forms: format code -> (name, registers of a 32-element operand).
F8F6F4_FORMATS = {0: ("fp8", 8), 1: ("bf8", 8), 2: ("fp6", 6), 3: ("bf6", 6), 4: ("fp4", 4)}


@dataclass(frozen=True, slots=True)
class Shape:
    """Describe one MFMA. ``a`` and ``b`` name element formats, ``passes`` of four clocks each, ``blocks`` products
    per wave.
    """

    m: int
    n: int
    k: int
    blocks: int
    a: str
    b: str
    passes: int
    regs: int
    type: Type = F32
    is_xdl: bool = True
    is_modelled: bool = True

    @property
    def is_double(self) -> bool:
        return self.type is F64

    @property
    def d_regs(self) -> int:
        return self.m * self.n * self.blocks // 64 * (2 if self.is_double else 1)

    @property
    def is_f8f6f4(self) -> bool:
        return self.a == "f8f6f4"

    def operand_regs(self, cbsz: int, blgp: int) -> tuple[int, int]:
        """Return how many registers A and B take."""
        if not self.is_f8f6f4:
            return self.regs, self.regs
        return F8F6F4_FORMATS.get(cbsz, ("", 8))[1], F8F6F4_FORMATS.get(blgp, ("", 8))[1]

    def wait_states(self) -> dict[str, int]:
        """Return what MatrixResult asks for. The numbers are those that LLVM 22 inserts for gfx950.

        XDL forms (all but those on f32 and f64) take longer on gfx950 than on gfx940, by one state except where a
        2-pass result is not read by another XDL form.
        """
        passes = self.passes
        same = 2 if passes == 2 else 0
        if not self.is_xdl:
            return dict(read_wait=passes + 2, xdl_c_wait=0, f32_c_wait=passes, same_c_wait=same, overwrite_c_wait=0)
        longer = int(passes != 2)
        return dict(
            read_wait=passes + 3 + longer,
            xdl_c_wait=passes + 2,
            f32_c_wait=passes + 1 + longer,
            same_c_wait=same,
            overwrite_c_wait=passes - 1,
        )


def _mfma(
    opcode: int, mnemonic: str, m: int, n: int, k: int, formats: str, passes: int, regs: int, **more: Any
) -> None:
    a, _, b = formats.partition(" ")
    shape = Shape(m, n, k, more.pop("blocks", 1), a, b or a, passes, regs, **more)
    add(Entry("VOP3P", opcode, mnemonic, traits={"mfma": shape}))
    if shape.is_f8f6f4:
        add(Entry("VOP3PX2", opcode, mnemonic, traits={"mfma": shape}))


_mfma(0x2D, "v_mfma_f32_16x16x128_f8f6f4", 16, 16, 128, "f8f6f4", 8, 8)
_mfma(0x2E, "v_mfma_f32_32x32x64_f8f6f4", 32, 32, 64, "f8f6f4", 16, 8)
_mfma(0x35, "v_mfma_f32_16x16x32_bf16", 16, 16, 32, "bf16", 4, 4)
_mfma(0x36, "v_mfma_i32_16x16x64_i8", 16, 16, 64, "i8", 4, 4, type=I32)
_mfma(0x37, "v_mfma_f32_32x32x16_bf16", 32, 32, 16, "bf16", 8, 4)
_mfma(0x38, "v_mfma_i32_32x32x32_i8", 32, 32, 32, "i8", 8, 4, type=I32)
_mfma(0x40, "v_mfma_f32_32x32x1_2b_f32", 32, 32, 1, "f32", 16, 1, blocks=2, is_xdl=False)
_mfma(0x41, "v_mfma_f32_16x16x1_4b_f32", 16, 16, 1, "f32", 8, 1, blocks=4, is_xdl=False)
_mfma(0x42, "v_mfma_f32_4x4x1_16b_f32", 4, 4, 1, "f32", 2, 1, blocks=16, is_xdl=False)
_mfma(0x44, "v_mfma_f32_32x32x2_f32", 32, 32, 2, "f32", 16, 1, is_xdl=False)
_mfma(0x45, "v_mfma_f32_16x16x4_f32", 16, 16, 4, "f32", 8, 1, is_xdl=False)
_mfma(0x48, "v_mfma_f32_32x32x4_2b_f16", 32, 32, 4, "f16", 16, 2, blocks=2)
_mfma(0x49, "v_mfma_f32_16x16x4_4b_f16", 16, 16, 4, "f16", 8, 2, blocks=4)
_mfma(0x4A, "v_mfma_f32_4x4x4_16b_f16", 4, 4, 4, "f16", 2, 2, blocks=16)
_mfma(0x4C, "v_mfma_f32_32x32x8_f16", 32, 32, 8, "f16", 8, 2)
_mfma(0x4D, "v_mfma_f32_16x16x16_f16", 16, 16, 16, "f16", 4, 2)
_mfma(0x50, "v_mfma_i32_32x32x4_2b_i8", 32, 32, 4, "i8", 16, 1, blocks=2, type=I32)
_mfma(0x51, "v_mfma_i32_16x16x4_4b_i8", 16, 16, 4, "i8", 8, 1, blocks=4, type=I32)
_mfma(0x52, "v_mfma_i32_4x4x4_16b_i8", 4, 4, 4, "i8", 2, 1, blocks=16, type=I32)
_mfma(0x54, "v_mfma_f32_16x16x32_f16", 16, 16, 32, "f16", 4, 4)
_mfma(0x55, "v_mfma_f32_32x32x16_f16", 32, 32, 16, "f16", 8, 4)
_mfma(0x56, "v_mfma_i32_32x32x16_i8", 32, 32, 16, "i8", 8, 2, type=I32)
_mfma(0x57, "v_mfma_i32_16x16x32_i8", 16, 16, 32, "i8", 4, 2, type=I32)
_mfma(0x5D, "v_mfma_f32_32x32x4_2b_bf16", 32, 32, 4, "bf16", 16, 2, blocks=2)
_mfma(0x5E, "v_mfma_f32_16x16x4_4b_bf16", 16, 16, 4, "bf16", 8, 2, blocks=4)
_mfma(0x5F, "v_mfma_f32_4x4x4_16b_bf16", 4, 4, 4, "bf16", 2, 2, blocks=16)
_mfma(0x60, "v_mfma_f32_32x32x8_bf16", 32, 32, 8, "bf16", 8, 2)
_mfma(0x61, "v_mfma_f32_16x16x16_bf16", 16, 16, 16, "bf16", 4, 2)
_mfma(0x6E, "v_mfma_f64_16x16x4_f64", 16, 16, 4, "f64", 16, 2, type=F64, is_xdl=False, is_modelled=False)
_mfma(0x6F, "v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, "f64", 4, 2, blocks=4, type=F64, is_xdl=False, is_modelled=False)
for _n, _formats in enumerate(("bf8 bf8", "bf8 fp8", "fp8 bf8", "fp8 fp8")):
    _suffix = _formats.replace(" ", "_")
    _mfma(0x70 + _n, f"v_mfma_f32_16x16x32_{_suffix}", 16, 16, 32, _formats, 4, 2)
    _mfma(0x74 + _n, f"v_mfma_f32_32x32x16_{_suffix}", 32, 32, 16, _formats, 8, 2)


# --- decoding of operands -------------------------------------------------------------------------------------------


def _decode_words(words: np.ndarray, fmt: str) -> np.ndarray:
    """Turn uint32 [waves, lanes, regs] into float64 [waves, lanes, elements]."""
    if fmt == "fp8":
        return floats.FP8_VALUES[words.view(np.uint8)]
    if fmt == "bf8":
        return floats.BF8_VALUES[words.view(np.uint8)]
    if fmt == "f16":
        return words.view(np.float16).astype(f64)
    if fmt == "bf16":
        return floats.from_bf16(words.view(np.uint16)).astype(f64)
    if fmt == "i8":
        return words.view(np.int8).astype(f64)
    return words.view(f32).astype(f64)


def _operand(m: Convoy, row: int, regs: int, fmt: str, side: int, blocks: int) -> np.ndarray:
    """Return an operand as float64 [waves, blocks, side, k], from cache while its registers do not change."""
    batch = m.batch
    key = (row, regs, fmt, side, blocks)
    stamp = (tuple(batch.versions[row : row + regs]), id(m.waves))
    held = batch.decoded.get(key)
    if held is not None and held[0] == stamp:
        return held[1]
    words = np.ascontiguousarray(m.V[row : row + regs, m.sel].transpose(1, 2, 0))
    values = _decode_words(words, fmt)
    per_block = 64 // blocks
    groups = per_block // side
    elements = values.shape[-1]
    # lane = block * per_block + group * side + index
    values = values.reshape(m.n, blocks, groups, side, elements).transpose(0, 1, 3, 2, 4)
    values = np.ascontiguousarray(values).reshape(m.n, blocks, side, groups * elements)
    if len(batch.decoded) >= DECODED_KEPT:
        batch.decoded.clear()
    # NOTE: the waves array is kept with the entry so that its id stays its own.
    batch.decoded[key] = (stamp, values, m.waves)
    return values


def _rows_of(shape: Shape) -> np.ndarray:
    """Return for register v and lane l the flat index (block, row, column) of D: int64 [registers, 64]."""
    lane, v = np.arange(64), np.arange(shape.m * shape.n * shape.blocks // 64)[:, None]
    if shape.m == 32:
        block, within = v // 16, v % 16
        row, column = 8 * (within // 4) + 4 * (lane // 32) + within % 4, lane % 32
    elif shape.m == 16:
        block, within = v // 4, v % 4
        row, column = 4 * (lane // 16) + within, lane % 16
    else:
        block, row, column = lane // 4, v, lane % 4
    return (block * shape.m + row) * shape.n + column + 0 * v


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], None]:
    """Compile one MFMA to a function of the convoy."""
    shape: Shape = instruction.traits["mfma"]
    fields = instruction.fields
    if not shape.is_modelled:
        raise EmulatorFault(
            f"{instruction}: this matrix instruction is decoded but not modelled. Add its layout to emu/matrix.py."
        )
    a_format, b_format = shape.a, shape.b
    if shape.is_f8f6f4:
        names = [F8F6F4_FORMATS.get(fields[field], ("reserved", 8))[0] for field in ("cbsz", "blgp")]
        for name in names:
            if name not in ("fp8", "bf8"):
                raise EmulatorFault(
                    f"{instruction}: element format {name} is not modelled; fp8 and bf8 are. Add it to emu/matrix.py."
                )
        a_format, b_format = names
    elif fields.get("cbsz") or fields.get("abid") or fields["blgp"]:
        raise EmulatorFault(
            f"{instruction}: cbsz, abid and blgp broadcasts are not modelled. Add them to emu/matrix.py."
        )
    a, b, c = (instruction.src[name] for name in "abc")
    row_a, row_b, row_d = program.row(a), program.row(b), program.row(instruction.dst[0])
    order = _rows_of(shape)
    accumulator = _accumulator(program, c, shape)
    scales = _scales(program, instruction, shape) if "scale_src0" in fields else None
    d_regs = shape.d_regs

    def run(m: Convoy) -> None:
        left = _operand(m, row_a, a.type.regs, a_format, shape.m, shape.blocks)
        right = _operand(m, row_b, b.type.regs, b_format, shape.n, shape.blocks)
        if scales is not None:
            left, right = scales[0](m, left), scales[1](m, right)
        product = np.matmul(left, right.transpose(0, 1, 3, 2)).reshape(m.n, -1)
        # [registers, waves, lanes]
        values = product[:, order].transpose(1, 0, 2)
        addend = accumulator(m)
        if shape.type is I32:
            result = (values.astype(np.int64) + addend).astype(i32).view(np.uint32)
        else:
            result = (values + addend).astype(f32).view(np.uint32)
        for n in range(d_regs):
            program.touch(m, row_d + n)
        m.V[row_d : row_d + d_regs, m.sel] = result

    return run


def _accumulator(program: Program, c: Operand, shape: Shape) -> Callable[[Convoy], Any]:
    dtype, wide = (i32, np.int64) if shape.type is I32 else (f32, f64)
    if c.kind in "va":
        row = program.row(c)
        return lambda m: m.V[row : row + shape.d_regs, m.sel].view(dtype).astype(wide)
    raw = fetch_raw(program, c)
    return lambda m: np.asarray(raw(m)).view(dtype).astype(wide)


def _scales(
    program: Program, instruction: Instruction, shape: Shape
) -> list[Callable[[Convoy, np.ndarray], np.ndarray]]:
    """Compile the block scales: lane l's byte is the exponent (bias 127) of row l % M and the l / M-th 32 values of
    k.
    """
    fields = instruction.fields
    out = []
    for n, (name, side) in enumerate((("scale_src0", shape.m), ("scale_src1", shape.n))):
        raw = fetch_raw(program, instruction.src[name])
        byte = (fields["scale_op_sel"] >> n & 1) | (fields["scale_op_sel_hi"] >> n & 1) << 1
        out.append(_scale(raw, np.uint32(8 * byte), side))
    return out


def _scale(raw: Callable[[Convoy], Any], shift: Any, side: int) -> Callable[[Convoy, np.ndarray], np.ndarray]:
    groups = 64 // side
    # The operand holds, per lane group g, k = half * K/2 + 16 * g + j (half 0, 1; j 0..15) in this order: see k of
    # each place.
    k = np.concatenate(
        [np.concatenate([h * 16 * groups + 16 * g + np.arange(16) for h in range(2)]) for g in range(groups)]
    )

    def apply(m: Convoy, values: np.ndarray) -> np.ndarray:
        exponents = np.broadcast_to(np.asarray(raw(m)), (m.n, 64)) >> shift & np.uint32(255)
        factor = np.where(exponents == 255, np.nan, np.exp2(exponents.astype(f64) - 127.0))
        by_row = factor.reshape(m.n, groups, side).transpose(0, 2, 1)
        return values * by_row[:, None, :, k // 32]

    return apply
