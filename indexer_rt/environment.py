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
    ``fast_emulator``: INDEXER_RT_EMULATOR=fast, skip the emulator's checks of what the hardware leaves undefined;
    accesses outside a tensor fault all the same. Default: strict.
    ``log``: INDEXER_RT_LOG, the level of the logger ``indexer_rt``: debug, info (or 1), warning or error, or None.
    """

    hsaco_dir: Path | None = None
    libhip: Path | None = None
    strict: bool = False
    enable: bool = False
    fast_emulator: bool = False
    log: str | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Read the settings out of a mapping.

        Raises ValueError for a value that means nothing and for an ``INDEXER_RT_`` name that does not exist (a typo
        would otherwise switch nothing on, silently).
        """
        known = {f"{PREFIX}{name}" for name in ("HSACO_DIR", "LIBHIP", "STRICT", "ENABLE", "EMULATOR", "LOG")}
        for name in variables:
            if name.startswith(PREFIX) and name not in known:
                raise ValueError(f"{name}: no such setting. indexer_rt reads {', '.join(sorted(known))}.")
        emulator = variables.get(f"{PREFIX}EMULATOR", "")
        if emulator not in ("", "strict", "fast"):
            raise ValueError(f"{PREFIX}EMULATOR: expected strict or fast, got {emulator!r}.")
        log = variables.get(f"{PREFIX}LOG", "").lower()
        log = {"0": "", "1": "info"}.get(log, log)
        if log and log not in _LOG_LEVELS:
            raise ValueError(f"{PREFIX}LOG: expected 0, 1 (info) or one of {', '.join(_LOG_LEVELS)}, got {log!r}.")
        hsaco_dir, libhip = variables.get(f"{PREFIX}HSACO_DIR"), variables.get(f"{PREFIX}LIBHIP")
        return cls(
            hsaco_dir=Path(hsaco_dir) if hsaco_dir else None,
            libhip=Path(libhip) if libhip else None,
            strict=_switch(variables, "STRICT"),
            enable=_switch(variables, "ENABLE"),
            fast_emulator=emulator == "fast",
            log=log or None,
        )


def _switch(variables: Mapping[str, str], name: str) -> bool:
    value = variables.get(f"{PREFIX}{name}", "")
    if value not in _SWITCH:
        raise ValueError(f"{PREFIX}{name}: expected 0 or 1, got {value!r}.")
    return _SWITCH[value]


@functools.cache
def current() -> Environment:
    """Return the process's settings, read from ``os.environ`` at the first call, and set up the logger as they say.

    With INDEXER_RT_LOG the logger writes to stderr, unless the program has given it, or the root logger, a handler.
    """
    environment = Environment.read(os.environ)
    if environment.log:
        logger = logging.getLogger("indexer_rt")
        logger.setLevel(environment.log.upper())
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
    return environment
