"""Keep the opcode tables. Adding an instruction is one decorated function (or one row) in the file of its kind.

A body's annotations *are* its operand types: ``def _(a: F32, b: F32) -> F32``. It sees arrays [waves, 64] ([waves] in
scalar.py) and returns the same; operand fetch, modifiers, EXEC, literals and write-back are done once per format.
Parameters with these names are not source operands: ``d`` is the old destination, ``carry`` the carry-in or select
mask, ``k`` the literal of a madmk/madak form, ``m`` the running convoy (mode bits, EXEC), ``i`` the instruction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .operands import MASK, TYPES, Type

CONTEXT_PARAMETERS = ("m", "i")


@dataclass(frozen=True, slots=True)
class Entry:
    """Be one row of the table. ``dst`` are result types, ``params`` (name, type) of the body in order."""

    format: str
    opcode: int
    mnemonic: str
    dst: tuple[Type, ...] = ()
    params: tuple[tuple[str, Type | None], ...] = ()
    body: Callable[..., Any] | None = None
    traits: dict[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[tuple[str, Type], ...]:
        return tuple((name, t) for name, t in self.params if t is not None and name not in ("d",))


TABLE: dict[tuple[str, int], Entry] = {}


def add(entry: Entry) -> Entry:
    """Register an entry. Raises ValueError, naming both, when the opcode is taken."""
    key = (entry.format, entry.opcode)
    if key in TABLE:
        raise ValueError(
            f"{entry.format} opcode {entry.opcode:#x} is both {TABLE[key].mnemonic} and {entry.mnemonic}. Correct one."
        )
    TABLE[key] = entry
    return entry


def signature(body: Callable[..., Any]) -> tuple[tuple[Type, ...], tuple[tuple[str, Type | None], ...]]:
    """Read the operand types from a body's annotations."""
    info = inspect.signature(body)

    def resolve(annotation: Any) -> Type:
        return TYPES[annotation] if isinstance(annotation, str) else annotation

    params = tuple(
        (name, None if name in CONTEXT_PARAMETERS else MASK if name == "carry" else resolve(parameter.annotation))
        for name, parameter in info.parameters.items()
    )
    result = info.return_annotation
    if result in (None, "None", inspect.Signature.empty):
        return (), params
    if isinstance(result, str):
        result = tuple(part.strip() for part in result.strip("()").split(",") if part.strip())
    if isinstance(result, tuple):
        return tuple(resolve(t) for t in result), params
    return (resolve(result),), params


def operation(
    format_name: str, opcode: int, mnemonic: str, **traits: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated body under one format."""

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        dst, params = signature(body)
        add(Entry(format_name, opcode, mnemonic, dst, params, body, traits))
        return body

    return register


def vop1(
    opcode: int, mnemonic: str, *, e64: bool = True, **traits: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a VOP1 body and its VOP3 form (opcode + 0x140)."""
    return _vector(("VOP1", opcode), ("VOP3", 0x140 + opcode) if e64 else None, mnemonic, traits)


def vop2(
    opcode: int, mnemonic: str, *, e64: bool = True, **traits: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a VOP2 body and its VOP3 form (opcode + 0x100)."""
    return _vector(("VOP2", opcode), ("VOP3", 0x100 + opcode) if e64 else None, mnemonic, traits)


def vopc(opcode: int, mnemonic: str, **traits: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a VOPC body and its VOP3 form (same opcode)."""
    return _vector(("VOPC", opcode), ("VOP3", opcode), mnemonic, traits)


def vop3(opcode: int, mnemonic: str, **traits: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a body that has the VOP3 form only."""
    return operation("VOP3", opcode, mnemonic, **traits)


def vop3p(opcode: int, mnemonic: str, **traits: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a packed body."""
    return operation("VOP3P", opcode, mnemonic, **traits)


def _vector(
    short: tuple[str, int], long: tuple[str, int] | None, mnemonic: str, traits: dict[str, Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        operation(*short, mnemonic, base=short[0], suffixed=long is not None, **traits)(body)
        if long is not None:
            operation(*long, mnemonic, base=short[0], suffixed=True, **traits)(body)
        return body

    return register
