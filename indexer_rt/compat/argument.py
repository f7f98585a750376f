"""Check an argument of a drop-in that the operator itself never sees, or that must be known before it is called.

Most are tuning knobs, launch parameters of an upstream that have no meaning for the kernels here. A knob is accepted
where the upstream accepts it, refused where that one's precondition refuses it, and then left alone: nothing is divided
by it and no value depends on it.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor


def integer(name: str, value: Any, low: int) -> int:
    """Return a host integer of at least ``low``. Raises ValueError for anything else, bools and tensors included."""
    if isinstance(value, bool | Tensor) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}: expected an integer of at least {low}, got {value!r} ({type(value).__name__}).")
    number = operator.index(value)
    if number < low:
        raise ValueError(f"{name}: expected an integer of at least {low}, got {number}.")
    return number


def tensor(name: str, value: Any, *ndims: int) -> Tensor:
    """Return a tensor that has one of the numbers of dimensions ``ndims``; any, if none is given.

    Raises TypeError for another type, ValueError for another number of dimensions.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}.")
    if ndims and value.ndim not in ndims:
        wanted = " or ".join(str(ndim) for ndim in ndims)
        raise ValueError(f"{name}: expected {wanted} dimensions, got {list(value.shape)}.")
    return value


def block_size(name: str, value: Any, kv_cache: Tensor) -> int:
    """Return a block size that the caller also states by the cache's shape ``[num_blocks, block_kv, 1, head_dim + 4]``.

    Raises ValueError when it is no positive integer or the two differ, TypeError for a cache that is no tensor.
    """
    number = integer(name, value, 1)
    if tensor("kv_cache", kv_cache).ndim != 4 or kv_cache.shape[1] != number:
        raise ValueError(
            f"{name}: expected a cache [num_blocks, {number}, 1, head_dim + 4], got {list(kv_cache.shape)}. The "
            "cache's second dimension is the block size; view the pool with the one it was written with."
        )
    return number
