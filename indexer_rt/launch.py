"""Pack one kernel launch: grid, block and the kernarg segment. What both ends of the device seam take.

The arguments' places come from the code object's metadata, by name. What the runtime packs and what the kernel declares
must be the same set of names, sizes and kinds; anything else is an AbiMismatch, before any launch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from .catalog import units_of
from .code_object import Arg, Kernel
from .errors import AbiMismatch
from .kv_cache import TILE
from .manifest import SIMDS_PER_CU, STEP_TOKENS, waves_per_simd
from .problem import Problem, Tensors

WAVES_PER_WORKGROUP = 4
WAVE_SIZE = 64
BLOCK = (WAVES_PER_WORKGROUP * WAVE_SIZE, 1, 1)

MAX_WORK_ITEMS = 2**32
"""HIP refuses a dimension of the grid with this many work-items or more (hipModuleLaunchKernel)."""

MAX_UNITS = 2**31
"""kernels/worklist.h adds up the units of a launch in 31 bits."""

POINTERS = Tensors._fields
_ADDRESS, _INT64, _INT32 = ("global_buffer", 8), ("by_value", 8), ("by_value", 4)
ABI: dict[str, tuple[str, int]] = {
    "context_lens": _ADDRESS,
    "cu_seqlens_q": _ADDRESS,
    "lens_seq_stride": _INT64,
    "lens_row_stride": _INT64,
    "lens_per_row": _INT32,
    "batch": _INT32,
    "next_n": _INT32,
    "reach": _INT32,
    "num_waves": _INT32,
    "waves_inverse": _INT32,
    "q": _ADDRESS,
    "kv_cache": _ADDRESS,
    "weights": _ADDRESS,
    "block_tables": _ADDRESS,
    "logits": _ADDRESS,
    "q_seq_stride": _INT64,
    "q_row_stride": _INT64,
    "kv_block_stride": _INT64,
    "weights_seq_stride": _INT64,
    "weights_row_stride": _INT64,
    "table_row_stride": _INT64,
    "logits_row_stride": _INT64,
    "table_width": _INT32,
    "block_kv": _INT32,
    "page_inverse": _INT32,
    "kv_token_stride": _INT32,
    "kv_chunk_stride": _INT32,
    "clean_logits": _INT32,
    "max_model_len": _INT32,
}
"""What is packed: name -> (kind, bytes). Strides in bytes. In the order of kernels/problem.h, where those up to
``waves_inverse`` are preloaded; a code object may have them in another."""

TOKEN_STRIDE = {False: 128, True: 16}
CHUNK_STRIDE = {False: 16, True: 256}
"""Bytes between tokens, and between the 16-byte chunks of one, within 16 tokens of a plain or preshuffled block."""

_INTEGER_FORMATS = {1: "<B", 2: "<H", 4: "<i", 8: "<q"}


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

    def over(self, num_waves: int) -> Launch:
        """Return the same launch shared out over another number of waves."""
        kernarg, values = bytearray(self.kernarg), _division(num_waves)
        for arg in self.kernel.explicit_args:
            if arg.name in values:
                struct.pack_into(_INTEGER_FORMATS[arg.size], kernarg, arg.offset, values[arg.name])
        return replace(self, grid=(-(-num_waves // WAVES_PER_WORKGROUP), 1, 1), kernarg=bytes(kernarg))


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a launch that lacks only addresses: what every call of one problem shares.

    ``template`` is the kernarg segment with null pointers; ``pointer_offsets`` say where each address of ``Tensors``
    goes.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    num_waves: int
    template: bytes = field(repr=False)
    pointer_offsets: tuple[int, ...] = field(repr=False)

    def at(self, addresses: tuple[int, ...]) -> Launch:
        """Fill in the addresses, in the order of ``Tensors``; 0 for an absent tensor."""
        kernarg = bytearray(self.template)
        for offset, address in zip(self.pointer_offsets, addresses, strict=True):
            _QWORD.pack_into(kernarg, offset, address)
        return Launch(self.kernel, self.grid, BLOCK, 0, bytes(kernarg))


_QWORD = struct.Struct("<Q")


def plan(problem: Problem, kernel: Kernel, *, rows_per_wave: int, num_cus: int) -> Plan:
    """Plan the launch of a kernel on a problem for a device of ``num_cus`` compute units.

    Uses shapes and host integers only, never a length, so a captured launch replays right with other lengths.
    Raises AbiMismatch when the kernel does not take what is packed, ValueError when the grid, the units of work or an
    integer is too large.
    """
    check_abi(kernel)
    units = units_of(problem, rows_per_wave, problem.reach)
    if units >= MAX_UNITS:
        raise ValueError(
            f"{kernel.name}: block_tables and max_model_len reach {units} units of {STEP_TOKENS} tokens and "
            f"{rows_per_wave} rows; the kernels add up fewer than {MAX_UNITS}. Split the call by sequences."
        )
    num_waves = waves(problem, kernel, rows_per_wave=rows_per_wave, num_cus=num_cus)
    grid = (-(-num_waves // WAVES_PER_WORKGROUP), 1, 1)
    if grid[0] * BLOCK[0] >= MAX_WORK_ITEMS:
        raise ValueError(
            f"{kernel.name}: {grid[0]} workgroups of {BLOCK[0]} work-items are {grid[0] * BLOCK[0]}; a grid must have "
            f"fewer than {MAX_WORK_ITEMS}."
        )
    values = _values(problem, num_waves) | _hidden(kernel, grid)
    template = bytearray(kernel.kernarg_bytes)
    for arg in kernel.args:
        if arg.name in POINTERS and not arg.is_hidden:
            continue
        value = values[arg.kind if arg.is_hidden else arg.name]
        try:
            struct.pack_into(_INTEGER_FORMATS[arg.size], template, arg.offset, value)
        except struct.error as error:
            raise ValueError(f"{kernel.name}: {arg.name} is {value}, which does not fit {arg.size} bytes.") from error
    offsets = {arg.name: arg.offset for arg in kernel.explicit_args}
    return Plan(kernel, grid, num_waves, bytes(template), tuple(offsets[name] for name in POINTERS))


def waves(problem: Problem, kernel: Kernel, *, rows_per_wave: int, num_cus: int) -> int:
    """Count the waves to launch: as many as the device holds at once, but none without a possible unit of work.

    The kernel shares out the units that the lengths leave; the bound here is what they could be. A clean output may
    need the fill of every column up to max_model_len.
    """
    columns = problem.max_model_len if problem.clean_logits else problem.reach
    units = units_of(problem, rows_per_wave, columns)
    return min(num_cus * SIMDS_PER_CU * max(1, waves_per_simd(kernel)), max(1, units))


def check_abi(kernel: Kernel) -> None:
    """Raise AbiMismatch, showing both lists, unless the kernel takes exactly the arguments of ``ABI``."""
    label, taken = kernel.code_object.label, kernel.explicit_args
    problems = [f"{name!r} is missing" for name in ABI if name not in {arg.name for arg in taken}]
    seen: set[str] = set()
    for arg in taken:
        if arg.name in seen:
            problems.append(f"{arg.name!r} appears twice")
        elif arg.name not in ABI:
            problems.append(f"{arg.name!r} is unknown")
        elif (arg.kind, arg.size) != ABI[arg.name]:
            problems.append(
                "{!r} is {} of {} bytes, wanted {} of {}".format(arg.name, arg.kind, arg.size, *ABI[arg.name])
            )
        seen.add(arg.name)
    for arg in kernel.args:
        if arg.is_hidden and arg.kind not in _HIDDEN_ZERO | _HIDDEN_NONZERO:
            problems.append(f"hidden argument {arg.kind!r} is unknown")
        elif arg.is_hidden and arg.size not in _INTEGER_FORMATS:
            problems.append(f"hidden argument {arg.kind!r} has {arg.size} bytes")
    if kernel.max_workgroup_size < BLOCK[0]:
        problems.append(f"workgroups hold at most {kernel.max_workgroup_size} work-items, wanted {BLOCK[0]}")
    if kernel.wavefront_size != WAVE_SIZE:
        problems.append(f"waves have {kernel.wavefront_size} lanes, wanted {WAVE_SIZE}")
    if problems:
        unnamed = " Compile with -fhip-kernel-arg-name." if any(arg.name == arg.kind for arg in taken) else ""
        raise AbiMismatch(
            f"{label}: kernel {kernel.name} does not take what this runtime packs: {'; '.join(problems)}.\n"
            f"  the kernel takes: {', '.join(map(_show, taken)) or 'nothing'}\n"
            f"  the runtime packs: {', '.join(f'{name}({kind}, {size})' for name, (kind, size) in ABI.items())}\n"
            "Rebuild the code object against this version's kernels/, or install the version it was built "
            f"for.{unnamed}"
        )


def _show(arg: Arg) -> str:
    return f"{arg.name}({arg.kind}, {arg.size})"


def waves_inverse(num_waves: int) -> int:
    """Return what the kernels multiply by to divide by ``num_waves`` (kernels/problem.h, Division)."""
    return _as_int32((2**32 - 1) // num_waves)


def _division(num_waves: int) -> dict[str, int]:
    """Return the arguments that share the work out over so many waves."""
    return {"num_waves": num_waves, "waves_inverse": waves_inverse(num_waves)}


def _as_int32(value: int) -> int:
    """Return the int32 with the bits of an unsigned 32-bit value."""
    return value - (value >> 31 << 32)


def _values(problem: Problem, num_waves: int) -> dict[str, int]:
    derived = _division(num_waves) | {
        "kv_token_stride": TOKEN_STRIDE[problem.preshuffle],
        "kv_chunk_stride": CHUNK_STRIDE[problem.preshuffle],
        "page_inverse": _as_int32(-(-(2**31) // max(1, problem.block_kv // TILE))),
    }
    by_value = [name for name in ABI if name not in POINTERS]
    return {name: derived[name] if name in derived else int(getattr(problem, name)) for name in by_value}


# Hidden arguments (LLVM, "AMDHSA Code Object V5 Metadata"). The HIP runtime writes its own; the emulator reads ours.
# Those that name services of a runtime (printf, malloc, queues) are null: no kernel here uses them.
_HIDDEN_NONZERO = frozenset(
    [f"hidden_{what}_{axis}" for what in ("block_count", "group_size") for axis in "xyz"] + ["hidden_grid_dims"]
)
_HIDDEN_ZERO = frozenset(
    [f"hidden_{what}_{axis}" for what in ("remainder", "global_offset") for axis in "xyz"]
    + [
        "hidden_none",
        "hidden_printf_buffer",
        "hidden_hostcall_buffer",
        "hidden_multigrid_sync_arg",
        "hidden_heap_v1",
        "hidden_default_queue",
        "hidden_completion_action",
        "hidden_private_base",
        "hidden_shared_base",
        "hidden_queue_ptr",
        "hidden_dynamic_lds_size",
    ]
)


def _hidden(kernel: Kernel, grid: tuple[int, int, int]) -> dict[str, int]:
    values = dict.fromkeys(_HIDDEN_ZERO, 0) | {"hidden_grid_dims": 1}
    for axis, workgroups, work_items in zip("xyz", grid, BLOCK, strict=True):
        values[f"hidden_block_count_{axis}"] = workgroups
        values[f"hidden_group_size_{axis}"] = work_items
    return values
