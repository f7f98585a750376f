"""The operator in torch's dispatcher: compiled, fake, in inference mode. Names carry ids of the bug-report log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from calls import Call, make_call, make_packed
from cases import Case, make
from hip_standin import Gpu, Memory, Standin
from torch._subclasses.fake_tensor import FakeTensorMode

import indexer_rt
from indexer_rt import ops

OP = torch.ops.indexer_rt.fp8_paged_mqa_logits


@pytest.fixture(autouse=True)
def _driver_without_faults(standin: Standin) -> Iterator[None]:
    yield
    standin.check()


@pytest.fixture
def filled(standin: Standin, gpu: Gpu) -> Call:
    """Return a call with values in it, on the HIP end, whose launches the emulator runs."""
    inputs = make(Case((130, 67), next_n=2))
    call = Call(*inputs.arguments(), preshuffle=True)
    call.out = torch.full((4, call.max_model_len), 7.0)
    standin.on_launch(Memory([t for t in call.tensors() if t is not None], strict=False))
    return call


def positional(call: Call) -> tuple[Any, ...]:
    return (
        call.q_fp8, call.kv_cache_fp8, call.weights, call.context_lens, call.block_tables, call.max_model_len,
        call.preshuffle,
    )  # fmt: skip


@pytest.mark.parametrize("new", [True, False], ids=["new", "out"])
@pytest.mark.parametrize("make", [make_call, make_packed], ids=["native", "packed"])
def test_f07_the_operator_passes_opcheck(
    standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, make: Any, new: bool
) -> None:
    compare = torch.allclose  # torch on the CPU cannot compare fp8 tensors, which opcheck does with every argument
    fp8 = torch.float8_e4m3fn

    def compare_any(a: torch.Tensor, b: torch.Tensor, **options: Any) -> bool:
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dtype == fp8 else compare(a, b, **options)

    monkeypatch.setattr(torch, "allclose", compare_any)
    call = make()
    standin.on_launch(lambda launched: _write_zeros(launched, call))
    options = dict(cu_seqlens_q=call.cu_seqlens_q, max_next_n=call.max_next_n)
    rows = call.check().num_rows
    if new:
        torch.library.opcheck(OP.default, positional(call), options)
    else:
        torch.library.opcheck(OP.out, (*positional(call), torch.zeros(rows, 200)), options)


def _write_zeros(launched: Any, call: Call) -> None:
    """Write every cell, as the operator's clean output does, so that results can be compared. Zeros are enough here."""
    import ctypes

    size = call.check().num_rows * launched.argument("logits_row_stride")
    ctypes.memset(launched.argument("logits"), 0, size)


def test_f07_a_compiled_function_calls_one_opaque_operator(filled: Call) -> None:
    def select(call: Call, out: torch.Tensor | None) -> torch.Tensor:
        logits = indexer_rt.fp8_paged_mqa_logits(*positional(call)[:6], preshuffle=True, out=out, clean_logits=True)
        return torch.topk(logits * 2, 4).indices

    eager = select(filled, None)
    compiled = torch.compile(select, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(filled, None), eager)
    assert torch.equal(compiled(filled, filled.out), eager) and (filled.out != 7.0).all()


def test_f07_dynamic_shapes_do_not_compile_again(standin: Standin, gpu: Gpu) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def scores(q, kv, w, lens, tables):  # type: ignore[no-untyped-def]
        return indexer_rt.fp8_paged_mqa_logits(q, kv, w, lens, tables, 200, preshuffle=True).amax(-1)

    for batch in (3, 5, 7):
        assert scores(*positional(make_call(batch=batch))[:5]).shape == (batch,)
    assert counter.frame_count == 1 and standin.calls("hipModuleLaunchKernel") == 3


def test_f09_fake_tensors_give_shapes_and_make_no_hip_call(standin: Standin, gpu: Gpu) -> None:
    with FakeTensorMode() as mode:
        call = make_call(batch=3, next_n=2)
        packed = make_packed(counts=(2, 0, 3))
        results = [indexer_rt.fp8_paged_mqa_logits(**one.arguments()) for one in (call, packed)]
        call.out = torch.zeros(6, 300)
        assert indexer_rt.fp8_paged_mqa_logits(**call.arguments()) is call.out
    assert [tuple(result.shape) for result in results] == [(6, 200), (5, 200)]
    assert all(result.dtype == torch.float32 and result.fake_mode is mode for result in results)
    assert standin.total() == 0


def test_f09_meta_tensors_launch_nothing(standin: Standin, gpu: Gpu) -> None:
    call = make_call()
    for name in ("q_fp8", "kv_cache_fp8", "weights", "context_lens", "block_tables"):
        setattr(call, name, getattr(call, name).to("meta"))
    assert OP(*positional(call)).shape == (2, 200)
    with pytest.raises(TypeError, match=r"q_fp8: expected a plain torch\.Tensor with memory, got a meta tensor"):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    assert standin.total() == 0


def test_a_fake_call_after_a_real_one_of_the_same_shapes_launches_nothing(standin: Standin, gpu: Gpu) -> None:
    call = make_call()
    indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(indexer_rt.fp8_paged_mqa_logits(**call.arguments())) is not torch.Tensor
    assert standin.calls("hipModuleLaunchKernel") == 1


def test_the_result_is_that_of_the_eager_call(filled: Call) -> None:
    eager = indexer_rt.fp8_paged_mqa_logits(*positional(filled)[:6], preshuffle=True)
    assert torch.equal(OP(*positional(filled)), eager)
    assert OP.out(*positional(filled), filled.out, clean_logits=True) is None
    assert torch.equal(filled.out, eager)


def test_a_mutation_is_declared_and_counted(filled: Call) -> None:
    version = filled.out._version
    OP.out(*positional(filled), filled.out)
    assert filled.out._version == version + 1
    assert [argument.name for argument in OP.out._schema.arguments if argument.is_write] == ["out"]
    assert not [argument for argument in OP.default._schema.arguments if argument.is_write]


@pytest.mark.parametrize("call_it", ["eager", "operator"])
def test_there_is_no_autograd_graph(filled: Call, call_it: str) -> None:
    filled.weights.requires_grad_()
    result = (
        OP(*positional(filled))
        if call_it == "operator"
        else indexer_rt.fp8_paged_mqa_logits(*positional(filled)[:6], preshuffle=True)
    )
    assert not result.requires_grad and result.grad_fn is None


def test_inference_mode_and_normal_mode_take_turns(filled: Call) -> None:
    expected = indexer_rt.fp8_paged_mqa_logits(*positional(filled)[:6], preshuffle=True)
    for _ in range(3):
        with torch.inference_mode():
            for result in (
                indexer_rt.fp8_paged_mqa_logits(*positional(filled)[:6], preshuffle=True),
                OP(*positional(filled)),
            ):
                assert result.is_inference() and torch.equal(result, expected)
        result = indexer_rt.fp8_paged_mqa_logits(*positional(filled)[:6], preshuffle=True)
        assert not result.is_inference() and torch.equal(result, expected)
    (kept,) = ops.own.calls.values()
    assert len(kept) == 2, "one prepared launch for each mode"


# F: types and devices, refused before any HIP call --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value, error, words",
    [
        pytest.param("q_fp8", torch.float8_e4m3fnuz, TypeError, "q_fp8: expected float8_e4m3fn, got", id="f01-fnuz"),
        pytest.param("kv_cache_fp8", torch.float8_e4m3fnuz, TypeError, "kv_cache_fp8: expected", id="f01-cache-fnuz"),
        pytest.param("q_fp8", torch.bfloat16, TypeError, "q_fp8: expected float8_e4m3fn", id="f02-bfloat16"),
        pytest.param("q_fp8", torch.float16, TypeError, "q_fp8: expected float8_e4m3fn", id="f02-float16"),
        pytest.param("q_fp8", torch.float8_e5m2, TypeError, "q_fp8: expected float8_e4m3fn", id="f02-e5m2"),
        pytest.param("q_fp8", torch.uint8, TypeError, "q_fp8: expected float8_e4m3fn", id="f02-uint8"),
        pytest.param("out", torch.float16, TypeError, "out: expected float32", id="f04-float16"),
        pytest.param("out", torch.bfloat16, TypeError, "out: expected float32", id="f04-bfloat16"),
    ],
)
def test_other_types_are_refused(
    standin: Standin, gpu: Gpu, name: str, value: torch.dtype, error: type[Exception], words: str
) -> None:
    call = make_call()
    call.out = torch.zeros(2, 200)
    setattr(call, name, torch.zeros(getattr(call, name).shape).to(value))
    with pytest.raises(error, match=words):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    with pytest.raises(error, match=words):
        OP.out(*positional(call), call.out)
    assert standin.total() == 0


@pytest.mark.parametrize("name", ["kv_cache_fp8", "weights", "context_lens", "block_tables", "out"])
def test_f05_tensors_on_two_devices_are_refused_naming_both(standin: Standin, gpu: Gpu, name: str) -> None:
    call = make_call()
    call.out = torch.zeros(2, 200)
    indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    before = standin.total()
    other = dataclasses.replace(call, **{name: getattr(call, name).to("meta")})
    with pytest.raises(ValueError, match=f"{name}: is on meta, q_fp8 is on cpu"):
        indexer_rt.fp8_paged_mqa_logits(**other.arguments())
    assert standin.total() == before


def test_f10_a_refused_shape_is_refused_with_the_reason_and_never_falls_back(standin: Standin, gpu: Gpu) -> None:
    call = make_call(block_kv=24, preshuffle=False)
    reason = indexer_rt.why_not(32, 128, 24, False)
    assert reason and "block_kv" in reason and not indexer_rt.is_supported(32, 128, 24, False)
    with pytest.raises(ValueError) as caught:
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    assert str(caught.value) == reason and standin.total() == 0


def test_f11_the_layout_has_no_default_anywhere() -> None:
    for overload in (OP.default, OP.out):
        (argument,) = [a for a in overload._schema.arguments if a.name == "preshuffle"]
        assert not argument.has_default_value()
    with pytest.raises(TypeError, match="preshuffle"):
        indexer_rt.fp8_paged_mqa_logits(*positional(make_call())[:6])
