"""Load code objects and launch kernels through hip-python. The only file that imports it, and only at the first HIP
call.

Works with hip-python 7.2 and 10 through functions that are the same in both. Modules are never unloaded: a captured
graph may hold their functions as long as the process lives.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import mmap
import os
import threading
from dataclasses import dataclass
from typing import Any

from . import libhip, tally, torch_gpu
from .code_object import ARCHITECTURE, Kernel
from .errors import HipError, IndexerRtError, RuntimeNotFound
from .launch import Launch
from .problem import Tensors

_log = logging.getLogger("indexer_rt")

_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_MINIMUM_ROCM = "7.0"
"""The first release whose runtime knows gfx950 in every partition mode, and reads code objects v5 and v6."""

# hipModuleLaunchKernel's `extra`: marks of the entries that follow (hip_runtime_api.h, HIP_LAUNCH_PARAM_*).
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3

INVALID_IMAGE = 200
CAPTURE_UNSUPPORTED = 900

_EARLIER = "It may come from earlier work on the device, not from this launch: set AMD_SERIALIZE_KERNEL=3 to find out."
_CANNOT_READ = (
    "The runtime could not read the image. `indexer-rt verify` says whether the file is whole; a whole file means that "
    f"the runtime is too old for it: ROCm {_MINIMUM_ROCM} or newer is needed."
)

# hipError_t -> what to do. Names come from the enumeration itself.
_ADVICE = {
    1: "The runtime refused an argument; report this with the whole message.",
    2: "The device is out of memory.",
    9: "The grid or block is not one that the device takes; report this with the whole message.",
    98: "The module holds no kernel for this device.",
    100: "No device is visible: look at HIP_VISIBLE_DEVICES and at the permissions of /dev/kfd.",
    101: "Look at HIP_VISIBLE_DEVICES.",
    INVALID_IMAGE: _CANNOT_READ,
    209: "The image is for another GPU than this device.",
    303: _CANNOT_READ,
    500: "The image holds no kernel of that name.",
    700: f"A memory access failed on the device. {_EARLIER}",
    701: "The kernel needs more registers or LDS than the device has.",
    709: "The stream or context belongs to another copy of the HIP runtime, or was destroyed.",
    719: f"A launch failed on the device. {_EARLIER}",
    CAPTURE_UNSUPPORTED: "Not allowed while a stream is captured. Call indexer_rt.load(device) before the capture.",
}


def why_not(index: int) -> str | None:
    """Say why GPU number ``index`` cannot run the code objects, or None. Asks torch, makes no HIP call of its own."""
    spoof = os.environ.get(_OVERRIDE)
    if spoof:
        return (
            f"device: {_OVERRIDE}={spoof} makes the driver report another GPU than there is. Unset it: the code "
            f"objects run on {ARCHITECTURE} only."
        )
    name = torch_gpu.current().architecture(index)
    if name.split(":")[0] != ARCHITECTURE:
        return (
            f"device: cuda:{index} is {name}; the code objects run on {ARCHITECTURE} (MI350X, MI355X). Pass CPU "
            "tensors to use the emulator."
        )
    return None


def device(index: int) -> HipDevice:
    """Return the one HipDevice of GPU number ``index``. Raises IndexerRtError in a fork that has lost the runtime."""
    _check_process()
    with _lock:
        if index not in _devices:
            _devices[index] = HipDevice(index)
        return _devices[index]


class HipDevice:
    """Run launches on one GPU. Safe to use from several threads."""

    def __init__(self, index: int) -> None:
        gpu = torch_gpu.current()
        self.index = index
        self.label = f"cuda:{index}"
        self.architecture = gpu.architecture(index)
        self.name = f"{self.label} ({self.architecture})"
        self.num_cus = gpu.num_cus(index)
        self._functions: dict[tuple[str, str], Any] = {}  # (sha256, kernel name) -> hipFunction_t

    def load(self, kernel: Kernel) -> None:
        """Load a kernel's module, once. Raises HipError (900 while a stream is captured) or RuntimeNotFound."""
        self._function(kernel)

    def addresses(self, tensors: Tensors, pointers: tuple[int, ...]) -> tuple[int, ...]:
        return pointers

    def run(self, launch: Launch, tensors: Tensors) -> None:
        """Launch on torch's current stream of this device and return at once. Raises HipError."""
        self.prepare(launch).run()

    def prepare(self, launch: Launch) -> PreparedLaunch:
        """Make a launch that can run many times, with other pointers. Loads its module if that is not loaded yet."""
        return PreparedLaunch(self, self._function(launch.kernel), launch)

    def _function(self, kernel: Kernel) -> Any:
        key = (kernel.code_object.sha256, kernel.name)
        function = self._functions.get(key)
        if function is not None:
            return function
        _check_process()
        with _lock, _Current(self.index):
            if key not in self._functions:
                self._functions[key] = self._load(kernel)
            return self._functions[key]

    def _load(self, kernel: Kernel) -> Any:
        code_object = kernel.code_object
        if torch_gpu.current().is_capturing():
            raise HipError(
                f"hipModuleLoadData({kernel.name}): not tried: it is not loaded on {self.name}, and a stream is being "
                f"captured. Call indexer_rt.load({self.label!r}) before the capture.",
                code=CAPTURE_UNSUPPORTED,
                name="hipErrorStreamCaptureUnsupported",
                call="hipModuleLoadData",
            )
        runtime = _runtime()
        where = kernel.name
        what = (
            f"{code_object.label} is code object v{code_object.version} for {code_object.target}; device {self.index} "
            f"is {self.architecture}, the code object needs {ARCHITECTURE}. "
        )
        try:
            module = runtime.call("hipModuleLoadData", code_object.data, where=where, what=what)
        except HipError as error:
            if error.code != INVALID_IMAGE:
                raise
            # NOTE: some ROCm builds refuse a whole image that lies across two mappings of the host's memory.
            _log.warning("%s Trying once more, with the image in a mapping of its own.", error)
            module = runtime.call("hipModuleLoadData", _own_mapping(code_object.data), where=where, what=what)
        function = runtime.call("hipModuleGetFunction", module, kernel.name.encode(), where=where, what=what)
        tally.count_load(self.label, len(code_object.data))
        _log.info("loaded %s (%s) on %s", code_object.label, code_object.sha256[:12], self.name)
        return function


class PreparedLaunch:
    """Be one launch with its argument buffer, to be run many times. Belongs to one thread.

    ``kernarg``: the kernarg segment, to be changed between runs. What it holds at a run
    is what the kernel gets: the driver copies.
    """

    __slots__ = ("_args", "_gpu", "_handle", "_keep", "_launch", "_runtime", "_success", "device", "kernarg", "launch")

    def __init__(self, device: HipDevice, function: Any, launch: Launch) -> None:
        self.device, self.launch, self._runtime, self._gpu = device, launch, _runtime(), torch_gpu.current()
        kernarg = (ctypes.c_uint64 * -(-len(launch.kernarg) // 8))()
        ctypes.memmove(kernarg, launch.kernarg, len(launch.kernarg))
        size = ctypes.c_size_t(len(launch.kernarg))
        entries = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(kernarg), _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        self.kernarg = memoryview(kernarg).cast("B")
        self._success = self._runtime.success
        self._keep = (kernarg, size, entries)
        self._launch = self._runtime.hip.hipModuleLaunchKernel
        # NOTE: made once, since hip-python takes longer to convert integers to its own types than to launch.
        extra = self._runtime.extra(ctypes.addressof(entries))
        self._handle = 0
        self._args = (function, *launch.grid, *launch.block, launch.lds_bytes, self._runtime.stream(None), None, extra)

    def run(self) -> None:
        """Launch on torch's current stream of the device and return at once. Raises HipError."""
        gpu, device = self._gpu, self.device
        index = device.index
        if gpu.current_device() != index:
            with _Current(index):
                return self.run()
        handle = gpu.raw_stream(index)
        if handle != self._handle:
            self._args = (*self._args[:-3], self._runtime.stream(handle), *self._args[-2:])
            self._handle = handle
        status = self._launch(*self._args)[0]
        if status is not self._success:
            launch = self.launch
            where = f"{launch.kernel.name} on {device.name}, grid {launch.grid}, block {launch.block}"
            raise self._runtime.error("hipModuleLaunchKernel", status, where=where, advice=_EARLIER)
        return None


class _Current:
    """Make a GPU the current one inside, and restore the one that was."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        gpu = torch_gpu.current()
        self._before = gpu.current_device()
        if self._before != self._index:
            gpu.set_device(self._index)

    def __exit__(self, *_: object) -> None:
        if self._before != self._index:
            torch_gpu.current().set_device(self._before)


def _own_mapping(data: bytes) -> Any:
    """Copy an image to the start of a mapping of its own. Kept for the life of the process, as its module is."""
    mapping = mmap.mmap(-1, len(data))
    mapping.write(data)
    _mappings.append(mapping)
    return mapping


_devices: dict[int, HipDevice] = {}
_mappings: list[mmap.mmap] = []
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Runtime:
    """Hold hip-python after its first call: initialised, and bound to the one libamdhip64 of the process."""

    hip: Any
    library: libhip.Library
    extra: type  # HipModuleLaunchKernel_extra
    stream: type  # ihipStream_t
    success: Any
    pid: int

    def call(self, call: str, *arguments: Any, where: str, what: str = "", advice: str = "") -> Any:
        """Call one function and return its result. Raises HipError when it reports an error."""
        outcome = _translated(self.hip, call, *arguments)
        if int(outcome[0]):
            raise self.error(call, outcome[0], where=where, what=what, advice=advice)
        return outcome[1] if len(outcome) > 1 else None

    def error(self, call: str, status: Any, *, where: str, what: str = "", advice: str = "") -> HipError:
        """Describe a status that is not success. ``advice`` stands where there is none for the code itself."""
        code = int(status)
        name = getattr(status, "name", f"hipError {code}")
        words = _ADVICE.get(code, advice)
        message = f"{call}({where}): {name} ({code}). {what}HIP runtime {self.version()} ({self.library.path}). {words}"
        return HipError(message.rstrip(), code=code, name=name, call=call)

    def version(self) -> str:
        """Return the runtime's version for messages. HIP encodes it as major * 10**7 + minor * 10**5 + patch."""
        status, version = self.hip.hipRuntimeGetVersion()
        return "of unknown version" if int(status) else f"{version // 10**7}.{version // 10**5 % 100}.{version % 10**5}"


def runtime_version() -> str:
    """Return the version and file of the HIP runtime that launches use, after finding it.

    Raises RuntimeNotFound, RuntimeMismatch or HipError.
    """
    runtime = _runtime()
    return f"{runtime.version()} ({runtime.library.path})"


_started: list[Runtime] = []


def _runtime() -> Runtime:
    """Import hip-python, bind it to the one runtime and initialise that, once."""
    if _started:
        _check_process()
        return _started[0]
    _check_process()
    with _lock:
        if not _started:
            _started.append(_start())
        return _started[0]


def _start() -> Runtime:
    hip = _import()
    library, searched = libhip.find()
    with libhip.pointing(hip, library):
        try:
            status = _translated(hip, "hipInit", 0)[0]
        except RuntimeNotFound as error:
            raise RuntimeNotFound(
                f"{error} Looked in: {'; '.join(searched)}; hip-python's own search. Install torch for ROCm "
                f"{_MINIMUM_ROCM} or newer, or set INDEXER_RT_LIBHIP to a {libhip.STEM}. CPU tensors need none: they "
                "use the emulator."
            ) from error
    library = libhip.check_single(library)
    helpers = importlib.import_module(f"{hip.__name__.rpartition('.')[0]}._hip_helpers")
    runtime = Runtime(
        hip, library, helpers.HipModuleLaunchKernel_extra, hip.ihipStream_t, hip.hipError_t.hipSuccess, os.getpid()
    )
    if int(status):
        raise runtime.error("hipInit", status, where="0", advice="Look at the driver's log.")
    _log.info("HIP runtime %s, %s", runtime.version(), library.path)
    return runtime


def _import() -> Any:
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
            "distribution uses the same name). Uninstall it, then: pip install 'hip-python>=7.2'."
        )
    return hip


def _translated(hip: Any, call: str, *arguments: Any) -> Any:
    """Call hip-python; turn its way to say that the library or a symbol is not there into RuntimeNotFound."""
    try:
        return getattr(hip, call)(*arguments)
    except RuntimeError as error:
        if "dlopen" not in str(error) and "dlsym" not in str(error):
            raise
        raise RuntimeNotFound(f"{call}: no usable HIP runtime: {error}.") from error


def _check_process() -> None:
    """Raise IndexerRtError in a process that was forked from one that used HIP: the runtime does not survive a fork."""
    if (_started and _started[0].pid != os.getpid()) or torch_gpu.current().is_lost():
        raise IndexerRtError(
            f"process {os.getpid()} was forked from one that had used HIP, and the runtime does not survive a fork. "
            "Start workers with multiprocessing's 'spawn' or 'forkserver', or fork before the first GPU call."
        )


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that does not exist here may have held it


os.register_at_fork(after_in_child=_renew_lock)
