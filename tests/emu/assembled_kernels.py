"""Assemble whole kernels for the machine tests, with the pip-installable LLVM (PyPI ``ziglang``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from indexer_rt.code_object import CodeObject

_DESCRIPTOR = """
{name}:
{body}
  s_endpgm
.size {name}, .-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_kernarg_size 16
  .amdhsa_user_sgpr_count {user_sgprs}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_user_sgpr_kernarg_preload_length {preload[0]}
  .amdhsa_user_sgpr_kernarg_preload_offset {preload[1]}
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 64
  .amdhsa_next_free_sgpr 48
  .amdhsa_accum_offset 32
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_ieee_mode 1
.end_amdhsa_kernel
.text
"""
_METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .wavefront_size: 64
    .sgpr_count: 48
    .vgpr_count: 64
    .max_flat_workgroup_size: 1024
    .args:
      - {{.name: input, .offset: 0, .size: 8, .value_kind: global_buffer}}
      - {{.name: output, .offset: 8, .size: 8, .value_kind: global_buffer}}
"""


def assemble(
    bodies: dict[str, str],
    folder: Path,
    *,
    lds: int = 1024,
    scratch: dict[str, int] | None = None,
    preload: dict[str, tuple[int, int]] | None = None,
) -> CodeObject:
    """Assemble one kernel per name.

    A body is instructions separated by semicolons. A kernel takes two pointers, ``input`` and ``output``, and has the
    workgroup id x in s2. ``lds`` and ``scratch``: bytes per workgroup, and per lane of the kernels named. ``preload``:
    length and offset in dwords of the arguments preloaded from s2 on, for the kernels named; the workgroup id follows.
    """
    text = ['.amdgcn_target "amdgcn-amd-amdhsa--gfx950"', ".amdhsa_code_object_version 5", ".text"]
    metadata = [".amdgpu_metadata", "---", "amdhsa.version: [1, 2]", "amdhsa.target: amdgcn-amd-amdhsa--gfx950"]
    metadata.append("amdhsa.kernels:")
    for name, body in bodies.items():
        private = (scratch or {}).get(name, 0)
        text += [f".globl {name}", ".p2align 8", f".type {name},@function"]
        preloaded = (preload or {}).get(name, (0, 0))
        text.append(
            _DESCRIPTOR.format(
                name=name, body=body.replace(";", "\n"), lds=lds, scratch=private, preload=preloaded,
                user_sgprs=2 + preloaded[0],
            )
        )  # fmt: skip
        metadata.append(_METADATA.format(name=name, lds=lds, scratch=private).strip("\n"))
    source, obj, out = (folder / f"kernels.{suffix}" for suffix in ("s", "o", "hsaco"))
    source.write_text("\n".join([*text, *metadata, "...", ".end_amdgpu_metadata", ""]))
    zig = [sys.executable, "-m", "ziglang"]
    subprocess.run(
        [*zig, "clang", "--target=amdgcn-amd-amdhsa", "-mcpu=gfx950", "-c", str(source), "-o", str(obj)], check=True
    )
    subprocess.run([*zig, "ld.lld", "-shared", str(obj), "-o", str(out)], check=True)
    return CodeObject.read(out)
