"""Keep a launch that one thread has made, to make it again for calls that differ in nothing but addresses.

Objects here belong to one thread: the driver's bindings let other threads run while they launch, and an argument buffer
that two threads share would be overwritten between packing and launch.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .device import Prepared
from .launch import Plan
from .problem import Problem, Tensors, signature
from .tally import Cell

MAX_SHAPES = 1024
"""Shapes of q that a thread keeps calls for, at 3 kilobytes a call."""
MAX_CALLS = 8
"""Calls kept for one shape of q: other strides, table widths, inference mode and so on."""


class Call:
    """Hold a launch that one thread has made, and what a call must look like to be made by it again.

    ``runtime`` made it and only calls of that runtime may use it. ``pack(kernarg, offset, context_lens, cu_seqlens_q,
    between, q, kv_cache, weights, block_tables, logits)`` puts addresses into its launch.
    """

    __slots__ = (
        "between",
        "cell",
        "clean_logits",
        "cu_bytes",
        "fits",
        "is_new",
        "kernarg",
        "kv_bytes",
        "launch",
        "lens_bytes",
        "lens_per_row",
        "logits_bytes",
        "max_model_len",
        "max_next_n",
        "new_logits",
        "offset",
        "options",
        "pack",
        "present",
        "preshuffle",
        "q_bytes",
        "rows_per_wave",
        "runtime",
        "shape",
        "tables_bytes",
        "types",
        "weights_bytes",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Any,
        tensors: Tensors,
        options: tuple[Any, ...],
        problem: Problem,
        plan: Plan,
        extents: tuple[int, ...],
        prepared: Prepared,
        cell: Cell,
    ) -> None:
        self.runtime, self.shape = runtime, tensors.q.shape
        self.options, self.types = options, tuple(map(type, options))
        (
            self.max_model_len, self.preshuffle, self.clean_logits, self.rows_per_wave, self.max_next_n,
            self.lens_per_row,
        ) = options  # fmt: skip
        self.present, self.is_new = _present(tensors), tensors.logits is None
        self.fits = guard([tensor for tensor in tensors if tensor is not None])
        (
            self.q_bytes, self.kv_bytes, self.weights_bytes, self.lens_bytes, self.tables_bytes, self.cu_bytes,
            self.logits_bytes,
        ) = extents  # fmt: skip
        self.kernarg = prepared.kernarg
        self.pack, self.offset, self.between = _packer(Tensors(*plan.pointer_offsets), prepared.kernarg)
        self.new_logits, self.launch, self.cell = problem.new_logits, prepared.run, cell

    def serves(self, tensors: Tensors, options: tuple[Any, ...]) -> bool:
        """Say whether a call is like this one but for its addresses."""
        return (
            self.options == options
            and self.types == tuple(map(type, options))  # True == 1 == 1.0, and each means something else here
            and self.present == _present(tensors)
            and self.fits(*[tensor for tensor in tensors if tensor is not None])
        )


_POINTER = struct.Struct("<Q")


def _packer(offsets: Tensors, kernarg: memoryview) -> tuple[Callable[..., None], int, bytes]:
    """Return (pack, offset, between) for addresses that belong at ``offsets``.

    ``pack(kernarg, offset, context_lens, cu_seqlens_q, between, q, kv_cache, weights, block_tables, logits)``: one call
    of Struct.pack_into where they lie so, side by side but for what is ``between`` the second and the third.
    """
    ordered = (offsets.context_lens, offsets.cu_seqlens_q, offsets.q, offsets.kv_cache, offsets.weights,
               offsets.block_tables, offsets.logits)  # fmt: skip
    first, third = ordered[0], ordered[2]
    size = _POINTER.size
    if ordered == (first, first + size, *range(third, third + 5 * size, size)) and third >= first + 2 * size:
        between = bytes(kernarg[first + 2 * size : third])
        return struct.Struct(f"<2Q{len(between)}s5Q").pack_into, first, between

    def pack_each(kernarg: memoryview, _: int, lens: int, cu: int, __: bytes, *others: int) -> None:
        for offset, address in zip(ordered, (lens, cu, *others), strict=True):
            _POINTER.pack_into(kernarg, offset, address)

    return pack_each, 0, b""


def _present(tensors: Tensors) -> tuple[bool, ...]:
    return tuple([tensor is not None for tensor in tensors])


class _NoCall:
    """Stand where a thread has made no call yet. Serves none."""

    runtime = object()


class Own(threading.local):
    """Hold one thread's calls, by the shape of q_fp8, newest first; ``call`` is the one used last."""

    def __init__(self) -> None:
        self.call: Any = _NoCall
        self.calls: dict[Any, list[Call]] = {}

    def find(self, runtime: Any, tensors: Tensors, options: tuple[Any, ...]) -> Call | None:
        """Return the kept call that serves these arguments of any kind, or None."""
        try:
            kept = self.calls[tensors.q.shape]
        except (AttributeError, KeyError, TypeError):
            return None
        for call in kept:
            if call.runtime is runtime and call.serves(tensors, options):
                self.call = call
                return call
        return None

    def keep(self, call: Call) -> None:
        """Keep a call, and let go of those of another runtime."""
        if self.call.runtime is not call.runtime or len(self.calls) >= MAX_SHAPES:
            self.calls = {}
        self.calls[call.shape] = [call, *self.calls.get(call.shape, ())][:MAX_CALLS]
        self.call = call


own = Own()


def guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return a function that says whether as many other tensors look like these: type, dtype, device, sizes, strides,
    requires_grad, pending negation, and inference mode.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        return _python_guard(tensors)
    # NOTE: one call into C++ in place of 24 attributes and their hash: 0.6 us against 2.8.
    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def _python_guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    wanted, is_inference = signature(tensors), torch.is_inference_mode_enabled()
    return lambda *given: signature(given) == wanted and torch.is_inference_mode_enabled() is is_inference
