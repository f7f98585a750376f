#!/usr/bin/env python3
"""Compile a HIP file to a raw AMDGPU ELF as ``hipcc --genco --no-gpu-bundle-output`` does, where there is no ROCm.

The compiler is the clang with the AMDGPU back end (and the lld) inside PyPI's ``ziglang``; install it with
``pip install ".[build]"``. Its clang cannot link for amdgcn by itself, so three steps do what hipcc does in one:
HIP to assembly, assembly to object, object to shared object. There are no HIP headers and no device library:
the source must need neither. Flags are hipcc's; those not named below go to the first step as they are.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

USAGE = "ziglang_hipcc.py --genco --no-gpu-bundle-output --offload-arch=gfxN -o FILE SOURCE.hip [clang flags]"

# The host whose types the device code is made to agree with. Fixed, so that every machine makes the same bytes.
HOST_TARGET = "--target=x86_64-unknown-linux-gnu"

# Flags that take the next word as their value.
TAKES_VALUE = ("-D", "-U", "-I", "-isystem", "-include", "-mllvm", "-Xclang")


def zig(*words: str) -> None:
    """Run one of zig's LLVM tools. Raises SystemExit with its exit status when it fails; its messages are on stderr."""
    status = subprocess.run([sys.executable, "-m", "ziglang", *words]).returncode
    if status:
        raise SystemExit(status if status > 0 else 1)


def print_version() -> None:
    """Print the versions of the package and of its clang, a line each."""
    clang = subprocess.run(
        [sys.executable, "-m", "ziglang", "clang", "--version"], capture_output=True, text=True, check=True
    )
    print("ziglang", importlib.metadata.version("ziglang"))
    print(clang.stdout.splitlines()[0])


def main(words: list[str]) -> None:
    """Do what ``words``, hipcc's flags, ask for. Raises SystemExit on flags that this driver cannot honour."""
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit(f'ziglang_hipcc.py: {sys.executable} has no package ziglang. Run: pip install ".[build]"')
    if words == ["--version"]:
        print_version()
        return

    # Split the words into what this driver acts on and what clang gets.
    genco = raw = assembly_only = False
    targets: list[str] = []
    sources: list[str] = []
    output = ""
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--genco":
            genco = True
        elif word == "--no-gpu-bundle-output":
            raw = True
        elif word == "-S":
            assembly_only = True
        elif word.startswith("--offload-arch="):
            targets.append(word.removeprefix("--offload-arch="))
        elif word == "-o":
            output = next(rest, "")
        elif word in TAKES_VALUE:
            flags += [word, next(rest, "")]
        elif word.startswith("-"):
            flags.append(word)
        else:
            sources.append(word)
    if not (genco and raw and len(targets) == len(sources) == 1 and output):
        raise SystemExit(
            "ziglang_hipcc.py: wanted --genco, --no-gpu-bundle-output, one --offload-arch, one source and -o FILE; "
            f"got genco={genco}, raw={raw}, targets={targets}, sources={sources}, output={output!r}.\nusage: {USAGE}"
        )

    # The assembler takes the code object version a second time: it writes the ELF header.
    abi = [flag for flag in flags if flag.startswith("-mcode-object-version=")]
    with tempfile.TemporaryDirectory() as folder:
        assembly = output if assembly_only else str(Path(folder, "kernel.s"))
        unlinked = str(Path(folder, "kernel.o"))
        hip = ["clang", "-x", "hip", HOST_TARGET, f"--offload-arch={targets[0]}", "--cuda-device-only"]
        zig(*hip, "-nogpuinc", "-nogpulib", *flags, "-S", "-o", assembly, sources[0])
        if assembly_only:
            return
        zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={targets[0]}", *abi, "-c", "-o", unlinked, assembly)
        zig("ld.lld", "-shared", "-o", output, unlinked)


if __name__ == "__main__":
    main(sys.argv[1:])
