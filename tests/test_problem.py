"""What Problem.check accepts and how it describes it; what it refuses and with which words; what strict mode adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calls import Call, make_call, make_packed
from torch._subclasses.fake_tensor import FakeTensorMode

from indexer_rt import kv_cache
from indexer_rt.problem import Problem, check_contents, check_memory, extent_bytes, extents, signature

FP8 = torch.float8_e4m3fn


# Accepted forms -------------------------------------------------------------------------------------------------------


def test_the_native_form_is_described_in_bytes() -> None:
    problem = make_call(batch=3, next_n=2).check()
    assert problem == Problem(
        device=torch.device("cpu"),
        num_heads=32,
        head_dim=128,
        num_blocks=16,
        block_kv=64,
        batch=3,
        next_n=2,
        num_rows=6,
        max_model_len=200,
        table_width=4,
        preshuffle=True,
        is_packed=False,
        lens_per_row=False,
        clean_logits=True,
        q_seq_stride=8192,
        q_row_stride=4096,
        kv_block_stride=64 * 132,
        weights_seq_stride=256,
        weights_row_stride=128,
        lens_seq_stride=4,
        lens_row_stride=0,
        table_row_stride=16,
        logits_row_stride=800,
    )


def test_q_of_three_dimensions_is_one_row_per_sequence() -> None:
    call = make_call(batch=6)
    four = call.check()
    call.q_fp8 = call.q_fp8.squeeze(1)
    assert call.check() == four


def test_a_cache_of_three_dimensions_or_of_fp8_is_the_same() -> None:
    call = make_call()
    wanted = call.check()
    call.kv_cache_fp8 = call.kv_cache_fp8.squeeze(2).view(FP8)
    assert call.check() == wanted


@pytest.mark.parametrize("shape", [(6, 32), (6, 32, 1), (3, 2, 32)])
def test_weights_may_have_any_of_three_shapes(shape: tuple[int, ...]) -> None:
    call = make_call(batch=3, next_n=2)
    call.weights = torch.zeros(shape)
    assert call.check() == make_call(batch=3, next_n=2).check()


def test_strides_are_honoured() -> None:
    call = make_call(batch=3, next_n=2)
    call.q_fp8 = torch.zeros(3, 2, 64, 128, dtype=FP8)[:, :, 16:48]
    call.weights = torch.zeros(3, 2, 40)[:, :, :32]
    call.context_lens = torch.zeros(3, 2, dtype=torch.int32)[:, 0]
    call.block_tables = torch.zeros(3, 9, dtype=torch.int32)[:, 2:6]
    call.out = torch.zeros(6, 512)[:, :256]
    pool = torch.zeros(16, 64 * 132 + 128, dtype=torch.uint8)
    call.kv_cache_fp8 = pool.as_strided((16, 64, 1, 132), (pool.stride(0), 132, 132, 1))
    problem = call.check()
    assert (problem.q_seq_stride, problem.q_row_stride) == (16384, 8192)
    assert (problem.weights_seq_stride, problem.weights_row_stride) == (320, 160)
    assert (problem.lens_seq_stride, problem.table_row_stride) == (8, 36)
    assert (problem.logits_row_stride, problem.kv_block_stride) == (2048, 64 * 132 + 128)


def test_strides_of_single_elements_do_not_matter() -> None:
    call = make_call(batch=1)
    call.q_fp8 = torch.zeros(1, 1, 32, 128, dtype=FP8).as_strided((1, 1, 32, 128), (7, 5, 128, 1))
    problem = call.check()
    assert (problem.q_seq_stride, problem.q_row_stride, problem.table_row_stride) == (0, 0, 0)


def test_a_shared_row_has_stride_zero() -> None:
    call = make_call(batch=3)
    call.block_tables = call.block_tables[:1].expand(3, 4)
    assert call.check().table_row_stride == 0


@pytest.mark.parametrize(
    "next_n, shape, per_row, strides",
    [
        (2, (3,), False, (4, 0)),
        (2, (3, 1), False, (4, 0)),
        (2, (3, 2), True, (8, 4)),
        (1, (3,), False, (4, 0)),
        (1, (3, 1), False, (4, 0)),
    ],
)
def test_the_shape_of_lengths_says_what_they_are(
    next_n: int, shape: tuple[int, ...], per_row: bool, strides: tuple[int, int]
) -> None:
    call = make_call(batch=3, next_n=next_n)
    call.context_lens = torch.zeros(shape, dtype=torch.int32)
    problem = call.check()
    assert (problem.lens_per_row, (problem.lens_seq_stride, problem.lens_row_stride)) == (per_row, strides)
    call.lens_per_row = per_row
    assert call.check() == problem


def test_the_packed_form_is_described() -> None:
    problem = make_packed(counts=(2, 0, 3)).check()
    assert problem.is_packed and (problem.batch, problem.next_n, problem.num_rows) == (3, 3, 5)
    assert (problem.q_seq_stride, problem.q_row_stride) == (4096, 4096)
    assert (problem.weights_seq_stride, problem.weights_row_stride) == (128, 128)
    assert not problem.lens_per_row and (problem.lens_seq_stride, problem.lens_row_stride) == (4, 0)


def test_packed_ends_of_rows_have_a_row_stride() -> None:
    call = make_packed(counts=(2, 0, 3))
    call.context_lens = torch.zeros(5, 1, dtype=torch.int32)
    problem = call.check()
    assert problem.lens_per_row and (problem.lens_seq_stride, problem.lens_row_stride) == (4, 4)


@pytest.mark.parametrize("per_row", [False, True])
def test_packed_lengths_that_fit_both_ways_are_what_the_caller_says(per_row: bool) -> None:
    call = make_packed(counts=(2, 0, 1))
    call.lens_per_row = per_row
    assert call.check().lens_per_row is per_row


@pytest.mark.parametrize("value", [200, np.int64(200), np.int32(200)])
def test_host_integers_may_be_numpy_s(value: Any) -> None:
    call = make_call()
    call.max_model_len = value
    assert call.check().max_model_len == 200


@pytest.mark.parametrize(
    "given, clean, wanted", [(False, None, True), (True, None, False), (True, True, True), (False, False, False)]
)
def test_an_own_output_is_clean_and_a_given_one_is_not(given: bool, clean: bool | None, wanted: bool) -> None:
    call = make_call()
    call.out, call.clean_logits = (torch.zeros(2, 200) if given else None), clean
    assert call.check().clean_logits is wanted


@pytest.mark.parametrize(
    "options, has_work",
    [
        ({}, True),
        ({"batch": 0}, False),
        ({"next_n": 0}, False),
        ({"max_model_len": 0}, False),
        ({"width": 0}, True),
        ({"num_blocks": 1, "width": 1}, True),
    ],
)
def test_empty_dimensions_are_no_errors(options: dict[str, int], has_work: bool) -> None:
    problem = make_call(**options).check()
    assert problem.has_work is has_work
    assert problem.new_logits().shape == (problem.num_rows, problem.max_model_len)


def test_strides_of_empty_tensors_do_not_matter() -> None:
    call = make_packed(counts=(0, 0))
    for name in ("q_fp8", "weights", "kv_cache_fp8"):
        tensor = getattr(call, name)[:0]
        setattr(call, name, tensor.as_strided(tensor.shape, [0] * tensor.ndim))  # as torch.from_numpy makes them
    call.out = torch.zeros(0, 200).as_strided((0, 200), (0, 0))
    call.max_next_n = 1
    assert not call.check().has_work


def test_an_empty_table_without_a_fill_is_no_work() -> None:
    call = make_call(width=0)
    call.clean_logits = False
    assert not call.check().has_work


def test_a_clean_packed_output_is_filled_where_no_sequence_reaches() -> None:
    problem = make_packed().check()
    assert bool((problem.new_logits() == float("-inf")).all())


def test_block_strides_may_need_64_bits() -> None:
    call = make_call()
    call.kv_cache_fp8 = torch.zeros(1, 64, 1, 132, dtype=torch.uint8).expand(16, 64, 1, 132)
    assert call.check().kv_block_stride == 0
    with FakeTensorMode():
        huge = torch.empty_strided((3, 64, 132), (2**33, 132, 1), dtype=torch.uint8)
    assert kv_cache.geometry(huge) == (3, 64, 128)


# Refused --------------------------------------------------------------------------------------------------------------


def _set(**changes: Any) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        for name, value in changes.items():
            setattr(call, name, value(call) if callable(value) else value)

    return apply


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


INT32 = torch.int32

# (what is changed in a valid call of batch 2, error, words of its message)
REFUSED = {
    "q-none": (_set(q_fp8=None), TypeError, "q_fp8: expected a torch.Tensor, got NoneType."),
    "q-array": (_set(q_fp8=np.zeros(3)), TypeError, "q_fp8: expected a torch.Tensor, got ndarray."),
    "q-fnuz": (
        _set(q_fp8=lambda c: c.q_fp8.view(torch.float8_e4m3fnuz)),
        TypeError,
        "q_fp8: expected float8_e4m3fn, got float8_e4m3fnuz. gfx950 uses the OCP encoding float8_e4m3fn",
    ),
    "q-e5m2": (_set(q_fp8=lambda c: c.q_fp8.view(torch.float8_e5m2)), TypeError, "expected float8_e4m3fn, got "
    "float8_e5m2."),
    "q-bf16": (_set(q_fp8=lambda c: c.q_fp8.bfloat16()), TypeError, "q_fp8: expected float8_e4m3fn, got bfloat16."),
    "q-uint8": (_set(q_fp8=lambda c: c.q_fp8.view(torch.uint8)), TypeError, "q_fp8: expected float8_e4m3fn, got "
    "uint8."),
    "q-2d": (
        _set(q_fp8=lambda c: c.q_fp8.reshape(-1, 128)),
        ValueError,
        "q_fp8: expected [batch, next_n, num_heads, head_dim] or [rows, num_heads, head_dim], got [64, 128].",
    ),
    "q-heads-apart": (
        _set(q_fp8=_zeros(2, 1, 32, 256, dtype=FP8)[..., :128]),
        ValueError,
        "q_fp8: expected the last two dimensions dense, strides [..., 128, 1], got [8192, 8192, 256, 1].",
    ),
    "q-transposed": (
        _set(q_fp8=_zeros(2, 1, 128, 32, dtype=FP8).transpose(2, 3)),
        ValueError,
        "q_fp8: expected the last two dimensions dense",
    ),
    "q-too-many-rows": (
        _set(q_fp8=_zeros(1, 1, 32, 128, dtype=FP8).expand(2**16, 2**15, 32, 128)),
        ValueError,
        "q_fp8: expected at most 2147483647 rows (the kernels count them in 31 bits), got 2147483648. Split the call.",
    ),
    "q-rows-unaligned": (
        _set(q_fp8=_zeros(2, 4100, dtype=FP8)[:, :4096].as_strided((2, 1, 32, 128), (4100, 4096, 128, 1))),
        ValueError,
        "q_fp8: expected row strides in multiples of 16 bytes, got strides [4100, 4096, 128, 1]. Call .contiguous().",
    ),
    "kv-int8": (
        _set(kv_cache_fp8=lambda c: c.kv_cache_fp8.view(torch.int8)),
        TypeError,
        "kv_cache_fp8: expected uint8 or float8_e4m3fn, got int8.",
    ),
    "kv-fnuz": (
        _set(kv_cache_fp8=lambda c: c.kv_cache_fp8.view(torch.float8_e4m3fnuz)),
        TypeError,
        "kv_cache_fp8: expected uint8 or float8_e4m3fn, got float8_e4m3fnuz.",
    ),
    "kv-half": (_set(kv_cache_fp8=_zeros(2, 64, 1, 132).half()), TypeError, "kv_cache_fp8: expected uint8 or "
    "float8_e4m3fn"),
    "kv-flat": (
        _set(kv_cache_fp8=lambda c: c.kv_cache_fp8.reshape(16, -1)),
        ValueError,
        "kv_cache_fp8: expected [num_blocks, block_kv, 1, head_dim + 4] (or the same without the 1), got [16, 8448].",
    ),
    "kv-two-heads": (
        _set(kv_cache_fp8=_zeros(16, 64, 2, 132, dtype=torch.uint8)),
        ValueError,
        "got [16, 64, 2, 132].",
    ),
    "kv-no-tokens": (_set(kv_cache_fp8=_zeros(16, 0, 1, 132, dtype=torch.uint8)), ValueError, "got [16, 0, 1, 132]."),
    "kv-without-scales": (
        _set(kv_cache_fp8=_zeros(16, 64, 1, 128, dtype=torch.uint8)),
        ValueError,
        "kv_cache_fp8: expected [num_blocks, block_kv, 1, 132], got [16, 64, 1, 128]: a block is block_kv fp8 rows",
    ),
    "kv-loose-rows": (
        _set(kv_cache_fp8=_zeros(16, 64, 1, 136, dtype=torch.uint8)[..., :132]),
        ValueError,
        "kv_cache_fp8: expected every block dense, strides [any, 132, ..., 1], got [8704, 136, 136, 1].",
    ),
    "kv-odd-stride": (
        _set(kv_cache_fp8=_zeros(16 * 8450, dtype=torch.uint8).as_strided((16, 64, 1, 132), (8450, 132, 132, 1))),
        ValueError,
        "kv_cache_fp8: expected a block stride in multiples of 4 bytes, got 8450.",
    ),
    "weights-half": (
        _set(weights=_zeros(2, 32).half()),
        TypeError,
        "weights: expected float32, got float16. Convert with .to(torch.float32).",
    ),
    "weights-rows": (
        _set(weights=_zeros(3, 32)),
        ValueError,
        "weights: expected [2, 32], [2, 32, 1] or [2, 1, 32] for q_fp8's rows and heads, got [3, 32].",
    ),
    "weights-heads": (_set(weights=_zeros(2, 16)), ValueError, "got [2, 16]."),
    "weights-transposed": (
        _set(weights=_zeros(32, 2).T),
        ValueError,
        "weights: expected a head stride of 1, got strides [1, 2]. Call .contiguous().",
    ),
    "weights-negated": (
        _set(weights=torch._neg_view(_zeros(2, 32))),
        ValueError,
        "weights: its negation is pending (a lazy view). Call .resolve_neg().",
    ),
    "lens-int64": (
        _set(context_lens=_zeros(2, dtype=torch.int64)),
        TypeError,
        "context_lens: expected int32, got int64. Convert with .to(torch.int32).",
    ),
    "lens-shape": (
        _set(context_lens=_zeros(2, 3, dtype=INT32)),
        ValueError,
        "context_lens: expected [2], [2, 1] (one per sequence) or [2, 1] (one per row), got [2, 3].",
    ),
    "lens-scalar": (_set(context_lens=torch.tensor(5, dtype=INT32)), ValueError, "context_lens: expected [2], "),
    "table-int64": (
        _set(block_tables=_zeros(2, 4, dtype=torch.int64)),
        TypeError,
        "block_tables: expected int32, got int64. Convert with .to(torch.int32).",
    ),
    "table-rows": (
        _set(block_tables=_zeros(3, 4, dtype=INT32)),
        ValueError,
        "block_tables: expected [2, table width] for 2 sequences, got [3, 4].",
    ),
    "table-1d": (_set(block_tables=_zeros(8, dtype=INT32)), ValueError, "for 2 sequences, got [8]."),
    "table-transposed": (
        _set(block_tables=_zeros(4, 2, dtype=INT32).T),
        ValueError,
        "block_tables: expected a column stride of 1, got strides [1, 2]. Call .contiguous().",
    ),
    "out-half": (_set(out=_zeros(2, 200).half()), TypeError, "out: expected float32, got float16."),
    "out-bf16": (_set(out=_zeros(2, 200).bfloat16()), TypeError, "out: expected float32, got bfloat16."),
    "out-narrow": (_set(out=_zeros(2, 199)), ValueError, "out: expected [2, at least 200], got [2, 199]."),
    "out-rows": (_set(out=_zeros(1, 200)), ValueError, "out: expected [2, at least 200], got [1, 200]."),
    "out-transposed": (
        _set(out=_zeros(200, 2).T),
        ValueError,
        "out: expected a column stride of 1, got strides [1, 2].",
    ),
    "out-rows-overlap": (
        _set(out=_zeros(400).as_strided((2, 200), (100, 1))),
        ValueError,
        "out: expected a row stride of at least 200 elements, got strides [100, 1]: rows would overlap.",
    ),
    "out-expanded": (_set(out=_zeros(1, 200).expand(2, 200)), ValueError, "got strides [0, 1]: rows would overlap."),
    "out-grad": (
        _set(out=_zeros(2, 200).requires_grad_()),
        ValueError,
        "out: requires grad, but the operator has no gradient. Pass out.detach().",
    ),
    "sparse": (
        _set(weights=_zeros(2, 32).to_sparse()),
        TypeError,
        "weights: expected a strided tensor, got layout torch.sparse_coo.",
    ),
    "device": (
        _set(weights=_zeros(2, 32).to("meta")),
        ValueError,
        "weights: is on meta, q_fp8 is on cpu. All tensors must be on one device; nothing is copied.",
    ),
    "meta": (
        lambda c: _set(**{name: t.to("meta") for name, t in c.arguments().items() if isinstance(t, torch.Tensor)})(c),
        TypeError,
        "q_fp8: expected a plain torch.Tensor with memory, got a meta tensor. There is nothing to launch on.",
    ),
    "length-bool": (_set(max_model_len=True), TypeError, "max_model_len: expected an int, got bool."),
    "length-float": (_set(max_model_len=200.0), TypeError, "max_model_len: expected an int, got float."),
    "length-tensor": (
        _set(max_model_len=torch.tensor(200)),
        TypeError,
        "max_model_len: expected an int, got Tensor. Reading a tensor would wait for the device.",
    ),
    "length-negative": (_set(max_model_len=-1), ValueError, "max_model_len: expected 0 to 536870911, got -1."),
    "nested": (
        _set(weights=lambda c: torch.nested.nested_tensor([c.weights[0]], layout=torch.strided)),
        TypeError,
        "weights: expected a strided tensor, got a nested tensor.",
    ),
    "length-array": (_set(max_model_len=np.array([200])), TypeError, "max_model_len: expected an int, got ndarray"),
    "length-huge": (_set(max_model_len=2**29), ValueError, "max_model_len: expected 0 to 536870911, got 536870912."),
    "preshuffle-none": (_set(preshuffle=None), TypeError, "preshuffle: expected a bool, got NoneType."),
    "preshuffle-int": (_set(preshuffle=1), TypeError, "preshuffle: expected a bool, got int."),
    "clean-int": (_set(clean_logits=1), TypeError, "clean_logits: expected a bool, got int."),
    "per-row-int": (_set(lens_per_row=1), TypeError, "lens_per_row: expected a bool, got int."),
    "max-next-n": (
        _set(max_next_n=1),
        ValueError,
        "max_next_n: expected None without cu_seqlens_q; the native form takes next_n from q_fp8.",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("change, error, words", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_argument_is_refused_by_name(
    change: Callable[[Call], None], error: type[Exception], words: str
) -> None:
    call = make_call()
    call.check()
    change(call)
    with pytest.raises(error) as caught:
        call.check()
    assert words in str(caught.value)


# The same for a packed call: counts (2, 0, 3).
REFUSED_PACKED = {
    "q-4d": (
        _set(q_fp8=lambda c: c.q_fp8.unsqueeze(1)),
        ValueError,
        "q_fp8: expected [num_rows, num_heads, head_dim] with cu_seqlens_q, got [5, 1, 32, 128].",
    ),
    "no-max": (
        _set(max_next_n=None),
        ValueError,
        "max_next_n: expected the largest number of rows of any sequence (a host integer) with cu_seqlens_q, got None.",
    ),
    "max-zero": (_set(max_next_n=0), ValueError, "max_next_n: expected 1 to 2147483647, got 0."),
    "max-tensor": (_set(max_next_n=torch.tensor(3)), TypeError, "max_next_n: expected an int, got Tensor."),
    "cu-int64": (_set(cu_seqlens_q=lambda c: c.cu_seqlens_q.long()), TypeError, "cu_seqlens_q: expected int32, got "
    "int64."),
    "cu-2d": (
        _set(cu_seqlens_q=lambda c: c.cu_seqlens_q.unsqueeze(0)),
        ValueError,
        "cu_seqlens_q: expected a dense [batch + 1], got [1, 4] with strides [4, 1].",
    ),
    "cu-strided": (
        _set(cu_seqlens_q=_zeros(4, 2, dtype=INT32)[:, 0]),
        ValueError,
        "cu_seqlens_q: expected a dense [batch + 1], got [4] with strides [2].",
    ),
    "cu-expanded": (
        _set(cu_seqlens_q=_zeros(1, dtype=INT32).expand(4)),
        ValueError,
        "cu_seqlens_q: expected a dense [batch + 1], got [4] with strides [0].",
    ),
    "cu-empty": (_set(cu_seqlens_q=_zeros(0, dtype=INT32)), ValueError, "cu_seqlens_q: expected a dense [batch + 1], "
    "got [0]"),
    "cu-batch": (
        _set(cu_seqlens_q=_zeros(5, dtype=INT32), context_lens=_zeros(4, dtype=INT32)),
        ValueError,
        "block_tables: expected [4, table width] for 4 sequences, got [3, 4].",
    ),
    "weights": (_set(weights=_zeros(5, 31)), ValueError, "weights: expected [5, 32], [5, 32, 1] for q_fp8's rows and "
    "heads"),
    "lens": (
        _set(context_lens=_zeros(4, dtype=INT32)),
        ValueError,
        "context_lens: expected [3] (one per sequence) or [5] (one per row), got [4].",
    ),
    "lens-kind": (
        _set(lens_per_row=True),
        ValueError,
        "context_lens: lens_per_row=True wants one end per row: expected [3] (one per sequence) or [5] (one per row), "
        "got [3].",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change, error, words", REFUSED_PACKED.values(), ids=REFUSED_PACKED.keys())
def test_a_wrong_packed_argument_is_refused_by_name(
    change: Callable[[Call], None], error: type[Exception], words: str
) -> None:
    call = make_packed()
    call.check()
    change(call)
    with pytest.raises(error) as caught:
        call.check()
    assert words in str(caught.value)


def test_packed_lengths_that_fit_both_ways_must_be_named() -> None:
    call = make_packed(counts=(2, 0, 1))
    with pytest.raises(
        ValueError, match=r"context_lens: \[3\] fits both 3 sequences and 3 rows\. Pass lens_per_row=False"
    ):
        call.check()


def test_a_native_kind_of_lengths_must_fit_the_shape() -> None:
    call = make_call(next_n=2)
    call.lens_per_row = True
    with pytest.raises(ValueError, match=r"lens_per_row=True wants one end per row: expected .*, got \[2\]"):
        call.check()


def test_fake_tensors_are_refused_and_devices_are_named() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        call = make_call()
        with pytest.raises(TypeError, match=r"q_fp8: expected a plain torch\.Tensor with memory, got a FakeTensor"):
            call.check()
        call.q_fp8 = torch.zeros(2, 1, 32, 128, dtype=FP8, device="cuda:0")
        with pytest.raises(ValueError, match=r"kv_cache_fp8: is on cpu, q_fp8 is on cuda:0\."):
            call.check()


# Memory ---------------------------------------------------------------------------------------------------------------


def _checked(call: Call) -> tuple[int, ...]:
    problem = call.check()
    tensors = call.tensors()
    known = extents(problem, tensors)
    return check_memory(tensors if call.out is not None else tensors._replace(logits=problem.new_logits()), known)


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_cache_pages_may_start_at_any_multiple_of_four(offset: int) -> None:
    call = make_call(block_kv=1, preshuffle=False)
    call.kv_cache_fp8 = torch.zeros(16 * 132 + 16, dtype=torch.uint8)[offset:][: 16 * 132].view(16, 1, 1, 132)
    assert _checked(call)[1] % 16 == offset


@pytest.mark.parametrize("offset", [1, 2])
def test_a_misaligned_cache_is_refused(offset: int) -> None:
    call = make_call(block_kv=1, preshuffle=False)
    call.kv_cache_fp8 = torch.zeros(16 * 132 + 16, dtype=torch.uint8)[offset:][: 16 * 132].view(16, 1, 1, 132)
    with pytest.raises(
        ValueError, match=rf"kv_cache_fp8: expected an address that is a multiple of 4 .*\({offset} past one\)"
    ):
        _checked(call)


def test_a_misaligned_q_is_refused() -> None:
    call = make_call()
    call.q_fp8 = torch.zeros(2 * 4096 + 8, dtype=FP8)[8:].view(2, 1, 32, 128)
    with pytest.raises(
        ValueError, match=r"q_fp8: expected an address that is a multiple of 16 bytes, got 0x.* \(8 past one"
    ):
        _checked(call)


def test_an_output_on_top_of_an_input_is_refused() -> None:
    call = make_call()
    call.out = torch.zeros(2, 256)
    call.weights = call.out[:, 224:]
    with pytest.raises(ValueError, match=r"out: overlaps weights in memory"):
        _checked(call)


def test_an_input_between_the_output_s_rows_is_no_overlap() -> None:
    call = make_call()
    pool = torch.zeros(2, 256)
    call.out, call.weights = pool[:, :200], pool[:, 200:232]
    _checked(call)
    call.weights = pool[:, 199:231]
    with pytest.raises(ValueError, match=r"out: overlaps weights"):
        _checked(call)


def test_freed_storage_is_refused() -> None:
    call = make_call()
    call.weights.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"weights: its 64 elements have no memory; the storage was freed\."):
        _checked(call)
    call = make_call()
    call.out = torch.zeros(2, 200)
    call.out.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"out: its 400 elements have no memory"):
        _checked(call)


def test_extents_end_at_the_last_reachable_byte() -> None:
    assert extent_bytes(torch.zeros(3, 512)[:, :200]) == (2 * 512 + 200) * 4
    assert extent_bytes(torch.zeros(4, 2, dtype=INT32)[:, 0]) == 7 * 4
    assert extent_bytes(torch.zeros(1).expand(5)) == 4
    assert extent_bytes(torch.zeros(3, 0)) == 0
    call = make_call()
    known = extents(call.check(), call.tensors())
    assert known[-1] == extent_bytes(call.check().new_logits()) and known[5] == 0


# Signatures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"sparse", "nested"}))  # those have no strides to compare
def test_whatever_is_refused_has_another_signature_or_option(name: str) -> None:
    good, bad = make_call(), make_call()
    REFUSED[name][0](bad)
    options = ("max_model_len", "preshuffle", "clean_logits", "rows_per_wave", "max_next_n", "lens_per_row")
    same_options = all(
        type(getattr(good, o)) is type(getattr(bad, o)) and getattr(good, o) == getattr(bad, o) for o in options
    )
    try:
        same_signature = signature(good.tensors()) == signature(bad.tensors())
    except AttributeError:
        same_signature = False
    assert not (same_options and same_signature)


# Strict mode ----------------------------------------------------------------------------------------------------------


def _contents(call: Call) -> None:
    kv_cache.scales_of(call.kv_cache_fp8)
    check_contents(call.check(), call.tensors())


@pytest.mark.parametrize("make", [make_call, make_packed])
def test_strict_accepts_a_valid_call(make: Callable[[], Call]) -> None:
    call = make()
    call.context_lens[0] = 200
    _contents(call)


def test_strict_ignores_what_is_not_needed() -> None:
    call = make_call()
    call.context_lens[:] = torch.tensor([65, 0])
    call.block_tables[0, 2:], call.block_tables[1] = -1, 2**31 - 1
    scales = kv_cache.scales_of(call.kv_cache_fp8)
    keep = scales[call.block_tables[0, 1], 0].clone()
    scales[:] = float("nan")
    scales[call.block_tables[0, 0]], scales[call.block_tables[0, 1], 0] = 1.0, keep
    _contents(call)


@pytest.mark.parametrize("block", [-1, 16, 2**31 - 1])
def test_strict_names_a_block_outside_the_cache(block: int) -> None:
    call = make_call()
    call.context_lens[1], call.block_tables[1, 2] = 129, block
    with pytest.raises(
        ValueError, match=rf"block_tables: row 1, column 2 is {block}, expected 0 to 15 for a cache of 16"
    ):
        _contents(call)


def test_strict_names_missing_columns() -> None:
    call = make_call(width=2)
    call.context_lens[1] = 200
    with pytest.raises(
        ValueError, match=r"block_tables: row 1 needs 4 columns for 200 tokens in blocks of 64, has 2\. Does"
    ):
        _contents(call)


@pytest.mark.parametrize("length", [-1, 201, 2**31 - 1])
def test_strict_names_a_length_out_of_range(length: int) -> None:
    call = make_call()
    call.context_lens[1] = length
    with pytest.raises(ValueError, match=rf"context_lens: entry 1 is {length}, expected 0 to 200 \(max_model_len\)"):
        _contents(call)


@pytest.mark.parametrize("scale, shown", [(-1.0, "-1.0"), (float("nan"), "nan")])
def test_strict_names_a_negative_scale(scale: float, shown: str) -> None:
    call = make_call()
    call.context_lens[1] = 80
    kv_cache.scales_of(call.kv_cache_fp8)[call.block_tables[1, 1], 7] = scale
    words = rf"the scale of token 71 of sequence 1 \(block_tables row 1, column 1, slot 7\) is {shown}, expected >= 0"
    with pytest.raises(ValueError, match=words):
        _contents(call)


@pytest.mark.parametrize(
    "cu, words",
    [
        ([1, 2, 2, 5], r"cu_seqlens_q: expected 0 at index 0, got 1\."),
        ([0, 2, 1, 5], r"cu_seqlens_q: index 2 is 1 after 2; expected 0 to 3 \(max_next_n\) more, and at most 5 rows"),
        ([0, 0, 1, 5], r"cu_seqlens_q: index 3 is 5 after 1"),
        ([0, 2, 4, 6], r"cu_seqlens_q: index 3 is 6 after 4"),
    ],
)
def test_strict_names_a_cu_seqlens_q_that_does_not_rise(cu: list[int], words: str) -> None:
    call = make_packed()
    call.cu_seqlens_q = torch.tensor(cu, dtype=INT32)
    with pytest.raises(ValueError, match=words):
        _contents(call)


@pytest.mark.parametrize("per_row", [False, True])
def test_strict_ignores_lengths_that_belong_to_no_row(per_row: bool) -> None:
    call = make_packed()
    call.lens_per_row = per_row
    if per_row:
        call.cu_seqlens_q = torch.tensor([0, 2, 2, 4], dtype=INT32)
        call.context_lens = torch.tensor([4, 5, 6, 7, -1], dtype=INT32)
    else:
        call.context_lens = torch.tensor([4, 2**31 - 1, 5], dtype=INT32)  # the second sequence has no rows
    _contents(call)


def test_strict_checks_per_row_ends_of_each_sequence() -> None:
    call = make_packed(width=2)
    call.context_lens = torch.tensor([10, 20, 30, 150, 40], dtype=INT32)
    with pytest.raises(ValueError, match=r"block_tables: row 2 needs 3 columns for 150 tokens"):
        _contents(call)


@pytest.mark.parametrize("max_model_len, wanted", [(0, 0), (1, 1), (64, 1), (65, 2), (1000, 10)])
def test_columns_of_the_table_past_max_model_len_do_not_count(max_model_len: int, wanted: int) -> None:
    assert make_call(width=10, max_model_len=max_model_len).check().table_width == wanted


def test_a_block_too_large_to_divide_by_is_refused() -> None:
    call = make_call(batch=1)
    call.kv_cache_fp8 = torch.empty((1, 2**20, 1, 132), dtype=torch.uint8)
    call.block_tables = torch.zeros((1, 2**11), dtype=torch.int32)
    call.max_model_len = 2**28
    with pytest.raises(ValueError, match="kv_cache_fp8: block_kv 1048576 is too large for rows of 268435456 columns"):
        call.check()
