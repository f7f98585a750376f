"""Pick the end of the line that runs a launch: an MI350X or MI355X by HIP, or the emulator for CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from . import environment, torch_gpu
from .code_object import ARCHITECTURE, Kernel
from .launch import Launch
from .problem import Tensors, extent_bytes

if TYPE_CHECKING:
    from .emu import Buffer

MI355X_CUS = 256


class Device(Protocol):
    """Run launches. Both ends, hip and emulator, are one of these."""

    name: str
    label: str
    num_cus: int

    def load(self, kernel: Kernel) -> None:
        """Make a kernel ready to run; a later ``run`` loads nothing."""

    def addresses(self, tensors: Tensors, pointers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the addresses that the kernel is to see for tensors that lie at ``pointers`` in this process."""

    def run(self, launch: Launch, tensors: Tensors) -> None:
        """Run a launch on tensors whose addresses it holds."""

    def prepare(self, launch: Launch) -> Prepared | None:
        """Make a launch that the calling thread can run many times; None where a call costs too much to gain by it."""


class Prepared(Protocol):
    """Be a launch that can run again. ``kernarg``: its kernarg segment, to be changed between runs."""

    kernarg: memoryview

    def run(self) -> None: ...


class EmulatedDevice:
    """Run launches in the emulator, on CPU tensors, as a device with an MI355X's 256 compute units.

    Every access outside a tensor faults, even into another one's memory: each tensor gets an address range of its own.
    Unless INDEXER_RT_EMULATOR=fast, what the hardware leaves undefined faults too (a quarter slower or so).
    """

    name = label = "emulator"
    num_cus = MI355X_CUS

    def load(self, kernel: Kernel) -> None:
        """Do nothing: the emulator reads the code object as it is."""

    def addresses(self, tensors: Tensors, pointers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            0 if tensor is None else _base(index) + pointer % _PAGE
            for index, (tensor, pointer) in enumerate(zip(tensors, pointers, strict=True))
        )

    def buffers(self, tensors: Tensors) -> list[Buffer]:
        """Return the memory of a launch: one buffer per tensor, named as the kernel's argument, at its address."""
        pointers = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        return [
            buffer_of(name, address, tensor)
            for name, address, tensor in zip(Tensors._fields, self.addresses(tensors, pointers), tensors, strict=True)
            if tensor is not None
        ]

    def run(self, launch: Launch, tensors: Tensors) -> None:
        from . import emu

        emu.run(launch, self.buffers(tensors), strict=not environment.current().fast_emulator)

    def prepare(self, launch: Launch) -> None:
        return None


_PAGE = 4096


def _base(index: int) -> int:
    """Return where the emulated address range of tensor ``index`` starts: 16 TB each, all below 2**47."""
    return (index + 1) << 44


def buffer_of(name: str, address: int, tensor: Tensor) -> Buffer:
    """Wrap the memory from a tensor's first element to the last one it can reach, not a byte more.

    Raises ValueError when the tensor's storage has been resized to less.
    """
    from .emu import Buffer

    storage, start, size = (
        tensor.untyped_storage(),
        tensor.storage_offset() * tensor.element_size(),
        extent_bytes(tensor),
    )
    # NOTE: set_ would grow the caller's storage to fit.
    if size and start + size > storage.nbytes():
        raise ValueError(f"{name}: reaches byte {start + size} of a storage that was resized to {storage.nbytes()}.")
    window = torch.empty(0, dtype=torch.uint8).set_(storage, start, (size,), (1,))
    return Buffer(name, address, window.numpy(), name == "logits")


def why_not(device: torch.device | str) -> str | None:
    """Say why code objects cannot run on a device, or None when they can. Makes no HIP call of its own."""
    device = torch.device(device)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"device: expected a ROCm device ('cuda') or 'cpu' (emulated), got {device}."
    gpu = torch_gpu.current()
    if gpu.hip_version() is None:
        return (
            f"device: {device} belongs to a torch built for CUDA ({torch.__version__}); the code objects run on "
            f"{ARCHITECTURE}. Install torch for ROCm, or pass CPU tensors to use the emulator."
        )
    from . import hip

    return hip.why_not(_index(device))


def of(device: torch.device | str) -> Device:
    """Return the end that serves a device. Raises ValueError with the reason of ``why_not`` when none does."""
    device = torch.device(device)
    reason = why_not(device)
    if reason is not None:
        raise ValueError(reason)
    if device.type == "cpu":
        return _EMULATED
    from . import hip

    return hip.device(_index(device))


def _index(device: torch.device) -> int:
    return torch_gpu.current().current_device() if device.index is None else device.index


_EMULATED = EmulatedDevice()
