"""Run one instruction, or a few, in the emulator with chosen register contents and compare what they leave behind.

A ``Case`` is assembly text with register values before and after. A ``Module`` assembles many cases at once, one kernel
each, with the pip-installable LLVM (PyPI ``ziglang``), so that a whole test file costs one call of the assembler.

Every kernel runs as one wave of 64 work-items. Its frame loads the inputs, runs the case's text, waits for everything
outstanding and stores the outputs. The frame keeps for itself v254, v255 and s[80:101]; the rest is the case's.
While the case's text runs, ``s[94:95]`` hold the address of ``mem``, a buffer of the case's own, and ``s[96:99]`` a
buffer resource over its first ``MEM_RECORDS`` bytes.

Values: an int is raw bits (negative: two's complement); a float is the IEEE number of the register's width.
Expected ``NAN`` matches any NaN of that width. A vector register takes one value for every lane, or a list whose last
value fills the remaining lanes. A scalar register takes one value.
"""

from __future__ import annotations

import math
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from indexer_rt.code_object import CodeObject
from indexer_rt.emu import Buffer, run
from indexer_rt.launch import Launch

LANES = 64
ALL = (1 << LANES) - 1
NAN = float("nan")
INF = float("inf")
TARGET = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx950"]

LDS_BYTES = 8192
MEM_BYTES = 4096
MEM_RECORDS = 1024  # bytes that the buffer resource in s[96:99] covers
IN_ADDRESS, OUT_ADDRESS, MEM_ADDRESS = 0x7F00_0000_0000, 0x7F10_0000_0000, 0x7F20_0000_0000
COLUMN = 4 * LANES  # bytes of one 32-bit register, all lanes

# Word 3 of a buffer resource on gfx9: DST_SEL x, y, z, w = 4, 5, 6, 7; NUM_FORMAT float; DATA_FORMAT 32.
RESOURCE_WORD3 = 0x00027FAC

_SPECIAL = {"vcc": ("s", 2), "exec": ("s", 2), "scc": ("s", 1), "m0": ("s", 1)}


def f16(value: float) -> int:
    """Return the bits of a half-precision number."""
    return int(np.float16(value).view(np.uint16))


def f32(value: float) -> int:
    """Return the bits of a single-precision number."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f64(value: float) -> int:
    """Return the bits of a double-precision number."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def pack16(low: int | float, high: int | float) -> int:
    """Return a register that holds two halves. A float is a half-precision number, an int raw bits."""
    low, high = (f16(half) if isinstance(half, float) else half & 0xFFFF for half in (low, high))
    return high << 16 | low


def pair(low: float, high: float) -> int:
    """Return the 64 bits of two single-precision numbers in consecutive registers."""
    return f32(high) << 32 | f32(low)


@dataclass(frozen=True)
class Reg:
    """Name a register range: ``file`` is s, v or a, or the name of a special register."""

    file: str
    first: int
    words: int

    @classmethod
    def parse(cls, text: str) -> Reg:
        if text in _SPECIAL:
            return cls(text, 0, _SPECIAL[text][1])
        match = re.fullmatch(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])", text)
        if match is None:
            raise ValueError(f"{text!r} is no register range; write v3, v[4:5], a0, s[6:7], vcc, exec, scc or m0.")
        if match[2] is not None:
            return cls(match[1], int(match[2]), 1)
        return cls(match[1], int(match[3]), int(match[4]) - int(match[3]) + 1)

    @property
    def is_vector(self) -> bool:
        return self.file in ("v", "a")


def _bits(value: int | float, words: int) -> int:
    if isinstance(value, float):
        if words not in (1, 2):
            raise ValueError(f"a float fills 1 or 2 registers, not {words}.")
        return f32(value) if words == 1 else f64(value)
    if not -(1 << (32 * words - 1)) <= value < 1 << (32 * words):
        raise ValueError(f"{value:#x} does not fit {words} registers.")
    return value & ((1 << (32 * words)) - 1)


def _lanes(value) -> list:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not 1 <= len(values) <= LANES:
        raise ValueError(f"{len(values)} values for {LANES} lanes.")
    return values + [values[-1]] * (LANES - len(values))


def _matches(wanted: int | float, got: int, words: int) -> bool:
    if isinstance(wanted, float) and math.isnan(wanted):
        exponent, mantissa = (0x7F800000, 0x007FFFFF) if words == 1 else (0x7FF << 52, (1 << 52) - 1)
        return got & exponent == exponent and got & mantissa != 0
    return _bits(wanted, words) == got


@dataclass(frozen=True)
class Case:
    """Hold assembly text, the registers before it and the registers wanted after it.

    ``mem`` are the first bytes of the case's buffer before, ``mem_after`` what its start must hold afterwards.
    ``fault`` is a regular expression: the run must end in an EmulatorFault whose message it matches.
    """

    name: str
    text: str
    before: dict = field(default_factory=dict)
    after: dict = field(default_factory=dict)
    mem: bytes = b""
    mem_after: bytes | None = None
    fault: str | None = None

    def __post_init__(self) -> None:
        if not self.after and self.mem_after is None and self.fault is None:
            raise ValueError(f"{self.name}: expects nothing, so it cannot fail.")

    @property
    def body(self) -> str:
        return "\n".join(line.strip() for line in re.split(r"[\n;]", self.text) if line.strip())


def rows(
    name: str, text: str, form: str, table: list[tuple], *, given: dict | None = None, then: dict | None = None
) -> list[Case]:
    """Turn a table of hand-computed rows into cases. ``form`` names the columns: ``"v1 v2 -> v3"``.

    With vector registers the rows go to the lanes of one case (64 at most). With only scalar registers each row
    is a case of its own. ``given`` and ``then`` are further registers before and after, the same for every row.
    """
    given, then = given or {}, then or {}
    before, after = (side.split() for side in form.split("->"))
    columns = before + after
    if any(len(row) != len(columns) for row in table):
        raise ValueError(f"{name}: every row needs the {len(columns)} columns of {form!r}.")
    if any(Reg.parse(column).is_vector for column in columns):
        inputs = {column: [row[i] for row in table] for i, column in enumerate(before)}
        outputs = {column: [row[len(before) + i] for row in table] for i, column in enumerate(after)}
        return [Case(name, text, {**inputs, **given}, {**outputs, **then})]
    return [
        Case(
            f"{name}-{index}" if len(table) > 1 else name,
            text,
            {**dict(zip(before, row[: len(before)], strict=True)), **given},
            {**dict(zip(after, row[len(before) :], strict=True)), **then},
        )
        for index, row in enumerate(table)
    ]


def _load_inputs(case: Case) -> tuple[list[str], bytes]:
    """Return the instructions that bring the inputs to their registers, and the bytes they read."""
    vectors: list[str] = []
    scalars: list[str] = []
    last: list[str] = []
    data = bytearray()
    column = 0
    for name, value in case.before.items():
        reg = Reg.parse(name)
        if not reg.is_vector:
            continue
        lanes = [_bits(v, reg.words) for v in _lanes(value)]
        for word in range(reg.words):
            if column and column % 16 == 0:
                vectors += ["s_add_u32 s84, s84, 4096", "s_addc_u32 s85, s85, 0"]
            target = "v254" if reg.file == "a" else f"v{reg.first + word}"
            vectors.append(f"global_load_dword {target}, v255, s[84:85] offset:{column % 16 * COLUMN}")
            if reg.file == "a":
                vectors += ["s_waitcnt vmcnt(0)", f"v_accvgpr_write_b32 a{reg.first + word}, v254"]
            data += struct.pack(f"<{LANES}I", *((v >> (32 * word)) & 0xFFFFFFFF for v in lanes))
            column += 1
    for name, value in case.before.items():
        reg = Reg.parse(name)
        if reg.is_vector:
            continue
        bits = _bits(value, reg.words)
        if reg.file == "scc":
            last.insert(0, f"s_cmp_lg_u32 {bits}, 0")
        elif reg.file == "exec":
            last += [f"s_mov_b32 exec_lo, {bits & 0xFFFFFFFF:#x}", f"s_mov_b32 exec_hi, {bits >> 32:#x}"]
        else:
            for word in range(reg.words):
                target = f"s{reg.first + word}" if reg.file == "s" else f"s{86 + word}"
                scalars.append(f"s_load_dword {target}, s[80:81], {len(data):#x}")
                data += struct.pack("<I", (bits >> (32 * word)) & 0xFFFFFFFF)
            move = {"vcc": "s_mov_b64 vcc, s[86:87]", "m0": "s_mov_b32 m0, s86"}.get(reg.file)
            scalars += ["s_waitcnt lgkmcnt(0)", move] if move else []
    return [*vectors, *scalars, "s_waitcnt vmcnt(0) lgkmcnt(0)", *last], bytes(data)


def _store_outputs(case: Case) -> list[str]:
    """Return the instructions that save every output column to the output buffer."""
    lines = []
    registers = [Reg.parse(name) for name in case.after]
    files = {reg.file for reg in registers}
    if "exec" in files:
        lines.append("s_mov_b64 s[88:89], exec")
    if "scc" in files:
        lines.append("s_cselect_b32 s90, 1, 0")
    # Longer than any wait a case's last instruction can owe its reader.
    lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)", "s_mov_b64 exec, -1", "s_nop 7", "s_nop 7", "s_nop 7"]
    column = 0
    for reg in registers:
        for word in range(reg.words):
            if column and column % 16 == 0:
                lines += ["s_add_u32 s82, s82, 4096", "s_addc_u32 s83, s83, 0"]
            source = f"v{reg.first + word}"
            if reg.file != "v":
                read = {
                    "a": f"v_accvgpr_read_b32 v254, a{reg.first + word}",
                    "s": f"v_mov_b32 v254, s{reg.first + word}",
                    "vcc": f"v_mov_b32 v254, {'vcc_hi' if word else 'vcc_lo'}",
                    "exec": f"v_mov_b32 v254, s{88 + word}",
                    "scc": "v_mov_b32 v254, s90",
                    "m0": "v_mov_b32 v254, m0",
                }[reg.file]
                lines += ["s_waitcnt vmcnt(0)", read]
                source = "v254"
            lines.append(f"global_store_dword v255, {source}, s[82:83] offset:{column % 16 * COLUMN}")
            column += 1
    return [*lines, "s_waitcnt vmcnt(0)"]


# Runs before a case's text: addresses to SGPRs, the lane's byte offset to v255.
_FRAME = """s_load_dwordx2 s[80:81], s[0:1], 0x0
s_load_dwordx2 s[82:83], s[0:1], 0x8
s_load_dwordx2 s[94:95], s[0:1], 0x10
v_lshlrev_b32_e32 v255, 2, v0
s_waitcnt lgkmcnt(0)
s_mov_b64 s[84:85], s[80:81]
s_mov_b64 s[96:97], s[94:95]
s_mov_b32 s98, {records}
s_mov_b32 s99, {word3:#x}"""

_KERNEL = """
.globl {symbol}
.p2align 8
.type {symbol},@function
{symbol}:
{body}
s_endpgm
.L{symbol}_end:
.size {symbol}, .L{symbol}_end-{symbol}
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel {symbol}
.amdhsa_group_segment_fixed_size {lds}
.amdhsa_kernarg_size 24
.amdhsa_user_sgpr_count 2
.amdhsa_user_sgpr_kernarg_segment_ptr 1
.amdhsa_system_sgpr_workgroup_id_x 1
.amdhsa_system_sgpr_workgroup_id_y 1
.amdhsa_system_vgpr_workitem_id 2
.amdhsa_next_free_vgpr 512
.amdhsa_next_free_sgpr 102
.amdhsa_accum_offset 256
.amdhsa_float_denorm_mode_32 3
.amdhsa_float_denorm_mode_16_64 3
.amdhsa_ieee_mode 1
.amdhsa_dx10_clamp 1
.end_amdhsa_kernel
.text
"""

_METADATA = """
- .name: {symbol}
  .symbol: {symbol}.kd
  .args:
  - {{.name: in, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
  - {{.name: out, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
  - {{.name: mem, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}}
  .group_segment_fixed_size: {lds}
  .private_segment_fixed_size: 0
  .kernarg_segment_align: 8
  .kernarg_segment_size: 24
  .max_flat_workgroup_size: 256
  .wavefront_size: 64
  .sgpr_count: 108
  .vgpr_count: 512
  .agpr_count: 256
"""


def assemble(text: str, *, link: bool = False) -> bytes:
    """Assemble gfx950 text to an object file's bytes, or with ``link`` to a code object's.

    Raises AssertionError with the assembler's own message.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, obj, linked = (Path(folder) / name for name in ("x.s", "x.o", "x.hsaco"))
        source.write_text(text)
        zig = [sys.executable, "-m", "ziglang"]
        done = subprocess.run(
            [*zig, "clang", *TARGET, "-c", str(source), "-o", str(obj)], capture_output=True, text=True
        )
        assert done.returncode == 0, f"the assembler refuses the text:\n{done.stderr[:4000]}"
        if not link:
            return obj.read_bytes()
        done = subprocess.run([*zig, "ld.lld", "-shared", str(obj), "-o", str(linked)], capture_output=True, text=True)
        assert done.returncode == 0, f"the linker refuses the object:\n{done.stderr[:4000]}"
        return linked.read_bytes()


def build(bodies: dict[str, str]) -> CodeObject:
    """Assemble kernels by symbol. A kernel takes three 8-byte pointers (in, out, mem) and has 512 registers.

    It starts with the kernarg address in s[0:1], the workgroup's x and y in s2 and s3, and v0 packed with the
    work-item's x, y and z, ten bits each. ``s_endpgm`` is added.
    """
    text = ['.amdgcn_target "amdgcn-amd-amdhsa--gfx950"', ".amdhsa_code_object_version 5", ".text"]
    text += [_KERNEL.format(symbol=symbol, body=body, lds=LDS_BYTES) for symbol, body in bodies.items()]
    text += [".amdgpu_metadata", "---", "amdhsa.kernels:"]
    text += [_METADATA.format(symbol=symbol, lds=LDS_BYTES) for symbol in bodies]
    text += [
        "amdhsa.target: amdgcn-amd-amdhsa--gfx950",
        "amdhsa.version:",
        "- 1",
        "- 2",
        "...",
        ".end_amdgpu_metadata",
        "",
    ]
    return CodeObject.parse(assemble("\n".join(text), link=True), label="conformance module")


class Module:
    """Hold the assembled kernels of many cases. Names must be unique."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = {case.name: case for case in cases}
        if len(self.cases) != len(cases):
            names = [case.name for case in cases]
            raise ValueError(f"cases share a name: {sorted({name for name in names if names.count(name) > 1})}.")
        self._symbols = {name: f"case_{index}" for index, name in enumerate(self.cases)}
        self._inputs: dict[str, bytes] = {}
        self._code_object = self._build()

    def _build(self) -> CodeObject:
        bodies = {}
        frame = _FRAME.format(records=MEM_RECORDS, word3=RESOURCE_WORD3)
        for name, case in self.cases.items():
            load, self._inputs[name] = _load_inputs(case)
            bodies[self._symbols[name]] = "\n".join([frame, *load, case.body, *_store_outputs(case)])
        return build(bodies)

    def execute(self, case: Case, *, strict: bool = True) -> tuple[dict[str, list[int]], bytes]:
        """Run one case. Returns the bits of its output registers (a list per lane) and the bytes of ``mem``."""
        columns = sum(Reg.parse(name).words for name in case.after)
        source = np.frombuffer(self._inputs[case.name] or bytes(4), np.uint8)
        out = np.full(max(columns, 1) * COLUMN, 0xA5, np.uint8)
        mem = np.zeros(MEM_BYTES, np.uint8)
        mem[: len(case.mem)] = np.frombuffer(case.mem, np.uint8)
        buffers = [
            Buffer("in", IN_ADDRESS, source, False),
            Buffer("out", OUT_ADDRESS, out, True),
            Buffer("mem", MEM_ADDRESS, mem, True),
        ]
        kernel = self._code_object.kernels[self._symbols[case.name]]
        kernarg = struct.pack("<QQQ", IN_ADDRESS, OUT_ADDRESS, MEM_ADDRESS)
        run(Launch(kernel, (1, 1, 1), (LANES, 1, 1), 0, kernarg), buffers, strict=strict)
        words = out.view(np.uint32).reshape(-1, LANES)
        got: dict[str, list[int]] = {}
        row = 0
        for name in case.after:
            reg = Reg.parse(name)
            got[name] = [
                sum(int(words[row + word, lane]) << (32 * word) for word in range(reg.words)) for lane in range(LANES)
            ]
            row += reg.words
        return got, mem.tobytes()

    def check(self, case: Case, *, strict: bool = True) -> None:
        """Run one case and compare. Raises AssertionError that lists every lane that differs."""
        got, mem = self.execute(case, strict=strict)
        wrong = []
        for name, wanted in case.after.items():
            reg = Reg.parse(name)
            digits = 8 * reg.words
            before = case.before
            for lane, (value, bits) in enumerate(zip(_lanes(wanted), got[name], strict=True)):
                if not _matches(value, bits, reg.words):
                    inputs = ", ".join(
                        f"{source}={_bits(_lanes(given)[lane], Reg.parse(source).words):#x}"
                        for source, given in before.items()
                    )
                    shown = "any NaN" if isinstance(value, float) and math.isnan(value) else f"{value!r}"
                    if not shown.startswith("any"):
                        shown += f" (0x{_bits(value, reg.words):0{digits}x})"
                    wrong.append(f"  {name} lane {lane}: wanted {shown}, got 0x{bits:0{digits}x}; {inputs}")
        if case.mem_after is not None:
            for at, (value, byte) in enumerate(zip(case.mem_after, mem, strict=False)):
                if value != byte:
                    wrong.append(f"  mem byte {at}: wanted {value:#04x}, got {byte:#04x}")
        shown = "\n".join(wrong[:12])
        assert not wrong, f"{case.name}: {len(wrong)} differ after\n{case.body}\n{shown}"
