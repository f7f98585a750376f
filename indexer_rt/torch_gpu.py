"""Ask torch about its GPUs. Every such question goes through ``current()``, so one place says what is asked.

Asking may start torch's GPU runtime, so nothing here asks at import.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _stream_handle(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


class TorchGpu:
    """Ask a torch with GPUs. A device's index is its number, as in ``cuda:1``."""

    # NOTE: torch.cuda.current_stream builds a Stream, 60 times the cost of asking for the handle, and
    # torch.cuda.current_device first looks whether there is a runtime to start. Both are asked at every call.
    raw_stream = staticmethod(getattr(torch._C, "_cuda_getCurrentRawStream", _stream_handle))
    """(index) -> int: the handle (hipStream_t) of this thread's current stream on a device."""
    current_device = staticmethod(getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device))
    """() -> int: this thread's current device."""

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the device whose memory a tensor lies in."""
        return tensor.device

    def hip_version(self) -> str | None:
        """Return the HIP version that torch was built for, None for a torch without ROCm."""
        return torch.version.hip

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def set_device(self, index: int) -> None:
        torch.cuda.set_device(index)

    def architecture(self, index: int) -> str:
        """Return the name of a device's processor with its features, like ``gfx950:sramecc+:xnack-``."""
        return str(torch.cuda.get_device_properties(index).gcnArchName)

    def num_cus(self, index: int) -> int:
        """Count a device's compute units, as many as its partition mode exposes."""
        return int(torch.cuda.get_device_properties(index).multi_processor_count)

    def is_capturing(self) -> bool:
        """Say whether this thread's current stream is being captured into a graph."""
        return torch.cuda.is_current_stream_capturing()

    def is_lost(self) -> bool:
        """Say whether this process is a fork of one in which torch had started the GPU runtime."""
        return torch.cuda._is_in_bad_fork()


_current = TorchGpu()


def current() -> TorchGpu:
    """Return the one object that is asked."""
    return _current
