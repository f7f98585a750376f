"""Packing: every argument where the code object's own metadata puts it, and nothing launched that does not fit."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from calls import make_call, make_packed

from indexer_rt import launch
from indexer_rt.catalog import Catalog
from indexer_rt.code_object import Arg, CodeObject, Kernel
from indexer_rt.errors import AbiMismatch

ADDRESSES = tuple(0x7F0000000000 + 0x1000 * i for i in range(7))


@pytest.fixture(scope="module")
def kernel(stand_in: Path) -> Kernel:
    return CodeObject.read(stand_in).kernels[stand_in.stem]


def with_args(kernel: Kernel, *args: Arg) -> Kernel:
    return dataclasses.replace(kernel, args=args, kernarg_bytes=max(arg.offset + arg.size for arg in args))


def read(launched: launch.Launch) -> dict[str, int]:
    """Read a kernarg segment back by the metadata's offsets."""
    formats = {("global_buffer", 8): "<Q", ("by_value", 8): "<q", ("by_value", 4): "<i"}
    return {
        arg.name: struct.unpack_from(formats[arg.kind, arg.size], launched.kernarg, arg.offset)[0]
        for arg in launched.kernel.explicit_args
    }


def test_every_argument_lies_where_the_metadata_says(kernel: Kernel) -> None:
    call = make_call(batch=3, next_n=5)
    plan = launch.plan(call.check(), kernel, rows_per_wave=2, num_cus=256)
    launched = plan.at(ADDRESSES)
    assert read(launched) == dict(zip(launch.POINTERS, ADDRESSES, strict=True)) | {
        "q_seq_stride": 5 * 4096,
        "q_row_stride": 4096,
        "kv_block_stride": 8448,
        "weights_seq_stride": 640,
        "weights_row_stride": 128,
        "lens_seq_stride": 4,
        "lens_row_stride": 0,
        "table_row_stride": 16,
        "logits_row_stride": 800,
        "batch": 3,
        "next_n": 5,
        "max_model_len": 200,
        "table_width": 4,
        "block_kv": 64,
        "kv_token_stride": 16,
        "kv_chunk_stride": 256,
        "lens_per_row": 0,
        "clean_logits": 1,
        "reach": 200,
        "num_waves": 36,
        "waves_inverse": 119304647,
        "page_inverse": 2**29,
    }
    assert launched.grid == (9, 1, 1) and launched.block == (256, 1, 1) and launched.lds_bytes == 0
    assert len(launched.kernarg) == kernel.kernarg_bytes


def test_a_plain_block_has_other_strides(kernel: Kernel) -> None:
    plan = launch.plan(make_call(preshuffle=False).check(), kernel, rows_per_wave=2, num_cus=256)
    values = read(plan.at(ADDRESSES))
    assert (values["kv_token_stride"], values["kv_chunk_stride"]) == (128, 16)


def test_absent_tensors_are_null(kernel: Kernel) -> None:
    plan = launch.plan(make_call().check(), kernel, rows_per_wave=2, num_cus=256)
    assert read(plan.at((*ADDRESSES[:5], 0, ADDRESSES[6])))["cu_seqlens_q"] == 0
    values = read(launch.plan(make_packed().check(), kernel, rows_per_wave=2, num_cus=256).at(ADDRESSES))
    assert (values["batch"], values["next_n"], values["q_seq_stride"]) == (3, 3, 4096)


def test_strides_of_64_bits_survive(kernel: Kernel) -> None:
    problem = dataclasses.replace(make_call().check(), kv_block_stride=2**40 + 4, logits_row_stride=2**33)
    values = read(launch.plan(problem, kernel, rows_per_wave=2, num_cus=256).at(ADDRESSES))
    assert (values["kv_block_stride"], values["logits_row_stride"]) == (2**40 + 4, 2**33)


def test_offsets_come_from_the_metadata_and_not_from_the_order(compile_kernel: Callable[..., Path]) -> None:
    shuffled = dict(sorted(launch.ABI.items()))
    path = compile_kernel("shuffled", shuffled)
    kernel = CodeObject.read(path).kernels["shuffled"]
    assert [arg.name for arg in kernel.explicit_args] == sorted(launch.ABI)
    values = read(launch.plan(make_call().check(), kernel, rows_per_wave=2, num_cus=256).at(ADDRESSES))
    assert values["q"] == ADDRESSES[0] and values["block_kv"] == 64 and values["logits"] == ADDRESSES[6]


def test_hidden_arguments_are_filled_in(kernel: Kernel) -> None:
    at, hidden = kernel.kernarg_bytes, []
    for kind, size in (
        ("hidden_block_count_x", 4),
        ("hidden_block_count_y", 4),
        ("hidden_group_size_x", 2),
        ("hidden_group_size_y", 2),
        ("hidden_remainder_x", 2),
        ("hidden_grid_dims", 2),
        ("hidden_global_offset_x", 8),
        ("hidden_hostcall_buffer", 8),
    ):
        hidden.append(Arg(kind, at, size, kind))
        at += size
    launched = launch.plan(
        make_call().check(), with_args(kernel, *kernel.args, *hidden), rows_per_wave=2, num_cus=256
    ).at(ADDRESSES)
    assert launched.grid[0] == 2
    assert struct.unpack_from("<IIHHHHQQ", launched.kernarg, kernel.kernarg_bytes) == (2, 1, 256, 1, 0, 1, 0, 0)


# How many waves -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, rows, num_cus, waves",
    [
        ({"batch": 2}, 1, 256, 2 * 1 * 4),  # ceil(200 / 64) = 4 units of one group
        ({"batch": 2, "next_n": 5}, 3, 256, 2 * 2 * 4),
        ({"batch": 70000, "width": 1}, 1, 256, 256 * 4 * 8),  # more units than a device of 8 waves per SIMD holds
        ({"batch": 70000, "width": 1}, 1, 1, 32),
        ({"batch": 70000, "width": 1}, 1, 32, 32 * 32),
    ],
)
def test_waves_are_bounded_by_work_and_by_the_device(
    kernel: Kernel, options: dict[str, int], rows: int, num_cus: int, waves: int
) -> None:
    problem = make_call(**options).check()
    plan = launch.plan(problem, kernel, rows_per_wave=rows, num_cus=num_cus)
    assert plan.num_waves == waves and plan.grid == (-(-waves // 4), 1, 1)


def test_a_fill_counts_every_column_and_no_fill_only_the_reachable(kernel: Kernel) -> None:
    call = make_call(width=1, max_model_len=1000)
    clean = launch.plan(call.check(), kernel, rows_per_wave=1, num_cus=256)
    call.clean_logits = False
    bare = launch.plan(call.check(), kernel, rows_per_wave=1, num_cus=256)
    assert (clean.num_waves, bare.num_waves) == (2 * 16, 2 * 1)


def test_the_plan_does_not_depend_on_lengths(kernel: Kernel) -> None:
    call = make_call()
    before = launch.plan(call.check(), kernel, rows_per_wave=1, num_cus=256).at(ADDRESSES)
    call.context_lens[:] = 200
    assert launch.plan(call.check(), kernel, rows_per_wave=1, num_cus=256).at(ADDRESSES) == before


@pytest.mark.parametrize("granules, waves", [(0, 8), (15, 4), (31, 2), (63, 1)])
def test_registers_bound_the_waves(kernel: Kernel, granules: int, waves: int) -> None:
    fields = kernel.descriptor.fields | {"vgpr_granules": granules}
    large = dataclasses.replace(kernel, descriptor=dataclasses.replace(kernel.descriptor, fields=fields))
    problem = make_call(batch=70000, width=1).check()
    assert launch.plan(problem, large, rows_per_wave=1, num_cus=10).num_waves == 10 * 4 * waves


def test_a_grid_of_2_to_the_32_work_items_is_refused(kernel: Kernel) -> None:
    problem = dataclasses.replace(make_call().check(), batch=2**20, next_n=64)
    with pytest.raises(
        ValueError, match=r"16777216 workgroups of 256 work-items are 4294967296; a grid must have fewer"
    ):
        launch.plan(problem, kernel, rows_per_wave=1, num_cus=2**24 // 8)
    assert launch.plan(problem, kernel, rows_per_wave=1, num_cus=2**24 // 8 - 1).grid == (2**24 - 8, 1, 1)


def test_an_integer_that_does_not_fit_is_refused(kernel: Kernel) -> None:
    problem = dataclasses.replace(make_call().check(), batch=0, next_n=2**31)
    with pytest.raises(
        ValueError, match=r"fp8_paged_mqa_logits_h32_r2_page: next_n is 2147483648, which does not fit 4 bytes"
    ):
        launch.plan(problem, kernel, rows_per_wave=1, num_cus=256)


def test_units_are_fewer_than_the_kernels_can_add_up(kernel: Kernel) -> None:
    problem = dataclasses.replace(make_call().check(), next_n=2, max_model_len=64 * 2**15, table_width=2**15)
    most = dataclasses.replace(problem, batch=2**15 - 1)
    assert launch.plan(most, kernel, rows_per_wave=1, num_cus=256).num_waves > 0
    message = (
        f"{kernel.name}: block_tables and max_model_len reach 2147483648 units of 64 tokens and 1 rows; the kernels "
        "add up fewer than 2147483648. Split the call by sequences."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        launch.plan(dataclasses.replace(problem, batch=2**15), kernel, rows_per_wave=1, num_cus=256)
    assert launch.plan(dataclasses.replace(problem, batch=2**15), kernel, rows_per_wave=2, num_cus=256).num_waves > 0


def test_every_shipped_code_object_takes_what_is_packed() -> None:
    entries = Catalog.shipped().entries
    assert entries
    for entry in entries:
        launch.check_abi(CodeObject.read(entry.path, sha256=entry.sha256).kernels[entry.symbol])


# Kernels that take something else -------------------------------------------------------------------------------------


def mismatch(kernel: Kernel) -> str:
    with pytest.raises(AbiMismatch) as caught:
        launch.plan(make_call().check(), kernel, rows_per_wave=1, num_cus=256)
    return str(caught.value)


def test_a_missing_argument_shows_both_lists(compile_kernel: Callable[..., Path]) -> None:
    abi = {name: kind for name, kind in launch.ABI.items() if name != "logits_row_stride"}
    path = compile_kernel("missing", abi)
    message = mismatch(CodeObject.read(path).kernels["missing"])
    assert message.startswith(
        f"{path}: kernel missing does not take what this runtime packs: 'logits_row_stride' is missing."
    )
    assert "\n  the kernel takes: context_lens(global_buffer, 8), cu_seqlens_q(global_buffer, 8), " in message
    assert "\n  the runtime packs: context_lens(global_buffer, 8), " in message
    assert "logits_row_stride(by_value, 8)" in message
    assert "Rebuild the code object against this version's kernels/" in message


def test_an_unknown_argument_and_another_size_are_named(compile_kernel: Callable[..., Path]) -> None:
    abi = launch.ABI | {"batch": ("by_value", 8), "extra": ("by_value", 4), "weights": ("by_value", 8)}
    message = mismatch(CodeObject.read(compile_kernel("other", abi)).kernels["other"])
    assert "'batch' is by_value of 8 bytes, wanted by_value of 4" in message
    assert "'weights' is by_value of 8 bytes, wanted global_buffer of 8" in message
    assert "'extra' is unknown" in message


def test_unnamed_arguments_say_which_option_is_missing(compile_kernel: Callable[..., Path]) -> None:
    path = compile_kernel("unnamed", launch.ABI, "-fno-hip-kernel-arg-name")
    message = mismatch(CodeObject.read(path).kernels["unnamed"])
    assert "'q' is missing" in message and message.endswith("Compile with -fhip-kernel-arg-name.")


def test_an_argument_given_twice_is_named(kernel: Kernel) -> None:
    twice = Arg("batch", kernel.kernarg_bytes, 4, "by_value")
    assert "'batch' appears twice" in mismatch(with_args(kernel, *kernel.args, twice))


def test_hidden_arguments_nobody_knows_are_named(kernel: Kernel) -> None:
    hidden = Arg("hidden_tea", kernel.kernarg_bytes, 8, "hidden_tea")
    assert "hidden argument 'hidden_tea' is unknown" in mismatch(with_args(kernel, *kernel.args, hidden))
    wide = Arg("hidden_none", kernel.kernarg_bytes, 16, "hidden_none")
    assert "hidden argument 'hidden_none' has 16 bytes" in mismatch(with_args(kernel, *kernel.args, wide))


def test_another_workgroup_or_wave_size_is_named(kernel: Kernel) -> None:
    small = dataclasses.replace(kernel, max_workgroup_size=128, wavefront_size=32)
    message = mismatch(small)
    assert (
        "workgroups hold at most 128 work-items, wanted 256" in message and "waves have 32 lanes, wanted 64" in message
    )
