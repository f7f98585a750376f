"""Write and read the paged FP8 key cache: the format of one block, and helpers that make and take apart whole caches.

A cache is uint8 (or float8_e4m3fn) ``[num_blocks, block_kv, 1, head_dim + 4]``; the dimension of size 1 may be missing.
The last two dimensions only say how many bytes a block has. A block really holds ``block_kv * head_dim`` value bytes
(float8_e4m3fn, OCP), then ``block_kv`` float32 scales, one per token; a key is value * scale.

The value bytes have one of two orders. *Plain*: token t's bytes at ``t * head_dim``. *Preshuffled*, for a ``block_kv``
that is a multiple of 16: byte d of token t at ``(t // 16) * 16 * head_dim + (d // 16) * 256 + (t % 16) * 16 + d % 16``.
The order and ``block_kv`` are part of the stored format: nothing in the bytes tells them, so both must be kept with any
cache that outlives the process, and a cache written with one cannot be read with the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
"""Largest finite float8_e4m3fn (OCP 8-bit floating point specification)."""

SCALE_BYTES = 4
TILE = 16
"""Tokens and bytes on a side of one preshuffled tile."""

_SMALLEST_SCALE = (
    2.0**-126
)  # the smallest normal float32: a key tinier than that times 448 loses bits, never divides by 0


def geometry(kv_cache: Tensor, *, name: str = "kv_cache") -> tuple[int, int, int]:
    """Check a cache and return (num_blocks, block_kv, head_dim).

    Takes uint8 or float8_e4m3fn ``[num_blocks, block_kv, 1, head_dim + 4]`` or the same without the 1, each block
    dense, the blocks any number of bytes apart. Raises TypeError for another dtype, ValueError for another shape or
    stride.
    ``name`` is what messages call it.
    """
    if kv_cache.dtype not in (torch.uint8, FP8):
        raise TypeError(
            f"{name}: expected uint8 or float8_e4m3fn, got {dtype_name(kv_cache)}. A block is fp8 (OCP e4m3fn) value "
            "bytes, then float32 scales; view the cache as uint8."
        )
    shape, wanted = tuple(kv_cache.shape), "[num_blocks, block_kv, 1, head_dim + 4]"
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[2] != 1) or shape[-1] <= SCALE_BYTES or shape[1] < 1:
        raise ValueError(
            f"{name}: expected {wanted} (or the same without the 1), got {list(shape)}. A block is block_kv fp8 rows, "
            "then block_kv float32 scales; view a flat pool as this shape."
        )
    if kv_cache.numel() and (kv_cache.stride(-1) != 1 or (shape[1] > 1 and kv_cache.stride(1) != shape[-1])):
        raise ValueError(
            f"{name}: expected every block dense, strides [any, {shape[-1]}, ..., 1], got {list(kv_cache.stride())}. "
            "Only the block stride is free."
        )
    return shape[0], shape[1], shape[-1] - SCALE_BYTES


def dtype_name(tensor: Tensor) -> str:
    """Name a tensor's dtype as messages do: without ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")


def values_of(kv_cache: Tensor) -> Tensor:
    """View the value bytes: uint8 ``[num_blocks, block_kv, head_dim]``, in the cache's own order. Shares memory."""
    num_blocks, block_kv, head_dim = geometry(kv_cache)
    data = kv_cache.view(torch.uint8)
    return data.as_strided((num_blocks, block_kv, head_dim), (data.stride(0), head_dim, 1))


def scales_of(kv_cache: Tensor) -> Tensor:
    """View the scales: float32 ``[num_blocks, block_kv]``. Shares memory.

    Raises ValueError unless the cache's first byte and its block stride are multiples of 4 bytes.
    """
    num_blocks, block_kv, head_dim = geometry(kv_cache)
    data = kv_cache.view(torch.uint8)
    offset = data.storage_offset() + block_kv * head_dim
    stride = data.stride(0) if num_blocks > 1 else block_kv * SCALE_BYTES
    if offset % SCALE_BYTES or stride % SCALE_BYTES:
        raise ValueError(
            f"kv_cache: expected scales at multiples of 4 bytes, got storage offset {data.storage_offset()} and block "
            f"stride {stride} bytes with block_kv {block_kv}."
        )
    scales = data.as_strided((num_blocks, block_kv * SCALE_BYTES), (stride, 1), offset)
    return scales.view(torch.float32)


def preshuffle_values(values: Tensor) -> Tensor:
    """Copy value bytes from plain into preshuffled order. 1-byte dtype ``[num_blocks, block_kv, head_dim]``, same out.

    Raises ValueError unless ``block_kv`` and ``head_dim`` are multiples of 16.
    """
    num_blocks, block_kv, head_dim = _tileable(values)
    tiles = _bytes(values).reshape(num_blocks, block_kv // TILE, TILE, head_dim // TILE, TILE)
    return tiles.transpose(2, 3).reshape(num_blocks, block_kv, head_dim).view(values.dtype)


def unpreshuffle_values(values: Tensor) -> Tensor:
    """Undo ``preshuffle_values``: copy value bytes from preshuffled into plain order. Same shapes and errors."""
    num_blocks, block_kv, head_dim = _tileable(values)
    tiles = _bytes(values).reshape(num_blocks, block_kv // TILE, head_dim // TILE, TILE, TILE)
    return tiles.transpose(2, 3).reshape(num_blocks, block_kv, head_dim).view(values.dtype)


def _bytes(values: Tensor) -> Tensor:
    return values.view(torch.uint8)


def _tileable(values: Tensor) -> tuple[int, int, int]:
    if values.ndim != 3 or values.element_size() != 1:
        raise ValueError(
            f"values: expected a 1-byte dtype [num_blocks, block_kv, head_dim], got {dtype_name(values)} "
            f"{list(values.shape)}."
        )
    num_blocks, block_kv, head_dim = values.shape
    if block_kv % TILE or head_dim % TILE:
        raise ValueError(
            f"values: expected block_kv and head_dim in multiples of {TILE}, got {block_kv} and {head_dim}. "
            f"Preshuffled blocks are {TILE} x {TILE} tiles; smaller blocks are plain."
        )
    return num_blocks, block_kv, head_dim


def quantize(keys: Tensor, *, scale_format: str = "float32") -> tuple[Tensor, Tensor]:
    """Quantise each row of keys to FP8 with one scale.

    ``keys``: floating ``[..., head_dim]``, any strides, finite. Returns (float8_e4m3fn ``[..., head_dim]``, float32
    ``[...]``), key = value * scale. The scale is max|row| / 448, and at least 2**-126; an all-zero row gets scale 1.
    ``scale_format="ue8m0"`` rounds each scale up to a power of two (the exponent-only format of DeepSeek-V3.2's
    caches).

    Raises TypeError for integer keys, ValueError for a key that is not finite or an unknown ``scale_format``.
    """
    if not keys.dtype.is_floating_point:
        raise TypeError(f"keys: expected a floating dtype, got {dtype_name(keys)}.")
    if scale_format not in ("float32", "ue8m0"):
        raise ValueError(f"scale_format: expected 'float32' or 'ue8m0', got {scale_format!r}.")
    rows = keys.to(torch.float32)
    finite = rows.isfinite().all(dim=-1)
    if not bool(finite.all()):
        row = (~finite).nonzero()[0].tolist()
        raise ValueError(f"keys: expected finite numbers, got inf or NaN in row {row}. FP8 e4m3fn has no infinity.")
    largest = rows.abs().amax(dim=-1)
    scales = (largest / FP8_MAX).clamp_min(_SMALLEST_SCALE)
    if scale_format == "ue8m0":
        mantissa, exponent = torch.frexp(scales)  # mantissa in [0.5, 1): a power of two has exactly 0.5
        scales = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).to(exponent.dtype))
    scales = torch.where(largest == 0, torch.ones_like(scales), scales)
    values = (rows / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return values, scales


def pack(keys: Tensor, block_kv: int, *, preshuffle: bool, scale_format: str = "float32") -> Tensor:
    """Quantise keys and pack them into a new cache.

    ``keys``: floating ``[num_tokens, head_dim]``, token t going to block ``t // block_kv``, slot ``t % block_kv``; or
    ``[num_blocks, block_kv, head_dim]``. Slots past the last token are zero keys with scale 1.
    Returns uint8 ``[num_blocks, block_kv, 1, head_dim + 4]``, contiguous, on the keys' device, values preshuffled or
    plain as ``preshuffle`` says. ``scale_format`` and errors as in ``quantize``, and ValueError for another shape.
    """
    if block_kv < 1:
        raise ValueError(f"block_kv: expected at least 1, got {block_kv}.")
    if keys.ndim == 2:
        missing = -keys.shape[0] % block_kv
        keys = torch.nn.functional.pad(keys, (0, 0, 0, missing)).reshape(-1, block_kv, keys.shape[1])
    if keys.ndim != 3 or keys.shape[1] != block_kv:
        raise ValueError(
            f"keys: expected [num_tokens, head_dim] or [num_blocks, {block_kv}, head_dim], got {list(keys.shape)}."
        )
    values, scales = quantize(keys, scale_format=scale_format)
    return assemble(preshuffle_values(values) if preshuffle else values, scales)


def assemble(values: Tensor, scales: Tensor) -> Tensor:
    """Put value bytes, already in their final order, and scales into a new cache.

    ``values``: uint8 or float8_e4m3fn ``[num_blocks, block_kv, head_dim]``; ``scales``: float32 ``[num_blocks,
    block_kv]``. Returns uint8 ``[num_blocks, block_kv, 1, head_dim + 4]``, contiguous.
    Raises ValueError when the shapes do not fit together, TypeError for other dtypes.
    """
    if values.dtype not in (torch.uint8, FP8) or scales.dtype != torch.float32:
        raise TypeError(
            f"values, scales: expected uint8 or float8_e4m3fn, and float32; got {dtype_name(values)}, "
            f"{dtype_name(scales)}."
        )
    if values.ndim != 3 or tuple(scales.shape) != tuple(values.shape[:2]):
        raise ValueError(
            "values, scales: expected [num_blocks, block_kv, head_dim] and [num_blocks, block_kv], got "
            f"{list(values.shape)} and {list(scales.shape)}."
        )
    num_blocks, block_kv, head_dim = values.shape
    kv_cache = torch.empty((num_blocks, block_kv, 1, head_dim + SCALE_BYTES), dtype=torch.uint8, device=values.device)
    values_of(kv_cache).copy_(_bytes(values))
    blocks = kv_cache.view(num_blocks, block_kv * (head_dim + SCALE_BYTES))
    blocks[:, block_kv * head_dim :] = scales.contiguous().view(torch.uint8).view(num_blocks, block_kv * SCALE_BYTES)
    return kv_cache


def dequantize(kv_cache: Tensor, *, preshuffle: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the keys of a whole cache: ``dtype`` ``[num_blocks, block_kv, head_dim]``, value * scale, in order."""
    values = values_of(kv_cache)
    if preshuffle:
        values = unpreshuffle_values(values)
    return values.contiguous().view(FP8).to(dtype) * scales_of(kv_cache).to(dtype).unsqueeze(-1)
