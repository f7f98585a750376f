"""Put drop-ins in the place of the functions of aiter, vLLM and SGLang, in this process, without patching source.

vLLM and SGLang find ``vllm_plugin`` and ``sglang_plugin`` by their entry points and call them in every process they
start. Both do nothing unless INDEXER_RT_ENABLE=1. An ``install_`` function may also be called by hand; that needs no
variable.

All targets of an installation are checked before the first is replaced, so a refusal leaves everything as it was. A
refusal is an error: vLLM does not start with it; SGLang logs it and runs on with its own function. Installing twice is
the same as once.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .. import environment
from ..errors import IndexerRtError

_log = logging.getLogger("indexer_rt")

_STACKS = ("aiter", "atom", "sglang", "vllm")
"""Packages whose modules may hold the original under its own name, from an import at module top."""


@dataclass(frozen=True, slots=True)
class Target:
    """Name a function to replace: ``function`` of the first of ``modules`` that exists, and the drop-in's module.

    ``free_defaults`` are parameters whose default may differ: aiter's TotalCuCount default is a fact of the machine.
    """

    modules: tuple[str, ...]
    function: str
    dropin_module: str
    free_defaults: tuple[str, ...] = ()

    @property
    def dropin(self) -> Callable[..., Any]:
        """Import the drop-in."""
        dropin: Callable[..., Any] = getattr(importlib.import_module(self.dropin_module), self.function)
        return dropin


AITER = Target(
    ("aiter.ops.triton.attention.pa_mqa_logits", "aiter.ops.triton.pa_mqa_logits"),
    "deepgemm_fp8_paged_mqa_logits",
    "indexer_rt.compat.aiter",
    ("TotalCuCount",),
)
VLLM = Target(("vllm.v1.attention.ops.rocm_aiter_mla_sparse",), "rocm_fp8_paged_mqa_logits", "indexer_rt.compat.vllm")
VLLM_WORKSPACE = "current_workspace_manager"
SGLANG = Target(
    ("sglang.kernels.ops.attention.dsa.paged_mqa_logits", "sglang.jit_kernel.dsa.paged_mqa_logits"),
    "aiter_paged_mqa_logits",
    "indexer_rt.compat.sglang",
)


def vllm_plugin() -> None:
    """Be vLLM's plugin ``indexer_rt`` (``vllm.general_plugins``): ``install_vllm`` if INDEXER_RT_ENABLE=1."""
    if environment.current().enable:
        install_vllm()


def sglang_plugin() -> None:
    """Be SGLang's plugin ``indexer_rt`` (``sglang.srt.plugins``): ``install_sglang`` if INDEXER_RT_ENABLE=1."""
    if environment.current().enable:
        install_sglang()


def install_aiter() -> tuple[str, ...]:
    """Replace aiter's ``deepgemm_fp8_paged_mqa_logits``, which is how ATOM is reached.

    ATOM binds the name when its modules are imported. Install first; modules of ATOM, SGLang and vLLM that are already
    imported and hold the original under its name are given the drop-in too.

    Returns the full names replaced, none when they were before. Raises IndexerRtError when aiter, or the function, is
    not there, or its signature is not the one that the drop-in has.
    """
    return _replace(_find(AITER))


def install_vllm() -> tuple[str, ...]:
    """Replace vLLM's ``rocm_fp8_paged_mqa_logits``, and aiter's function where aiter is installed.

    The replacement takes its output from vLLM's workspace, as the original does. Returns and raises as
    ``install_aiter`` does; also raises where vLLM's module has no workspace.
    """
    found = _find(VLLM)
    workspace_of = found.module
    if not found.installed:
        if not callable(getattr(workspace_of, VLLM_WORKSPACE, None)):
            raise IndexerRtError(
                f"{workspace_of.__name__}: expected {VLLM_WORKSPACE}, which gives the original its output, found none. "
                "Update vLLM or unset INDEXER_RT_ENABLE."
            )
        make = importlib.import_module(VLLM.dropin_module).in_workspace
        # Looked up at every call, as the original does, so that a manager that vLLM sets later is the one used.
        found = found.with_dropin(make(lambda: getattr(workspace_of, VLLM_WORKSPACE)()))
    if importlib.util.find_spec("aiter") is None:
        _log.warning("aiter is not installed: there is no %s to replace.", AITER.function)
        return _replace(found)
    return _replace(found, _find(AITER))


def install_sglang() -> tuple[str, ...]:
    """Replace SGLang's ``aiter_paged_mqa_logits``, and aiter's function, which other code of SGLang calls.

    Returns and raises as ``install_aiter`` does.
    """
    return _replace(_find(SGLANG), _find(AITER))


@dataclass(frozen=True, slots=True)
class _Found:
    """Hold a target that was found and checked. ``installed``: what is there is the drop-in already."""

    module: ModuleType
    function: str
    original: Callable[..., Any]
    dropin: Callable[..., Any]
    installed: bool

    def with_dropin(self, dropin: Callable[..., Any]) -> _Found:
        return _Found(self.module, self.function, self.original, dropin, self.installed)


def _find(target: Target) -> _Found:
    """Import a target's module and check its function. Raises IndexerRtError unless the drop-in replaces just that."""
    module = _first_module(target)
    original = getattr(module, target.function, None)
    where = f"{module.__name__}.{target.function}"
    if not callable(original):
        raise IndexerRtError(
            f"{where}: expected a function, found {'nothing' if original is None else repr(original)}. This version "
            "has no function that indexer_rt replaces; unset INDEXER_RT_ENABLE."
        )
    dropin = target.dropin
    if getattr(original, "__module__", None) == target.dropin_module:
        return _Found(module, target.function, original, dropin, True)
    try:
        got = inspect.signature(original)
    except (TypeError, ValueError) as error:
        raise IndexerRtError(f"{where}: its signature cannot be read ({error}); it is not replaced.") from error
    wanted = inspect.signature(dropin)
    if _shape(got, target.free_defaults) != _shape(wanted, target.free_defaults):
        raise IndexerRtError(
            f"{where}: expected the signature {_text(wanted)}, got {_text(got)}. indexer_rt replaces that signature "
            "only; use versions that fit together, or unset INDEXER_RT_ENABLE."
        )
    return _Found(module, target.function, original, dropin, False)


def _first_module(target: Target) -> ModuleType:
    for name in target.modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # NOTE: a module that is there but lacks one of its own imports is broken, not missing.
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
    raise IndexerRtError(
        f"{target.function}: expected it in {' or '.join(target.modules)}, found no such module. Install the stack "
        "that has it, or unset INDEXER_RT_ENABLE."
    )


def _shape(signature: inspect.Signature, free_defaults: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """List what a caller depends on: names, kinds and defaults in order. Annotations do not matter."""
    return [
        (p.name, p.kind, p.default is not p.empty if p.name in free_defaults else p.default)
        for p in signature.parameters.values()
    ]


def _text(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


def _replace(*found: _Found) -> tuple[str, ...]:
    """Put each drop-in where its original is bound, under its name, in the modules of the stacks that are imported."""
    names = []
    for one in found:
        if one.installed:
            _log.debug("%s.%s: was replaced before.", one.module.__name__, one.function)
            continue
        for name, module in sorted(sys.modules.items()):
            content = getattr(module, "__dict__", None)
            if name.partition(".")[0] in _STACKS and content and content.get(one.function) is one.original:
                setattr(module, one.function, one.dropin)
                names.append(f"{name}.{one.function}")
                _log.warning("%s: replaced by %s.%s.", names[-1], one.dropin.__module__, one.dropin.__qualname__)
    return tuple(names)
