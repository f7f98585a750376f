"""Read an AMDGPU code object: ELF, kernel descriptor and metadata notes. A pure function of bytes; no GPU needed.

Layouts are those of LLVM's "User Guide for AMDGPU Backend": section "Kernel Descriptor" for the 64 descriptor bytes,
section "Code Object V5 Metadata" for the note, section "ELF Code Object" for ``e_flags``.
"""

from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ChecksumError, CodeObjectError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

T = TypeVar("T")

EM_AMDGPU = 0xE0
ELFOSABI_AMDGPU_HSA = 64
NT_AMDGPU_METADATA = 32
EF_AMDGPU_MACH_GFX950 = 0x4F
BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"

# e_flags & 0xff -> processor, for messages about foreign files.
MACHINES = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x40: "gfx940", 0x4B: "gfx941", 0x4C: "gfx942",
    0x4F: "gfx950", 0x33: "gfx1010", 0x36: "gfx1030", 0x41: "gfx1100", 0x4E: "gfx1201",
}  # fmt: skip

ARCHITECTURE = MACHINES[EF_AMDGPU_MACH_GFX950]

ELF_HEADER_BYTES, PROGRAM_HEADER_BYTES, SECTION_HEADER_BYTES = 64, 56, 64  # ELF-64 Object File Format
DESCRIPTOR_BYTES = 64
MAX_IMAGE_BYTES = 1 << 28
"""A loaded image larger than this is a damaged header, not a kernel."""

# e_ident[EI_ABIVERSION] -> code object version.
CODE_OBJECT_VERSIONS = {2: 4, 3: 5, 4: 6}

# e_flags bits 8..9 are xnack, 10..11 sramecc (code object v4 and later).
FEATURE_STATES = ("unsupported", "any", "off", "on")


@dataclass(frozen=True, slots=True)
class BitField:
    """Say where a field lies in a 32-bit word."""

    shift: int
    width: int

    def of(self, word: int) -> int:
        return (word >> self.shift) & ((1 << self.width) - 1)


# Every field of the descriptor that the loader or the emulator uses, one row each: word, shift, width.
_RSRC1 = {
    "vgpr_granules": BitField(0, 6),
    "sgpr_granules": BitField(6, 4),
    "float_round_mode_32": BitField(12, 2),
    "float_round_mode_16_64": BitField(14, 2),
    "float_denorm_mode_32": BitField(16, 2),
    "float_denorm_mode_16_64": BitField(18, 2),
    "dx10_clamp": BitField(21, 1),
    "ieee_mode": BitField(23, 1),
}
_RSRC2 = {
    "private_segment": BitField(0, 1),
    "user_sgprs": BitField(1, 5),
    "workgroup_id_x": BitField(7, 1),
    "workgroup_id_y": BitField(8, 1),
    "workgroup_id_z": BitField(9, 1),
    "workgroup_info": BitField(10, 1),
    "vgpr_workitem_id": BitField(11, 2),
}
_RSRC3 = {"accum_offset_granules": BitField(0, 6), "tg_split": BitField(16, 1)}
_PROPERTIES = {
    "sgpr_private_segment_buffer": BitField(0, 1),
    "sgpr_dispatch_ptr": BitField(1, 1),
    "sgpr_queue_ptr": BitField(2, 1),
    "sgpr_kernarg_segment_ptr": BitField(3, 1),
    "sgpr_dispatch_id": BitField(4, 1),
    "sgpr_flat_scratch_init": BitField(5, 1),
    "sgpr_private_segment_size": BitField(6, 1),
    "wavefront_size32": BitField(10, 1),
    "uses_dynamic_stack": BitField(11, 1),
}
_PRELOAD = {"kernarg_preload_dwords": BitField(0, 7), "kernarg_preload_offset_dwords": BitField(7, 9)}


@dataclass(frozen=True, slots=True)
class KernelDescriptor:
    """Hold the 64-byte kernel descriptor (symbol ``NAME.kd``)."""

    lds_bytes: int
    private_bytes: int
    kernarg_bytes: int
    entry_offset: int
    fields: dict[str, int]

    @classmethod
    def unpack(cls, data: bytes) -> KernelDescriptor:
        """Unpack 64 bytes. Raises struct.error when there are fewer."""
        lds, private, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from(
            "<III4xq20xIIIHH", data
        )
        fields = {
            name: bits.of(word)
            for word, table in (
                (rsrc1, _RSRC1),
                (rsrc2, _RSRC2),
                (rsrc3, _RSRC3),
                (properties, _PROPERTIES),
                (preload, _PRELOAD),
            )
            for name, bits in table.items()
        }
        return cls(lds, private, kernarg, entry, fields)

    def __getattr__(self, name: str) -> int:
        # NOTE: copying makes an object that has no `fields` yet and asks it for attributes.
        if name == "fields" or name not in self.fields:
            raise AttributeError(name)
        return self.fields[name]

    @property
    def allocated_vgprs(self) -> int:
        """Count the unified registers (VGPRs and AGPRs) a wave is given: granule 8 on gfx90a and later."""
        return (self.fields["vgpr_granules"] + 1) * 8

    @property
    def accum_offset(self) -> int:
        """Say at which unified register the AGPRs start."""
        return (self.fields["accum_offset_granules"] + 1) * 4


@dataclass(frozen=True, slots=True)
class Arg:
    """Describe one kernel argument as the metadata does: ``offset`` and ``size`` in bytes, ``kind`` its value kind."""

    name: str
    offset: int
    size: int
    kind: str

    @property
    def is_hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Segment:
    """Hold one loadable piece of the image: ``data`` belongs at virtual address ``address``."""

    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Kernel:
    """Describe one kernel of a code object.

    ``entry`` and ``code_end`` are virtual addresses within the image; ``code`` are the bytes between them.
    Register and spill counts are the metadata's.
    """

    name: str
    symbol: str
    args: tuple[Arg, ...]
    kernarg_bytes: int
    lds_bytes: int
    private_bytes: int
    max_workgroup_size: int
    wavefront_size: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    descriptor: KernelDescriptor
    entry: int
    code: bytes = field(repr=False)
    code_object: CodeObject = field(repr=False)

    @property
    def code_end(self) -> int:
        return self.entry + len(self.code)

    @property
    def explicit_args(self) -> tuple[Arg, ...]:
        return tuple(arg for arg in self.args if not arg.is_hidden)


@dataclass(frozen=True, slots=True, eq=False)
class CodeObject:
    """Hold one code object file. ``label`` is what messages call it; compared and hashed by identity."""

    label: str
    data: bytes = field(repr=False)
    sha256: str
    target: str
    xnack: str
    sramecc: str
    version: int
    segments: tuple[Segment, ...] = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)
    kernels: dict[str, Kernel] = field(repr=False, default_factory=dict)

    @classmethod
    def read(cls, path: Path | str, *, sha256: str | None = None) -> CodeObject:
        """Read a file and check its hash, ELF header and target.

        Raises CodeObjectError when the file is missing, is no gfx950 code object or is damaged, and
        ChecksumError when ``sha256`` (hex) is given and is not the file's.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
        except ValueError as error:  # a NUL in the name
            raise CodeObjectError(f"{str(path)!r}: cannot be read: {error}. Name a file.") from error
        except OSError as error:
            raise CodeObjectError(
                f"{path}: cannot be read: {error.strerror}. Run ./build.sh or reinstall the wheel."
            ) from error
        return cls.parse(data, label=str(path), sha256=sha256)

    @classmethod
    def parse(cls, data: bytes, *, label: str, sha256: str | None = None) -> CodeObject:
        """Do what ``read`` does with bytes in hand. ``label`` names them in messages."""
        digest = hashlib.sha256(data).hexdigest()
        if sha256 is not None and digest != sha256:
            raise ChecksumError(
                f"{label}: sha256 is {digest}, the manifest says {sha256}. Run ./build.sh or reinstall the wheel."
            )
        if data.startswith(BUNDLE_MAGIC):
            raise CodeObjectError(f"{label}: an offload bundle, wanted a raw ELF. Compile with --no-gpu-bundle-output.")
        from elftools.elf.elffile import ELFFile  # late: it costs as much to import as all of this package

        try:
            return cls._from_elf(ELFFile(io.BytesIO(data)), data, digest, label)
        except CodeObjectError:
            raise
        # NOTE: pyelftools and msgpack answer damaged bytes with whatever exception the bytes lead them to.
        except Exception as error:
            raise CodeObjectError(
                f"{label}: not a readable AMDGPU ELF ({type(error).__name__}: {error}); {len(data)} bytes. "
                "Run ./build.sh or reinstall the wheel."
            ) from error

    @classmethod
    def _from_elf(cls, elf: ELFFile, data: bytes, digest: str, label: str) -> CodeObject:
        header = elf.header
        if elf.elfclass != 64 or not elf.little_endian or elf["e_machine"] not in (EM_AMDGPU, "EM_AMDGPU"):
            raise CodeObjectError(
                f"{label}: ELF machine is {elf['e_machine']}, wanted EM_AMDGPU, 64-bit little-endian."
            )
        mach = header["e_flags"] & 0xFF
        if mach != EF_AMDGPU_MACH_GFX950:
            raise CodeObjectError(
                f"{label} is built for {MACHINES.get(mach, 'an unknown processor')} (e_flags {mach:#x}); "
                f"this package runs gfx950 ({EF_AMDGPU_MACH_GFX950:#x}). Compile with --offload-arch=gfx950."
            )
        abi = header["e_ident"]["EI_ABIVERSION"]
        if abi not in CODE_OBJECT_VERSIONS or CODE_OBJECT_VERSIONS[abi] < 5:
            raise CodeObjectError(
                f"{label}: code object ABI version byte is {abi}, wanted 3 (v5, ROCm 5.4 or newer) or 4 (v6, ROCm 6.3 "
                "or newer). Compile with -mcode-object-version=5."
            )
        _check_extents(elf, data, label)
        segments = tuple(
            Segment(segment["p_vaddr"], segment.data() + bytes(segment["p_memsz"] - segment["p_filesz"]))
            for segment in elf.iter_segments("PT_LOAD")
        )
        code_object = cls(
            label=label,
            data=data,
            sha256=digest,
            target=MACHINES[mach],
            xnack=FEATURE_STATES[(header["e_flags"] >> 8) & 3],
            sramecc=FEATURE_STATES[(header["e_flags"] >> 10) & 3],
            version=CODE_OBJECT_VERSIONS[abi],
            segments=segments,
            metadata=_metadata(elf, label),
        )
        table = elf.get_section_by_name(".dynsym")
        if table is None or not hasattr(table, "iter_symbols"):
            raise CodeObjectError(f"{label}: no dynamic symbol table. Run ./build.sh or reinstall the wheel.")
        symbols = {symbol.name: symbol for symbol in table.iter_symbols()}
        for meta in code_object.metadata["amdhsa.kernels"]:
            kernel = _kernel(code_object, meta, symbols)
            code_object.kernels[kernel.name] = kernel
        if not code_object.kernels:
            raise CodeObjectError(f"{label}: holds no kernel.")
        return code_object

    def image_bytes(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes of the loaded image at a virtual address. Raises CodeObjectError outside of it."""
        for segment in self.segments:
            start = address - segment.address
            if 0 <= start and start + size <= len(segment.data):
                return segment.data[start : start + size]
        raise CodeObjectError(f"{self.label}: {size} bytes at address {address:#x} lie in no loadable segment.")


def _check_extents(elf: ELFFile, data: bytes, label: str) -> None:
    """Raise CodeObjectError unless everything the headers name lies within the file and has a sane size."""
    header = elf.header

    def inside(what: str, offset: int, size: int) -> None:
        if offset + size > len(data):
            raise CodeObjectError(
                f"{label}: truncated or damaged: {what} ends at byte {offset + size}, the file at {len(data)}. "
                "Run ./build.sh or reinstall the wheel."
            )

    for what, count, size, wanted, offset in (
        ("program headers", header["e_phnum"], header["e_phentsize"], PROGRAM_HEADER_BYTES, header["e_phoff"]),
        ("section headers", header["e_shnum"], header["e_shentsize"], SECTION_HEADER_BYTES, header["e_shoff"]),
    ):
        if count < 1 or size != wanted or offset < ELF_HEADER_BYTES:
            raise CodeObjectError(
                f"{label}: damaged ELF header: {count} {what} of {size} bytes at {offset}, wanted some of {wanted} "
                "bytes. Run ./build.sh or reinstall the wheel."
            )
        inside(what, offset, count * size)
    image_bytes = 0
    for segment in elf.iter_segments():
        inside("a segment", segment["p_offset"], segment["p_filesz"])
        if segment["p_type"] == "PT_LOAD":
            image_bytes += segment["p_memsz"]
            if segment["p_memsz"] < segment["p_filesz"] or image_bytes > MAX_IMAGE_BYTES:
                raise CodeObjectError(
                    f"{label}: damaged: a segment of {segment['p_filesz']} bytes claims {segment['p_memsz']} in "
                    "memory. Run ./build.sh or reinstall the wheel."
                )
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOBITS":
            inside(f"section {section.name}", section["sh_offset"], section["sh_size"])


def _metadata(elf: ELFFile, label: str) -> dict[str, Any]:
    import msgpack
    from elftools.elf.segments import NoteSegment

    for segment in elf.iter_segments("PT_NOTE"):
        for note in segment.iter_notes() if isinstance(segment, NoteSegment) else ():
            if note["n_name"] == "AMDGPU" and note["n_type"] in (NT_AMDGPU_METADATA, "NT_AMDGPU_METADATA"):
                desc = note["n_descdata"] if "n_descdata" in note else note["n_desc"]
                metadata = msgpack.unpackb(desc if isinstance(desc, bytes) else desc.encode("latin-1"))
                if not isinstance(metadata, dict) or not isinstance(metadata.get("amdhsa.kernels"), list):
                    raise CodeObjectError(f"{label}: the AMDGPU metadata note lists no kernels.")
                return metadata
    raise CodeObjectError(f"{label}: no AMDGPU metadata note.")


def _take(where: str, meta: Any, key: str, kind: type[T], default: T | None = None) -> T:
    """Return ``meta[key]``. Raises CodeObjectError unless it is of the kind, and not negative."""
    value = meta.get(key, default) if isinstance(meta, dict) else None
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise CodeObjectError(f"{where}: metadata {key} is {value!r}, expected {kind.__name__}.")
    return value


def _arg(where: str, meta: Any, kernarg_bytes: int) -> Arg:
    kind = _take(where, meta, ".value_kind", str)
    arg = Arg(
        _take(where, meta, ".name", str, kind),
        _take(where, meta, ".offset", int),
        _take(where, meta, ".size", int),
        kind,
    )
    if arg.offset + arg.size > kernarg_bytes:
        raise CodeObjectError(
            f"{where}: argument {arg.name} ends at byte {arg.offset + arg.size} of a kernarg segment of "
            f"{kernarg_bytes} bytes."
        )
    return arg


def _kernel(code_object: CodeObject, meta: Any, symbols: dict[str, Any]) -> Kernel:
    label = code_object.label
    name, descriptor_name = _take(label, meta, ".name", str), _take(label, meta, ".symbol", str)
    where = f"{label}: kernel {name}"
    for wanted in (name, descriptor_name):
        if wanted not in symbols:
            raise CodeObjectError(f"{label}: the metadata names kernel {name}, but symbol {wanted} is missing.")
    descriptor_address = symbols[descriptor_name]["st_value"]
    descriptor = KernelDescriptor.unpack(code_object.image_bytes(descriptor_address, DESCRIPTOR_BYTES))
    entry, size = descriptor_address + descriptor.entry_offset, symbols[name]["st_size"]
    sizes = {
        key: _take(where, meta, f".{key}", int)
        for key in ("kernarg_segment_size", "group_segment_fixed_size", "private_segment_fixed_size")
    }
    for (key, size_in_metadata), size_in_descriptor in zip(
        sizes.items(), (descriptor.kernarg_bytes, descriptor.lds_bytes, descriptor.private_bytes), strict=True
    ):
        if size_in_metadata != size_in_descriptor:
            raise CodeObjectError(
                f"{where}: metadata .{key} is {size_in_metadata}, the kernel descriptor says {size_in_descriptor}."
            )
    if entry != symbols[name]["st_value"] or size < 1:
        raise CodeObjectError(
            f"{where}: the descriptor enters at {entry:#x}; symbol {name} is {size} bytes at "
            f"{symbols[name]['st_value']:#x}."
        )
    args = _take(where, meta, ".args", list, [])
    return Kernel(
        name=name,
        symbol=descriptor_name,
        args=tuple(_arg(where, arg, descriptor.kernarg_bytes) for arg in args),
        kernarg_bytes=descriptor.kernarg_bytes,
        lds_bytes=descriptor.lds_bytes,
        private_bytes=descriptor.private_bytes,
        max_workgroup_size=_take(where, meta, ".max_flat_workgroup_size", int),
        wavefront_size=_take(where, meta, ".wavefront_size", int),
        vgprs=_take(where, meta, ".vgpr_count", int),
        agprs=_take(where, meta, ".agpr_count", int, 0),
        sgprs=_take(where, meta, ".sgpr_count", int),
        vgpr_spills=_take(where, meta, ".vgpr_spill_count", int, 0),
        sgpr_spills=_take(where, meta, ".sgpr_spill_count", int, 0),
        descriptor=descriptor,
        entry=entry,
        code=code_object.image_bytes(entry, size),
        code_object=code_object,
    )
