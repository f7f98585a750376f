"""Name the errors that are not the caller's mistake.

Caller's mistakes are ``ValueError`` or ``TypeError``. Everything below says where, wanted, got and what to do.
"""

NO_TORCH = (
    'torch is not installed. Run: pip install "indexer-rt[cpu]" (in a checkout: pip install ".[cpu]"), or install the '
    "ROCm build of torch that matches your ROCm."
)


class IndexerRtError(RuntimeError):
    """Base of every error that indexer_rt raises beyond ValueError and TypeError."""


class CodeObjectError(IndexerRtError):
    """A file is not a gfx950 code object that this package can launch."""


class ChecksumError(CodeObjectError):
    """A code object's sha256 is not the one its manifest names."""


class AbiMismatch(CodeObjectError):
    """A code object's kernel arguments are not the ones the runtime packs."""


class HipError(IndexerRtError):
    """A HIP call failed.

    Attributes: ``code`` (int, hipError_t), ``name`` (str, e.g. ``hipErrorNoBinaryForGpu``), ``call`` (str).
    """

    def __init__(self, message: str, *, code: int, name: str, call: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call


class RuntimeNotFound(IndexerRtError):
    """No HIP runtime (libamdhip64) could be found."""


class RuntimeMismatch(IndexerRtError):
    """Two HIP runtimes are mapped in one process."""


class EmulatorFault(IndexerRtError):
    """The emulated machine did something that the hardware leaves undefined or forbids."""
