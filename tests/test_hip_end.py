"""The HIP end: op, real hip-python, stand-in driver, code object, logits. Names carry the ids of the bug-report log."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calls import make_call, make_packed
from cases import Case, Inputs, check, make
from hip_standin import Gpu, Graph, Launched, Memory, Standin

import indexer_rt
from indexer_rt import HipError, call, device, hip, launch, ops, torch_gpu
from indexer_rt.code_object import CodeObject
from indexer_rt.problem import Tensors

pytestmark = pytest.mark.usefixtures("fewest_groups")

SHIPPED = Path(__file__).parent.parent / "hsaco"


@pytest.fixture(autouse=True)
def _driver_without_faults(standin: Standin) -> Iterator[None]:
    yield
    standin.check()


def tensors_of(inputs: Inputs) -> list[torch.Tensor]:
    return [inputs.q, inputs.cache, inputs.weights, inputs.lens, inputs.tables, inputs.out]


def run(inputs: Inputs, **options: Any) -> torch.Tensor:
    case = inputs.case
    return indexer_rt.fp8_paged_mqa_logits(
        *inputs.arguments(), preshuffle=case.preshuffle, out=inputs.out, clean_logits=case.clean_logits,
        rows_per_wave=case.rows_per_wave, **options,
    )  # fmt: skip


def directly(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> Any:
    """Run something on the emulator's own end, as CPU tensors do without a stand-in."""
    with monkeypatch.context() as patch:
        patch.setattr(torch_gpu, "_current", torch_gpu.TorchGpu())
        patch.setattr(ops, "_current", None)
        patch.setattr(ops, "own", call.Own())
        return work()


# Values through the whole stack ---------------------------------------------------------------------------------------

SHAPES = [
    Case((70, 3), next_n=1, block_kv=1, preshuffle=False),
    Case((33, 1), next_n=3, block_kv=1, preshuffle=False),
    Case((65, 2), next_n=2, block_kv=2, preshuffle=False),
    Case((40,), next_n=4, block_kv=4, preshuffle=False),
    Case((129, 8), next_n=6, block_kv=8, preshuffle=False),
    Case((130, 67), next_n=1, block_kv=16),
    Case((130, 67), next_n=1, block_kv=16, preshuffle=False),
    Case((17, 0, 64), next_n=2, block_kv=16),
    Case((100,), next_n=5, block_kv=32),
    Case((130, 67), next_n=1),
    Case((130, 67), next_n=2),
    Case((130, 67), next_n=3),
    Case((130, 67), next_n=4),
    Case((130, 67), next_n=6),
    Case((130, 67), next_n=8),
    Case((9, 64, 65, 300), next_n=4),
    Case((63, 64, 65), next_n=1, preshuffle=False),
    Case((200,), next_n=3, block_kv=128),
    Case((200,), next_n=2, block_kv=256, preshuffle=False),
    Case((650, 1), next_n=1, block_kv=640),
    Case((90, 0, 160), next_n=3, max_model_len=100),
    Case((90, 0, 160), next_n=3, max_model_len=100, clean_logits=True),
    Case(((70, 3), (0, 131)), next_n=2, clean_logits=True),
    Case((130, 67), next_n=4, rows_per_wave=1),
]


@pytest.mark.parametrize(
    "case", SHAPES, ids=lambda c: f"n{c.next_n}-kv{c.block_kv}-{'shuffled' if c.preshuffle else 'plain'}-{c.lens}"
)
def test_logits_through_the_driver_are_those_of_the_emulator_bit_for_bit(
    standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    inputs = make(case)
    standin.on_launch(Memory(tensors_of(inputs)))
    for _ in range(2):  # the first call, and one by the launch that it left prepared
        inputs.clear()
        assert run(inputs) is inputs.out
        standin.check()
        check(inputs)
    assert len(standin.launches) == 2 and standin.calls("hipModuleLoadData") == 1
    through_the_driver = inputs.base.clone()
    inputs.clear()
    directly(monkeypatch, lambda: run(inputs))
    assert torch.equal(through_the_driver.view(torch.int32), inputs.base.view(torch.int32))
    assert len(standin.launches) == 2


def test_a_new_output_is_written_by_the_driver(standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make(Case((130, 67), next_n=2))
    standin.on_launch(Memory(tensors_of(inputs)))
    results = [indexer_rt.fp8_paged_mqa_logits(*inputs.arguments(), preshuffle=True) for _ in range(2)]
    standin.check()
    expected = directly(monkeypatch, lambda: indexer_rt.fp8_paged_mqa_logits(*inputs.arguments(), preshuffle=True))
    assert all(torch.equal(result, expected) for result in results) and len(standin.launches) == 2


def test_a_packed_call_goes_through_the_driver(standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_packed(counts=(2, 0, 3))
    made.q_fp8 = torch.ones(made.q_fp8.shape).to(torch.float8_e4m3fn)
    made.kv_cache_fp8[..., :] = 0x38
    made.weights.fill_(0.5)
    made.out = torch.full((5, 200), 7.0)
    standin.on_launch(Memory([t for t in made.tensors() if t is not None]))
    for _ in range(2):
        made.out.fill_(7.0)
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    standin.check()
    got = made.out.clone()
    made.out.fill_(7.0)
    directly(monkeypatch, lambda: indexer_rt.fp8_paged_mqa_logits(**made.arguments()))
    assert torch.equal(got.view(torch.int32), made.out.view(torch.int32)) and (got != 7.0).any()


# The prepared launch --------------------------------------------------------------------------------------------------


def test_a_repeated_call_passes_the_addresses_of_its_own_tensors(standin: Standin, gpu: Gpu) -> None:
    standin.on_launch(None)
    made = [make_call() for _ in range(3)]
    for one in [*made, *reversed(made)]:
        one.out = torch.zeros(2, 200)
        indexer_rt.fp8_paged_mqa_logits(**one.arguments())
        last, tensors = standin.launches[-1], one.tensors()
        for name, tensor in tensors._asdict().items():
            assert last.argument(name) == (0 if tensor is None else tensor.data_ptr()), name
    # Whatever prepared the launch, the bytes are those that the plan packs.
    problem = made[0].check()
    (entry,) = [e for e in ops._runtime().catalog.entries if e.name == standin.launches[-1].name]
    plan = launch.plan(problem, ops._runtime().kernel(entry), rows_per_wave=entry.rows_per_wave, num_cus=256)
    pointers = tuple(0 if t is None else t.data_ptr() for t in made[0].tensors())
    assert standin.launches[-1].launch.kernarg == plan.at(pointers).kernarg
    assert standin.launches[-1].launch.grid == plan.grid


def what_is_packed(launched: Launched) -> dict[str, Any]:
    """Return the kernel's name and every argument but the addresses."""
    names = [name for name in launch.ABI if name not in launch.POINTERS]
    return {"kernel": launched.name} | {name: launched.argument(name) for name in names}


@pytest.mark.parametrize(
    "change",
    [
        dict(max_model_len=100),
        dict(preshuffle=False),
        dict(clean_logits=True),
        dict(rows_per_wave=2),
        dict(out=torch.zeros(2, 300)[:, :200]),
        dict(weights=torch.zeros(2, 64)[:, :32]),
        dict(context_lens=torch.full((2, 2), 2, dtype=torch.int32)[:, 0]),
        dict(block_tables=torch.zeros(2, 9, dtype=torch.int32)),
        dict(kv_cache_fp8=torch.zeros(20, 64, 1, 132, dtype=torch.uint8)),
        dict(kv_cache_fp8=torch.zeros(16, 64, 132, dtype=torch.uint8)),
        dict(q_fp8=torch.zeros(2, 2, 32, 128).to(torch.float8_e4m3fn)[:, 1:]),
        dict(out=None),
    ],
    ids=lambda change: "-".join(change) + str(next(iter(change.values())))[:5].replace("tenso", ""),
)
def test_a_call_that_differs_is_planned_anew(standin: Standin, gpu: Gpu, change: dict[str, Any]) -> None:
    standin.on_launch(None)
    made = make_call()
    made.out = torch.zeros(2, 200)
    for one in (made, dataclasses.replace(made, **change), made):
        indexer_rt.fp8_paged_mqa_logits(**one.arguments())
    first, changed, again = map(what_is_packed, standin.launches)
    assert first == again
    fresh = call.Own()
    ops._current, ops.own = None, fresh
    indexer_rt.fp8_paged_mqa_logits(**dataclasses.replace(made, **change).arguments())
    assert what_is_packed(standin.launches[-1]) == changed


@pytest.mark.parametrize(
    "name, value",
    [("max_model_len", 200.0), ("max_model_len", True), ("preshuffle", 1), ("clean_logits", 0), ("rows_per_wave", 1.0)],
)
def test_an_equal_value_of_another_type_is_refused_after_a_good_call(
    standin: Standin, gpu: Gpu, name: str, value: Any
) -> None:
    made = make_call(max_model_len=1 if value is True else 200)
    made.clean_logits, made.rows_per_wave = False, 1
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    with pytest.raises(TypeError, match=f"{name}: expected"):
        indexer_rt.fp8_paged_mqa_logits(**dataclasses.replace(made, **{name: value}).arguments())


@pytest.mark.parametrize("tensor", ["kv_cache_fp8", "weights", "context_lens", "block_tables", "q_fp8", "out"])
def test_a_repeated_call_still_checks_addresses(standin: Standin, gpu: Gpu, tensor: str) -> None:
    made = make_call()
    made.out = torch.zeros(2, 200)
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    good = getattr(made, tensor)
    raw = torch.zeros(good.numel() * good.element_size() + 64, dtype=torch.uint8)
    bad = raw[: good.numel() * good.element_size()].view(good.dtype).view(good.shape)
    shifted = torch.empty(0, dtype=torch.uint8).set_(raw.untyped_storage(), 2, (raw.numel() - 2,), (1,))
    if good.element_size() == 1:
        bad = shifted[: good.numel()].view(good.dtype).view(good.shape)
        setattr(made, tensor, bad)
        with pytest.raises(ValueError, match=f"{tensor}: expected an address"):
            indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    made = dataclasses.replace(made, **{tensor: good})
    made.out = made.weights.new_empty(0).set_(made.weights.untyped_storage(), 0, (2, 16), (16, 1))
    made.max_model_len = 16
    before = standin.calls("hipModuleLaunchKernel")
    with pytest.raises(ValueError, match="out: overlaps weights"):
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    assert standin.calls("hipModuleLaunchKernel") == before


def test_signatures_beyond_what_a_thread_keeps_still_work(
    standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_SHAPES", 3)
    standin.on_launch(None)
    for _ in range(2):
        for batch in range(1, 9):
            for width in range(1, 12):
                made = make_call(batch=batch, width=width, max_model_len=11 * 64)  # no column is past max_model_len
                indexer_rt.fp8_paged_mqa_logits(**made.arguments())
                assert standin.launches[-1].argument("table_width") == width
                assert standin.launches[-1].argument("batch") == batch
    assert len(ops.own.calls) <= 3 and all(len(kept) <= 8 for kept in ops.own.calls.values())


def test_the_guard_in_python_says_what_torch_s_says(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    base = [torch.zeros(4, 6), torch.zeros(3, dtype=torch.int32)]
    others = [
        base,
        [torch.ones(4, 6), base[1]],
        [torch.zeros(4, 7), base[1]],
        [torch.zeros(6, 4).t(), base[1]],
        [torch.zeros(4, 6, dtype=torch.float64), base[1]],
        [torch.zeros(4, 6, requires_grad=True), base[1]],
        [torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False), base[1]],
        [torch._neg_view(torch.zeros(4, 6)), base[1]],
        [torch.zeros(4, 6, device="meta"), base[1]],
    ]
    fast, slow = call.guard(base), call._python_guard(base)
    verdicts = [fast(*other) for other in others]
    assert verdicts == [slow(*other) for other in others] == [True, True] + [False] * 7
    with torch.inference_mode():
        assert not fast(*base) and not slow(*base)


def test_strict_mode_checks_every_call(standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEXER_RT_STRICT", "1")
    made = make_call()
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    made.block_tables[0, 0] = 99
    with pytest.raises(ValueError, match="block_tables: row 0, column 0 is 99"):
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())


# G: streams, graphs, devices, threads ---------------------------------------------------------------------------------


def test_g01_the_launch_goes_to_the_current_stream(standin: Standin, gpu: Gpu) -> None:
    standin.on_launch(None)
    made = make_call()
    streams = [0, standin.add_stream(0x7000), standin.add_stream(0x7008)]
    for stream in itertools.islice(itertools.cycle(streams), 100):
        gpu.stream = stream
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
        assert standin.launches[-1].stream == stream


def test_g02_a_stream_of_another_runtime_is_named(standin: Standin, gpu: Gpu) -> None:
    gpu.stream = 0xDEAD0
    with pytest.raises(HipError, match=r"\(709\).*The stream or context belongs to another copy of the HIP runtime"):
        indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())


def test_g05_a_captured_launch_replays_right_for_any_lengths(standin: Standin, gpu: Gpu) -> None:
    inputs = make(Case((150, 77), max_model_len=150))
    full = inputs.lens.clone()
    graph = Graph(standin, Memory(tensors_of(inputs)))
    indexer_rt.load("cuda:0")
    inputs.lens.fill_(1)
    graph.capture(lambda: run(inputs), gpu)
    inputs.lens.copy_(full)
    inputs.clear()
    graph.replay()
    check(inputs)


def test_g07_a_call_with_out_allocates_nothing(standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_call()
    made.out = torch.zeros(2, 200)
    indexer_rt.load("cuda:0")
    seen: list[Launched] = []
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(10):
            indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    assert [event.key for event in profile.key_averages() if event.key.startswith("aten::")] == []
    graph = Graph(standin, seen.append)
    graph.capture(lambda: [indexer_rt.fp8_paged_mqa_logits(**made.arguments()) for _ in range(10)], gpu)
    own = {tensor.data_ptr() for tensor in made.tensors() if tensor is not None} | {0}
    for node in graph.nodes:
        assert {node.argument(name) for name in launch.POINTERS} <= own
    assert len(graph.nodes) == 10


def test_g08_h13_work_is_done_on_the_tensors_device_and_the_current_one_is_restored(standin: Standin, gpu: Gpu) -> None:
    gpu.home, gpu.architectures = 1, ("gfx1036", "gfx950")
    standin.set_device(0, "gfx1036")
    gpu.stream = standin.add_stream(0x7100, device=1)
    inputs = make(Case((70, 3)))
    standin.on_launch(Memory(tensors_of(inputs)))
    for _ in range(2):
        inputs.clear()
        run(inputs)
        check(inputs)
        assert gpu.current == 0 and standin.library.standin_current_device() == 0
    assert [launched.device for launched in standin.launches] == [1, 1]
    with pytest.raises(HipError):  # restored after a failure too
        standin.fail("hipModuleLaunchKernel", 700)
        run(inputs)
    assert gpu.current == 0
    gpu.current = 1
    standin.reset()
    standin.library.hipSetDevice(1)
    run(inputs)
    assert standin.calls("hipSetDevice") == 1, "switched although device 1 is current"


def test_g13_ten_thousand_calls_load_each_module_once(standin: Standin, gpu: Gpu) -> None:
    made = [
        make_call(batch=batch, next_n=next_n, block_kv=block_kv, preshuffle=block_kv >= 16)
        for batch, next_n, block_kv in itertools.product((1, 2, 5), (1, 2, 3, 4, 6, 8), (1, 2, 16, 64))
    ]
    for one in made:
        indexer_rt.fp8_paged_mqa_logits(**one.arguments())
    loads, files = standin.calls("hipModuleLoadData"), len(os.listdir("/proc/self/fd"))
    assert 0 < loads <= len(list(SHIPPED.glob("*.hsaco")))
    for one in itertools.islice(itertools.cycle(made), 10000):
        indexer_rt.fp8_paged_mqa_logits(**one.arguments())
    assert standin.calls("hipModuleLaunchKernel") == 10000 + len(made)
    assert standin.calls("hipModuleLoadData") == loads and len(os.listdir("/proc/self/fd")) == files
    assert standin.calls("hipModuleUnload") == 0


def test_g14_h11_a_module_outlives_every_handle(standin: Standin, gpu: Gpu, tmp_path: Path) -> None:
    inputs = make(Case((70, 3)))
    graph = Graph(standin, Memory(tensors_of(inputs)))
    indexer_rt.load("cuda:0")
    graph.capture(lambda: run(inputs), gpu)
    hip._devices.clear()
    ops._current, ops.own = None, call.Own()
    gc.collect()
    inputs.clear()
    graph.replay()
    check(inputs)
    assert standin.calls("hipModuleUnload") == 0


def test_g16_an_earlier_fault_is_said_to_be_possibly_earlier_and_nothing_is_retried(standin: Standin, gpu: Gpu) -> None:
    made = make_call()
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    standin.fail("hipModuleLaunchKernel", 700)
    before = standin.calls("hipModuleLaunchKernel")
    with pytest.raises(HipError) as caught:
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    message = str(caught.value)
    assert message.startswith(
        "hipModuleLaunchKernel(fp8_paged_mqa_logits_h32_r1_page on cuda:0 (gfx950:sramecc+:xnack-), "
    )
    assert "hipErrorIllegalAddress (700)" in message and "It may come from earlier work" in message
    assert (caught.value.code, caught.value.name, caught.value.call) == (
        700, "hipErrorIllegalAddress", "hipModuleLaunchKernel",
    )  # fmt: skip
    assert standin.calls("hipModuleLaunchKernel") == before + 1


@pytest.mark.parametrize(
    "offsets",
    [(56, 64, 72, 0, 80, 8, 88), (16, 24, 32, 0, 40, 8, 48), (0, 8, 16, 24, 32, 40, 48), (88, 64, 72, 0, 80, 8, 56)],
    ids=["shipped", "no-gap", "as-listed", "shuffled"],
)
def test_addresses_are_packed_wherever_the_kernel_takes_them(offsets: tuple[int, ...]) -> None:
    kernarg = memoryview(bytearray(range(100)))
    pack, offset, between = call._packer(Tensors(*offsets), kernarg)
    wanted = bytearray(kernarg)
    for at, address in zip(offsets, range(1, 8), strict=True):
        wanted[at : at + 8] = address.to_bytes(8, "little")
    q, kv_cache, weights, lens, tables, cu, logits = range(1, 8)
    pack(kernarg, offset, lens, cu, between, q, kv_cache, weights, tables, logits)
    assert kernarg == wanted


def test_g17_the_packer_agrees_with_every_shipped_code_object() -> None:
    for path in sorted(SHIPPED.glob("*.hsaco")):
        (kernel,) = CodeObject.read(path).kernels.values()
        launch.check_abi(kernel)
        assert [arg.name for arg in kernel.explicit_args] == list(launch.ABI)


@pytest.mark.parametrize("compute_units", [1, 32, 64, 256])
def test_g19_any_number_of_compute_units_makes_a_legal_grid(standin: Standin, gpu: Gpu, compute_units: int) -> None:
    gpu.compute_units = compute_units
    inputs = make(Case((130, 67), next_n=2))
    standin.on_launch(Memory(tensors_of(inputs)))
    run(inputs)
    standin.check()
    check(inputs)
    grid = standin.launches[-1].launch.grid
    assert 1 <= grid[0] <= compute_units * 8 and grid[1:] == (1, 1)


def test_g20_a_huge_batch_makes_a_legal_grid(standin: Standin, gpu: Gpu) -> None:
    standin.on_launch(None)
    made = make_call(batch=70000, max_model_len=4, width=1)
    made.out = torch.zeros(70000, 4)
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    grid = standin.launches[-1].launch.grid
    assert 0 < grid[0] * 256 < 2**32 and grid[1:] == (1, 1)


def test_g21_two_hundred_captured_calls_replay_with_the_lengths_of_each_replay(standin: Standin, gpu: Gpu) -> None:
    inputs = make(Case((20,), max_model_len=20))
    graph = Graph(standin, Memory(tensors_of(inputs), strict=False))
    indexer_rt.load("cuda:0")
    graph.capture(lambda: [run(inputs) for _ in range(200)], gpu)
    assert len(graph.nodes) == 200
    for length, node in zip(itertools.cycle(range(1, 21)), graph.nodes, strict=False):
        inputs.lens.fill_(length)
        inputs.clear()
        graph._run(node)
        assert (inputs.out != 12345.0).sum() == length


def test_a_first_load_inside_a_capture_names_load(standin: Standin, gpu: Gpu) -> None:
    made = make_call()
    gpu.capturing = True
    with pytest.raises(HipError, match=r"being captured\. Call indexer_rt\.load\('cuda:0'\) before the capture"):
        indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    assert standin.calls("hipModuleLoadData") == 0
    gpu.capturing = False
    indexer_rt.load()
    assert standin.calls("hipModuleLoadData") == len(list(SHIPPED.glob("*.hsaco")))
    gpu.capturing = True
    indexer_rt.fp8_paged_mqa_logits(**made.arguments())
    assert standin.calls("hipModuleLaunchKernel") == 1


def in_threads(count: int, work: Callable[[int], None]) -> None:
    barrier, errors = threading.Barrier(count), []

    def body(index: int) -> None:
        try:
            barrier.wait()
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_eight_threads_that_start_together_load_one_module_and_are_all_right(standin: Standin, gpu: Gpu) -> None:
    inputs = [make(Case((70, 5 + i), seed=i)) for i in range(8)]
    standin.on_launch(Memory([t for one in inputs for t in tensors_of(one)]))
    before = indexer_rt.stats()

    def work(index: int) -> None:
        for _ in range(2):
            inputs[index].clear()
            run(inputs[index])
            check(inputs[index])

    in_threads(8, work)
    assert standin.calls("hipModuleLoadData") == standin.calls("hipModuleGetFunction") == 1
    key = ("fp8_paged_mqa_logits_h32_r1_page", "cuda:0")
    assert indexer_rt.stats().calls[key] - before.calls.get(key, 0) == 16
    assert indexer_rt.stats().module_loads["cuda:0"] - before.module_loads.get("cuda:0", 0) == 1


def test_a_thousand_mixed_calls_from_eight_threads_are_all_right(standin: Standin, gpu: Gpu) -> None:
    shapes = [
        Case((5,), block_kv=1, preshuffle=False),
        Case((9, 2), next_n=2, block_kv=16),
        Case((12,), next_n=3, max_model_len=30),
        Case((17, 3), next_n=1, preshuffle=False),
        Case((4,), next_n=4, block_kv=4, preshuffle=False),
    ]
    own = [[make(dataclasses.replace(shape, seed=index)) for shape in shapes] for index in range(8)]
    standin.on_launch(Memory([t for row in own for one in row for t in tensors_of(one)], strict=False))
    expected: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        for turn in range(125):
            inputs = own[index][(turn * 3 + index) % 5]
            inputs.clear()
            run(inputs)
            if id(inputs) not in expected:
                check(inputs)
                expected[id(inputs)] = inputs.base.clone()
            assert torch.equal(inputs.base, expected[id(inputs)])

    in_threads(8, work)
    assert len(standin.launches) == 1000 and len(expected) == 40


def test_a_launch_is_not_disturbed_by_another_thread_between_packing_and_launching(standin: Standin, gpu: Gpu) -> None:
    made = [make_call() for _ in range(4)]
    seen: dict[int, set[int]] = {}
    standin.on_launch(lambda launched: seen.setdefault(threading.get_ident(), set()).add(launched.argument("q")))

    def work(index: int) -> None:
        made[index].out = torch.zeros(2, 200)
        for _ in range(300):
            indexer_rt.fp8_paged_mqa_logits(**made[index].arguments())
        assert seen[threading.get_ident()] == {made[index].q_fp8.data_ptr()}

    in_threads(4, work)


# H: code objects and architectures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, name, words",
    [
        (209, "hipErrorNoBinaryForGpu", "for another GPU than this device"),
        (303, "hipErrorSharedObjectInitFailed", "the runtime is too old for it: ROCm 7.0 or newer"),
        (200, "hipErrorInvalidImage", "`indexer-rt verify` says whether the file is whole"),
    ],
)
def test_h01_h04_h11_a_failed_load_says_everything_each_time(
    standin: Standin, gpu: Gpu, code: int, name: str, words: str
) -> None:
    standin.fail("hipModuleLoadData", code)
    for attempt in (1, 2):
        with pytest.raises(HipError) as caught:
            indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
        message = str(caught.value)
        assert message.startswith(f"hipModuleLoadData(fp8_paged_mqa_logits_h32_r1_page): {name} ({code}). ")
        for part in (
            "fp8_paged_mqa_logits_h32_r1_page.hsaco is code object v", "for gfx950",
            "device 0 is gfx950:sramecc+:xnack-, the code object needs gfx950", "HIP runtime 7.2.26015", words,
        ):  # fmt: skip
            assert part in message, part
        assert standin.calls("hipModuleLoadData") == attempt * (2 if code == 200 else 1)
    assert standin.calls("hipModuleUnload") == standin.calls("hipModuleGetFunction") == 0
    assert indexer_rt.HipError is type(caught.value) and caught.value.call == "hipModuleLoadData"


def test_h01_a_device_that_is_not_what_it_says_is_named_by_the_driver(standin: Standin, gpu: Gpu) -> None:
    standin.set_device(0, "gfx942")  # the driver's own view; torch says gfx950
    with pytest.raises(HipError, match=r"hipErrorNoBinaryForGpu \(209\).*the code object needs gfx950"):
        indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())


@pytest.mark.parametrize("architecture", ["gfx942:sramecc+:xnack-", "gfx90a", "gfx1201", "gfx9500", "gfx95"])
def test_h02_another_gpu_is_refused_before_any_hip_call(standin: Standin, gpu: Gpu, architecture: str) -> None:
    gpu.architectures = (architecture,)
    with pytest.raises(ValueError) as caught:
        indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert str(caught.value).startswith(f"device: cuda:0 is {architecture}; the code objects run on gfx950")
    assert not indexer_rt.is_supported(32, 128, 64, True, device="cuda:0")
    assert indexer_rt.why_not(32, 128, 64, True, device="cuda:0") == str(caught.value)
    assert standin.total() == 0


def test_h02_a_torch_for_cuda_is_refused(standin: Standin) -> None:
    assert "belongs to a torch built for CUDA" in str(indexer_rt.why_not(32, 128, 64, True, device="cuda:0"))
    with pytest.raises(ValueError, match="Install torch for ROCm"):
        indexer_rt.load("cuda:0")
    assert standin.total() == 0


def test_h08_a_refused_image_is_tried_once_more_from_its_own_mapping(
    standin: Standin, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = make(Case((70, 3)))
    standin.on_launch(Memory(tensors_of(inputs)))
    standin.fail("hipModuleLoadData", 200, times=1)
    run(inputs)
    check(inputs)
    assert standin.calls("hipModuleLoadData") == 2
    assert "Trying once more, with the image in a mapping of its own" in caplog.text


@pytest.mark.parametrize("architecture", ["gfx950", "gfx950:sramecc+:xnack-", "gfx950:sramecc-:xnack+"])
def test_h09_features_of_a_device_do_not_matter(standin: Standin, gpu: Gpu, architecture: str) -> None:
    gpu.architectures = (architecture,)
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    for path in SHIPPED.glob("*.hsaco"):
        code_object = CodeObject.read(path)
        assert (code_object.xnack, code_object.sramecc) == ("any", "any")


def test_h10_a_spoofed_architecture_is_refused_by_name(
    standin: Standin, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "9.5.0")
    with pytest.raises(ValueError, match=r"HSA_OVERRIDE_GFX_VERSION=9\.5\.0 makes the driver report another GPU"):
        indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert standin.total() == 0


def test_h14_support_is_answered_for_each_device(standin: Standin, gpu: Gpu) -> None:
    gpu.architectures = ("gfx942", "gfx950")
    for _ in range(2):
        assert not indexer_rt.is_supported(32, 128, 64, True, device="cuda:0")
        assert indexer_rt.is_supported(32, 128, 64, True, device="cuda:1")
    assert device.of("cuda:1") is device.of("cuda:1")
    gpu.current = 1
    assert device.of("cuda") is device.of("cuda:1")
    assert standin.total() == 0


# Counting and logging -------------------------------------------------------------------------------------------------


def test_f10_stats_say_which_kernels_ran(standin: Standin, gpu: Gpu) -> None:
    before = indexer_rt.stats()
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    indexer_rt.fp8_paged_mqa_logits(**make_call(block_kv=1, preshuffle=False).arguments())
    threading.Thread(target=lambda: indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())).start()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    after = indexer_rt.stats()
    added = {key: count - before.calls.get(key, 0) for key, count in after.calls.items()}
    added = {key: count for key, count in added.items() if count}
    assert added == {
        ("fp8_paged_mqa_logits_h32_r1_page", "cuda:0"): 3,
        ("fp8_paged_mqa_logits_h32_r1_gather", "cuda:0"): 1,
    }
    names = ("fp8_paged_mqa_logits_h32_r1_page", "fp8_paged_mqa_logits_h32_r1_gather")
    assert after.code_bytes - before.code_bytes == sum((SHIPPED / f"{name}.hsaco").stat().st_size for name in names)
    assert after.module_loads["cuda:0"] - before.module_loads.get("cuda:0", 0) == 2


def test_a_failed_launch_is_not_counted(standin: Standin, gpu: Gpu) -> None:
    before = indexer_rt.stats()
    standin.fail("hipModuleLaunchKernel", 700)
    for _ in range(2):
        with pytest.raises(HipError):
            indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert indexer_rt.stats().calls == before.calls
