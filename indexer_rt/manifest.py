"""Describe code objects in ``manifest.json``: the keys of an entry, which of them the ELF proves, the file's form."""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .code_object import CodeObject, Kernel
from .errors import CodeObjectError

FILE_NAME = "manifest.json"

# Keys of an entry, in the order they are written.
KEYS = (
    "name", "file", "sha256", "target", "symbol", "problem", "launch", "vgprs", "agprs", "sgprs", "spills",
    "kernarg_bytes", "args", "compiler", "flags", "source_sha256",
)  # fmt: skip

# Contraction length that the kernel is written for (design: head_dim 128).
HEAD_DIM = 128

# Keys that a wave takes its rows through at a time: a step. One group of rows in one step is a unit of work.
STEP_TOKENS = 64

# A compute unit has 4 SIMDs, each with 512 registers a lane and 8 wave slots, and 160 KiB of LDS (CDNA4).
SIMDS_PER_CU = 4
REGISTERS_PER_SIMD = 512
WAVE_SLOTS_PER_SIMD = 8
LDS_BYTES_PER_CU = 160 * 1024

# High halves of v_mfma_ld_scale_b32 and of the two f8f6f4 MFMA that it may precede: together one v_mfma_scale_*.
_LD_SCALE = 0xD3AC
_F8F6F4 = (0xD3AD, 0xD3AE)


def shipped_folder() -> Path:
    """Return the folder of the code objects that came with the package, or that lies beside it in a checkout."""
    try:
        return Path(str(importlib.resources.files("indexer_rt.hsaco")))
    except ModuleNotFoundError:
        return Path(__file__).resolve().parent.parent / "hsaco"


def only_kernel(code_object: CodeObject) -> Kernel:
    """Return the one kernel of a code object. Raises CodeObjectError when there are more."""
    if len(code_object.kernels) != 1:
        raise CodeObjectError(
            f"{code_object.label}: holds {len(code_object.kernels)} kernels ({', '.join(code_object.kernels)}), "
            "wanted one. Compile each variant to its own file."
        )
    return next(iter(code_object.kernels.values()))


def measured(code_object: CodeObject) -> dict[str, Any]:
    """Return the part of an entry that the ELF proves, keys as in ``KEYS``.

    ``vgprs`` counts the unified registers of a wave, AGPRs among them, as the metadata does on gfx90a and later;
    ``spills`` counts spilled vector and scalar registers; ``launch.lds_bytes`` is the kernel's own, static LDS.
    """
    kernel = only_kernel(code_object)
    return {
        "name": kernel.name,
        "file": f"{kernel.name}.hsaco",
        "sha256": code_object.sha256,
        "target": code_object.target,
        "symbol": kernel.name,
        "launch": {"block": kernel.max_workgroup_size, "lds_bytes": kernel.lds_bytes},
        "vgprs": kernel.vgprs,
        "agprs": kernel.agprs,
        "sgprs": kernel.sgprs,
        "spills": kernel.vgpr_spills + kernel.sgpr_spills,
        "kernarg_bytes": kernel.kernarg_bytes,
        "args": [{"name": a.name, "kind": a.kind, "offset": a.offset, "size": a.size} for a in kernel.args],
    }


def forbidden(code_object: CodeObject) -> list[str]:
    """Return what a code object has and must not ship with, a sentence each; empty when it is fit to ship."""
    kernel = only_kernel(code_object)
    descriptor = kernel.descriptor
    faults = []
    if kernel.vgpr_spills or kernel.sgpr_spills:
        faults.append(f"spills {kernel.vgpr_spills} VGPRs and {kernel.sgpr_spills} SGPRs, wanted none")
    if kernel.private_bytes or descriptor.private_bytes or descriptor.private_segment:
        faults.append(
            f"uses scratch ({max(kernel.private_bytes, descriptor.private_bytes)} bytes a work-item), wanted none: "
            "look for an array indexed at run time"
        )
    if descriptor.uses_dynamic_stack:
        faults.append("uses a dynamic stack, wanted none: look for a call or an alloca")
    offset = scale_operand(kernel)
    if offset is not None:
        faults.append(
            f"holds a v_mfma_scale_* at +{offset:#x}, wanted the unscaled form: "
            "pass the constants 0, 0 as the builtin's scales"
        )
    for feature, state in (("xnack", code_object.xnack), ("sramecc", code_object.sramecc)):
        if state != "any":
            faults.append(f"is built for {feature} '{state}', wanted 'any': name gfx950 without a feature suffix")
    return faults


def scale_operand(kernel: Kernel) -> int | None:
    """Return the byte offset of the first v_mfma_scale_* in a kernel, or None."""
    words = memoryview(kernel.code[: len(kernel.code) & ~3]).cast("I")
    for index in range(len(words) - 2):
        if words[index] >> 16 == _LD_SCALE and words[index + 2] >> 16 in _F8F6F4:
            return index * 4
    return None


def waves_per_simd(kernel: Kernel) -> int:
    """Return how many waves of a kernel one SIMD holds: bounded by registers, by LDS and by its wave slots."""
    waves = min(WAVE_SLOTS_PER_SIMD, REGISTERS_PER_SIMD // kernel.descriptor.allocated_vgprs)
    if kernel.lds_bytes:
        workgroup_waves = -(-kernel.max_workgroup_size // kernel.wavefront_size)
        waves = min(waves, LDS_BYTES_PER_CU // kernel.lds_bytes * workgroup_waves // SIMDS_PER_CU)
    return waves


def defines_of(flags: str) -> dict[str, str]:
    """Return the macros that compiler flags, as an entry holds them, define."""
    return dict(flag[2:].partition("=")[::2] for flag in flags.split() if flag.startswith("-D"))


def compiler_comment(code_object: CodeObject) -> list[str]:
    """Return the strings of ``.comment``: each compiler and linker that made the ELF, as it calls itself."""
    from elftools.elf.elffile import ELFFile

    section = ELFFile(io.BytesIO(code_object.data)).get_section_by_name(".comment")
    return [] if section is None else [text.decode() for text in section.data().split(b"\0") if text]


def source_digest(kernels: Path) -> str:
    """Return a sha256 over the kernel sources in a folder: *.hip, *.h and variants.txt.

    Sorted by name, each adds its name, a zero byte, its size in decimal, a zero byte and its bytes.
    """
    digest = hashlib.sha256()
    for path in sorted([*kernels.glob("*.hip"), *kernels.glob("*.h"), kernels / "variants.txt"], key=lambda p: p.name):
        data = path.read_bytes()
        digest.update(f"{path.name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def text_of(entries: Iterable[dict[str, Any]]) -> str:
    """Return the file's text: a JSON array, one line per entry, sorted by name, keys in the order of ``KEYS``."""
    lines = [json.dumps({key: entry[key] for key in KEYS}) for entry in sorted(entries, key=lambda e: e["name"])]
    return "[\n" + ",\n".join(lines) + "\n]\n"
