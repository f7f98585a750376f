"""Check the operator's tensors and turn them into one frozen value, the problem.

``Problem`` holds what a launch depends on apart from addresses: sizes, strides and flags. Two calls whose tensors have
the same ``signature`` are the same problem. Everything here reads shapes and host integers only; ``check_contents``
alone reads device data, and only the strict mode calls it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import kv_cache as pages
from .kv_cache import dtype_name

INT32_MAX = 2**31 - 1
Q_ALIGNMENT = 16
"""Bytes. The kernels load q in 16-byte pieces."""
ALIGNMENT = 4
"""Bytes, for every other tensor: int32 and float32 elements, and cache pages, whose 16-byte loads may lie at any
multiple of 4 (unaligned access is allowed for global memory on gfx950)."""

MAX_TILE_PRODUCT = 2**31
"""kernels/kv_stream.h, page_of: the range in which a multiplication by the inverse divides exactly."""
MAX_COLUMNS = 2**29 - 1
"""The kernels count the bytes of a row of cells in 31 bits: 4 a column. No more columns of a block table are used."""


class Tensors(NamedTuple):
    """Hold the tensors of one call under the names of the kernel's pointer arguments. Absent ones are None."""

    q: Any
    kv_cache: Any
    weights: Any
    context_lens: Any
    block_tables: Any
    cu_seqlens_q: Any
    logits: Any


# What the operator's caller calls them.
PUBLIC_NAMES = Tensors("q_fp8", "kv_cache_fp8", "weights", "context_lens", "block_tables", "cu_seqlens_q", "out")
_DTYPES = {torch.float32: "float32", torch.int32: "int32"}
_OPTIONAL = frozenset(("cu_seqlens_q", "logits"))


@dataclass(frozen=True, slots=True)
class Problem:
    """Describe one checked call. Strides in bytes; the stride of a dimension of size 1 is 0. In the packed form a
    sequence starts at its first row, so that the strides of sequences are those of rows.

    ``table_width`` counts the columns of the block table that max_model_len leaves a use for.
    ``next_n`` rows per sequence: exactly (native form) or at most (packed form, ``is_packed``, where ``num_rows`` rows
    are shared out by cu_seqlens_q). ``lens_per_row``: context_lens holds each row's own end, else each sequence's
    length.
    """

    device: torch.device
    num_heads: int
    head_dim: int
    num_blocks: int
    block_kv: int
    batch: int
    next_n: int
    num_rows: int
    max_model_len: int
    table_width: int
    preshuffle: bool
    is_packed: bool
    lens_per_row: bool
    clean_logits: bool
    q_seq_stride: int
    q_row_stride: int
    kv_block_stride: int
    weights_seq_stride: int
    weights_row_stride: int
    lens_seq_stride: int
    lens_row_stride: int
    table_row_stride: int
    logits_row_stride: int

    @property
    def has_work(self) -> bool:
        """Say whether any cell could be written. Without any there is nothing to launch."""
        reach = self.max_model_len if self.clean_logits else self.reach
        return self.batch > 0 and self.num_rows > 0 and reach > 0

    @property
    def reach(self) -> int:
        """Count the columns that the block table and max_model_len leave reachable, in tokens."""
        return min(self.max_model_len, self.table_width * self.block_kv)

    @classmethod
    def check(
        cls,
        tensors: Tensors,
        max_model_len: int,
        *,
        preshuffle: bool,
        clean_logits: bool | None = None,
        max_next_n: int | None = None,
        lens_per_row: bool | None = None,
    ) -> Problem:
        """Check one call, argument by argument, and describe it. The operator's docstring says what is accepted.

        Raises TypeError for a wrong type or dtype, ValueError for everything else; each message names the argument.
        """
        given = [
            (public, tensor)
            for name, public, tensor in zip(Tensors._fields, PUBLIC_NAMES, tensors, strict=True)
            if tensor is not None or name not in _OPTIONAL
        ]
        for public, tensor in given:
            _check_kind(public, tensor)
        for public, tensor in given:
            if tensor.device != tensors.q.device:
                raise ValueError(
                    f"{public}: is on {tensor.device}, q_fp8 is on {tensors.q.device}. "
                    "All tensors must be on one device; nothing is copied."
                )
        for public, tensor in given:
            _check_plain(public, tensor)
        q, kv_cache, weights, context_lens, block_tables, cu_seqlens_q, logits = tensors
        is_packed = cu_seqlens_q is not None
        for name, flag in (("preshuffle", preshuffle), ("clean_logits", clean_logits), ("lens_per_row", lens_per_row)):
            if not isinstance(flag, bool) and (flag is not None or name == "preshuffle"):
                raise TypeError(f"{name}: expected a bool, got {type(flag).__name__}.")
        columns = _integer("max_model_len", max_model_len, 0, MAX_COLUMNS)

        # q
        if q.dtype != pages.FP8:
            raise TypeError(
                f"q_fp8: expected float8_e4m3fn, got {dtype_name(q)}. gfx950 uses the OCP encoding float8_e4m3fn; "
                "quantise to it (a fnuz tensor must be converted, not viewed)."
            )
        if is_packed and q.ndim != 3:
            raise ValueError(f"q_fp8: expected [num_rows, num_heads, head_dim] with cu_seqlens_q, got {list(q.shape)}.")
        if q.ndim not in (3, 4):
            raise ValueError(
                "q_fp8: expected [batch, next_n, num_heads, head_dim] or [rows, num_heads, head_dim], got "
                f"{list(q.shape)}."
            )
        num_heads, head_dim = q.shape[-2:]
        # NOTE: an empty tensor's strides mean nothing: from numpy they are 0, and .contiguous() keeps them.
        if q.numel() and ((head_dim > 1 and q.stride(-1) != 1) or (num_heads > 1 and q.stride(-2) != head_dim)):
            raise ValueError(
                f"q_fp8: expected the last two dimensions dense, strides [..., {head_dim}, 1], got {list(q.stride())}. "
                "Call .contiguous()."
            )
        if is_packed:
            batch, next_n, num_rows = cu_seqlens_q.numel() - 1, 0, q.shape[0]
            q_seq_stride = q_row_stride = _stride(q, 0)
        else:
            batch, next_n = q.shape[0], (q.shape[1] if q.ndim == 4 else 1)
            num_rows = batch * next_n
            q_seq_stride, q_row_stride = _stride(q, 0), (_stride(q, 1) if q.ndim == 4 else 0)
        if num_rows > INT32_MAX:
            raise ValueError(
                f"q_fp8: expected at most {INT32_MAX} rows (the kernels count them in 31 bits), got {num_rows}. Split "
                "the call."
            )
        if q.numel() and (q_seq_stride % Q_ALIGNMENT or q_row_stride % Q_ALIGNMENT):
            raise ValueError(
                f"q_fp8: expected row strides in multiples of {Q_ALIGNMENT} bytes, got strides {list(q.stride())}. "
                "Call .contiguous()."
            )

        # kv cache
        num_blocks, block_kv, cache_dim = pages.geometry(kv_cache, name="kv_cache_fp8")
        if cache_dim != head_dim:
            raise ValueError(
                f"kv_cache_fp8: expected [num_blocks, block_kv, 1, {head_dim + pages.SCALE_BYTES}], got "
                f"{list(kv_cache.shape)}: a block is block_kv fp8 rows of head_dim {head_dim}, then block_kv float32 "
                "scales."
            )
        kv_block_stride = _stride(kv_cache, 0)
        reason = why_not_block_stride(kv_block_stride)
        if reason is not None:
            raise ValueError(reason)

        # cu_seqlens_q
        if is_packed:
            if max_next_n is None:
                raise ValueError(
                    "max_next_n: expected the largest number of rows of any sequence (a host integer) with "
                    "cu_seqlens_q, got None."
                )
            _check_dtype("cu_seqlens_q", cu_seqlens_q, torch.int32)
            if cu_seqlens_q.ndim != 1 or cu_seqlens_q.numel() < 1 or (batch > 0 and cu_seqlens_q.stride(0) != 1):
                raise ValueError(
                    f"cu_seqlens_q: expected a dense [batch + 1], got {list(cu_seqlens_q.shape)} with strides "
                    f"{list(cu_seqlens_q.stride())}."
                )
            next_n = _integer("max_next_n", max_next_n, 1 if num_rows else 0)
        elif max_next_n is not None:
            raise ValueError("max_next_n: expected None without cu_seqlens_q; the native form takes next_n from q_fp8.")

        # weights
        _check_dtype("weights", weights, torch.float32)
        weights_seq_stride, weights_row_stride = _weights_strides(
            weights, batch, next_n, num_rows, num_heads, is_packed
        )

        # context_lens
        _check_dtype("context_lens", context_lens, torch.int32)
        per_row = _lens_kind(context_lens, batch, next_n, num_rows, is_packed, lens_per_row)
        lens_seq_stride, lens_row_stride = _stride(context_lens, 0), 0
        if per_row:
            lens_row_stride = lens_seq_stride if is_packed else _stride(context_lens, 1)

        # block_tables
        _check_dtype("block_tables", block_tables, torch.int32)
        if block_tables.ndim != 2 or block_tables.shape[0] != batch:
            raise ValueError(
                f"block_tables: expected [{batch}, table width] for {batch} sequences, got {list(block_tables.shape)}."
            )
        if block_tables.numel() and block_tables.shape[1] > 1 and block_tables.stride(1) != 1:
            raise ValueError(
                f"block_tables: expected a column stride of 1, got strides {list(block_tables.stride())}. Call "
                ".contiguous()."
            )
        table_width = min(block_tables.shape[1], -(-columns // block_kv))  # columns past it are beyond max_model_len
        reach = min(columns, table_width * block_kv)
        if -(-reach // pages.TILE) * (block_kv // pages.TILE) >= MAX_TILE_PRODUCT:
            raise ValueError(
                f"kv_cache_fp8: block_kv {block_kv} is too large for rows of {reach} columns: the kernels divide by it "
                f"exactly only while (columns / {pages.TILE}) * (block_kv / {pages.TILE}) is below {MAX_TILE_PRODUCT}. "
                "Use smaller blocks."
            )

        # out
        logits_row_stride = columns * 4
        if logits is not None:
            logits_row_stride = _logits_stride(logits, num_rows, columns)

        return cls(
            device=q.device,
            num_heads=num_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_kv=block_kv,
            batch=batch,
            next_n=next_n,
            num_rows=num_rows,
            max_model_len=columns,
            table_width=table_width,
            preshuffle=preshuffle,
            is_packed=is_packed,
            lens_per_row=per_row,
            clean_logits=logits is None if clean_logits is None else clean_logits,
            q_seq_stride=q_seq_stride,
            q_row_stride=q_row_stride,
            kv_block_stride=kv_block_stride,
            weights_seq_stride=weights_seq_stride,
            weights_row_stride=weights_row_stride,
            lens_seq_stride=lens_seq_stride,
            lens_row_stride=lens_row_stride,
            table_row_stride=_stride(block_tables, 0),
            logits_row_stride=logits_row_stride,
        )

    def new_logits(self) -> Tensor:
        """Allocate the output: float32 ``[num_rows, max_model_len]``.

        In the packed form a clean output is filled with -inf here, since rows that belong to no sequence (past the end
        of cu_seqlens_q) are never visited by the kernel.
        """
        shape = (self.num_rows, self.max_model_len)
        if self.is_packed and self.clean_logits:
            return torch.full(shape, float("-inf"), dtype=torch.float32, device=self.device)
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def why_not_block_stride(kv_block_stride: int) -> str | None:
    """Say why cache blocks may not lie this many bytes apart, or None when they may."""
    if kv_block_stride % ALIGNMENT:
        return (
            f"kv_cache_fp8: expected a block stride in multiples of {ALIGNMENT} bytes, got {kv_block_stride}. "
            "Pad the blocks: their scales are float32."
        )
    return None


def signature(tensors: Iterable[Any]) -> tuple[Any, ...]:
    """Return a hashable value that determines, together with the other arguments, what ``Problem.check`` would say."""
    return tuple(
        [
            t if t is None else (t.__class__, t.dtype, t.shape, t.stride(), t.device, t.is_neg(), t.requires_grad)
            for t in tensors
        ]
    )


def extent_bytes(tensor: Tensor) -> int:
    """Count the bytes from a tensor's first element to the end of the last one it can reach. 0 when it is empty."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def extents(problem: Problem, tensors: Tensors) -> tuple[int, ...]:
    """Return ``extent_bytes`` of each tensor of a checked call, 0 for an absent one; of the output to be, if it is."""
    known = [0 if tensor is None else extent_bytes(tensor) for tensor in tensors]
    if tensors.logits is None:
        known[-1] = problem.num_rows * problem.logits_row_stride
    return tuple(known)


def check_memory(tensors: Tensors, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Check the addresses of one call's tensors and return them (0 for an absent one), in the order of ``Tensors``.

    Runs at every call, so it takes what ``extents`` said once. Raises ValueError for a misaligned tensor, one without
    memory, and an output that overlaps an input.
    """
    addresses = tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])
    begin, end = addresses[-1], addresses[-1] + extents[-1]
    suspect = addresses[0] % Q_ALIGNMENT or begin % ALIGNMENT or not begin
    for address, extent in zip(addresses[:-1], extents, strict=False):
        if extent and (address % ALIGNMENT or not address or (address < end and begin < address + extent)):
            suspect = True
    if suspect:
        _refuse_memory(tensors, addresses, extents)
    return addresses


def _refuse_memory(tensors: Tensors, addresses: tuple[int, ...], extents: tuple[int, ...]) -> None:
    """Raise ValueError if something really is wrong with addresses that look suspect, naming it."""
    begin, end = addresses[-1], addresses[-1] + extents[-1]
    for public, address, extent, tensor in zip(PUBLIC_NAMES, addresses, extents, tensors, strict=True):
        wanted = Q_ALIGNMENT if public == PUBLIC_NAMES.q else ALIGNMENT
        if address % wanted:
            raise ValueError(
                f"{public}: expected an address that is a multiple of {wanted} bytes, got {address:#x} "
                f"({address % wanted} past one). Move the storage offset or call .clone()."
            )
        if not address and extent:
            raise ValueError(f"{public}: its {tensor.numel()} elements have no memory; the storage was freed.")
    for public, address, extent, tensor in list(zip(PUBLIC_NAMES, addresses, extents, tensors, strict=True))[:-1]:
        overlaps = extent and address < end and begin < address + extent
        if overlaps and not _interleaves(tensors.logits, begin, tensor, address):
            raise ValueError(f"out: overlaps {public} in memory. The kernel writes out while it reads its inputs.")


def check_contents(problem: Problem, tensors: Tensors) -> None:
    """Check what the operator takes on trust because it costs reads of device data. Synchronises; for the strict mode.

    Raises ValueError, with the row and column, for a length outside [0, max_model_len], more needed table columns than
    there are, a needed block id outside the cache, a negative or NaN scale of a needed token, and a cu_seqlens_q that
    does not rise from 0 within the rows or gives a sequence more than max_next_n of them.
    """
    cu = list(range(0, problem.num_rows + 1, problem.next_n)) if problem.next_n else [0] * (problem.batch + 1)
    if problem.is_packed:
        cu = tensors.cu_seqlens_q.tolist()
        if cu[0] != 0:
            raise ValueError(f"cu_seqlens_q: expected 0 at index 0, got {cu[0]}.")
        for b in range(problem.batch):
            if not 0 <= cu[b + 1] - cu[b] <= problem.next_n or cu[b + 1] > problem.num_rows:
                raise ValueError(
                    f"cu_seqlens_q: index {b + 1} is {cu[b + 1]} after {cu[b]}; expected 0 to {problem.next_n} "
                    f"(max_next_n) more, and at most {problem.num_rows} rows."
                )
    lens = tensors.context_lens.reshape(-1).tolist()
    needed_lens = range(cu[-1]) if problem.lens_per_row else [b for b in range(problem.batch) if cu[b + 1] > cu[b]]
    for i in needed_lens:
        if not 0 <= lens[i] <= problem.max_model_len:
            raise ValueError(
                f"context_lens: entry {i} is {lens[i]}, expected 0 to {problem.max_model_len} (max_model_len)."
            )
    scales = pages.scales_of(tensors.kv_cache)
    for b in range(problem.batch):
        rows = range(cu[b], cu[b + 1])
        longest = max((lens[row] for row in rows), default=0) if problem.lens_per_row else (lens[b] if rows else 0)
        columns = -(-longest // problem.block_kv)
        if columns > problem.table_width:
            raise ValueError(
                f"block_tables: row {b} needs {columns} columns for {longest} tokens in blocks of {problem.block_kv}, "
                f"has {problem.table_width}. Does the table hold ids of larger blocks?"
            )
        ids = tensors.block_tables[b, :columns]
        for column, block in enumerate(ids.tolist()):
            if not 0 <= block < problem.num_blocks:
                raise ValueError(
                    f"block_tables: row {b}, column {column} is {block}, expected 0 to {problem.num_blocks - 1} for a "
                    f"cache of {problem.num_blocks} blocks."
                )
        needed = scales[ids.long()].reshape(-1)[:longest]
        bad = (~(needed >= 0)).nonzero()
        if bad.numel():
            token = int(bad[0])
            raise ValueError(
                f"kv_cache_fp8: the scale of token {token} of sequence {b} (block_tables row {b}, column "
                f"{token // problem.block_kv}, slot {token % problem.block_kv}) is {float(needed[token])}, expected "
                ">= 0."
            )


def _check_kind(public: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{public}: expected a torch.Tensor, got {type(tensor).__name__}.")
    if tensor.layout != torch.strided or tensor.is_nested:
        what = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise TypeError(f"{public}: expected a strided tensor, got {what}.")


def _check_plain(public: str, tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.device.type == "meta":
        what = "a meta tensor" if tensor.device.type == "meta" else f"a {type(tensor).__name__}"
        raise TypeError(
            f"{public}: expected a plain torch.Tensor with memory, got {what}. There is nothing to launch on."
        )
    if tensor.is_neg():
        raise ValueError(f"{public}: its negation is pending (a lazy view). Call .resolve_neg().")
    if public == PUBLIC_NAMES.logits and tensor.requires_grad:
        raise ValueError("out: requires grad, but the operator has no gradient. Pass out.detach().")


def _check_dtype(public: str, tensor: Tensor, wanted: torch.dtype) -> None:
    if tensor.dtype != wanted:
        raise TypeError(
            f"{public}: expected {_DTYPES[wanted]}, got {dtype_name(tensor)}. Convert with "
            f".to(torch.{_DTYPES[wanted]})."
        )


def _integer(name: str, value: Any, low: int, high: int = INT32_MAX) -> int:
    """Return a host integer. Tensors are refused although they convert: that would wait for the device."""
    if type(value) is not int:
        if isinstance(value, bool | Tensor) or not hasattr(value, "__index__"):
            raise TypeError(
                f"{name}: expected an int, got {type(value).__name__}."
                + (" Reading a tensor would wait for the device." if isinstance(value, Tensor) else "")
            )
        try:
            value = operator.index(value)
        except TypeError as error:
            raise TypeError(f"{name}: expected an int, got {type(value).__name__}: {error}.") from error
    if not low <= value <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {value}.")
    return int(value)


def _stride(tensor: Tensor, dim: int) -> int:
    """Return a stride in bytes; 0 where only one element lies along the dimension, whatever torch stores there."""
    return tensor.stride(dim) * tensor.element_size() if tensor.shape[dim] > 1 else 0


def _weights_strides(
    weights: Tensor, batch: int, next_n: int, num_rows: int, num_heads: int, is_packed: bool
) -> tuple[int, int]:
    shape = tuple(weights.shape)
    by_sequence = not is_packed and shape == (batch, next_n, num_heads)
    if not by_sequence and shape not in ((num_rows, num_heads), (num_rows, num_heads, 1)):
        native = "" if is_packed else f" or [{batch}, {next_n}, {num_heads}]"
        raise ValueError(
            f"weights: expected [{num_rows}, {num_heads}], [{num_rows}, {num_heads}, 1]{native} for q_fp8's rows and "
            f"heads, got {list(shape)}."
        )
    if weights.numel() and num_heads > 1 and weights.stride(2 if by_sequence else 1) != 1:
        raise ValueError(
            f"weights: expected a head stride of 1, got strides {list(weights.stride())}. Call .contiguous()."
        )
    if by_sequence:
        return _stride(weights, 0), _stride(weights, 1)
    row = _stride(weights, 0)
    return (row if is_packed else next_n * row), row


def _lens_kind(
    context_lens: Tensor, batch: int, next_n: int, num_rows: int, is_packed: bool, lens_per_row: bool | None
) -> bool:
    """Tell whether the lengths are per row. Shapes decide where they can; where they cannot, the caller must say."""
    shape = tuple(context_lens.shape)
    if is_packed:
        per_sequence = shape in ((batch,), (batch, 1))
        per_row = shape in ((num_rows,), (num_rows, 1))
        wanted = f"[{batch}] (one per sequence) or [{num_rows}] (one per row)"
    else:
        per_sequence = shape in ((batch,), (batch, 1))
        per_row = shape == (batch, next_n) or (next_n == 1 and per_sequence)
        wanted = f"[{batch}], [{batch}, 1] (one per sequence) or [{batch}, {next_n}] (one per row)"
    if not per_sequence and not per_row:
        raise ValueError(f"context_lens: expected {wanted}, got {list(shape)}.")
    if lens_per_row is None:
        if is_packed and per_sequence and per_row:
            raise ValueError(
                f"context_lens: {list(shape)} fits both {batch} sequences and {num_rows} rows. Pass "
                "lens_per_row=False for lengths of sequences, True for ends of rows."
            )
        return not per_sequence
    if not (per_row if lens_per_row else per_sequence):
        kind = "one end per row" if lens_per_row else "one length per sequence"
        raise ValueError(
            f"context_lens: lens_per_row={lens_per_row} wants {kind}: expected {wanted}, got {list(shape)}."
        )
    return lens_per_row and (is_packed or context_lens.ndim == 2)


def _logits_stride(logits: Tensor, num_rows: int, columns: int) -> int:
    _check_dtype("out", logits, torch.float32)
    if logits.ndim != 2 or logits.shape[0] != num_rows or logits.shape[1] < columns:
        raise ValueError(f"out: expected [{num_rows}, at least {columns}], got {list(logits.shape)}.")
    if logits.numel() and logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError(f"out: expected a column stride of 1, got strides {list(logits.stride())}.")
    stride = _stride(logits, 0)
    if num_rows > 1 and stride < columns * 4:
        raise ValueError(
            f"out: expected a row stride of at least {columns} elements, got strides {list(logits.stride())}: rows "
            "would overlap."
        )
    return stride


def _interleaves(logits: Tensor, begin: int, tensor: Tensor, address: int) -> bool:
    """Tell whether a tensor lies wholly in the gaps between the output's rows, in a common row of equal stride."""
    pitch = _stride(logits, 0)
    inner = extent_bytes(tensor)
    if tensor.ndim and _stride(tensor, 0) == pitch:
        inner -= (tensor.shape[0] - 1) * pitch
    if not pitch or inner > pitch:
        return False
    start = (address - begin) % pitch
    return start >= logits.shape[1] * 4 and start + inner <= pitch
