"""Declare the instruction encodings of GFX9/CDNA as bit fields.

Sources: "AMD Instinct CDNA3 Instruction Set Architecture", chapter "Microcode Formats", and, for what gfx950 adds
(VOP3PX2), LLVM's assembler. Word 0 holds bits 0..31, word 1 bits 32..63, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..code_object import BitField


@dataclass(frozen=True, slots=True)
class Format:
    """Describe one encoding: the bits of word 0 that name it, its size in words without a literal, its fields."""

    name: str
    mask: int
    value: int
    words: int
    fields: dict[str, BitField]

    def unpack(self, bits: int) -> dict[str, int]:
        return {name: field.of(bits) for name, field in self.fields.items()}


def _format(name: str, value: int, prefix_bits: int, words: int, **fields: tuple[int, int]) -> Format:
    mask = (0xFFFFFFFF << (32 - prefix_bits)) & 0xFFFFFFFF
    return Format(name, mask, value, words, {key: BitField(*where) for key, where in fields.items()})


_FLAT_FIELDS = dict(
    offset=(0, 13), lds=(13, 1), seg=(14, 2), sc0=(16, 1), nt=(17, 1), op=(18, 7), sc1=(25, 1),
    addr=(32, 8), data=(40, 8), saddr=(48, 7), acc=(55, 1), vdst=(56, 8),
)  # fmt: skip

_VOP3P_FIELDS = dict(
    vdst=(0, 8), neg_hi=(8, 3), op_sel=(11, 3), op_sel_hi2=(14, 1), clamp=(15, 1), op=(16, 7),
    src0=(32, 9), src1=(41, 9), src2=(50, 9), op_sel_hi=(59, 2), neg=(61, 3),
)  # fmt: skip

# Specific before general: the first format whose prefix matches is the one.
FORMATS = (
    _format("SOP1", 0xBE800000, 9, 1, src0=(0, 8), op=(8, 8), sdst=(16, 7)),
    _format("SOPC", 0xBF000000, 9, 1, src0=(0, 8), src1=(8, 8), op=(16, 7)),
    _format("SOPP", 0xBF800000, 9, 1, simm16=(0, 16), op=(16, 7)),
    _format("SOPK", 0xB0000000, 4, 1, simm16=(0, 16), sdst=(16, 7), op=(23, 5)),
    _format("SOP2", 0x80000000, 2, 1, src0=(0, 8), src1=(8, 8), sdst=(16, 7), op=(23, 7)),
    _format(
        "SMEM", 0xC0000000, 6, 2,
        sbase=(0, 6), sdata=(6, 7), soffset_en=(14, 1), nv=(15, 1), glc=(16, 1), imm=(17, 1), op=(18, 8),
        offset=(32, 21), soffset=(57, 7),
    ),
    _format("VOPC", 0x7C000000, 7, 1, src0=(0, 9), vsrc1=(9, 8), op=(17, 8)),
    _format("VOP1", 0x7E000000, 7, 1, src0=(0, 9), op=(9, 8), vdst=(17, 8)),
    _format("VOP2", 0x00000000, 1, 1, src0=(0, 9), vsrc1=(9, 8), vdst=(17, 8), op=(25, 6)),
    # A VOP3P MFMA behind a v_mfma_ld_scale_b32 that carries the two scale operands: one 16-byte instruction.
    _format(
        "VOP3PX2", 0xD3AC0000, 16, 4,
        scale_op_sel=(11, 2), scale_src0=(32, 9), scale_src1=(41, 9), scale_op_sel_hi=(59, 2),
        vdst=(64, 8), cbsz=(72, 3), op_sel=(75, 3), clamp=(79, 1), op=(80, 7),
        src0=(96, 9), src1=(105, 9), src2=(114, 9), acc=(123, 2), blgp=(125, 3), acc_cd=(79, 1),
    ),
    _format(
        "VOP3P", 0xD3800000, 9, 2,
        **_VOP3P_FIELDS, cbsz=(8, 3), abid=(11, 4), acc_cd=(15, 1), acc=(59, 2), blgp=(61, 3),
    ),
    _format(
        "VOP3", 0xD0000000, 6, 2,
        vdst=(0, 8), abs=(8, 3), op_sel=(11, 4), clamp=(15, 1), op=(16, 10), sdst=(8, 7),
        src0=(32, 9), src1=(41, 9), src2=(50, 9), omod=(59, 2), neg=(61, 3),
    ),
    _format(
        "DS", 0xD8000000, 6, 2,
        offset0=(0, 8), offset1=(8, 8), gds=(16, 1), op=(17, 8), acc=(25, 1),
        addr=(32, 8), data0=(40, 8), data1=(48, 8), vdst=(56, 8),
    ),
    _format("FLAT", 0xDC000000, 6, 2, **_FLAT_FIELDS),
    _format(
        "MUBUF", 0xE0000000, 6, 2,
        offset=(0, 12), offen=(12, 1), idxen=(13, 1), sc0=(14, 1), sc1=(15, 1), lds=(16, 1), nt=(17, 1), op=(18, 7),
        vaddr=(32, 8), vdata=(40, 8), srsrc=(48, 5), acc=(55, 1), soffset=(56, 8),
    ),
)  # fmt: skip

# The word behind a VOP1/VOP2/VOPC whose src0 field is 249 (SDWA) or 250 (DPP).
SDWA_SRC, DPP_SRC, LITERAL_SRC = 249, 250, 255
DPP = {
    name: BitField(*where)
    for name, where in dict(
        src0=(0, 8), ctrl=(8, 9), bound_ctrl=(19, 1), neg0=(20, 1), abs0=(21, 1), neg1=(22, 1), abs1=(23, 1),
        bank_mask=(24, 4), row_mask=(28, 4),
    ).items()
}  # fmt: skip
SDWA = {
    name: BitField(*where)
    for name, where in dict(
        src0=(0, 8), dst_sel=(8, 3), dst_unused=(11, 2), clamp=(13, 1), omod=(14, 2), sdst=(8, 7), sdst_en=(15, 1),
        src0_sel=(16, 3), sext0=(19, 1), neg0=(20, 1), abs0=(21, 1), sgpr0=(23, 1),
        src1_sel=(24, 3), sext1=(27, 1), neg1=(28, 1), abs1=(29, 1), sgpr1=(31, 1),
    ).items()
}  # fmt: skip


def match(word: int) -> Format | None:
    """Return the encoding that word 0 belongs to, or None."""
    for candidate in FORMATS:
        if word & candidate.mask == candidate.value:
            return candidate
    return None
