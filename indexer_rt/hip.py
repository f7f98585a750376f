"""Load code objects and launch kernels through hip-python. The only file that imports it, and only at the first HIP
call.

Works with hip-python 7.2 and 10: uses only the functions that are the same in both. Modules are never unloaded: a
captured graph may hold their functions as long as the process lives.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import torch

from . import environment
from .code_object import ARCHITECTURE, CodeObject, Kernel
from .errors import HipError, RuntimeNotFound
from .launch import Launch
from .problem import Tensors

_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"

# hipModuleLaunchKernel's `extra`: marks of the entries that follow (hip_runtime_api.h, HIP_LAUNCH_PARAM_*).
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3

# hipError_t -> what to do. Names come from the enumeration itself.
_ADVICE = {
    1: "The runtime refused an argument; report this with the whole message.",
    2: "The device is out of memory.",
    9: "The grid or block is not one that the device takes; report this with the whole message.",
    98: "The module holds no kernel for this device.",
    100: "No device is visible: look at HIP_VISIBLE_DEVICES and at the permissions of /dev/kfd.",
    101: "Look at HIP_VISIBLE_DEVICES.",
    200: "The runtime could not read the image: `indexer-rt verify` says whether the file is whole; a whole file means "
    "that the ROCm runtime is older than the code object version.",
    209: "The image is for another GPU than this device.",
    303: "The runtime could not load the image: it is for another GPU, or newer than this ROCm can read.",
    500: "The image holds no kernel of that name.",
    700: "A memory access failed on the device. It may come from earlier work: set AMD_SERIALIZE_KERNEL=3.",
    701: "The kernel needs more registers or LDS than the device has.",
    709: "The stream or context belongs to another copy of the HIP runtime, or was destroyed.",
    719: "A launch failed on the device. It may come from earlier work: set AMD_SERIALIZE_KERNEL=3.",
    900: "Not allowed while a stream is being captured. Call indexer_rt.load() before the capture.",
}
_ADVICE_ELSE = "It may come from earlier work on the device: set AMD_SERIALIZE_KERNEL=3 and look at the driver's log."


def why_not(device: torch.device) -> str | None:
    """Say why a ROCm torch device cannot run the code objects, or None. Asks torch, makes no HIP call of its own."""
    if os.environ.get(_OVERRIDE):
        return (
            f"device: {_OVERRIDE}={os.environ[_OVERRIDE]} makes the driver report another GPU than there is. Unset "
            "it: the code objects "
            f"run on {ARCHITECTURE} only."
        )
    name = torch.cuda.get_device_properties(device).gcnArchName
    if name.split(":")[0] != ARCHITECTURE:
        return (
            f"device: {device} is {name}; the code objects run on {ARCHITECTURE} (MI350X, MI355X). Pass CPU tensors "
            "to use the emulator."
        )
    return None


def device(torch_device: torch.device) -> HipDevice:
    """Return the one HipDevice of a torch device; the current one where it has no index."""
    index = torch.cuda.current_device() if torch_device.index is None else torch_device.index
    with _lock:
        if index not in _devices:
            _devices[index] = HipDevice(index)
        return _devices[index]


class HipDevice:
    """Run launches on one GPU. Safe to use from several threads."""

    def __init__(self, index: int) -> None:
        properties = torch.cuda.get_device_properties(index)
        self.index = index
        self.name = f"cuda:{index} ({properties.gcnArchName})"
        self.num_cus: int = properties.multi_processor_count
        self._functions: dict[tuple[str, str], Any] = {}  # (sha256, kernel name) -> hipFunction_t
        self._lock = threading.Lock()

    def load(self, kernel: Kernel) -> None:
        """Load a kernel's module, once. Raises HipError (900 while a stream is captured) or RuntimeNotFound."""
        self._function(kernel)

    def addresses(self, tensors: Tensors, pointers: tuple[int, ...]) -> tuple[int, ...]:
        return pointers

    def run(self, launch: Launch, tensors: Tensors) -> None:
        """Launch on torch's current stream of this device and return at once. Raises HipError."""
        function = self._function(launch.kernel)
        kernarg = ctypes.create_string_buffer(launch.kernarg, len(launch.kernarg))
        size = ctypes.c_size_t(len(launch.kernarg))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(kernarg), _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        with torch.cuda.device(self.index):
            stream = torch.cuda.current_stream(self.index).cuda_stream
            _call(
                "hipModuleLaunchKernel",
                function,
                *launch.grid,
                *launch.block,
                launch.lds_bytes,
                stream,
                None,
                ctypes.addressof(extra),
                where=f"{launch.kernel.name} on {self.name}, grid {launch.grid}, block {launch.block}",
            )

    def _function(self, kernel: Kernel) -> Any:
        key = (kernel.code_object.sha256, kernel.name)
        function = self._functions.get(key)
        if function is not None:
            return function
        with self._lock, torch.cuda.device(self.index):
            if key not in self._functions:
                self._functions[key] = self._load(kernel)
            return self._functions[key]

    def _load(self, kernel: Kernel) -> Any:
        code_object = kernel.code_object
        if torch.cuda.is_current_stream_capturing():
            raise HipError(
                f"{kernel.name} is not loaded on {self.name}, and a stream is being captured. Call indexer_rt.load() "
                "before the capture.",
                code=900,
                name="hipErrorStreamCaptureUnsupported",
                call="hipModuleLoadData",
            )
        where = f"{_describe(code_object)}; on {self.name}"
        module = _call("hipModuleLoadData", code_object.data, where=where)
        return _call("hipModuleGetFunction", module, kernel.name.encode(), where=where)


def _describe(code_object: CodeObject) -> str:
    return f"{code_object.label} (for {code_object.target}, code object v{code_object.version})"


_devices: dict[int, HipDevice] = {}
_lock = threading.Lock()


def _call(call: str, *arguments: Any, where: str) -> Any:
    """Call one function of hip-python and return its result. Raises HipError when it reports an error."""
    hip = _library()
    try:
        outcome = getattr(hip, call)(*arguments)
    except RuntimeError as error:  # hip-python's own way to say that the library or a symbol is not there
        if "dlopen" not in str(error) and "dlsym" not in str(error):
            raise
        raise RuntimeNotFound(
            f"{call}: no usable HIP runtime: {error}. Install ROCm 7.2 or newer, or set INDEXER_RT_LIBHIP to "
            "libamdhip64.so. "
            "CPU tensors need none: they use the emulator."
        ) from error
    status = outcome[0]
    code = int(status)
    if code:
        name = getattr(status, "name", f"hipError {code}")
        raise HipError(
            f"{call}({where}): {name} ({code}). HIP runtime {_runtime_version(hip)}. {_ADVICE.get(code, _ADVICE_ELSE)}",
            code=code,
            name=name,
            call=call,
        )
    return outcome[1] if len(outcome) > 1 else None


def runtime_version() -> str:
    """Return the version of the HIP runtime that launches use, after finding it. Raises RuntimeNotFound or HipError."""
    _call("hipRuntimeGetVersion", where="the runtime")
    return _runtime_version(_library())


def _runtime_version(hip: Any) -> str:
    """Return the runtime's version for messages. HIP encodes it as major * 10**7 + minor * 10**5 + patch."""
    status, version = hip.hipRuntimeGetVersion()
    return "of unknown version" if int(status) else f"{version // 10**7}.{version // 10**5 % 100}.{version % 10**5}"


def _library() -> Any:
    """Import hip-python, and point it at INDEXER_RT_LIBHIP where that is set. Raises RuntimeNotFound."""
    if _imported:
        return _imported[0]
    try:
        from hip import hip
    except ImportError as error:
        raise RuntimeNotFound(
            f"hip-python cannot be imported ({error}). Install the release for your ROCm: pip install "
            "'hip-python>=7.2'."
        ) from error
    if not hasattr(hip, "hipModuleLaunchKernel"):
        raise RuntimeNotFound(
            f"the module 'hip' at {getattr(hip, '__file__', 'an unknown place')} is not hip-python (another "
            "distribution uses the same name). "
            "Uninstall it, then: pip install 'hip-python>=7.2'."
        )
    library = environment.current().libhip
    if library is not None:
        _point_at(library)
    _imported.append(hip)
    return hip


_imported: list[Any] = []


def _point_at(library: Path) -> None:
    """Make hip-python open this file. Must come before its first HIP call."""
    if not library.is_file():
        raise RuntimeNotFound(f"INDEXER_RT_LIBHIP: {library} is not a file. Set it to a libamdhip64.so.")
    path = str(library).encode()
    try:
        from rocm.bindings.util import paths  # hip-python 10: asks this at the first call
    except ImportError:
        from hip import chip  # hip-python 7: opens what this attribute says

        chip.DLL = path
        return
    search = paths.get_library_path

    def get_library_path(shortname: str, *arguments: Any, **options: Any) -> bytes:
        return path if shortname == "amdhip64" else search(shortname, *arguments, **options)

    paths.get_library_path = get_library_path
