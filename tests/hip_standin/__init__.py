"""Drive the stand-in for libamdhip64 (libamdhip64.c): compile it, ask it, make it fail, give it memory and torch a GPU.

It replaces the driver, and nothing above: hip-python is the real, unmodified one. torch is a CPU build, so ``Gpu``
answers in its place what this package asks torch about GPUs; CPU tensors then count as tensors of ``cuda:0``.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from indexer_rt import emu, torch_gpu
from indexer_rt.code_object import CodeObject
from indexer_rt.device import buffer_of
from indexer_rt.launch import Launch
from indexer_rt.problem import Tensors

SOURCE = Path(__file__).parent / "libamdhip64.c"
ARCHITECTURE = "gfx950:sramecc+:xnack-"
MACHINES = {"gfx950": 0x4F, "gfx942": 0x4C, "gfx90a": 0x3F, "gfx1036": 0x45, "gfx1201": 0x4E}  # EF_AMDGPU_MACH_*


def compiler() -> list[str]:
    return ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]


def compile_c(output: Path, source: Path | str, *flags: str) -> Path:
    """Compile C (a file, or its text) to a shared library."""
    if isinstance(source, str):
        text, source = source, output.with_suffix(".c")
        source.write_text(text)
    words = [*compiler(), "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-o", str(output), str(source), *flags]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


def compile_standin(folder: Path, name: str = "libamdhip64.so", *flags: str) -> Path:
    return compile_c(folder / name, SOURCE, *flags)


class _Launch(ctypes.Structure):
    """launch_t"""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("lds_bytes", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("kernarg_bytes", ctypes.c_uint64),
        ("kernarg", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Record(ctypes.Structure):
    """record_t"""

    _fields_ = (("name", ctypes.c_char * 40), ("status", ctypes.c_int32), ("device", ctypes.c_int32))


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


@dataclass(frozen=True)
class Launched:
    """Hold one launch as the driver got it. ``launch`` is made of the module's own bytes and of the kernarg bytes."""

    launch: Launch
    device: int
    stream: int

    @property
    def name(self) -> str:
        return self.launch.kernel.name

    def argument(self, name: str) -> int:
        (arg,) = [arg for arg in self.launch.kernel.explicit_args if arg.name == name]
        return int.from_bytes(self.launch.kernarg[arg.offset : arg.offset + arg.size], "little", signed=True)


@dataclass
class Standin:
    """Be one loaded stand-in."""

    path: Path
    launches: list[Launched] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.library = ctypes.CDLL(str(self.path))
        self.library.standin_calls.restype = ctypes.c_uint64
        self.library.standin_record_count.restype = ctypes.c_uint64
        self.library.standin_record.restype = ctypes.POINTER(_Record)
        self.library.standin_record.argtypes = (ctypes.c_uint64,)
        self.library.standin_add_stream.argtypes = (ctypes.c_uint64, ctypes.c_int)
        self.library.standin_image.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
        self.library.standin_image.restype = ctypes.c_void_p
        self.library.standin_name.argtypes = (ctypes.c_void_p,)
        self.library.standin_name.restype = ctypes.c_char_p
        self._kernels: dict[int, CodeObject] = {}
        self._errors: list[BaseException] = []

    def reset(self) -> None:
        """Forget calls, failures, callback and capture. Modules stay: so it is in a process."""
        self.library.standin_reset()
        self.library.standin_set_version(70226015)
        for index in range(2):
            self.set_device(index, "gfx950")
        self.launches.clear()
        self._errors.clear()

    def calls(self, name: str) -> int:
        return int(self.library.standin_calls(name.encode()))

    def total(self) -> int:
        return int(self.library.standin_record_count())

    def records(self) -> list[tuple[str, int, int]]:
        """Return (function, status, current device) of every call since the reset, at most the last 256."""
        count = self.total()
        entries = [self.library.standin_record(index).contents for index in range(max(0, count - 256), count)]
        return [(entry.name.decode(), entry.status, entry.device) for entry in entries]

    def fail(self, function: str, code: int, times: int = -1) -> None:
        """Make a function return a code: ``times`` times, or for ever."""
        self.library.standin_fail(function.encode(), code, times)

    def capture(self, on: bool) -> None:
        self.library.standin_capture(int(on))

    def add_stream(self, handle: int, device: int = 0) -> int:
        self.library.standin_add_stream(handle, device)
        return handle

    def set_device(self, index: int, architecture: str) -> None:
        self.library.standin_set_device(index, MACHINES[architecture])

    def on_launch(self, run: Callable[[Launched], None] | None) -> None:
        """Call ``run`` at every launch. What it raises, ``check`` raises; the launch itself returns 719."""

        def called(pointer: ctypes._Pointer[_Launch]) -> int:
            try:
                launched = self._launched(pointer.contents)
                self.launches.append(launched)
                if run is not None:
                    run(launched)
            except BaseException as error:
                self._errors.append(error)
                return 719
            return 0

        self._callback = _CALLBACK(called)
        self.library.standin_on_launch(self._callback)

    def check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _launched(self, raw: _Launch) -> Launched:
        kernel = self._code_object(raw.function).kernels[self.library.standin_name(raw.function).decode()]
        if raw.kernarg:
            kernarg = ctypes.string_at(raw.kernarg, raw.kernarg_bytes)
        else:
            kernarg = bytearray(kernel.kernarg_bytes)
            for position, arg in enumerate(kernel.explicit_args):
                kernarg[arg.offset : arg.offset + arg.size] = ctypes.string_at(raw.parameters[position], arg.size)
        launch = Launch(kernel, tuple(raw.grid), tuple(raw.block), raw.lds_bytes, bytes(kernarg))
        return Launched(launch, raw.device, raw.stream)

    def _code_object(self, function: int) -> CodeObject:
        if function not in self._kernels:
            size = ctypes.c_uint64()
            address = self.library.standin_image(function, ctypes.byref(size))
            self._kernels[function] = CodeObject.parse(ctypes.string_at(address, size.value), label="loaded module")
        return self._kernels[function]


class Memory:
    """Run launches in the emulator on the host memory of tensors, at its real addresses."""

    def __init__(self, tensors: Sequence[torch.Tensor] = (), *, strict: bool = True) -> None:
        self.tensors = list(tensors)
        self.strict = strict

    def __call__(self, launched: Launched) -> None:
        pointers = {name: launched.argument(name) for name in Tensors._fields}
        buffers = [
            buffer_of(name, tensor.data_ptr(), tensor)
            for tensor in self.tensors
            for name, pointer in pointers.items()
            if pointer == tensor.data_ptr()
        ]
        if pointers["logits"] not in {buffer.address for buffer in buffers}:  # the op's own, which no test can know
            rows = launched.argument("batch") * launched.argument("next_n")
            size = rows * launched.argument("logits_row_stride")
            data = (ctypes.c_uint8 * size).from_address(pointers["logits"])
            buffers.append(emu.Buffer("logits", pointers["logits"], _bytes(data), True))
        emu.run(launched.launch, buffers, strict=self.strict)


def _bytes(data: ctypes.Array[ctypes.c_uint8]) -> object:
    import numpy

    return numpy.frombuffer(data, numpy.uint8)


@dataclass
class Gpu(torch_gpu.TorchGpu):
    """Answer for torch: ``architectures`` of the devices, and what is current. CPU tensors lie on device ``home``."""

    standin: Standin | None = None
    architectures: Sequence[str] = (ARCHITECTURE, ARCHITECTURE)
    compute_units: int = 256
    home: int = 0
    current: int = 0
    stream: int = 0
    capturing: bool = False
    lost: bool = False
    asked: list[str] = field(default_factory=list)

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        return torch.device("cuda", self.home) if tensor.device.type == "cpu" else tensor.device

    def hip_version(self) -> str | None:
        return "7.2.0"

    def is_available(self) -> bool:
        return True

    def set_device(self, index: int) -> None:
        self.current = index
        if self.standin is not None:
            self.standin.library.hipSetDevice(index)

    def current_device(self) -> int:
        return self.current

    def raw_stream(self, index: int) -> int:
        return self.stream

    def architecture(self, index: int) -> str:
        self.asked.append(f"architecture of {index}")
        return self.architectures[index]

    def num_cus(self, index: int) -> int:
        return self.compute_units

    def is_capturing(self) -> bool:
        return self.capturing

    def is_lost(self) -> bool:
        return self.lost


class Graph:
    """Record launches as a captured graph does: arguments copied at capture, run at replay."""

    def __init__(self, standin: Standin, run: Callable[[Launched], None]) -> None:
        self._standin, self._run, self.nodes = standin, run, []

    def capture(self, work: Callable[[], object], gpu: Gpu) -> None:
        self._standin.on_launch(self.nodes.append)
        gpu.capturing = True
        self._standin.capture(True)
        try:
            work()
        finally:
            self._standin.capture(False)
            gpu.capturing = False
            self._standin.on_launch(None)

    def replay(self) -> None:
        for node in self.nodes:
            self._run(node)
