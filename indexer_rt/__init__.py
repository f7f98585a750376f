"""FP8 paged MQA logits (the decode step of the lightning indexer) on AMD MI350X and MI355X, and in an emulator
anywhere.

Importing this loads no HIP, and no torch either: the names below do, when first used. Where torch is already imported,
its operator ``torch.ops.indexer_rt.fp8_paged_mqa_logits`` is there at once.
"""

import importlib
import sys
from typing import Any

from .errors import (
    NO_TORCH,
    AbiMismatch,
    ChecksumError,
    CodeObjectError,
    EmulatorFault,
    HipError,
    IndexerRtError,
    RuntimeMismatch,
    RuntimeNotFound,
)

_OPS = ("fp8_paged_mqa_logits", "is_supported", "load", "stats", "use_code_objects", "why_not")
_MODULES = (
    "call",
    "catalog",
    "code_object",
    "device",
    "emu",
    "environment",
    "kv_cache",
    "hip",
    "launch",
    "libhip",
    "ops",
    "problem",
    "reference",
    "tally",
    "torch_gpu",
    "torch_op",
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
    try:
        if name in _OPS:
            _bind()
            return globals()[name]
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(NO_TORCH, name="torch") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _bind() -> None:
    ops = importlib.import_module(".ops", __name__)
    globals().update({name: getattr(ops, name) for name in _OPS})


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


if sys.modules.get("torch") is not None:  # None: the import is barred
    _bind()
