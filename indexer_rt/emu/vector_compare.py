"""Fill the compare tables: v_cmp writes a mask, v_cmpx also EXEC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import is_signalling
from .operands import F16, F32, F64, I16, I32, I64, MASK, U16, U32, U64, Type
from .table import Entry, add

_INTEGER = {
    "f": lambda a, b: np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), bool), "lt": np.less, "eq": np.equal,
    "le": np.less_equal, "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal,
    "t": lambda a, b: np.ones(np.broadcast_shapes(np.shape(a), np.shape(b)), bool),
}  # fmt: skip


def _unordered(a: Any, b: Any) -> Any:
    return np.isnan(a) | np.isnan(b)


_FLOAT = {
    "f": _INTEGER["f"], "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater,
    "lg": lambda a, b: (a != b) & ~_unordered(a, b), "ge": np.greater_equal, "o": lambda a, b: ~_unordered(a, b),
    "u": _unordered, "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: (a == b) | _unordered(a, b),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": np.not_equal, "nlt": lambda a, b: ~(a < b),
    "tru": _INTEGER["t"],
}  # fmt: skip


def _float_class(a: Any, b: Any) -> Any:
    """v_cmp_class: does the value belong to a class whose bit is set in b."""
    a, b = np.asarray(a), np.asarray(b)
    negative, nan, infinite, zero = np.signbit(a), np.isnan(a), np.isinf(a), a == 0
    subnormal = ~zero & (np.abs(a) < np.finfo(a.dtype).tiny)
    normal = ~(nan | infinite | zero | subnormal)
    signalling = is_signalling(a)
    classes = (
        signalling, nan & ~signalling, infinite & negative, normal & negative, subnormal & negative, zero & negative,
        zero & ~negative, subnormal & ~negative, normal & ~negative, infinite & ~negative,
    )  # fmt: skip
    out: Any = np.zeros(np.broadcast_shapes(a.shape, b.shape), bool)
    for bit, member in enumerate(classes):
        out = out | (member & (b >> np.uint32(bit) & np.uint32(1)).astype(bool))
    return out


def _row(opcode: int, stem: str, types: tuple[Type, Type], body: Callable[..., Any]) -> None:
    """Register v_cmp and v_cmpx (16 opcodes on) in VOPC and VOP3."""
    for offset, prefix, traits in ((0, "v_cmp", {}), (16, "v_cmpx", {"writes_exec": True})):
        for format_name in ("VOPC", "VOP3"):
            row_traits = {"base": "VOPC", "suffixed": True, "omod": False, **traits}
            params = (("a", types[0]), ("b", types[1]))
            add(Entry(format_name, opcode + offset, f"{prefix}_{stem}", (MASK,), params, body, row_traits))


for _first, _type in ((0x20, F16), (0x40, F32), (0x60, F64)):
    for _n, (_stem, _body) in enumerate(_FLOAT.items()):
        _row(_first + _n, f"{_stem}_{_type.name.lower()}", (_type, _type), _body)
for _first, _type in ((0xA0, I16), (0xA8, U16), (0xC0, I32), (0xC8, U32), (0xE0, I64), (0xE8, U64)):
    for _n, (_stem, _body) in enumerate(_INTEGER.items()):
        _row(_first + _n, f"{_stem}_{_type.name.lower()}", (_type, _type), _body)


def _class_row(opcode: int, type_: Type) -> None:
    for offset, prefix, traits in ((0, "v_cmp", {}), (1, "v_cmpx", {"writes_exec": True})):
        for format_name in ("VOPC", "VOP3"):
            row_traits = {"base": "VOPC", "suffixed": True, "omod": False, "raw": True, **traits}
            params = (("a", type_), ("b", U32))
            add(
                Entry(
                    format_name,
                    opcode + offset,
                    f"{prefix}_class_{type_.name.lower()}",
                    (MASK,),
                    params,
                    _float_class,
                    row_traits,
                )
            )


for _opcode, _type in ((0x10, F32), (0x12, F64), (0x14, F16)):
    _class_row(_opcode, _type)
