"""Print instructions exactly as LLVM's disassembler does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .operands import Operand

if TYPE_CHECKING:
    from .instruction import Instruction

_HWREGS = {
    1: "HW_REG_MODE", 2: "HW_REG_STATUS", 3: "HW_REG_TRAPSTS", 4: "HW_REG_HW_ID", 5: "HW_REG_GPR_ALLOC",
    6: "HW_REG_LDS_ALLOC",
    7: "HW_REG_IB_STS", 15: "HW_REG_SH_MEM_BASES", 16: "HW_REG_TBA_LO", 17: "HW_REG_TBA_HI", 18: "HW_REG_TMA_LO",
    19: "HW_REG_TMA_HI",
    20: "HW_REG_XCC_ID", 21: "HW_REG_SQ_PERF_SNAPSHOT_DATA", 22: "HW_REG_SQ_PERF_SNAPSHOT_DATA1",
    23: "HW_REG_SQ_PERF_SNAPSHOT_PC_LO", 24: "HW_REG_SQ_PERF_SNAPSHOT_PC_HI",
}  # fmt: skip
_OMOD = {0: "", 1: " mul:2", 2: " mul:4", 3: " div:2"}
_SDWA_SELECT = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_SDWA_UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")


def render(instruction: Instruction) -> str:
    """Return the disassembler's text of one instruction, without address and bytes."""
    format_name = instruction.entry.format
    return _RENDERERS[format_name](instruction).rstrip()


def waitcnt_fields(simm16: int) -> tuple[int, int, int]:
    """Split an s_waitcnt immediate into (vmcnt, expcnt, lgkmcnt); GFX9 keeps vmcnt's top bits at 15:14."""
    return (simm16 & 15) | (simm16 >> 10 & 0x30), simm16 >> 4 & 7, simm16 >> 8 & 15


def _list(name: str, bits: int, count: int) -> str:
    return f" {name}:[{','.join(str(bits >> n & 1) for n in range(count))}]"


def _scalar(instruction: Instruction) -> str:
    operands = [*map(str, instruction.dst), *(str(o) for n, o in instruction.src.items() if n != "d")]
    return f"{instruction.name} {', '.join(operands)}"


def _hwreg(simm16: int) -> str:
    register, offset, size = simm16 & 63, simm16 >> 6 & 31, (simm16 >> 11 & 31) + 1
    name = _HWREGS.get(register, str(register))
    return f"hwreg({name})" if (offset, size) == (0, 32) else f"hwreg({name}, {offset}, {size})"


def _sopk(instruction: Instruction) -> str:
    simm16, traits = instruction.fields["simm16"], instruction.traits
    if traits.get("hwreg") == "get":
        return f"{instruction.name} {instruction.dst[0]}, {_hwreg(simm16)}"
    if traits.get("hwreg") == "set":
        value = (
            _small(signed(instruction.fields["literal"], 32)) if traits.get("literal") else str(instruction.src["a"])
        )
        return f"{instruction.name} {_hwreg(simm16)}, {value}"
    first = instruction.dst[0] if instruction.dst else instruction.src["d"]
    return f"{instruction.name} {first}, {simm16 if traits.get('jump') else f'{simm16:#x}'}"


def _sopp(instruction: Instruction) -> str:
    simm16, style = instruction.fields["simm16"], instruction.traits.get("immediate", "decimal")
    if style == "none":
        return instruction.name
    if style == "waitcnt":
        counts = dict(zip(("vmcnt", "expcnt", "lgkmcnt"), waitcnt_fields(simm16), strict=True))
        limits = {"vmcnt": 63, "expcnt": 7, "lgkmcnt": 15}
        shown = {name: n for name, n in counts.items() if n != limits[name]} or counts
        return f"{instruction.name} " + " ".join(f"{name}({n})" for name, n in shown.items())
    if style == "optional" and simm16 == 0:
        return instruction.name
    if style == "sendmsg":
        return f"{instruction.name} {_sendmsg(simm16)}"
    return f"{instruction.name} {simm16 if style in ('branch', 'optional') else _small(simm16)}"


def _small(value: int) -> str:
    """Print an integer as LLVM does: those that are inline constants in decimal, others in hexadecimal."""
    return str(value) if -16 <= value <= 64 else f"{value & 0xFFFFFFFF:#x}"


def _sendmsg(simm16: int) -> str:
    message, rest = simm16 & 15, simm16 >> 4
    if rest == 0 and message in _MESSAGES:
        return f"sendmsg({_MESSAGES[message]})"
    return f"sendmsg({message}, {rest & 7}, {rest >> 4 & 3})" if simm16 < 0x400 and not rest & 8 else str(simm16)


_MESSAGES = {
    1: "MSG_INTERRUPT", 4: "MSG_SAVEWAVE", 5: "MSG_STALL_WAVE_GEN", 6: "MSG_HALT_WAVES", 7: "MSG_ORDERED_PS_DONE",
    9: "MSG_GS_ALLOC_REQ", 10: "MSG_GET_DOORBELL",
}  # fmt: skip


def _smem(instruction: Instruction) -> str:
    fields, kind = instruction.fields, instruction.traits["kind"]
    if kind == "cache":
        return instruction.name
    if kind == "time":
        return f"{instruction.name} {instruction.dst[0]}"
    out = f"{instruction.name} {instruction.dst[0]}, {instruction.src['base']}, "
    if "soffset" in instruction.src:
        out += str(instruction.src["soffset"])
        if fields["imm"]:
            out += f" offset:{signed_hex(fields['offset'], 21)}"
    else:
        out += signed_hex(fields["offset"], 21)
    return out + (" glc" if fields["glc"] else "")


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def signed_hex(value: int, bits: int) -> str:
    return f"{signed(value, bits):#x}"


def _vector(instruction: Instruction) -> str:
    """Print VOP1, VOP2, VOPC in all their variants."""
    name, traits, extra = instruction.name, instruction.traits, instruction.extra
    if instruction.variant != "e32" or traits.get("suffixed"):
        name += f"_{instruction.variant}"
    is_compare = traits.get("base") == "VOPC"
    operands = _destinations(instruction)
    operands += [str(o) for n, o in instruction.src.items() if n not in ("d", "carry", "k")]
    if "k" in instruction.src:
        position = [n for n, _ in instruction.entry.sources].index("k")
        operands.insert(len(instruction.dst) + position, f"{instruction.src['k'].literal:#x}")
    if "carry" in instruction.src:
        operands.append("vcc")
    out = f"{name} {', '.join(operands)}" if operands else name
    if instruction.variant == "dpp":
        out += _dpp(extra)
    elif instruction.variant == "sdwa":
        sources = len([n for n in instruction.src if n not in ("d", "carry", "k")])
        out += (" clamp" if extra["clamp"] and not is_compare else "") + (
            _OMOD[extra["omod"]] if not is_compare else ""
        )
        if not is_compare and not traits.get("no_dst_sel"):
            out += f" dst_sel:{_SDWA_SELECT[extra['dst_sel']]} dst_unused:{_SDWA_UNUSED[extra['dst_unused']]}"
        out += "".join(f" src{n}_sel:{_SDWA_SELECT[extra[f'src{n}_sel']]}" for n in range(sources))
    return out


def _destinations(instruction: Instruction) -> list[str]:
    shown = [
        o
        for o in instruction.dst
        if not (instruction.traits.get("writes_exec") and o.index == 126 and o is instruction.dst[-1])
    ]
    if instruction.traits.get("swap"):
        shown = shown[:1]
    return [str(o) for o in shown]


def _dpp(extra: dict[str, int]) -> str:
    ctrl = extra["ctrl"]
    if ctrl < 0x100:
        text = f"quad_perm:[{','.join(str(ctrl >> 2 * n & 3) for n in range(4))}]"
    elif ctrl < 0x130:
        text = f"{('row_shl', 'row_shr', 'row_ror')[(ctrl >> 4) - 0x10]}:{ctrl & 15}"
    elif ctrl >= 0x150:
        text = f"row_newbcast:{ctrl & 15}"
    else:
        text = {
            0x130: "wave_shl:1", 0x134: "wave_rol:1", 0x138: "wave_shr:1", 0x13C: "wave_ror:1",
            0x140: "row_mirror", 0x141: "row_half_mirror", 0x142: "row_bcast:15", 0x143: "row_bcast:31",
        }[ctrl]  # fmt: skip
    text = f" {text} row_mask:{extra['row_mask']:#x} bank_mask:{extra['bank_mask']:#x}"
    return text + (" bound_ctrl:1" if extra["bound_ctrl"] else "")


def _vop3(instruction: Instruction) -> str:
    fields, traits = instruction.fields, instruction.traits
    name = instruction.name + ("_e64" if traits.get("suffixed") else "")
    operands = _destinations(instruction)
    shown = [
        (n, o) for n, o in instruction.src.items() if n != "d" and not (n == "carry" and traits.get("implicit_vcc"))
    ]
    operands += [str(o) for _, o in shown]
    out = f"{name} {', '.join(operands)}" if operands else name
    if traits.get("permlane"):
        return out + (" bound_ctrl:1" if fields["op_sel"] >> 1 & 1 else "") + (" fi:1" if fields["op_sel"] & 1 else "")
    if traits.get("bitop3"):
        table = truth_table(fields)
        return out + (f" bitop3:{table if table <= 10 else hex(table)}" if table else "")
    if traits.get("op_sel") and fields["op_sel"]:
        sources = traits.get("op_sel_width", len(shown) + 1)
        bits = fields["op_sel"] if sources > 3 else (fields["op_sel"] & 3) | (fields["op_sel"] >> 3 & 1) << len(shown)
        out += _list("op_sel", bits, sources)
    has_clamp = fields["clamp"] and (traits.get("base") != "VOPC" or instruction.src["a"].type.is_float)
    return out + (" clamp" if has_clamp else "") + _OMOD[fields["omod"] if traits.get("omod", True) else 0]


def truth_table(fields: dict[str, int]) -> int:
    """Join the eight-entry table that v_bitop3 keeps in its omod, abs and neg bits."""
    return fields["omod"] << 6 | fields["abs"] << 3 | fields["neg"]


def _vop3p(instruction: Instruction) -> str:
    fields, traits = instruction.fields, instruction.traits
    if "mfma" in traits:
        return _mfma(instruction)
    operands = [*map(str, instruction.dst), *(str(o) for n, o in instruction.src.items() if n != "d")]
    out = f"{instruction.name} {', '.join(operands)}"
    count = len(instruction.entry.sources)
    if traits.get("acc_src") or traits.get("acc_dst"):
        return out
    op_sel_hi = fields["op_sel_hi"] | fields["op_sel_hi2"] << 2
    every = (1 << count) - 1
    if traits.get("mix"):
        out += (_list("op_sel", fields["op_sel"], count) if fields["op_sel"] & every else "") + (
            _list("op_sel_hi", op_sel_hi, count) if op_sel_hi & every else ""
        )
        return out + (" clamp" if fields["clamp"] else "")
    if not traits.get("no_op_sel"):
        if fields["op_sel"] & every:
            out += _list("op_sel", fields["op_sel"], count)
        if op_sel_hi & every != every:
            out += _list("op_sel_hi", op_sel_hi, count)
    if fields["neg"] & every:
        out += _list("neg_lo", fields["neg"], count)
    if fields["neg_hi"] & every:
        out += _list("neg_hi", fields["neg_hi"], count)
    return out + (" clamp" if fields["clamp"] else "")


def _mfma(instruction: Instruction) -> str:
    fields, shape = instruction.fields, instruction.traits["mfma"]
    name = instruction.name
    operands = [str(instruction.dst[0]), *(str(instruction.src[n]) for n in "abc")]
    out = ""
    if "scale_src0" in fields:
        name = name.replace("v_mfma_", "v_mfma_scale_")
        operands += [str(instruction.src["scale_src0"]), str(instruction.src["scale_src1"])]
        if fields["scale_op_sel"]:
            out += _list("op_sel", fields["scale_op_sel"], 3)
        out += _list("op_sel_hi", fields["scale_op_sel_hi"], 3)
    for field in ("cbsz", "abid", "blgp"):
        if fields.get(field):
            out += (
                _list("neg", fields[field], 3) if shape.is_double and field == "blgp" else f" {field}:{fields[field]}"
            )
    return f"{name} {', '.join(operands)}{out}"


def _cache_policy(fields: dict[str, int]) -> str:
    return "".join(f" {name}" for name in ("sc0", "nt", "sc1") if fields[name])


def _flat(instruction: Instruction) -> str:
    fields, kind = instruction.fields, instruction.entry.format
    addr = str(instruction.src.get("addr", "off"))
    data = [str(instruction.src["data"])] if "data" in instruction.src else []
    dst = [str(o) for o in instruction.dst]
    operands = [*dst, addr, *data]
    if kind != "FLAT":
        operands.append(str(instruction.src.get("saddr", "off")))
    offset = fields["offset"] & 0xFFF if kind == "FLAT" else signed(fields["offset"], 13)
    out = f"{instruction.name} {', '.join(operands)}" + (f" offset:{offset}" if offset else "")
    return out + _cache_policy(fields)


def _mubuf(instruction: Instruction) -> str:
    fields, traits = instruction.fields, instruction.traits
    if traits["kind"] == "cache":
        return instruction.name + _cache_policy(fields)
    operands = [
        str(instruction.src["addr"]) if "addr" in instruction.src else "off",
        str(instruction.src["rsrc"]),
        str(instruction.src["soffset"]),
    ]
    if not fields["lds"]:
        data: Operand = instruction.src["data"] if "data" in instruction.src else instruction.dst[0]
        operands.insert(0, str(data))
    out = f"{instruction.name} {', '.join(operands)}"
    out += "".join(f" {name}" for name in ("idxen", "offen") if fields[name])
    out += f" offset:{fields['offset']}" if fields["offset"] else ""
    return out + _cache_policy(fields) + (" lds" if fields["lds"] else "")


def _ds(instruction: Instruction) -> str:
    fields, traits = instruction.fields, instruction.traits
    if traits["kind"] == "nop":
        return instruction.name
    operands = [*map(str, instruction.dst), *(str(o) for n, o in instruction.src.items() if n != "d")]
    out = f"{instruction.name} {', '.join(operands)}"
    if traits.get("two"):
        out += f" offset0:{fields['offset0']}" if fields["offset0"] else ""
        return out + (f" offset1:{fields['offset1']}" if fields["offset1"] else "")
    offset = fields["offset0"] | fields["offset1"] << 8
    if traits["kind"] == "swizzle":
        return out + _swizzle(offset)
    return out + (f" offset:{offset}" if offset else "")


def _swizzle(offset: int) -> str:
    if offset & 0x8000:
        if offset & 0xFF00 == 0x8000:
            return f" offset:swizzle(QUAD_PERM,{','.join(str(offset >> 2 * n & 3) for n in range(4))})"
        return f" offset:{offset}"
    and_, or_, xor = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    if offset == 0:
        return ""
    if (and_, or_) == (31, 0):
        if xor and xor & (xor - 1) == 0:
            return f" offset:swizzle(SWAP,{xor})"
        if xor + 1 > 1 and (xor + 1) & xor == 0:
            return f" offset:swizzle(REVERSE,{xor + 1})"
    group = 32 - and_
    if xor == 0 and group > 1 and group & (group - 1) == 0 and or_ < group:
        return f" offset:swizzle(BROADCAST,{group},{or_})"
    letters = []
    for bit in range(4, -1, -1):
        a, o, x = and_ >> bit & 1, or_ >> bit & 1, xor >> bit & 1
        p0, p1 = (0 & a | o) ^ x, (1 & a | o) ^ x
        letters.append(("0" if p0 == 0 else "1") if p0 == p1 else ("p" if p0 == 0 else "i"))
    return f' offset:swizzle(BITMASK_PERM,"{"".join(letters)}")'


_RENDERERS = {
    "SOP1": _scalar, "SOP2": _scalar, "SOPC": _scalar, "SOPK": _sopk, "SOPP": _sopp, "SMEM": _smem,
    "VOP1": _vector, "VOP2": _vector, "VOPC": _vector, "VOP3": _vop3, "VOP3P": _vop3p, "VOP3PX2": _mfma,
    "DS": _ds, "FLAT": _flat, "GLOBAL": _flat, "SCRATCH": _flat, "MUBUF": _mubuf,
}  # fmt: skip
