"""Run vector memory: FLAT, GLOBAL, MUBUF; loads, stores, atomics, loads into LDS. Scratch is a fault.

MUBUF range checking follows the CDNA3 ISA, section "Buffer Addressing", for raw and structured buffers: a load out of
range returns 0, a store out of range is dropped. Swizzled buffers are a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from . import atomics
from .memory import extend, merge_half
from .operands import PRIVATE_BASE, SHARED_BASE
from .registers import fetch_scalar, fetch_vector, join64, put
from .table import Entry, add
from .text import signed

if TYPE_CHECKING:
    from .convoy import Convoy
    from .instruction import Instruction
    from .program import Program

u16, u32, u64, i64 = np.uint16, np.uint32, np.uint64, np.int64

# opcode -> (suffix, bytes per lane, sign-extend from bits or 0, half written or None): the same for all three formats.
LOADS = {
    0x10: ("ubyte", 1, 0, None), 0x11: ("sbyte", 1, 8, None), 0x12: ("ushort", 2, 0, None),
    0x13: ("sshort", 2, 16, None),
    0x14: ("dword", 4, 0, None), 0x15: ("dwordx2", 8, 0, None), 0x16: ("dwordx3", 12, 0, None),
    0x17: ("dwordx4", 16, 0, None),
    0x20: ("ubyte_d16", 1, 0, 0), 0x21: ("ubyte_d16_hi", 1, 0, 1), 0x22: ("sbyte_d16", 1, 8, 0),
    0x23: ("sbyte_d16_hi", 1, 8, 1),
    0x24: ("short_d16", 2, 0, 0), 0x25: ("short_d16_hi", 2, 0, 1),
}  # fmt: skip
# opcode -> (suffix, bytes per lane, right shift of the data)
STORES = {
    0x18: ("byte", 1, 0), 0x19: ("byte_d16_hi", 1, 16), 0x1A: ("short", 2, 0), 0x1B: ("short_d16_hi", 2, 16),
    0x1C: ("dword", 4, 0), 0x1D: ("dwordx2", 8, 0), 0x1E: ("dwordx3", 12, 0), 0x1F: ("dwordx4", 16, 0),
}  # fmt: skip
# opcode -> (suffix, bytes per lane, sign-extend from bits)
LDS_LOADS = {
    0x26: ("ubyte", 1, 0), 0x27: ("sbyte", 1, 8), 0x28: ("ushort", 2, 0), 0x29: ("sshort", 2, 16),
    0x2A: ("dword", 4, 0),
    0x7D: ("dwordx4", 16, 0), 0x7E: ("dwordx3", 12, 0),
}  # fmt: skip
# opcode -> (suffix, operation, bits)
ATOMICS = {0x40 + n: (name, name, 32) for n, name in enumerate(
    ("swap", "cmpswap", "add", "sub", "smin", "umin", "smax", "umax", "and", "or", "xor", "inc", "dec"))}  # fmt: skip
ATOMICS |= {opcode + 0x20: (f"{suffix}_x2", operation, 64) for opcode, (suffix, operation, _) in ATOMICS.items()}
ATOMICS |= {
    0x4D: ("add_f32", "fadd", 32), 0x4E: ("pk_add_f16", "pk_add_f16", 32), 0x4F: ("add_f64", "fadd", 64),
    0x50: ("min_f64", "fmin", 64), 0x51: ("max_f64", "fmax", 64), 0x52: ("pk_add_bf16", "pk_add_bf16", 32),
}  # fmt: skip


def _register() -> None:
    for format_name, prefix in (("FLAT", "flat"), ("GLOBAL", "global"), ("SCRATCH", "scratch"), ("MUBUF", "buffer")):
        for opcode, (suffix, size, sign, half) in LOADS.items():
            traits = {
                "kind": "load",
                "size": size,
                "sign": sign,
                "dst_regs": max(1, size // 4),
                "d16": half is not None,
                "half": half,
            }
            add(Entry(format_name, opcode, f"{prefix}_load_{suffix}", traits=traits))
        for opcode, (suffix, size, shift) in STORES.items():
            traits = {"kind": "store", "size": size, "shift": shift, "data_regs": max(1, size // 4)}
            add(Entry(format_name, opcode, f"{prefix}_store_{suffix}", traits=traits))
        if format_name == "SCRATCH":
            continue
        for opcode, (suffix, operation, bits) in ATOMICS.items():
            regs = bits // 32
            traits = {"kind": "atomic", "operation": operation, "bits": bits, "size": bits // 8, "dst_regs": regs,
                      "data_regs": 2 * regs if operation == "cmpswap" else regs}  # fmt: skip
            add(Entry(format_name, opcode, f"{prefix}_atomic_{suffix}", traits=traits))
    for opcode, (suffix, size, sign) in LDS_LOADS.items():
        add(
            Entry(
                "GLOBAL", opcode, f"global_load_lds_{suffix}", traits={"kind": "load_lds", "size": size, "sign": sign}
            )
        )
    for opcode, name in ((0x28, "buffer_wbl2"), (0x29, "buffer_inv")):
        add(Entry("MUBUF", opcode, name, traits={"kind": "cache"}))


_register()


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """Compile one instruction to a function of the convoy."""
    kind = instruction.traits["kind"]
    if kind == "cache":
        return lambda m: None
    if instruction.entry.format == "SCRATCH":
        return _scratch(instruction)
    places = places_of(program, instruction)
    if instruction.entry.format == "MUBUF" and instruction.fields["lds"]:
        if kind != "load":
            raise EmulatorFault(f"{instruction}: lds on something else than a load.")
        return _load_lds(instruction, places)
    if kind == "load_lds":
        return _load_lds(instruction, places)
    return {"load": _load, "store": _store, "atomic": _atomic}[kind](program, instruction, places)


def _scratch(instruction: Instruction) -> Callable[[Convoy], Any]:
    def run(m: Convoy) -> None:
        raise m.batch.machine.fault(m, f"uses scratch memory, which the emulator does not have ({instruction})")

    return run


# --- addresses ------------------------------------------------------------------------------------------------------

# A function of the convoy that returns (addresses uint64 [waves, 64], lanes that access memory: bool or None for all).
Places = Callable[["Convoy"], "tuple[np.ndarray, np.ndarray | None]"]


def places_of(program: Program, instruction: Instruction) -> Places:
    """Compile the addresses of a FLAT, GLOBAL or MUBUF access: where it would go, without going there."""
    return (_buffer_places if instruction.entry.format == "MUBUF" else _flat_places)(program, instruction)


def _flat_places(program: Program, instruction: Instruction) -> Places:
    address = fetch_vector(program, instruction.src["addr"])
    fields, is_flat = instruction.fields, instruction.entry.format == "FLAT"
    offset = np.array(fields["offset"] & 0xFFF if is_flat else signed(fields["offset"], 13), i64).view(u64)
    if "saddr" in instruction.src:
        base = fetch_scalar(instruction.src["saddr"])

        def global_saddr(m: Convoy) -> tuple[np.ndarray, np.ndarray | None]:
            return (base(m) + offset)[:, None] + address(m).astype(u64), m.mask

        return global_saddr

    def plain(m: Convoy) -> tuple[np.ndarray, np.ndarray | None]:
        return address(m) + offset, m.mask

    return plain


def _buffer_places(program: Program, instruction: Instruction) -> Places:
    fields, size = instruction.fields, instruction.traits["size"]
    resource = fetch_scalar(instruction.src["rsrc"])
    soffset = fetch_scalar(instruction.src["soffset"])
    has_index, has_offset = bool(fields["idxen"]), bool(fields["offen"])
    words: list[Any] = []
    if has_index or has_offset:
        first = program.row(instruction.src["addr"])
        words = [lambda m, row=first + n: m.V[row, m.sel] for n in range(has_index + has_offset)]

    def places(m: Convoy) -> tuple[np.ndarray, np.ndarray | None]:
        v = resource(m)
        stride = (v[1] >> u32(16) & u32(0x3FFF)).astype(u64)[:, None]
        if (v[1] >> u32(31)).any() or (v[3] >> u32(23) & u32(1)).any():
            raise m.batch.machine.fault(
                m, f"uses a swizzled or thread-id buffer, which is not modelled ({instruction})"
            )
        base = join64(v[0], v[1] & u32(0xFFFF))[:, None]
        records = v[2].astype(u64)[:, None]
        index = words[0](m).astype(u64) if has_index else u64(0)
        offset = (words[-1](m).astype(u64) if has_offset else u64(0)) + u64(fields["offset"])
        scalar = np.asarray(soffset(m)).astype(u64)
        scalar = scalar[:, None] if scalar.ndim else scalar
        relative = offset + stride * index
        # Raw (stride 0 or no index): the byte range; structured: the record number, and the offset within the record.
        raw_outside = relative + u64(size) + scalar > records if not has_index else None
        if has_index:
            structured = (index >= records) | (offset + u64(size) > stride)
            outside = np.where(stride == 0, relative + u64(size) > records, structured)
        else:
            outside = np.where(stride == 0, raw_outside, relative + u64(size) > records * np.maximum(stride, u64(1)))
        addresses = np.broadcast_to(base + scalar + relative, (m.n, 64))
        outside = np.broadcast_to(outside, (m.n, 64))
        inside = ~outside if m.mask is None else ~outside & m.mask
        return addresses, None if inside.all() else inside

    return places


def _flatten(
    m: Convoy, addresses: np.ndarray, active: np.ndarray | None
) -> tuple[np.ndarray, Callable[[int, str], Exception]]:
    """Return the active addresses, one-dimensional, and a way to name the wave and lane of one of them."""
    flat = np.ascontiguousarray(addresses).reshape(-1) if active is None else addresses[active]

    def complain(index: int, message: str) -> Exception:
        position = index if active is None else int(np.flatnonzero(active)[index])
        wave, lane = divmod(position, 64)
        return m.batch.machine.fault(m, message, int(m.waves[wave]), lane)

    return flat, complain


def _check_flat(m: Convoy, instruction: Instruction, flat: np.ndarray, complain: Any) -> None:
    """A flat address may point into the LDS or scratch apertures."""
    if instruction.entry.format != "FLAT":
        return
    top = flat >> u64(32)
    for base, name in ((SHARED_BASE, "LDS"), (PRIVATE_BASE, "scratch")):
        hits = top == u64(base >> 32)
        if hits.any():
            raise complain(
                int(np.argmax(hits)),
                f"a flat access into the {name} aperture, which is not modelled",
            )


# --- loads, stores, atomics -----------------------------------------------------------------------------------------


def _load(program: Program, instruction: Instruction, places: Places) -> Callable[[Convoy], Any]:
    traits = instruction.traits
    size, sign, half = traits["size"], traits["sign"], traits["half"]
    row, regs = program.row(instruction.dst[0]), instruction.dst[0].type.regs
    is_buffer = instruction.entry.format == "MUBUF"

    def run(m: Convoy) -> None:
        addresses, active = places(m)
        flat, complain = _flatten(m, addresses, active)
        if not len(flat) and not is_buffer:
            return
        if len(flat):
            _check_flat(m, instruction, flat, complain)
            values = extend(m.batch.machine.memory.load(flat, size, complain), sign)
        else:
            values = np.zeros((0, regs), u32)
        if active is None:
            spread = values.reshape(m.n, 64, regs)
        else:
            # Lanes out of a buffer's range read 0; lanes outside EXEC are masked by the write.
            spread = np.zeros((m.n, 64, regs), u32)
            spread[active] = values
        mask = m.mask
        for n in range(regs):
            program.touch(m, row + n)
            word = spread[..., n]
            if half is not None:
                word = merge_half(m.V[row, m.sel], word, half)
            put(m, row + n, word, mask)

    return run


def _store(program: Program, instruction: Instruction, places: Places) -> Callable[[Convoy], Any]:
    size, shift = instruction.traits["size"], u32(instruction.traits["shift"])
    operand = instruction.src["data"]
    row, regs = program.row(operand), operand.type.regs

    def run(m: Convoy) -> None:
        addresses, active = places(m)
        flat, complain = _flatten(m, addresses, active)
        if not len(flat):
            return
        _check_flat(m, instruction, flat, complain)
        words = m.V[row : row + regs, m.sel]
        if active is None:
            values = words.reshape(regs, -1).T
        else:
            values = words[:, active].T
        m.batch.machine.memory.store(flat, values >> shift if shift else values, size, complain)

    return run


def _atomic(program: Program, instruction: Instruction, places: Places) -> Callable[[Convoy], Any]:
    traits = instruction.traits
    bits, size, operation = traits["bits"], traits["size"], traits["operation"]
    data = instruction.src["data"]
    row = program.row(data)
    returns = program.row(instruction.dst[0]) if instruction.dst else None
    words = bits // 32

    def value(m: Convoy, active: np.ndarray | None, first: int) -> np.ndarray:
        parts = [
            np.ascontiguousarray(m.V[first + n, m.sel]).reshape(-1) if active is None else m.V[first + n, m.sel][active]
            for n in range(words)
        ]
        return parts[0] if words == 1 else join64(*parts)

    def run(m: Convoy) -> None:
        addresses, active = places(m)
        flat, complain = _flatten(m, addresses, active)
        if not len(flat):
            return
        _check_flat(m, instruction, flat, complain)
        crooked = flat % u64(size) != 0
        if crooked.any():
            raise complain(int(np.argmax(crooked)), f"an atomic at an address that is no multiple of {size}")
        values = value(m, active, row)
        compare = value(m, active, row + words) if operation == "cmpswap" else None
        old = np.empty(len(flat), f"u{size}")
        for buffer, where, offsets in m.batch.machine.memory.split(flat, size, True, complain):
            old[where] = atomics.apply(
                buffer.bytes, offsets, values[where], operation, bits, None if compare is None else compare[where]
            )
        if returns is None:
            return
        spread = np.zeros((m.n, 64), old.dtype)
        spread.reshape(-1)[slice(None) if active is None else np.flatnonzero(active)] = old
        for n in range(words):
            program.touch(m, returns + n)
            put(m, returns + n, (spread >> spread.dtype.type(32 * n)).astype(u32), m.mask)

    return run


def _load_lds(instruction: Instruction, places: Places) -> Callable[[Convoy], Any]:
    """Load straight to LDS: a lane's bytes go to M0's offset + immediate + lane * bytes (4 below a dword)."""
    size, sign = instruction.traits["size"], instruction.traits["sign"]
    step = max(4, size)
    base = fetch_scalar(instruction.src["m0"])
    # NOTE: the immediate offset moves both the memory address and the LDS address.
    fields = instruction.fields
    immediate = fields["offset"] if instruction.entry.format == "MUBUF" else signed(fields["offset"], 13)

    def run(m: Convoy) -> None:
        addresses, active = places(m)
        flat, complain = _flatten(m, addresses, active)
        targets = (base(m) & u32(0xFFFFF)).astype(i64)[:, None] + immediate + step * np.arange(64)
        if len(flat):
            values = extend(m.batch.machine.memory.load(flat, size, complain), sign)
            chosen = np.ones((m.n, 64), bool) if active is None else active
            m.batch.lds_memory.store(m, targets, values, step, chosen, pending=instruction)

    return run
