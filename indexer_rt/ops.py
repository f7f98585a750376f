"""The operator, and what can be asked about it. Joins the line: problem, catalog, code_object, launch, device."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.compiler import is_dynamo_compiling

from . import device as devices
from . import environment, launch, tally, torch_gpu, torch_op
from .call import Call, own
from .catalog import Catalog, Entry
from .code_object import CodeObject, Kernel
from .device import Device
from .errors import CodeObjectError
from .problem import Problem, Tensors, check_contents, check_memory, extents, signature

_log = logging.getLogger("indexer_rt")

_MAX_PLANS = 4096  # a plan is about a kilobyte; a server sees far fewer signatures than this


def fp8_paged_mqa_logits(
    q_fp8: Tensor,
    kv_cache_fp8: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    max_model_len: int,
    *,
    preshuffle: bool,
    out: Tensor | None = None,
    clean_logits: bool | None = None,
    rows_per_wave: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_next_n: int | None = None,
    lens_per_row: bool | None = None,
) -> Tensor:
    """Compute the lightning indexer's logits of a decode step over a paged FP8 key cache.

        logits[b*N + n, p] = kv_scale[p] * sum_h relu(<q[b, n, h, :], k[p, :]>) * weights[b*N + n, h]  for p < end(b, n)
        end(b, n) = context_lens[b] - N + n + 1, or context_lens[b, n]; clipped to 0..max_model_len and to the table

    ============== ================================================ ===================== =========================
    tensor         shape                                            dtype                 strides
    ============== ================================================ ===================== =========================
    q_fp8          [B, N, H, 128]; [B, H, 128] is N = 1             float8_e4m3fn         last two dims dense
    kv_cache_fp8   [num_blocks, block_kv, 1, 132], or without the 1 uint8 / float8_e4m3fn blocks dense, any distance
    weights        [B*N, H], [B*N, H, 1] or [B, N, H]               float32               heads dense, rows free
    context_lens   [B], [B, 1] (lengths) or [B, N] (ends of rows)   int32                 free
    block_tables   [B, W]                                           int32                 columns dense, rows free
    out            [B*N, at least max_model_len]                    float32               columns dense, rows free
    ============== ================================================ ===================== =========================

    All on one device. CPU tensors run in the emulator; others need a gfx950. q_fp8 lies at a multiple of 16 bytes, as
    do its rows; everything else, cache blocks included, at multiples of 4.

    ``preshuffle``: the order of the value bytes in a block (``indexer_rt.kv_cache`` documents both). Never guessed.
    ``out``: where to write; returned as it is. Exactly the cells p < end are written, and with ``clean_logits`` also
    -inf from there to max_model_len. Without ``out`` a new [B*N, max_model_len] tensor is returned.
    ``clean_logits``: default False with ``out``, True without.
    ``rows_per_wave``: a tuning knob, the rows that share one pass over the keys; None chooses. It changes no value.

    Packed form, for sequences of different numbers of rows: q_fp8 [T, H, 128], weights [T, H] or [T, H, 1], out
    [T, ...]; ``cu_seqlens_q`` int32 [B + 1], dense, on the device, row n of sequence b being cu_seqlens_q[b] + n;
    ``max_next_n`` at least the rows of any sequence, a host integer that sizes the launch; context_lens [B] (or [B, 1])
    are lengths of sequences, [T] (or [T, 1]) ends of rows. Where B = T both fit, and ``lens_per_row`` must say which:
    code that serves batches of any size always passes it. Rows past cu_seqlens_q[B] are not visited: ``out`` keeps what
    it held there; an output allocated here holds -inf (undefined with ``clean_logits=False``).

    On trust, checked with INDEXER_RT_STRICT=1 (which costs reads of device data): block ids that are needed lie in the
    cache, scales are >= 0, lengths lie in [0, max_model_len] and need no more than W columns, cu_seqlens_q rises.
    Nothing at or past a sequence's longest end is read, neither table entries nor keys.

    NaN: relu(NaN) is 0, so a NaN in q or in a key adds 0 for the heads it meets; a NaN scale or weight makes its logits
    NaN. The scale multiplies the sum over heads, after it. Subnormal scales, weights and logits are kept, not flushed
    to zero. Where a sum overflows float32, whether inf or NaN comes out is not promised. There is no gradient: tensors
    that require one are read as data, and the result requires none.

    Raises TypeError or ValueError, naming the argument, for what is not accepted; CodeObjectError for a damaged or
    foreign code object; HipError and RuntimeNotFound for the driver; EmulatorFault for the emulated machine.

    >>> logits = fp8_paged_mqa_logits(q, kv_cache, weights, context_lens, block_tables, 4096, preshuffle=True)
    """
    if is_dynamo_compiling() or dispatch_modes():
        return torch_op.dispatch(
            Tensors(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, cu_seqlens_q, out),
            (max_model_len, preshuffle, clean_logits, rows_per_wave, max_next_n, lens_per_row),
        )

    # A call like this thread's last one, or like an earlier one of it: patch the addresses into that launch.
    call = own.call
    if not (
        call.runtime is _current
        and cu_seqlens_q is None
        and (out is None) is call.is_new
        and max_model_len.__class__ is int
        and max_model_len == call.max_model_len
        and preshuffle is call.preshuffle
        and clean_logits is call.clean_logits
        and rows_per_wave is call.rows_per_wave
        and max_next_n is call.max_next_n
        and lens_per_row is call.lens_per_row
        and (
            call.fits(q_fp8, kv_cache_fp8, weights, context_lens, block_tables)
            if out is None
            else call.fits(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, out)
        )
    ):
        tensors = Tensors(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, cu_seqlens_q, out)
        options = (max_model_len, preshuffle, clean_logits, rows_per_wave, max_next_n, lens_per_row)
        found = own.find(_current, tensors, options)
        if found is None:
            return _call(tensors, options)
        call = found
    logits = call.new_logits() if out is None else out
    q, kv, w = q_fp8.data_ptr(), kv_cache_fp8.data_ptr(), weights.data_ptr()
    lens, tables, begin = context_lens.data_ptr(), block_tables.data_ptr(), logits.data_ptr()
    cu = 0 if cu_seqlens_q is None else cu_seqlens_q.data_ptr()
    end = begin + call.logits_bytes
    if (
        q & 15
        or (kv | w | lens | tables | begin | cu) & 3
        or not (q and kv and w and lens and tables and begin)
        or (q < end and begin < q + call.q_bytes)
        or (kv < end and begin < kv + call.kv_bytes)
        or (w < end and begin < w + call.weights_bytes)
        or (lens < end and begin < lens + call.lens_bytes)
        or (tables < end and begin < tables + call.tables_bytes)
        or (cu and cu < end and begin < cu + call.cu_bytes)
    ):  # the long way says what is wrong, if anything is
        return _call(
            Tensors(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, cu_seqlens_q, out),
            (max_model_len, preshuffle, clean_logits, rows_per_wave, max_next_n, lens_per_row),
        )
    call.pack(call.kernarg, call.offset, lens, cu, call.between, q, kv, w, tables, begin)
    call.launch()
    call.cell.calls += 1
    return logits


def why_not(
    num_heads: int,
    head_dim: int = 128,
    block_kv: int = 1,
    preshuffle: bool = False,
    *,
    kv_block_stride: int | None = None,
    rows_per_wave: int | None = None,
    device: torch.device | str | None = None,
) -> str | None:
    """Say why the operator would refuse such a call, or None when it would not.

    ``block_kv``: tokens per cache block. ``kv_block_stride``: bytes between blocks, None for dense ones. ``device``:
    also ask whether code objects run there. The reason is the text of the ValueError that the operator itself raises.
    """
    if device is not None:
        reason = devices.why_not(device)
        if reason is not None:
            return reason
    return _runtime().catalog.why_not(
        num_heads, head_dim, block_kv, preshuffle, kv_block_stride=kv_block_stride, rows_per_wave=rows_per_wave
    )


def is_supported(
    num_heads: int,
    head_dim: int = 128,
    block_kv: int = 1,
    preshuffle: bool = False,
    *,
    kv_block_stride: int | None = None,
    rows_per_wave: int | None = None,
    device: torch.device | str | None = None,
) -> bool:
    """Say whether the operator takes such a call. ``why_not`` takes the same arguments and gives the reason."""
    reason = why_not(
        num_heads,
        head_dim,
        block_kv,
        preshuffle,
        kv_block_stride=kv_block_stride,
        rows_per_wave=rows_per_wave,
        device=device,
    )
    return reason is None


def use_code_objects(directory: Path | str | None) -> None:
    """Use the code objects of a folder from the next call on; None goes back to the shipped ones.

    The folder holds ``*.hsaco`` with build.sh's manifest.json, or without one, named by what they solve (see
    ``catalog``). Every file is read and checked here, before any HIP call: its hash if there is a manifest, ELF target,
    kernel name and arguments.
    Other threads may be calling the operator: a call uses the old code objects or the new ones, never some of each. Old
    modules stay loaded, since a captured graph may hold them; the new ones are loaded at their first call, or by
    ``load``.

    Raises CodeObjectError when the folder holds no code object or a bad one (AbiMismatch, ChecksumError); then nothing
    changes.
    """
    global _current
    runtime = Runtime(Catalog.shipped() if directory is None else Catalog.read(directory))
    for entry in runtime.catalog.entries:
        launch.check_abi(runtime.kernel(entry))
    _current = runtime


def _call(tensors: Tensors, options: tuple[Any, ...]) -> Tensor:
    """Make one call the long way: check everything, plan, run; then keep the launch for the calls that are like it."""
    if torch_op.has_fake(tensors):
        return torch_op.dispatch(tensors, options)
    runtime = _runtime()
    ready = runtime.ready(tensors, options)
    logits = ready.problem.new_logits() if tensors.logits is None else tensors.logits
    if not ready.problem.has_work:
        return logits
    whole = tensors._replace(logits=logits)
    pointers = check_memory(whole, ready.extents)
    is_strict = environment.current().strict
    if is_strict:
        check_contents(ready.problem, whole)
    launched = ready.plan.at(ready.end.addresses(whole, pointers))
    prepared = ready.end.prepare(launched)
    cell = tally.cell(ready.plan.kernel.name, ready.end.label)
    if prepared is None:
        ready.end.run(launched, whole)
    else:
        prepared.run()
    cell.calls += 1
    if prepared is not None and not is_strict:
        own.keep(Call(runtime, tensors, options, ready.problem, ready.plan, ready.extents, prepared, cell))
    return logits


def stats() -> tally.Stats:
    """Return what this process has run: calls by variant and device, modules loaded by device, bytes of code loaded."""
    return tally.stats()


def load(device: torch.device | str | None = None) -> None:
    """Read and check every code object, and load them all on a device, so that no later call loads anything.

    ``device``: None means the current GPU where torch has one, else the CPU. Call it before capturing a graph.
    Raises what the operator would raise for a bad file, device or runtime.
    """
    if device is None:
        gpu = torch_gpu.current()
        device = torch.device("cuda", gpu.current_device()) if gpu.is_available() else torch.device("cpu")
    runtime, end = _runtime(), devices.of(device)
    for entry in runtime.catalog.entries:
        kernel = runtime.kernel(entry)
        launch.check_abi(kernel)
        end.load(kernel)


@dataclass(frozen=True, slots=True)
class Ready:
    """Hold what calls of one signature share: checked, chosen, planned."""

    problem: Problem
    plan: launch.Plan
    end: Device
    extents: tuple[int, ...]


class Runtime:
    """Hold one catalog and everything derived from it. Replaced as a whole when code objects are swapped."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._kernels: dict[Entry, Kernel] = {}
        self._ready: dict[Any, Ready] = {}
        self._lock = threading.Lock()

    def ready(self, tensors: Tensors, options: tuple[Any, ...]) -> Ready:
        """Return the plan for a call, made at the first call of its signature."""
        try:
            # NOTE: types are part of the key because True == 1 == 1.0, and each means something else here.
            key = (signature(tensors), options, tuple(map(type, options)))
            ready = self._ready.get(key)
        except (AttributeError, RuntimeError, TypeError):
            return self.prepare(tensors, *options)  # an argument without strides or a hash: this says which
        if ready is None:
            ready = self.prepare(tensors, *options)
            if len(self._ready) >= _MAX_PLANS:
                self._ready.clear()
            self._ready[key] = ready
        return ready

    def prepare(
        self,
        tensors: Tensors,
        max_model_len: int,
        preshuffle: bool,
        clean_logits: bool | None,
        rows_per_wave: int | None,
        max_next_n: int | None,
        lens_per_row: bool | None,
    ) -> Ready:
        """Check a call and plan its launch. Raises what the operator raises."""
        problem = Problem.check(
            tensors,
            max_model_len,
            preshuffle=preshuffle,
            clean_logits=clean_logits,
            max_next_n=max_next_n,
            lens_per_row=lens_per_row,
        )
        if rows_per_wave is not None and type(rows_per_wave) is not int:
            raise TypeError(f"rows_per_wave: expected an int or None, got {type(rows_per_wave).__name__}.")
        end = devices.of(torch_gpu.current().device_of(tensors.q))
        entry = self.catalog.choose(problem, rows_per_wave, num_cus=end.num_cus)
        kernel = self.kernel(entry)
        plan = launch.plan(problem, kernel, rows_per_wave=entry.rows_per_wave, num_cus=end.num_cus)
        _log.debug("%s on %s: %d waves for %s", entry.name, end.name, plan.num_waves, problem)
        return Ready(problem, plan, end, extents(problem, tensors))

    def kernel(self, entry: Entry) -> Kernel:
        """Read an entry's code object, once. Raises CodeObjectError (ChecksumError: not the manifest's file)."""
        with self._lock:
            return self._kernels.get(entry) or self._read(entry)

    def _read(self, entry: Entry) -> Kernel:
        code_object = CodeObject.read(entry.path, sha256=entry.sha256)
        if entry.symbol not in code_object.kernels:
            raise CodeObjectError(
                f"{entry.path}: expected kernel {entry.symbol}, holds {', '.join(code_object.kernels)}. Rename the "
                "file or the kernel."
            )
        kernel = self._kernels[entry] = code_object.kernels[entry.symbol]
        _log.info("read %s", entry.path)
        return kernel


_current: Runtime | None = None


def _renew() -> None:
    """Forget, in a forked process, what the calls of its parent hold of the driver."""
    global _current
    _current = None if _current is None else Runtime(_current.catalog)


os.register_at_fork(after_in_child=_renew)


def _runtime() -> Runtime:
    global _current
    runtime = _current
    if runtime is None:
        directory = environment.current().hsaco_dir
        runtime = _current = Runtime(Catalog.shipped() if directory is None else Catalog.read(directory))
    return runtime


torch_op.register(fp8_paged_mqa_logits)
