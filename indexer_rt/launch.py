"""Describe one kernel launch: what both ends of the device seam take."""

from __future__ import annotations

from dataclasses import dataclass, field

from .code_object import Kernel


@dataclass(frozen=True, slots=True)
class Launch:
    """Hold everything a launch needs.

    ``grid`` counts workgroups, ``block`` work-items per workgroup, ``lds_bytes`` dynamic LDS beyond the kernel's own,
    ``kernarg`` the whole kernarg segment (``kernel.kernarg_bytes`` long, hidden arguments included).
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    lds_bytes: int
    kernarg: bytes = field(repr=False)
