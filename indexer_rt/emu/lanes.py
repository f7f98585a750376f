"""Say which lane each lane reads: DPP controls, swizzles and permutes. Every function returns data, no machine
state.
"""

from __future__ import annotations

import numpy as np

from ..errors import EmulatorFault

LANES = np.arange(64)
_ROW, _IN_ROW = LANES & ~15, LANES & 15


def dpp(control: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (source lane [64], in range [64] bool) of a DPP control code."""
    every = np.ones(64, bool)
    if control < 0x100:
        return (LANES & ~3) | (control >> 2 * (LANES & 3) & 3), every
    amount = control & 15
    if 0x101 <= control <= 0x10F:
        return np.where(_IN_ROW + amount < 16, LANES + amount, 0), _IN_ROW + amount < 16
    if 0x111 <= control <= 0x11F:
        return np.where(_IN_ROW >= amount, LANES - amount, 0), _IN_ROW >= amount
    if 0x121 <= control <= 0x12F:
        return _ROW | ((_IN_ROW - amount) & 15), every
    if 0x150 <= control <= 0x15F:
        return _ROW | amount, every
    table = {
        0x130: (np.minimum(LANES + 1, 63), LANES < 63),
        0x134: ((LANES + 1) & 63, every),
        0x138: (np.maximum(LANES - 1, 0), LANES > 0),
        0x13C: ((LANES - 1) & 63, every),
        0x140: (_ROW | (15 - _IN_ROW), every),
        0x141: ((LANES & ~7) | (7 - (LANES & 7)), every),
        0x142: (np.maximum(_ROW - 1, 0), LANES >= 16),
        0x143: (np.full(64, 31), LANES >= 32),
    }
    if control not in table:
        raise EmulatorFault(f"DPP control {control:#x} is reserved.")
    return table[control]


def dpp_enabled(row_mask: int, bank_mask: int) -> np.ndarray:
    """Return the lanes [64] that row_mask and bank_mask leave enabled; a bank is 4 lanes of each row."""
    return ((row_mask >> (LANES >> 4) & 1) & (bank_mask >> (LANES >> 2 & 3) & 1)).astype(bool)


def swizzle(offset: int) -> np.ndarray:
    """Return the source lane [64] of ds_swizzle_b32's offset field (quad-permute and bit-mask modes)."""
    if offset & 0x8000:
        if offset & 0xFF00 != 0x8000:
            raise EmulatorFault(
                f"ds_swizzle_b32 offset {offset:#x}: FFT and rotate modes are not modelled. Add them to emu/lanes.py."
            )
        return (LANES & ~3) | (offset >> 2 * (LANES & 3) & 3)
    and_, or_, xor = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return (LANES & 32) | ((((LANES & 31) & and_) | or_) ^ xor)


def swap_rows(a: np.ndarray, b: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Swap a's odd rows of ``row`` lanes with b's even ones: v_permlane16_swap (16), v_permlane32_swap (32)."""
    pairs = (*a.shape[:-1], 64 // (2 * row), 2, row)
    new_a, new_b = a.reshape(pairs).copy(), b.reshape(pairs).copy()
    new_a[..., 1, :] = b.reshape(pairs)[..., 0, :]
    new_b[..., 0, :] = a.reshape(pairs)[..., 1, :]
    return new_a.reshape(a.shape), new_b.reshape(b.shape)
