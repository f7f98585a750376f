"""Hold the settings that come from environment variables. They are read once, at the first use."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "INDEXER_RT_"
_SWITCH = {"": False, "0": False, "1": True}
_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Environment:
    """Hold what the ``INDEXER_RT_*`` variables say.

    ``hsaco_dir``: INDEXER_RT_HSACO_DIR, a folder of code objects to use instead of the shipped ones, or None.
    ``libhip``: INDEXER_RT_LIBHIP, the libamdhip64 file to use, or None.
    ``strict``: INDEXER_RT_STRICT=1, check the preconditions that cost reads of device data before every launch.
    ``enable``: INDEXER_RT_ENABLE=1, let the vLLM and SGLang plugins replace those stacks' own functions.
    ``log``: INDEXER_RT_LOG, the level of the logger ``indexer_rt``: debug, info, warning or error, or None.
    """

    hsaco_dir: Path | None = None
    libhip: Path | None = None
    strict: bool = False
    enable: bool = False
    log: str | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Read the settings out of a mapping.

        Raises ValueError for a value that means nothing and for an ``INDEXER_RT_`` name that does not exist (a typo
        would otherwise switch nothing on, silently).
        """
        known = {f"{PREFIX}{name}" for name in ("HSACO_DIR", "LIBHIP", "STRICT", "ENABLE", "LOG")}
        for name in variables:
            if name.startswith(PREFIX) and name not in known:
                raise ValueError(f"{name}: no such setting. indexer_rt reads {', '.join(sorted(known))}.")
        log = variables.get(f"{PREFIX}LOG", "").lower()
        if log and log not in _LOG_LEVELS:
            raise ValueError(f"{PREFIX}LOG: expected one of {', '.join(_LOG_LEVELS)}, got {log!r}.")
        hsaco_dir, libhip = variables.get(f"{PREFIX}HSACO_DIR"), variables.get(f"{PREFIX}LIBHIP")
        return cls(
            hsaco_dir=Path(hsaco_dir) if hsaco_dir else None,
            libhip=Path(libhip) if libhip else None,
            strict=_switch(variables, "STRICT"),
            enable=_switch(variables, "ENABLE"),
            log=log or None,
        )


def _switch(variables: Mapping[str, str], name: str) -> bool:
    value = variables.get(f"{PREFIX}{name}", "")
    if value not in _SWITCH:
        raise ValueError(f"{PREFIX}{name}: expected 0 or 1, got {value!r}.")
    return _SWITCH[value]


@functools.cache
def current() -> Environment:
    """Return the process's settings, read from ``os.environ`` at the first call, and set the logger's level."""
    environment = Environment.read(os.environ)
    if environment.log:
        logging.getLogger("indexer_rt").setLevel(environment.log.upper())
    return environment
