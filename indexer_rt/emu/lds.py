"""Run DS: local data share reads, writes, atomics and lane permutes, with bounds, poison and race checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EmulatorFault
from . import atomics, lanes
from .memory import extend, gather, merge_half, scatter
from .registers import fetch_raw, join64, put
from .table import Entry, add

if TYPE_CHECKING:
    from .convoy import Batch, Convoy
    from .instruction import Instruction
    from .program import Program

u32, u64, i64 = np.uint32, np.uint64, np.int64


def _entry(opcode: int, name: str, kind: str, **traits: Any) -> None:
    add(Entry("DS", opcode, f"ds_{name}", traits={"kind": kind, **traits}))


# opcode -> (suffix, bytes, sign-extend from bits or 0, half written or None)
_READS = {
    0x36: ("b32", 4, 0, None), 0x39: ("i8", 1, 8, None), 0x3A: ("u8", 1, 0, None), 0x3B: ("i16", 2, 16, None),
    0x3C: ("u16", 2, 0, None), 0x56: ("u8_d16", 1, 0, 0), 0x57: ("u8_d16_hi", 1, 0, 1), 0x58: ("i8_d16", 1, 8, 0),
    0x59: ("i8_d16_hi", 1, 8, 1), 0x5A: ("u16_d16", 2, 0, 0), 0x5B: ("u16_d16_hi", 2, 0, 1), 0x76: ("b64", 8, 0, None),
    0xFE: ("b96", 12, 0, None), 0xFF: ("b128", 16, 0, None),
}  # fmt: skip
for _opcode, (_suffix, _size, _sign, _half) in _READS.items():
    _entry(
        _opcode,
        f"read_{_suffix}",
        "read",
        size=_size,
        sign=_sign,
        half=_half,
        dst_regs=max(1, _size // 4),
        d16=_half is not None,
    )
_WRITES = {
    0x0D: ("b32", 4, 0), 0x1E: ("b8", 1, 0), 0x1F: ("b16", 2, 0), 0x54: ("b8_d16_hi", 1, 16),
    0x55: ("b16_d16_hi", 2, 16),
    0x4D: ("b64", 8, 0), 0xDE: ("b96", 12, 0), 0xDF: ("b128", 16, 0),
}  # fmt: skip
for _opcode, (_suffix, _size, _shift) in _WRITES.items():
    _entry(_opcode, f"write_{_suffix}", "write", size=_size, shift=_shift, data=(max(1, _size // 4),))
for _opcode, _suffix, _size, _stride in (
    (0x37, "2_b32", 4, 4), (0x38, "2st64_b32", 4, 256), (0x77, "2_b64", 8, 8), (0x78, "2st64_b64", 8, 512),
):  # fmt: skip
    _entry(_opcode, f"read{_suffix}", "read2", size=_size, stride=_stride, dst_regs=_size // 2, two=True)
for _opcode, _suffix, _size, _stride in (
    (0x0E, "2_b32", 4, 4), (0x0F, "2st64_b32", 4, 256), (0x4E, "2_b64", 8, 8), (0x4F, "2st64_b64", 8, 512),
):  # fmt: skip
    _entry(_opcode, f"write{_suffix}", "write2", size=_size, stride=_stride, data=(_size // 4, _size // 4), two=True)

# Atomics: opcode -> (name without and with _rtn, operation, bits); the returning form lies 0x20 higher.
_ATOMICS = {
    0x00: ("add{}_u32", "add"), 0x01: ("sub{}_u32", "sub"), 0x02: ("rsub{}_u32", "rsub"), 0x03: ("inc{}_u32", "inc"),
    0x04: ("dec{}_u32", "dec"), 0x05: ("min{}_i32", "smin"), 0x06: ("max{}_i32", "smax"), 0x07: ("min{}_u32", "umin"),
    0x08: ("max{}_u32", "umax"), 0x09: ("and{}_b32", "and"), 0x0A: ("or{}_b32", "or"), 0x0B: ("xor{}_b32", "xor"),
    0x12: ("min{}_f32", "fmin"), 0x13: ("max{}_f32", "fmax"), 0x15: ("add{}_f32", "fadd"),
}  # fmt: skip
for _opcode, (_name, _operation) in _ATOMICS.items():
    for _bits, _step in ((32, 0), (64, 0x40)):
        if _bits == 64 and _name.startswith("add{}_f"):
            continue
        _stem = _name.replace("32", str(_bits))
        _entry(_opcode + _step, _stem.format(""), "atomic", operation=_operation, bits=_bits, data=(_bits // 32,))
        _traits = {"operation": _operation, "bits": _bits, "data": (_bits // 32,), "dst_regs": _bits // 32}
        _entry(_opcode + _step + 0x20, _stem.format("_rtn"), "atomic", **_traits)
_entry(0x5C, "add_f64", "atomic", operation="fadd", bits=64, data=(2,))
_entry(0x7C, "add_rtn_f64", "atomic", operation="fadd", bits=64, data=(2,), dst_regs=2)
_entry(0x2D, "wrxchg_rtn_b32", "atomic", operation="swap", bits=32, data=(1,), dst_regs=1)
_entry(0x6D, "wrxchg_rtn_b64", "atomic", operation="swap", bits=64, data=(2,), dst_regs=2)
_entry(0x17, "pk_add_f16", "atomic", operation="pk_add_f16", bits=32, data=(1,))
_entry(0x18, "pk_add_bf16", "atomic", operation="pk_add_bf16", bits=32, data=(1,))
_entry(0xB7, "pk_add_rtn_f16", "atomic", operation="pk_add_f16", bits=32, data=(1,), dst_regs=1)
_entry(0xB8, "pk_add_rtn_bf16", "atomic", operation="pk_add_bf16", bits=32, data=(1,), dst_regs=1)
# NOTE: in ds_cmpst the first data operand is the value compared with, the second the new one.
for _opcode, _bits in ((0x10, 32), (0x50, 64)):
    _regs = _bits // 32
    _entry(_opcode, f"cmpst_b{_bits}", "atomic", operation="cmpswap", bits=_bits, data=(_regs, _regs))
    _entry(
        _opcode + 0x20,
        f"cmpst_rtn_b{_bits}",
        "atomic",
        operation="cmpswap",
        bits=_bits,
        data=(_regs, _regs),
        dst_regs=_regs,
    )
_entry(0x14, "nop", "nop")
_entry(0x3D, "swizzle_b32", "swizzle", dst_regs=1)
_entry(0x3E, "permute_b32", "permute", data=(1,), dst_regs=1)
_entry(0x3F, "bpermute_b32", "bpermute", data=(1,), dst_regs=1)
# gfx950 transposing reads: opcode -> (bits of an element, registers)
for _opcode, _name, _bits in ((0xE2, "read_b64_tr_b8", 8), (0xE3, "read_b64_tr_b16", 16)):
    _entry(_opcode, _name, "transpose", size=8, element=_bits, dst_regs=2)


class LdsMemory:
    """Read and write the LDS of a batch's workgroups; in strict mode know who wrote each byte and when."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.bytes = batch.lds.shape[1]
        self.flat = batch.lds.reshape(-1)
        # Loads straight to LDS that may still be on their way: (flat byte numbers, issuing wave, instruction).
        self.in_flight: list[tuple[np.ndarray, np.ndarray, Instruction]] = []

    def _places(self, m: Convoy, addresses: np.ndarray, size: int, chosen: np.ndarray) -> np.ndarray:
        """Return flat byte offsets of the chosen lanes after the bounds check. ``addresses``: int64 [waves, 64]."""
        active = addresses[chosen]
        beyond = (active < 0) | (active + size > self.bytes)
        if beyond.any():
            wave, lane = _where(m, chosen, int(np.argmax(beyond)))
            address = int(active[np.argmax(beyond)])
            raise m.batch.machine.fault(
                m,
                f"LDS address {address} + {size} bytes is outside the workgroup's {self.bytes} bytes of LDS",
                wave,
                lane,
            )
        group = m.waves // m.batch.waves_per_workgroup
        base = np.broadcast_to((group * self.bytes)[:, None], chosen.shape)[chosen]
        return active + base

    def load(self, m: Convoy, addresses: np.ndarray, size: int, chosen: np.ndarray) -> np.ndarray:
        """Read ``size`` bytes for each chosen lane: uint32 [lanes, words]."""
        places = self._places(m, addresses, size, chosen)
        if m.batch.tracking is not None:
            self._check_read(m, places, size, chosen)
        return gather(self.flat, places, size)

    def store(
        self,
        m: Convoy,
        addresses: np.ndarray,
        values: np.ndarray,
        size: int,
        chosen: np.ndarray,
        pending: Instruction | None = None,
    ) -> None:
        """Write the low ``size`` bytes of ``values`` (uint32 [lanes, words]) for each chosen lane."""
        places = self._places(m, addresses, size, chosen)
        scatter(self.flat, places, values, size)
        if m.batch.tracking is not None:
            self._mark(m, places, size, chosen)
            waves = np.broadcast_to(m.waves[:, None], chosen.shape)[chosen]
            if pending is None:
                m.lds_writes = (*m.lds_writes, (places, waves, size))
            else:
                self.in_flight.append(
                    ((places[:, None] + np.arange(size)).reshape(-1), np.repeat(waves, size), pending)
                )

    def atomic(
        self,
        m: Convoy,
        addresses: np.ndarray,
        values: np.ndarray,
        operation: str,
        bits: int,
        compare: np.ndarray | None,
        chosen: np.ndarray,
    ) -> np.ndarray:
        """Apply an atomic for each chosen lane and return the old values."""
        size = bits // 8
        places = self._places(m, addresses, size, chosen)
        crooked = places % size != 0
        if crooked.any():
            wave, lane = _where(m, chosen, int(np.argmax(crooked)))
            raise m.batch.machine.fault(m, f"an LDS atomic at an address that is no multiple of {size}", wave, lane)
        if m.batch.tracking is not None:
            self._check_read(m, places, size, chosen, atomic=True)
            self._mark(m, places, size, chosen, atomic=True)
        return atomics.apply(self.flat, places, values, operation, bits, compare)

    # --- strict mode ---

    # A byte's tag: (barriers passed when it was written) * 64 + wave in workgroup; 63 stands for "by atomics".
    _ATOMIC = 63

    def _tags(self) -> np.ndarray:
        return self.batch.tracking.lds_tag.reshape(-1)

    def _own_tag(self, m: Convoy, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        per = m.batch.waves_per_workgroup
        epoch = np.broadcast_to(m.batch.tracking.epoch[m.waves // per][:, None], chosen.shape)[chosen]
        wave = np.broadcast_to((m.waves % per)[:, None], chosen.shape)[chosen]
        return epoch, wave

    def _mark(self, m: Convoy, places: np.ndarray, size: int, chosen: np.ndarray, atomic: bool = False) -> None:
        epoch, wave = self._own_tag(m, chosen)
        tags, value = self._tags(), epoch * 64 + (self._ATOMIC if atomic else wave)
        late = self.batch.tracking.lds_late.reshape(-1)
        for n in range(size):
            tags[places + n] = value
            late[places + n] = False

    def _check_read(self, m: Convoy, places: np.ndarray, size: int, chosen: np.ndarray, atomic: bool = False) -> None:
        tags, late = self._tags(), self.batch.tracking.lds_late.reshape(-1)
        epoch, wave = self._own_tag(m, chosen)
        for n in range(0, size, 4 if size >= 4 else 1):
            held = tags[places + n]
            behind = late[places + n] & (held & 63 != wave)
            if behind.any():
                message = (
                    "reads LDS whose writer did not wait for the write (s_waitcnt lgkmcnt) before s_barrier, at byte {}"
                )
                self._blame(m, chosen, behind, places, message)
            never = held < 0
            if never.any():
                self._blame(m, chosen, never, places, "reads LDS that was never written, at byte {}")
            fresh = held >> 6 == epoch
            foreign = fresh & (held & 63 != wave) & ~((held & 63 == self._ATOMIC) & atomic)
            if m.batch.waves_per_workgroup > 1 and foreign.any():
                self._blame(
                    m,
                    chosen,
                    foreign,
                    places,
                    "touches LDS that another wave wrote since the last s_barrier, at byte {}",
                )
        if self.in_flight:
            self._check_in_flight(m, places, size, chosen)

    def _check_in_flight(self, m: Convoy, places: np.ndarray, size: int, chosen: np.ndarray) -> None:
        """A load straight to LDS has landed once its wave has waited for it."""
        still = []
        for where, waves, instruction in self.in_flight:
            open_waves = self.batch.open_loads(instruction)
            late = np.array([open_waves >> int(wave) & 1 for wave in waves], bool)
            if not late.any():
                continue
            still.append((where, waves, instruction))
            for n in range(size):
                hit = np.isin(places + n, where[late])
                if hit.any():
                    self._blame(
                        m,
                        chosen,
                        hit,
                        places,
                        f"reads LDS that {instruction.name} is still loading (no s_waitcnt vmcnt), at byte {{}}",
                    )
        self.in_flight = still

    def _blame(self, m: Convoy, chosen: np.ndarray, bad: np.ndarray, places: np.ndarray, message: str) -> None:
        index = int(np.argmax(bad))
        wave, lane = _where(m, chosen, index)
        raise m.batch.machine.fault(m, message.format(int(places[index]) % self.bytes), wave, lane)


def _where(m: Convoy, chosen: np.ndarray, index: int) -> tuple[int, int]:
    wave, lane = divmod(int(np.flatnonzero(chosen)[index]), 64)
    return int(m.waves[wave]), lane


def build(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """Compile one instruction to a function of the convoy."""
    if instruction.fields["gds"]:
        raise EmulatorFault(f"{instruction}: gfx950 has no global data share.")
    builders = {
        "read": _read, "write": _write, "read2": _read2, "write2": _write2, "atomic": _atomic, "swizzle": _swizzle,
        "permute": _permute, "bpermute": _permute, "transpose": _transpose,
        "nop": lambda program, instruction: lambda m: None,
    }  # fmt: skip
    return builders[instruction.traits["kind"]](program, instruction)


def _addresses(program: Program, instruction: Instruction) -> Callable[[Convoy], np.ndarray]:
    row = program.row(instruction.src["addr"])
    offset = 0 if instruction.traits.get("two") else instruction.fields["offset0"] | instruction.fields["offset1"] << 8
    return lambda m: m.V[row, m.sel].astype(i64) + offset


def _spread(m: Convoy, chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Put values [lanes, words] of the chosen lanes in place: [waves, 64, words]."""
    out = np.zeros((*chosen.shape, values.shape[1]), u32)
    out[chosen] = values
    return out


def _read(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    traits = instruction.traits
    size, sign, half, regs = traits["size"], traits["sign"], traits["half"], traits["dst_regs"]
    addresses, row = _addresses(program, instruction), program.row(instruction.dst[0])

    def run(m: Convoy) -> None:
        chosen = m.active()
        values = extend(m.batch.lds_memory.load(m, addresses(m), size, chosen), sign)
        spread = _spread(m, chosen, values)
        for n in range(regs):
            word = spread[..., n]
            if half is not None:
                word = merge_half(m.V[row, m.sel], word, half)
            program.touch(m, row + n)
            put(m, row + n, word, m.mask)

    return run


def _words(program: Program, instruction: Instruction, name: str) -> Callable[[Convoy, np.ndarray], np.ndarray]:
    operand = instruction.src[name]
    row, regs = program.row(operand), operand.type.regs
    return lambda m, chosen: m.V[row : row + regs, m.sel][:, chosen].T


def _write(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    size, shift = instruction.traits["size"], u32(instruction.traits["shift"])
    addresses, data = _addresses(program, instruction), _words(program, instruction, "data0")

    def run(m: Convoy) -> None:
        chosen = m.active()
        m.batch.lds_memory.store(m, addresses(m), data(m, chosen) >> shift, size, chosen)

    return run


def _read2(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    traits, fields = instruction.traits, instruction.fields
    size, stride = traits["size"], traits["stride"]
    addresses, row, regs = _addresses(program, instruction), program.row(instruction.dst[0]), size // 4

    def run(m: Convoy) -> None:
        chosen, base = m.active(), addresses(m)
        both = [m.batch.lds_memory.load(m, base + stride * fields[f"offset{n}"], size, chosen) for n in range(2)]
        for k, values in enumerate(both):
            spread = _spread(m, chosen, values)
            for n in range(regs):
                program.touch(m, row + k * regs + n)
                put(m, row + k * regs + n, spread[..., n], m.mask)

    return run


def _write2(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    traits, fields = instruction.traits, instruction.fields
    size, stride = traits["size"], traits["stride"]
    addresses = _addresses(program, instruction)
    data = [_words(program, instruction, f"data{n}") for n in range(2)]

    def run(m: Convoy) -> None:
        chosen, base = m.active(), addresses(m)
        for n in range(2):
            m.batch.lds_memory.store(m, base + stride * fields[f"offset{n}"], data[n](m, chosen), size, chosen)

    return run


def _atomic(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    traits = instruction.traits
    bits, operation, words = traits["bits"], traits["operation"], traits["bits"] // 32
    addresses = _addresses(program, instruction)
    data = [_words(program, instruction, f"data{n}") for n in range(len(traits["data"]))]
    row = program.row(instruction.dst[0]) if instruction.dst else None

    def joined(part: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(part[:, 0]) if words == 1 else join64(part[:, 0], part[:, 1])

    def run(m: Convoy) -> None:
        chosen = m.active()
        if not chosen.any():
            return
        parts = [joined(d(m, chosen)) for d in data]
        compare = parts[0] if operation == "cmpswap" else None
        old = m.batch.lds_memory.atomic(m, addresses(m), parts[-1], operation, bits, compare, chosen)
        if row is None:
            return
        spread = _spread(m, chosen, old.view(u32).reshape(len(old), words))
        for n in range(words):
            program.touch(m, row + n)
            put(m, row + n, spread[..., n], m.mask)

    return run


def _swizzle(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    fields = instruction.fields
    source_lane = lanes.swizzle(fields["offset0"] | fields["offset1"] << 8)
    source, row = fetch_raw(program, instruction.src["addr"]), program.row(instruction.dst[0])

    def run(m: Convoy) -> None:
        values = source(m)[:, source_lane]
        if m.mask is not None:
            values = np.where(m.mask[:, source_lane], values, u32(0))
        program.touch(m, row)
        put(m, row, values, m.mask)

    return run


def _permute(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """bpermute: lane l reads lane address/4; permute: lane l writes lane address/4. Inactive sources give 0."""
    index, data = fetch_raw(program, instruction.src["addr"]), fetch_raw(program, instruction.src["data0"])
    row, pulls = program.row(instruction.dst[0]), instruction.traits["kind"] == "bpermute"
    offset = u32(instruction.fields["offset0"] | instruction.fields["offset1"] << 8)

    def run(m: Convoy) -> None:
        lane = ((index(m) + offset) >> u32(2) & u32(63)).astype(i64)
        active, values = m.active(), data(m)
        if pulls:
            result = np.take_along_axis(np.where(active, values, u32(0)), lane, axis=1)
        else:
            result = np.zeros((m.n, 64), u32)
            wave, source = np.nonzero(active)
            result[wave, lane[wave, source]] = values[wave, source]
        program.touch(m, row)
        put(m, row, result, m.mask)

    return run


def _transpose(program: Program, instruction: Instruction) -> Callable[[Convoy], Any]:
    """ds_read_b64_tr_*: in each 16 lanes, the 64 bits that the lanes address form a matrix that comes out transposed.

    With b8 elements the 16 rows of 8 bytes form 8 x 16 bytes read as pairs of lanes (2i, 2i + 1 give row i); lane l
    gets column l. With b16 elements the lanes come in fours per row of 16. Layout: LLVM's ds_read_tr tests and AMD's
    CDNA4 ISA.
    """
    traits = instruction.traits
    addresses, row, bits = _addresses(program, instruction), program.row(instruction.dst[0]), traits["element"]

    def run(m: Convoy) -> None:
        chosen = m.active()
        if not chosen.all():
            raise m.batch.machine.fault(m, "a transposing LDS read with lanes disabled is not modelled")
        values = m.batch.lds_memory.load(m, addresses(m), 8, chosen)
        elements = np.ascontiguousarray(values).view(f"u{bits // 8}").reshape(m.n, 4, -1, 16)
        turned = np.ascontiguousarray(elements.transpose(0, 1, 3, 2)).reshape(m.n, 64, 64 // bits)
        words = turned.view(u32)
        for n in range(2):
            program.touch(m, row + n)
            put(m, row + n, words[..., n], m.mask)

    return run
