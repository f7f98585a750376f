"""Find the one libamdhip64 of this process, and point hip-python at it.

Two copies of the HIP runtime in one process share nothing: streams and pointers of one mean nothing to the other. torch
brings its own, under names and in places that hip-python's search does not know, so the copy that torch has mapped is
looked for first, and a second one is never loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import environment
from .errors import RuntimeMismatch, RuntimeNotFound

STEM = "libamdhip64.so"
_OWNERS = ("libc10_hip.so", "libtorch_hip.so")  # torch's libraries that link the runtime, in torch/lib
_SYMBOL = "hipModuleLaunchKernel"
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True, slots=True)
class Library:
    """Name one file. Two paths of one file (hard links, symbolic links) have the same ``identity``."""

    path: Path
    identity: tuple[Any, ...]

    @classmethod
    def at(cls, path: Path | str) -> Library:
        """Identify a file by device and inode. Raises OSError when there is none."""
        status = os.stat(path)
        return cls(Path(path), (status.st_dev, status.st_ino))


def mapped() -> list[Library]:
    """List the HIP runtimes mapped into this process, each file once."""
    found: dict[tuple[Any, ...], Library] = {}
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not Path(fields[5]).name.startswith(STEM):
            continue
        try:
            library = Library.at(fields[5])
        except OSError:  # deleted since: the kernel's own device and inode still tell it apart
            library = Library(Path(fields[5]), (fields[3], fields[4]))
        found.setdefault(library.identity, library)
    return list(found.values())


def find() -> tuple[Library | None, list[str]]:
    """Find the runtime to use, and say where it was looked for.

    Order: INDEXER_RT_LIBHIP; the copy that torch's symbols resolve to; the copy that is mapped; the one of the package
    rocm_sdk. None leaves it to hip-python's own search. Loads nothing.
    Raises RuntimeNotFound when INDEXER_RT_LIBHIP names no file, RuntimeMismatch when several copies are mapped or
    another than the one to be used.
    """
    present = mapped()
    if len(present) > 1:
        raise RuntimeMismatch(_two(present[0].path, present[1].path))
    searched: list[str] = []
    library = None
    for step in (_from_environment, _from_torch, lambda: _from_maps(present), _from_rocm_sdk):
        library, words = step()
        searched.append(words)
        if library is not None:
            break
    if library is not None and present and present[0].identity != library.identity:
        raise RuntimeMismatch(
            f"{library.path} would be a second HIP runtime: {present[0].path} is already mapped into this process, and "
            "two share neither streams nor memory. Nothing was loaded. Unset INDEXER_RT_LIBHIP, or set it to the "
            "mapped file."
        )
    return library, searched


def check_single(library: Library | None) -> Library:
    """Return the one runtime that is mapped, once hip-python has opened one. It must be ``library``, if that is given.

    Raises RuntimeMismatch, naming both files, otherwise.
    """
    present = mapped()
    if len(present) > 1:
        raise RuntimeMismatch(_two(present[0].path, present[1].path))
    if not present:
        raise RuntimeMismatch(f"hip-python answered, but no {STEM}* is mapped into this process ({_MAPS}).")
    if library is not None and present[0].identity != library.identity:
        raise RuntimeMismatch(_two(library.path, present[0].path))
    return present[0]


def _two(one: Path, other: Path) -> str:
    return (
        f"two HIP runtimes are mapped into this process: {one} and {other}. They share neither streams nor memory. "
        "Import torch before anything that calls HIP, unset ROCM_PATH, or set INDEXER_RT_LIBHIP to torch's copy."
    )


Step = tuple["Library | None", str]


def _from_environment() -> Step:
    path = environment.current().libhip
    if path is None:
        return None, "INDEXER_RT_LIBHIP (not set)"
    if not path.is_file():
        raise RuntimeNotFound(f"INDEXER_RT_LIBHIP: {path} is not a file. Set it to a {STEM}.")
    return Library.at(path), f"INDEXER_RT_LIBHIP ({path})"


def _from_torch() -> Step:
    torch = sys.modules.get("torch")
    if torch is None or torch.__file__ is None:
        return None, "torch (not imported)"
    folder = Path(torch.__file__).parent / "lib"
    for owner in _OWNERS:
        with contextlib.suppress(OSError, AttributeError):
            # NOTE: a look-up through this handle goes to the library's own dependencies first, whatever else is mapped.
            handle = ctypes.CDLL(str(folder / owner), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            return Library.at(_file_of(getattr(handle, _SYMBOL))), f"torch ({folder / owner})"
    return None, f"torch ({folder}: {' and '.join(_OWNERS)} are not loaded)"


class _DlInfo(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def _file_of(function: Any) -> str:
    """Return the file that a C function lies in. Raises OSError when the loader does not know."""
    info = _DlInfo()
    if not ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info)):
        raise OSError("dladdr knows no file for the symbol")
    return os.fsdecode(info.dli_fname)


def _from_maps(present: list[Library]) -> Step:
    return (present[0] if present else None), "the libraries of this process (none mapped)"


def _from_rocm_sdk() -> Step:
    try:
        from rocm_sdk import find_libraries
    except ImportError:
        return None, "rocm_sdk (not installed)"
    paths = find_libraries("amdhip64")
    return (Library.at(paths[0]) if paths else None), "rocm_sdk (has no amdhip64)"


@contextlib.contextmanager
def pointing(hip: Any, library: Library | None) -> Iterator[None]:
    """Make hip-python open this file at its first call, which must come inside."""
    if library is None:
        yield
        return
    path = os.fsencode(library.path)
    if hip.__name__ == "hip.hip":  # hip-python 7 opens what this attribute says
        chip: Any = importlib.import_module("hip.chip")
        chip.DLL = path
        yield
        return
    paths: Any = importlib.import_module("rocm.bindings.util.paths")  # hip-python 10 asks this
    search = paths.get_library_path

    def get_library_path(shortname: str, *arguments: Any, **options: Any) -> bytes:
        return path if shortname == "amdhip64" else search(shortname, *arguments, **options)

    paths.get_library_path = get_library_path
    try:
        yield
    finally:
        paths.get_library_path = search
