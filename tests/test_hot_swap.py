"""Code objects swapped in one process, on the HIP end: at start, at run time, under concurrent calls, refused ones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from calls import make_call
from cases import Case, check, make
from hip_standin import Gpu, Graph, Launched, Memory, Standin
from test_hip_end import in_threads, run, tensors_of

import indexer_rt
from indexer_rt import AbiMismatch, environment, launch, ops
from indexer_rt.code_object import CodeObject

SHIPPED = Path(__file__).parent.parent / "hsaco"
NAME = "fp8_paged_mqa_logits_h32_r1_page"


@pytest.fixture(autouse=True)
def _driver_without_faults(standin: Standin) -> Iterator[None]:
    yield
    standin.check()


@pytest.fixture
def own(shelf: Path, tmp_path: Path) -> Path:
    """Return a folder with one user's own code object in it, without a manifest."""
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(shelf / f"{NAME}.hsaco", folder)
    return folder


def code_of(launched: Launched) -> str:
    return launched.launch.kernel.code_object.sha256


def digest(folder: Path) -> str:
    return CodeObject.read(folder / f"{NAME}.hsaco").sha256


def test_a_user_s_own_code_object_without_a_manifest_is_launched(standin: Standin, gpu: Gpu, own: Path) -> None:
    inputs = make(Case((70, 3)))
    standin.on_launch(Memory(tensors_of(inputs)))
    run(inputs)
    check(inputs)
    indexer_rt.use_code_objects(own)
    inputs.clear()
    run(inputs)
    # Its kernel writes the sum of its integer arguments to the first logit.
    launched = standin.launches[-1]
    total = sum(launched.argument(arg.name) for arg in launched.launch.kernel.explicit_args if arg.kind == "by_value")
    assert code_of(launched) == digest(own) and float(inputs.out[0, 0]) == pytest.approx(total)
    indexer_rt.use_code_objects(None)
    inputs.clear()
    run(inputs)
    check(inputs)
    assert code_of(standin.launches[-1]) == digest(SHIPPED)
    assert standin.calls("hipModuleLoadData") == 2 and standin.calls("hipModuleUnload") == 0


def test_the_environment_names_the_folder_at_the_start(
    standin: Standin, gpu: Gpu, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDEXER_RT_HSACO_DIR", str(own))
    environment.current.cache_clear()
    standin.on_launch(None)
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert code_of(standin.launches[-1]) == digest(own)


def test_a_file_rebuilt_in_place_is_used_after_the_next_swap(standin: Standin, gpu: Gpu, own: Path) -> None:
    standin.on_launch(None)
    call = make_call().arguments()
    indexer_rt.use_code_objects(own)
    indexer_rt.fp8_paged_mqa_logits(**call)
    before = digest(own)
    shutil.copy(SHIPPED / f"{NAME}.hsaco", own)
    indexer_rt.fp8_paged_mqa_logits(**call)
    assert code_of(standin.launches[-1]) == before
    indexer_rt.use_code_objects(own)
    indexer_rt.fp8_paged_mqa_logits(**call)
    assert code_of(standin.launches[-1]) == digest(SHIPPED) != before


def test_other_arguments_are_refused_showing_both_lists_and_nothing_changes(
    standin: Standin, gpu: Gpu, compile_kernel: Callable[..., Path]
) -> None:
    standin.on_launch(None)
    call = make_call().arguments()
    indexer_rt.fp8_paged_mqa_logits(**call)
    foreign = compile_kernel(
        NAME, {"q": ("global_buffer", 8), "batch": ("by_value", 8), "logits": ("global_buffer", 8)}
    )
    for other in foreign.parent.iterdir():
        if other != foreign:
            other.unlink()
    calls = standin.total()
    with pytest.raises(AbiMismatch) as caught:
        indexer_rt.use_code_objects(foreign.parent)
    message = str(caught.value)
    assert "the kernel takes: q(global_buffer, 8), batch(by_value, 8), logits(global_buffer, 8)" in message
    assert "the runtime packs: context_lens(global_buffer, 8), cu_seqlens_q(global_buffer, 8)" in message
    assert standin.total() == calls
    indexer_rt.fp8_paged_mqa_logits(**call)
    assert code_of(standin.launches[-1]) == digest(SHIPPED)


def test_a_kernel_with_its_arguments_in_another_order_gets_each_in_its_place(
    standin: Standin, gpu: Gpu, compile_kernel: Callable[..., Path]
) -> None:
    path = compile_kernel(NAME, dict(reversed(launch.ABI.items())))
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    standin.on_launch(None)
    indexer_rt.use_code_objects(path.parent)
    for made in (make_call(), make_call()):
        made.out = torch.zeros(2, 200)
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
        for name, tensor in made.tensors()._asdict().items():
            assert standin.launches[-1].argument(name) == (0 if tensor is None else tensor.data_ptr()), name
        assert standin.launches[-1].argument("max_model_len") == 200


def test_a_captured_graph_keeps_the_code_it_was_captured_with(standin: Standin, gpu: Gpu, own: Path) -> None:
    inputs = make(Case((70, 3)))
    graph = Graph(standin, Memory(tensors_of(inputs)))
    indexer_rt.load("cuda:0")
    graph.capture(lambda: run(inputs), gpu)
    indexer_rt.use_code_objects(own)
    run(inputs)
    inputs.clear()
    graph.replay()
    check(inputs)


def test_swaps_under_concurrent_calls_give_every_call_one_folder_s_code(standin: Standin, gpu: Gpu, own: Path) -> None:
    standin.on_launch(None)
    done, codes = threading.Event(), {digest(own), digest(SHIPPED)}
    swaps = 0

    def work(index: int) -> None:
        nonlocal swaps
        if index == 0:
            try:
                for _ in range(10):
                    indexer_rt.use_code_objects(own)
                    indexer_rt.use_code_objects(None)
                    swaps += 2
            finally:
                done.set()
            return
        call = make_call(batch=index).arguments()
        while not done.is_set():
            indexer_rt.fp8_paged_mqa_logits(**call)

    in_threads(5, work)
    assert swaps == 20 and {code_of(launched) for launched in standin.launches} == codes
    assert all(launched.argument("batch") in range(1, 5) for launched in standin.launches)
    assert standin.calls("hipModuleLoadData") == 2
    indexer_rt.fp8_paged_mqa_logits(**make_call(batch=2).arguments())
    assert code_of(standin.launches[-1]) == digest(SHIPPED)


def test_every_thread_sees_a_swap_at_its_next_call(standin: Standin, gpu: Gpu, own: Path) -> None:
    standin.on_launch(None)
    turn = threading.Barrier(2)
    seen: list[str] = []

    def other() -> None:
        call = make_call().arguments()
        for _ in range(2):
            indexer_rt.fp8_paged_mqa_logits(**call)
            seen.append(code_of(standin.launches[-1]))
            turn.wait()
            turn.wait()

    thread = threading.Thread(target=other)
    thread.start()
    turn.wait()
    indexer_rt.use_code_objects(own)
    turn.wait()
    turn.wait()
    turn.wait()
    thread.join()
    assert seen == [digest(SHIPPED), digest(own)]


def test_kept_calls_of_old_code_objects_are_let_go(standin: Standin, gpu: Gpu, own: Path) -> None:
    for batch in range(1, 6):
        indexer_rt.fp8_paged_mqa_logits(**make_call(batch=batch).arguments())
    assert len(ops.own.calls) == 5
    indexer_rt.use_code_objects(own)
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert len(ops.own.calls) == 1
