"""FP8 paged MQA logits (the decode step of the lightning indexer) on AMD MI350X and MI355X, and in an emulator
anywhere.

Importing this loads neither torch nor HIP; the names below do, when first used.
"""

import importlib
from typing import Any

from .errors import (
    AbiMismatch,
    ChecksumError,
    CodeObjectError,
    EmulatorFault,
    HipError,
    IndexerRtError,
    RuntimeMismatch,
    RuntimeNotFound,
)

_OPS = ("fp8_paged_mqa_logits", "is_supported", "load", "use_code_objects", "why_not")
_MODULES = (
    "catalog",
    "code_object",
    "device",
    "emu",
    "environment",
    "kv_cache",
    "launch",
    "ops",
    "problem",
    "reference",
)

__all__ = [
    "AbiMismatch",
    "ChecksumError",
    "CodeObjectError",
    "EmulatorFault",
    "HipError",
    "IndexerRtError",
    "RuntimeMismatch",
    "RuntimeNotFound",
    *_OPS,
]


def __getattr__(name: str) -> Any:
    if name in _OPS:
        return getattr(importlib.import_module(".ops", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
