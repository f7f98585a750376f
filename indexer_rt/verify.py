"""Verify a folder of code objects: hashes, ELF headers, the manifest against the ELF, every instruction's encoding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import manifest
from .code_object import CodeObject, Kernel
from .emu.program import Program
from .errors import CodeObjectError, EmulatorFault

# Keys of an entry that the ELF does not prove by itself; each has its own check below.
_STATED = ("problem", "compiler", "flags", "source_sha256")

_KINDS = {"name": str, "file": str, "sha256": str, "problem": dict, "compiler": str, "flags": str}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold what was found about one file: the number of its instructions, and ``faults``, a sentence each."""

    name: str
    instructions: int
    faults: tuple[str, ...]


def verify(folder: Path, *, kernels: Path | None = None) -> list[Verdict]:
    """Verify every code object in a folder, the manifest's entries first.

    ``kernels`` is the folder of sources that the manifest's ``source_sha256`` must match, or None where there is none.
    Returns a verdict per entry and per file without an entry. Raises CodeObjectError when the manifest is missing, is
    not the JSON that build.sh writes, or lists nothing.
    """
    path = folder / manifest.FILE_NAME
    try:
        text = path.read_text()
        entries = json.loads(text)
        canonical = manifest.text_of(entries)
    except OSError as error:
        raise CodeObjectError(f"{path}: cannot be read: {error.strerror}. Run ./build.sh or reinstall.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CodeObjectError(
            f"{path}: not a manifest ({type(error).__name__}: {error}); wanted a JSON array of objects with the keys "
            f"{', '.join(manifest.KEYS)}. Run ./build.sh or reinstall."
        ) from error
    if not entries:
        raise CodeObjectError(f"{path}: lists no code object. Run ./build.sh or reinstall.")
    if text != canonical:
        raise CodeObjectError(
            f"{path}: keys, order or spacing are not what build.sh writes. Run ./build.sh or reinstall."
        )

    for position, entry in enumerate(entries):
        for key, kind in _KINDS.items():
            if not isinstance(entry[key], kind):
                raise CodeObjectError(
                    f"{path}: entry {position}: expected {key!r} of type {kind.__name__}, got {entry[key]!r}. "
                    "Run ./build.sh or reinstall."
                )

    source_sha256 = None if kernels is None else manifest.source_digest(kernels)
    verdicts = [_verify_entry(folder, entry, source_sha256) for entry in entries]
    listed = {entry["file"] for entry in entries}
    for file in sorted(folder.glob("*.hsaco")):
        if file.name not in listed:
            verdicts.append(Verdict(file.stem, 0, (f"{file} has no entry in {path.name}. Run ./build.sh.",)))
    return verdicts


def _verify_entry(folder: Path, entry: dict[str, Any], source_sha256: str | None) -> Verdict:
    name = entry["name"]
    try:
        code_object = CodeObject.read(folder / entry["file"], sha256=entry["sha256"])
        found = manifest.measured(code_object)
    except CodeObjectError as error:
        return Verdict(name, 0, (str(error),))
    faults = [
        f"{key}: the manifest says {entry[key]!r}, the ELF says {found[key]!r}"
        for key in manifest.KEYS
        if key not in _STATED and entry[key] != found[key]
    ]
    faults += [f"{entry['file']} {fault}" for fault in manifest.forbidden(code_object)]
    faults += _verify_stated(entry, code_object, source_sha256)
    instructions = 0
    try:
        instructions = _count_instructions(manifest.only_kernel(code_object))
    except EmulatorFault as fault:
        faults.append(str(fault))
    return Verdict(name, instructions, tuple(faults))


def _count_instructions(kernel: Kernel) -> int:
    """Decode a whole kernel and make what executes each instruction. Raises EmulatorFault where that fails."""
    program, pc, count = Program(kernel), 0, 0
    while pc < len(kernel.code):
        pc += program.at(pc).instruction.size
        count += 1
    return count


def _verify_stated(entry: dict[str, Any], code_object: CodeObject, source_sha256: str | None) -> list[str]:
    faults = []
    problem = entry["problem"]
    defines = {
        "KERNEL_NAME": entry["name"],
        "NUM_HEADS": str(problem.get("num_heads")),
        "ROWS_PER_WAVE": str(problem.get("rows_per_wave")),
        "GATHER": {"page": "0", "gather": "1"}.get(str(problem.get("addressing"))),
    }
    given = manifest.defines_of(entry["flags"])
    waves, wanted = manifest.waves_per_simd(manifest.only_kernel(code_object)), given.pop("WAVES_PER_SIMD", "none")
    if given != defines:
        faults.append(f"flags define {given}, but name and problem ask for {defines}")
    if not wanted.isdecimal() or waves < int(wanted):
        faults.append(f"flags: WAVES_PER_SIMD is {wanted}, but the registers leave room for {waves}")
    if problem.get("head_dim") != manifest.HEAD_DIM:
        faults.append(f"problem.head_dim is {problem.get('head_dim')!r}, wanted {manifest.HEAD_DIM}")
    ending = f"_h{problem.get('num_heads')}_r{problem.get('rows_per_wave')}_{problem.get('addressing')}"
    if not entry["name"].endswith(ending):
        faults.append(f"name is {entry['name']}, wanted one that ends in {ending}")
    comment = manifest.compiler_comment(code_object)
    if not any(maker in entry["compiler"] for maker in comment if not maker.startswith("Linker: ")):
        faults.append(f"compiler: the manifest says {entry['compiler']!r}, the ELF says {comment}")
    if source_sha256 is not None and entry["source_sha256"] != source_sha256:
        faults.append(
            f"source_sha256: the manifest says {entry['source_sha256']}, kernels/ has {source_sha256}. Run ./build.sh"
        )
    return faults
