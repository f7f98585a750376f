"""Name the things an instruction reads and writes: types, register rows, constants, and how LLVM prints them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Type:
    """Describe what a body sees: ``dtype`` of an element, ``regs`` 32-bit registers it takes, ``bits`` it holds."""

    name: str
    dtype: np.dtype
    regs: int
    bits: int

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"


def _type(name: str, dtype: type, bits: int) -> Type:
    return Type(name, np.dtype(dtype), max(1, bits // 32), bits)


U16, I16, F16 = _type("U16", np.uint16, 16), _type("I16", np.int16, 16), _type("F16", np.float16, 16)
U32, I32, F32 = _type("U32", np.uint32, 32), _type("I32", np.int32, 32), _type("F32", np.float32, 32)
U64, I64, F64 = _type("U64", np.uint64, 64), _type("I64", np.int64, 64), _type("F64", np.float64, 64)
# bfloat16 as raw bits: numpy has no such type.
BF16 = Type("BF16", np.dtype(np.uint16), 1, 16)
# Two 32-bit halves that a body handles apart: arrays of shape [2, waves, lanes].
PK_F32, PK_B32 = Type("PK_F32", np.dtype(np.float32), 2, 64), Type("PK_B32", np.dtype(np.uint32), 2, 64)
# A bool per lane, kept as a 64-bit scalar register pair.
MASK = Type("MASK", np.dtype(bool), 2, 64)
# What a body's annotations may name.
TYPES = {t.name: t for t in (U16, I16, F16, BF16, U32, I32, F32, U64, I64, F64, PK_F32, PK_B32, MASK)}


def block(regs: int) -> Type:
    """Return the type of ``regs`` consecutive registers that pass through as 32-bit words."""
    return Type(f"B{32 * regs}", np.dtype(np.uint32), regs, 32 * regs)


# Scalar register file rows.
FLAT_SCRATCH, XNACK_MASK, VCC, TTMP0, M0, EXEC = 102, 104, 106, 108, 124, 126
SGPR_ROWS = 128

# Bits of Operand.mask(): arch VGPR r is bit r, AGPR r bit 256 + r, scalar row r bit 512 + r.
AGPR_BIT, SGPR_BIT = 256, 512

_SPECIAL_SINGLE = {
    102: "flat_scratch_lo", 103: "flat_scratch_hi", 104: "xnack_mask_lo", 105: "xnack_mask_hi",
    106: "vcc_lo", 107: "vcc_hi",
    124: "m0", 126: "exec_lo", 127: "exec_hi",
}  # fmt: skip
_SPECIAL_PAIR = {102: "flat_scratch", 104: "xnack_mask", 106: "vcc", 126: "exec"}
_APERTURES = {
    235: "src_shared_base", 236: "src_shared_limit", 237: "src_private_base", 238: "src_private_limit",
    239: "src_pops_exiting_wave_id", 251: "src_vccz", 252: "src_execz", 253: "src_scc", 254: "src_lds_direct",
}  # fmt: skip
_FLOATS = {
    240: (0.5, "0.5"), 241: (-0.5, "-0.5"), 242: (1.0, "1.0"), 243: (-1.0, "-1.0"), 244: (2.0, "2.0"),
    245: (-2.0, "-2.0"),
    246: (4.0, "4.0"), 247: (-4.0, "-4.0"), 248: (0.15915494309189532, "0.15915494"),
}  # fmt: skip

# ISA: 1/(2*pi) as an inline constant is this bit pattern for each width.
_INV_2PI_BITS = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
_FLOAT_OF_BITS = {16: np.float16, 32: np.float32, 64: np.float64}

# Flat addresses whose top 32 bits are these belong to LDS and scratch.
SHARED_BASE, PRIVATE_BASE = 0x0001_0000 << 32, 0x0002_0000 << 32


@dataclass(frozen=True, slots=True)
class Operand:
    """Be one operand: ``kind`` is "v", "a", "s" (register row ``index``), "const" (source code ``index``) or "literal".

    ``negate`` and ``absolute`` are the float source modifiers, ``high`` takes bits 31:16 for 16-bit types, ``sext`` and
    ``select`` belong to SDWA.
    """

    kind: str
    index: int
    type: Type
    literal: int = 0
    negate: bool = False
    absolute: bool = False
    high: bool = False
    sext: bool = False
    select: int = 6

    def mask(self) -> int:
        """Return the register bits (see AGPR_BIT, SGPR_BIT) that this operand touches."""
        first = {"v": 0, "a": AGPR_BIT, "s": SGPR_BIT}.get(self.kind)
        return 0 if first is None else ((1 << self.type.regs) - 1) << (first + self.index)

    def having(self, **changes: Any) -> Operand:
        return replace(self, **changes)

    def constant_bits(self) -> int:
        """Return the value of a constant or literal as an unsigned integer of the type's width."""
        bits = self.type.bits if self.type.name not in ("PK_F32", "PK_B32") else 32
        if self.kind == "literal":
            if bits == 64 and self.type.is_float:
                return self.literal << 32
            if bits == 64 and self.type.dtype.kind == "i" and self.literal >> 31:
                return self.literal | 0xFFFFFFFF << 32
            return self.literal & ((1 << bits) - 1)
        if 128 <= self.index <= 192:
            return self.index - 128
        if 193 <= self.index <= 208:
            return (192 - self.index) & ((1 << bits) - 1)
        if self.index in (235, 236):
            return (SHARED_BASE if self.index == 235 else SHARED_BASE | 0xFFFFFFFF) >> (0 if bits == 64 else 32)
        if self.index in (237, 238):
            return (PRIVATE_BASE if self.index == 237 else PRIVATE_BASE | 0xFFFFFFFF) >> (0 if bits == 64 else 32)
        if self.type is BF16:
            return int(np.array(_FLOATS[self.index][0], np.float32).view(np.uint32)) >> 16
        if self.index == 248:
            return _INV_2PI_BITS[bits]
        width = bits if bits in _FLOAT_OF_BITS else 32
        return int(np.array(_FLOATS[self.index][0], _FLOAT_OF_BITS[width]).view(f"u{width // 8}"))

    def __str__(self) -> str:
        text = self.plain()
        if self.sext:
            text = f"sext({text})"
        if self.absolute:
            text = f"|{text}|"
        if self.negate:
            # A bare minus before a constant would read as part of it.
            return (
                f"neg({text})"
                if self.kind in ("const", "literal") and not self.absolute and self.index not in _APERTURES
                else f"-{text}"
            )
        return text

    def plain(self) -> str:
        """Print without modifiers."""
        if self.kind == "literal":
            return f"{self.constant_bits() if self.type.bits == 16 else self.literal:#x}"
        if self.kind == "const":
            if self.index in _APERTURES:
                return _APERTURES[self.index]
            if self.index in _FLOATS and self.type in (U16, I16):
                return f"{self.constant_bits():#x}"
            if self.index == 248 and self.type.bits == 64 and self.type.name != "PK_F32":
                return "0.15915494309189532"
            if self.index in _FLOATS:
                return _FLOATS[self.index][1]
            return str(self.index - 128 if self.index <= 192 else 192 - self.index)
        return register_text(self.kind, self.index, self.type.regs)


def register_text(kind: str, index: int, regs: int) -> str:
    """Print a register range as LLVM does, e.g. ``v[2:3]``, ``vcc``, ``ttmp5``."""
    if kind == "s":
        if regs == 1 and index in _SPECIAL_SINGLE:
            return _SPECIAL_SINGLE[index]
        if regs == 2 and index in _SPECIAL_PAIR:
            return _SPECIAL_PAIR[index]
        if TTMP0 <= index < M0:
            kind, index = "ttmp", index - TTMP0
    return f"{kind}{index}" if regs == 1 else f"{kind}[{index}:{index + regs - 1}]"


def scalar_source(code: int, type_: Type, literal: int | None) -> Operand | None:
    """Return the operand that an 8-bit scalar source code names, or None if it is reserved."""
    if code < SGPR_ROWS:
        return Operand("s", code, type_)
    if code == 255:
        return None if literal is None else Operand("literal", 255, type_, literal)
    if code <= 208 or 235 <= code <= 238 or 240 <= code <= 248 or 251 <= code <= 253:
        return Operand("const", code, type_)
    return None


def vector_source(code: int, type_: Type, literal: int | None) -> Operand | None:
    """Return the operand that a 9-bit vector source code names, or None if it is reserved."""
    return Operand("v", code - 256, type_) if code >= 256 else scalar_source(code, type_, literal)
