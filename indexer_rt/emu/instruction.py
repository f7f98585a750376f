"""Decode code bytes into instructions: operands, modifiers and the registers touched."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from ..errors import EmulatorFault
from . import formats, text
from .operands import (
    EXEC,
    M0,
    MASK,
    SGPR_BIT,
    SGPR_ROWS,
    U32,
    U64,
    VCC,
    Operand,
    Type,
    block,
    scalar_source,
    vector_source,
)
from .table import TABLE, Entry


@dataclass(slots=True)
class Instruction:
    """Be one decoded instruction.

    ``offset`` and ``size`` in bytes; ``name`` the mnemonic without encoding suffix; ``fields`` the raw bit fields;
    ``dst`` the results, ``src`` the operands by parameter name; ``extra`` the DPP or SDWA word's fields.
    ``reads``, ``writes`` and ``touches`` are register sets as integers (see ``operands.AGPR_BIT``).
    """

    offset: int
    words: tuple[int, ...]
    entry: Entry
    fields: dict[str, int]
    dst: tuple[Operand, ...] = ()
    src: dict[str, Operand] = field(default_factory=dict)
    variant: str = ""
    extra: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    writes: int = 0
    touches: int = 0
    needs: int = 0

    @property
    def size(self) -> int:
        return 4 * len(self.words)

    @property
    def name(self) -> str:
        return self.entry.mnemonic

    @property
    def traits(self) -> dict[str, Any]:
        return self.entry.traits

    def __str__(self) -> str:
        return text.render(self)


class _Reader:
    """Hold what the decoding of one instruction needs: raw fields, the literal, and a way to complain."""

    def __init__(self, code: bytes, offset: int) -> None:
        self.offset = offset
        available = min(20, len(code) - offset) // 4
        if offset % 4 or available < 1:
            raise EmulatorFault(f"+{offset:#x}: no whole instruction word: the code has {len(code)} bytes.")
        self.stream = struct.unpack_from(f"<{available}I", code, offset)
        self.used = 0

    def take(self, count: int) -> tuple[int, ...]:
        if self.used + count > len(self.stream):
            raise EmulatorFault(
                f"+{self.offset:#x}: the code ends within an instruction ({self.hex(len(self.stream))})."
            )
        self.used += count
        return self.stream[self.used - count : self.used]

    def hex(self, count: int) -> str:
        return " ".join(f"{word:08x}" for word in self.stream[:count])

    def unknown(self, what: str) -> EmulatorFault:
        return EmulatorFault(f"{what} ({self.hex(min(2, len(self.stream)))}) at +{self.offset:#x}")


def decode(code: bytes, offset: int = 0) -> Instruction:
    """Decode the instruction at byte ``offset``. Raises EmulatorFault, with its words, when the tables lack it."""
    reader = _Reader(code, offset)
    encoding = formats.match(reader.stream[0])
    if encoding is None:
        raise reader.unknown("unknown encoding")
    words = reader.take(encoding.words)
    fields = encoding.unpack(sum(word << 32 * n for n, word in enumerate(words)))
    key, home = encoding.name, _HOMES[encoding.name]
    if key == "FLAT":
        key = ("FLAT", "SCRATCH", "GLOBAL", "reserved")[fields["seg"]]
    entry = TABLE.get((key, fields["op"]))
    if entry is None:
        raise EmulatorFault(
            f"{key.lower()} opcode {fields['op']:#x} ({reader.hex(encoding.words)}) at +{offset:#x} is not in the "
            f"table. Add it to emu/{home}.py."
        )
    instruction = Instruction(offset, words, entry, fields)
    _DECODERS[encoding.name](instruction, reader)
    instruction.words = reader.stream[: reader.used]
    _collect(instruction)
    return instruction


def disassemble(code: bytes) -> list[tuple[int, Instruction]]:
    """Decode ``code`` from end to end. Raises EmulatorFault at the first unknown instruction."""
    out, offset = [], 0
    while offset < len(code):
        instruction = decode(code, offset)
        out.append((offset, instruction))
        offset += instruction.size
    return out


def _collect(instruction: Instruction) -> None:
    """Work out which registers the instruction reads and writes."""
    reads = writes = 0
    for name, operand in instruction.src.items():
        if not (name == "d" and instruction.traits.get("d_is_fill")):
            reads |= operand.mask()
    for operand in instruction.dst:
        writes |= operand.mask()
    for row in instruction.traits.get("reads_rows", ()):
        reads |= 1 << (SGPR_BIT + row)
    instruction.reads, instruction.writes, instruction.touches = reads, writes, reads | writes


def _need(operand: Operand | None, reader: _Reader, code: int) -> Operand:
    if operand is None:
        raise reader.unknown(f"reserved source operand {code}")
    return operand


def _literal(reader: _Reader, *codes: int) -> int | None:
    return reader.take(1)[0] if formats.LITERAL_SRC in codes else None


# --- scalar -----------------------------------------------------------------------------------------------------------


def _scalar(instruction: Instruction, reader: _Reader) -> None:
    fields, entry = instruction.fields, instruction.entry
    literal = _literal(reader, *(fields[name] for name in ("src0", "src1") if name in fields))
    codes = [fields[name] for name in ("src0", "src1") if name in fields]
    for (name, type_), code in zip((s for s in entry.sources if s[0] != "scc"), codes, strict=False):
        instruction.src[name] = _need(scalar_source(code, type_, literal), reader, code)
    _scalar_results(instruction, entry)


def _scalar_results(instruction: Instruction, entry: Entry) -> None:
    results = [t for t in entry.dst if t is not MASK]
    if results and "sdst" in instruction.fields:
        instruction.dst = (Operand("s", instruction.fields["sdst"], results[0]),)
    for name, type_ in entry.params:
        if name == "d" and type_ is not None:
            instruction.src["d"] = Operand("s", instruction.fields["sdst"], type_)


def _sopk(instruction: Instruction, reader: _Reader) -> None:
    if instruction.traits.get("literal"):
        instruction.fields["literal"] = reader.take(1)[0]
    if instruction.traits.get("hwreg") == "set":
        if not instruction.traits.get("literal"):
            instruction.src["a"] = Operand("s", instruction.fields["sdst"], U32)
        return
    _scalar_results(instruction, instruction.entry)


def _sopp(instruction: Instruction, reader: _Reader) -> None:
    del instruction, reader


def _smem(instruction: Instruction, reader: _Reader) -> None:
    del reader
    fields, traits = instruction.fields, instruction.traits
    kind = traits["kind"]
    if kind in ("load", "buffer_load", "time"):
        instruction.dst = (
            Operand(
                "s",
                fields["sdata"],
                {1: U32, 2: U64}.get(traits["count"]) or block(traits["count"]),
            ),
        )
    if kind in ("load", "buffer_load"):
        instruction.src["base"] = Operand("s", 2 * fields["sbase"], U64 if kind == "load" else block(4))
        if not fields["imm"]:
            instruction.src["soffset"] = Operand("s", fields["offset"] & 0x7F, U32)
        elif fields["soffset_en"]:
            instruction.src["soffset"] = Operand("s", fields["soffset"], U32)


# --- vector -----------------------------------------------------------------------------------------------------------


def _vector_short(instruction: Instruction, reader: _Reader) -> None:
    """Decode VOP1, VOP2 and VOPC, with a literal, DPP or SDWA word behind them."""
    fields, entry = instruction.fields, instruction.entry
    names = [source for source in entry.sources if source[0] not in ("carry", "k")]
    code = fields["src0"]
    operands: list[Operand] = []
    literal = None
    if code == formats.DPP_SRC:
        word = reader.take(1)[0]
        instruction.variant = "dpp"
        instruction.extra = {name: bits.of(word) for name, bits in formats.DPP.items()}
        extra = instruction.extra
        operands.append(
            Operand("v", extra["src0"], names[0][1], negate=bool(extra["neg0"]), absolute=bool(extra["abs0"]))
        )
        if len(names) > 1:
            operands.append(
                Operand("v", fields["vsrc1"], names[1][1], negate=bool(extra["neg1"]), absolute=bool(extra["abs1"]))
            )
    elif code == formats.SDWA_SRC:
        word = reader.take(1)[0]
        instruction.variant = "sdwa"
        instruction.extra = {name: bits.of(word) for name, bits in formats.SDWA.items()}
        operands = [_sdwa_operand(instruction, n, type_, reader) for n, (_, type_) in enumerate(names)]
    else:
        instruction.variant = "e32"
        if code == formats.LITERAL_SRC or any(name == "k" for name, _ in entry.params):
            literal = reader.take(1)[0]
        if names:
            operands.append(_need(vector_source(code, names[0][1], literal), reader, code))
        if len(names) > 1:
            operands.append(Operand("v", fields["vsrc1"], names[1][1]))
    if instruction.traits.get("acc"):
        operands = [operand.having(kind="a") for operand in operands]
    instruction.src = {name: operand for (name, _), operand in zip(names, operands, strict=True)}
    for name, type_ in entry.params:
        if name == "carry":
            instruction.src[name] = Operand("s", VCC, MASK)
        elif name == "k" and type_ is not None:
            instruction.src[name] = Operand("literal", 255, type_, literal or 0)
    _vector_results(instruction)


def _sdwa_operand(instruction: Instruction, n: int, type_: Type, reader: _Reader) -> Operand:
    extra = instruction.extra
    code = extra["src0"] if n == 0 else instruction.fields["vsrc1"]
    modifiers: dict[str, Any] = dict(
        negate=bool(extra[f"neg{n}"]),
        absolute=bool(extra[f"abs{n}"]),
        sext=bool(extra[f"sext{n}"]),
        select=extra[f"src{n}_sel"],
    )
    if extra[f"sgpr{n}"]:
        return _need(scalar_source(code, type_, None), reader, code).having(**modifiers)
    return Operand("v", code, type_, **modifiers)


def _vector_results(instruction: Instruction) -> None:
    """Attach destinations, and the old destination where the body asks for it."""
    fields, entry, traits = instruction.fields, instruction.entry, instruction.traits
    kind = "s" if traits.get("sdst") else "a" if traits.get("acc") or traits.get("acc_dst") else "v"
    results: list[Operand] = []
    for position, result in enumerate(entry.dst):
        if traits.get("swap") and position == 1:
            results.append(instruction.src["a"].having(type=result))
        elif result is MASK:
            results.append(Operand("s", _mask_row(instruction), MASK))
        else:
            results.append(Operand(kind, fields["vdst"], result))
    if traits.get("writes_exec"):
        results.append(Operand("s", EXEC, MASK))
    instruction.dst = tuple(results)
    for name, type_ in entry.params:
        if name == "d" and type_ is not None:
            instruction.src["d"] = Operand(kind, fields["vdst"], type_)
    preserves = (
        instruction.variant == "sdwa" and instruction.extra["dst_unused"] == 2 and instruction.extra["dst_sel"] != 6
    ) or traits.get("preserves_high")
    if preserves and "d" not in instruction.src and results and results[0].kind == "v":
        instruction.src["d"] = results[0].having(type=U32)


def _mask_row(instruction: Instruction) -> int:
    """Say which scalar pair a compare or carry-out goes to."""
    if instruction.variant in ("", "e64"):
        return instruction.fields["vdst"] if instruction.traits.get("base") == "VOPC" else instruction.fields["sdst"]
    if instruction.variant == "sdwa" and instruction.traits.get("base") == "VOPC" and instruction.extra["sdst_en"]:
        return instruction.extra["sdst"]
    return VCC


def _vop3(instruction: Instruction, reader: _Reader) -> None:
    fields, entry, traits = instruction.fields, instruction.entry, instruction.traits
    instruction.variant = "e64"
    has_sdst = len(entry.dst) > 1 and entry.dst[1] is MASK
    absolute = 0 if has_sdst else fields["abs"]
    op_sel = fields["op_sel"] if traits.get("op_sel") else 0
    ignores = has_sdst or traits.get("permlane") or traits.get("base") == "VOPC"
    if fields["op_sel"] and not (ignores or traits.get("op_sel")):
        raise reader.unknown(f"{instruction.name} has no op_sel, got {fields['op_sel']:#x}")
    position = 0
    for name, type_ in entry.sources:
        if name == "carry":
            row = VCC if traits.get("implicit_vcc") else fields["src2"]
            if row >= SGPR_ROWS:
                raise reader.unknown(f"{instruction.name} takes a scalar register pair as its mask, not source {row}")
            instruction.src[name] = Operand("s", row, MASK)
            continue
        code = fields[f"src{position}"]
        operand = _need(vector_source(code, type_, None), reader, code)
        modifiers: dict[str, Any] = {}
        if traits.get("modifiers", type_.is_float or type_.name in ("PK_F32", "BF16")):
            modifiers = dict(negate=bool(fields["neg"] >> position & 1), absolute=bool(absolute >> position & 1))
        if type_.bits == 16:
            modifiers["high"] = bool(op_sel >> position & 1)
        instruction.src[name] = operand.having(**modifiers)
        position += 1
    _vector_results(instruction)


def _vop3p(instruction: Instruction, reader: _Reader) -> None:
    fields, entry = instruction.fields, instruction.entry
    traits = instruction.traits
    if "mfma" in traits:
        _mfma(instruction, reader)
        return
    for position, (name, type_) in enumerate(entry.sources):
        code = fields[f"src{position}"]
        operand = _need(vector_source(code, type_, None), reader, code)
        if traits.get("acc_src") and operand.kind == "v":
            operand = operand.having(kind="a")
        if traits.get("mix"):
            operand = operand.having(
                negate=bool(fields["neg"] >> position & 1), absolute=bool(fields["neg_hi"] >> position & 1)
            )
        instruction.src[name] = operand
    _vector_results(instruction)


def _mfma(instruction: Instruction, reader: _Reader) -> None:
    fields, shape = instruction.fields, instruction.traits["mfma"]
    a_regs, b_regs = shape.operand_regs(fields["cbsz"], fields["blgp"])
    for position, (name, regs) in enumerate((("a", a_regs), ("b", b_regs))):
        code = fields[f"src{position}"]
        if code < 256:
            raise reader.unknown(f"{instruction.name} takes registers for A and B, not source {code}")
        kind = "a" if fields["acc"] >> position & 1 else "v"
        instruction.src[name] = Operand(kind, code - 256, block(regs))
    operand = _need(vector_source(fields["src2"], shape.type, None), reader, fields["src2"])
    kind = "a" if fields["acc_cd"] else "v"
    if operand.kind == "v":
        operand = operand.having(kind=kind, type=block(shape.d_regs))
    instruction.src["c"] = operand
    instruction.dst = (Operand(kind, fields["vdst"], block(shape.d_regs)),)
    if "scale_src0" in fields:
        for name in ("scale_src0", "scale_src1"):
            instruction.src[name] = _need(vector_source(fields[name], U32, None), reader, fields[name])


# --- memory -----------------------------------------------------------------------------------------------------------


def _words_type(regs: int) -> Type:
    return U32 if regs == 1 else block(regs)


def _flat(instruction: Instruction, reader: _Reader) -> None:
    del reader
    fields, traits = instruction.fields, instruction.traits
    kind = "a" if fields["acc"] else "v"
    has_saddr = instruction.entry.format == "GLOBAL" and fields["saddr"] != 0x7F
    if instruction.entry.format == "SCRATCH":
        if fields["lds"]:
            instruction.src["addr"] = Operand("v", fields["addr"], U32)
        if fields["saddr"] != 0x7F:
            instruction.src["saddr"] = Operand("s", fields["saddr"], U32)
    else:
        instruction.src["addr"] = Operand("v", fields["addr"], U32 if has_saddr else U64)
        if has_saddr:
            instruction.src["saddr"] = Operand("s", fields["saddr"], U64)
    _memory_data(instruction, kind, fields["data"], fields["vdst"], bool(fields["sc0"]))
    if traits["kind"] == "load_lds":
        instruction.src["m0"] = Operand("s", M0, U32)


def _memory_data(instruction: Instruction, kind: str, data: int, dst: int, returns: bool) -> None:
    traits = instruction.traits
    if traits["kind"] in ("store", "atomic"):
        instruction.src["data"] = Operand(kind, data, _words_type(traits["data_regs"]))
    if traits["kind"] == "load" or (traits["kind"] == "atomic" and returns):
        instruction.dst = (Operand(kind, dst, _words_type(traits["dst_regs"])),)
        if traits.get("d16"):
            instruction.src["d"] = Operand(kind, dst, U32)


def _mubuf(instruction: Instruction, reader: _Reader) -> None:
    fields, traits = instruction.fields, instruction.traits
    if traits["kind"] == "cache":
        return
    kind = "a" if fields["acc"] else "v"
    if fields["idxen"] or fields["offen"]:
        instruction.src["addr"] = Operand("v", fields["vaddr"], U64 if fields["idxen"] and fields["offen"] else U32)
    instruction.src["rsrc"] = Operand("s", 4 * fields["srsrc"], block(4))
    instruction.src["soffset"] = _need(scalar_source(fields["soffset"], U32, None), reader, fields["soffset"])
    if fields["lds"]:
        instruction.src["m0"] = Operand("s", M0, U32)
    else:
        _memory_data(instruction, kind, fields["vdata"], fields["vdata"], bool(fields["sc0"]))


def _ds(instruction: Instruction, reader: _Reader) -> None:
    del reader
    fields, traits = instruction.fields, instruction.traits
    kind = "a" if fields["acc"] else "v"
    if traits["kind"] == "nop":
        return
    if not traits.get("no_addr"):
        instruction.src["addr"] = Operand("v", fields["addr"], U32)
    for n, regs in enumerate(traits.get("data", ())):
        instruction.src[f"data{n}"] = Operand(kind, fields[f"data{n}"], _words_type(regs))
    if traits.get("dst_regs"):
        instruction.dst = (Operand(kind, fields["vdst"], _words_type(traits["dst_regs"])),)
        if traits.get("d16"):
            instruction.src["d"] = Operand(kind, fields["vdst"], U32)


_DECODERS = {
    "SOP1": _scalar, "SOP2": _scalar, "SOPC": _scalar, "SOPK": _sopk, "SOPP": _sopp, "SMEM": _smem,
    "VOP1": _vector_short, "VOP2": _vector_short, "VOPC": _vector_short, "VOP3": _vop3, "VOP3P": _vop3p,
    "VOP3PX2": _mfma,
    "DS": _ds, "FLAT": _flat, "MUBUF": _mubuf,
}  # fmt: skip

# Where a person adds an instruction of each encoding.
_HOMES = {
    "SOP1": "scalar", "SOP2": "scalar", "SOPC": "scalar", "SOPK": "scalar", "SOPP": "control", "SMEM": "smem",
    "VOP1": "vector_float.py or emu/vector_integer", "VOP2": "vector_float.py or emu/vector_integer",
    "VOPC": "vector_compare",
    "VOP3": "vector_float.py or emu/vector_integer", "VOP3P": "packed", "VOP3PX2": "matrix", "DS": "lds",
    "FLAT": "vmem", "MUBUF": "vmem",
}  # fmt: skip
