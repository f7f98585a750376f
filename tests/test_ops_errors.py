"""The operator's front door: its errors, what it asks of the end that runs it, and the settings that change it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calls import Call, make_call, make_packed

import indexer_rt
from indexer_rt import call as calls
from indexer_rt import device, environment, kv_cache, ops
from indexer_rt.environment import Environment
from indexer_rt.errors import AbiMismatch, ChecksumError, CodeObjectError
from indexer_rt.launch import Launch
from indexer_rt.problem import Tensors


class RecordingDevice(device.EmulatedDevice):
    """Take launches like the emulator and write 1.0 to every logit instead of executing them."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.loaded: list[str] = []

    def load(self, kernel: Any) -> None:
        self.loaded.append(kernel.name)

    def run(self, launch: Launch, tensors: Tensors) -> None:
        self.launches.append(launch)
        tensors.logits.fill_(1.0)


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    recording = RecordingDevice()
    monkeypatch.setattr(device, "_EMULATED", recording)
    return recording


@pytest.fixture
def code_objects(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use the stand-ins in place of the shipped code objects."""
    monkeypatch.setattr(ops, "_current", None)
    environment.current.cache_clear()
    indexer_rt.use_code_objects(shelf)
    yield shelf
    environment.current.cache_clear()


@pytest.fixture
def op(code_objects: Path, end: RecordingDevice) -> Callable[[Call], torch.Tensor]:
    return lambda call: indexer_rt.fp8_paged_mqa_logits(**call.arguments())


Op = Callable[[Call], torch.Tensor]


# Calls ----------------------------------------------------------------------------------------------------------------


def test_a_new_output_is_returned(op: Op, end: RecordingDevice) -> None:
    logits = op(make_call(next_n=2))
    assert logits.shape == (4, 200) and logits.dtype == torch.float32 and not logits.requires_grad
    (launch,) = end.launches
    assert launch.kernel.name == "fp8_paged_mqa_logits_h32_r1_page"
    end.num_cus = 1  # and what was small is large
    ops._current, ops.own = None, calls.Own()
    op(make_call(next_n=2))
    assert end.launches[-1].kernel.name == "fp8_paged_mqa_logits_h32_r2_page"


def test_a_given_output_is_returned_itself(op: Op) -> None:
    call = make_call()
    call.out = torch.zeros(2, 300)
    assert op(call) is call.out


def test_the_same_signature_is_planned_once(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    prepare = ops.Runtime.prepare
    monkeypatch.setattr(ops.Runtime, "prepare", lambda self, *a: prepared.append(a) or prepare(self, *a))
    for _ in range(3):
        op(make_call())
        op(make_packed())
    assert len(prepared) == 2


def test_plans_do_not_pile_up(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_MAX_PLANS", 3)
    for length in range(1, 20):
        op(make_call(max_model_len=length))
    assert len(ops._current._ready) <= 3


@pytest.mark.parametrize("options", [{"batch": 0}, {"next_n": 0}, {"max_model_len": 0}])
def test_empty_problems_return_without_a_launch(op: Op, end: RecordingDevice, options: dict[str, int]) -> None:
    call = make_call(**options)
    assert op(call).numel() == 0 and not end.launches


def test_an_empty_table_still_fills(op: Op, end: RecordingDevice) -> None:
    call = make_call(width=0)
    op(call)
    assert len(end.launches) == 1
    call.out = torch.zeros(2, 200)
    op(call)
    assert len(end.launches) == 1  # nothing to write without a fill


def test_tensors_that_require_grad_are_read_as_data(op: Op) -> None:
    call = make_call()
    call.weights = torch.nn.Parameter(call.weights)
    assert not op(call).requires_grad


# Refusals -------------------------------------------------------------------------------------------------------------


def _heads(count: int) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        call.q_fp8 = torch.zeros(2, 1, count, 128, dtype=torch.float8_e4m3fn)
        call.weights = torch.zeros(2, count)

    return apply


def _head_dim(size: int) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        call.q_fp8 = torch.zeros(2, 1, 32, size, dtype=torch.float8_e4m3fn)
        call.kv_cache_fp8 = torch.zeros(16, 64, 1, size + 4, dtype=torch.uint8)

    return apply


def _block(size: int, preshuffle: bool) -> Callable[[Call], None]:
    def apply(call: Call) -> None:
        call.kv_cache_fp8, call.preshuffle = torch.zeros(16, size, 1, 132, dtype=torch.uint8), preshuffle

    return apply


UNSUPPORTED = {
    "heads-8": (_heads(8), {"num_heads": 8}, "num_heads: expected 32, got 8."),
    "heads-33": (_heads(33), {"num_heads": 33}, "num_heads: expected 32, got 33."),
    "heads-0": (_heads(0), {"num_heads": 0}, "num_heads: expected 32, got 0."),
    "dim-64": (_head_dim(64), {"head_dim": 64}, "head_dim: expected 128, got 64."),
    "dim-256": (_head_dim(256), {"head_dim": 256}, "head_dim: expected 128, got 256."),
    "block-3": (
        _block(3, False),
        {"block_kv": 3, "preshuffle": False},
        "block_kv: expected one of 1, 2, 4, 8 or a multiple of 16, got 3.",
    ),
    "block-stride-odd": (
        lambda call: setattr(
            call, "kv_cache_fp8", torch.zeros(16, 8450, dtype=torch.uint8)[:, :8448].unflatten(1, (64, 1, 132))
        ),
        {"kv_block_stride": 8450},
        "kv_cache_fp8: expected a block stride in multiples of 4 bytes, got 8450. Pad the blocks: their scales are "
        "float32.",
    ),
    "block-1-shuffled": (
        _block(1, True),
        {"block_kv": 1},
        "preshuffle: expected False for block_kv 1, got True. Preshuffled blocks are tiles of 16 tokens; smaller "
        "blocks "
        "are plain.",
    ),
}


@pytest.mark.parametrize("change, asked, reason", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_the_operator_and_why_not_give_the_same_reason(
    op: Op, end: RecordingDevice, change: Callable[[Call], None], asked: dict[str, Any], reason: str
) -> None:
    call = make_call()
    change(call)
    with pytest.raises(ValueError) as caught:
        op(call)
    question = {"num_heads": 32, "head_dim": 128, "block_kv": 64, "preshuffle": True} | asked
    assert str(caught.value) == indexer_rt.why_not(**question) == reason
    assert not indexer_rt.is_supported(**question) and not end.launches


@pytest.mark.parametrize("block_kv", [1, 2, 4, 8, 16, 64, 640])
def test_supported_calls_are_supported(op: Op, block_kv: int) -> None:
    assert indexer_rt.is_supported(32, 128, block_kv, device="cpu")
    assert indexer_rt.why_not(32, 128, block_kv) is None
    op(make_call(block_kv=block_kv, preshuffle=False))


def test_support_depends_on_the_device(code_objects: Path) -> None:
    assert not indexer_rt.is_supported(32, device="xpu")
    assert indexer_rt.why_not(32, device="xpu").startswith("device: expected a ROCm device")
    assert not indexer_rt.is_supported(32, device="cuda:0")  # the torch of the tests is not built for ROCm


@pytest.mark.parametrize("rows", [0, -1, 5, 64, 1000000])
def test_rows_per_wave_takes_only_what_there_is(op: Op, rows: int) -> None:
    call = make_call()
    call.rows_per_wave = rows
    with pytest.raises(ValueError, match=rf"^rows_per_wave: expected one of 1, 2, 3, 4, 6 or None, got {rows}\.$"):
        op(call)


@pytest.mark.parametrize("rows", [True, 2.0, "2", torch.tensor(2)])
def test_rows_per_wave_is_an_int(op: Op, rows: Any) -> None:
    call = make_call()
    call.rows_per_wave = 2
    op(call)
    call.rows_per_wave = rows
    with pytest.raises(TypeError, match=r"^rows_per_wave: expected an int or None, got (bool|float|str|Tensor)\.$"):
        op(call)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6])
def test_rows_per_wave_chooses_the_kernel(op: Op, end: RecordingDevice, rows: int) -> None:
    call = make_call()
    call.rows_per_wave = rows
    op(call)
    assert end.launches[-1].kernel.name == f"fp8_paged_mqa_logits_h32_r{rows}_page"


def test_a_wrong_type_is_refused_after_a_good_call_of_equal_value(op: Op) -> None:
    call = make_call(max_model_len=1)
    op(call)
    call.max_model_len = True
    with pytest.raises(TypeError, match=r"max_model_len: expected an int, got bool"):
        op(call)
    call.max_model_len, call.preshuffle = 1, 1
    with pytest.raises(TypeError, match=r"preshuffle: expected a bool, got int"):
        op(call)


@pytest.mark.parametrize("value", [None, "q", torch.zeros(2, 32).to_sparse()])
def test_what_is_no_strided_tensor_is_refused_by_name(op: Op, value: Any) -> None:
    call = make_call()
    call.weights = value
    with pytest.raises(TypeError, match=r"^weights: expected a (torch|strided)"):
        op(call)


def test_the_layout_must_be_given() -> None:
    arguments = make_call().arguments()
    del arguments["preshuffle"]
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'preshuffle'"):
        indexer_rt.fp8_paged_mqa_logits(**arguments)


def test_a_misaligned_tensor_is_refused_at_every_call(op: Op) -> None:
    op(make_call(block_kv=1, preshuffle=False))
    call = make_call(block_kv=1, preshuffle=False)
    call.kv_cache_fp8 = torch.zeros(16 * 132 + 2, dtype=torch.uint8)[2:].view(16, 1, 1, 132)
    with pytest.raises(ValueError, match=r"kv_cache_fp8: expected an address that is a multiple of 4 bytes"):
        op(call)


# The emulated end -----------------------------------------------------------------------------------------------------


@pytest.fixture
def emulated(code_objects: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record what reaches the emulator: (launch, {name: buffer}, strict) a launch."""
    from indexer_rt import emu

    class Buffer:
        def __init__(self, name: str, address: int, data: Any, writable: bool) -> None:
            self.name, self.address, self.data, self.writable = name, address, data, writable

    seen: list[Any] = []
    monkeypatch.setattr(emu, "Buffer", Buffer, raising=False)
    monkeypatch.setattr(
        emu,
        "run",
        lambda launch, buffers, *, strict: seen.append((launch, {b.name: b for b in buffers}, strict)),
        raising=False,
    )
    return seen


def test_the_emulator_gets_exactly_the_memory_that_the_tensors_reach(emulated: list[Any]) -> None:
    call = make_call()
    call.out = torch.zeros(2, 512)[:, 8:208]
    call.context_lens = torch.arange(4, dtype=torch.int32).view(2, 2)[:, 1]
    assert indexer_rt.fp8_paged_mqa_logits(**call.arguments()) is call.out
    ((_, buffers, strict),) = emulated
    assert strict and set(buffers) == {"q", "kv_cache", "weights", "context_lens", "block_tables", "logits"}
    assert len(buffers["logits"].data) == (512 + 200) * 4 and len(buffers["context_lens"].data) == 12
    assert {name for name, buffer in buffers.items() if buffer.writable} == {"logits"}
    assert buffers["context_lens"].data.view("<i4").tolist() == [1, 2, 3]
    buffers["logits"].data.view("<f4")[0] = 5.0
    assert call.out[0, 0] == 5.0


def test_the_emulator_refuses_a_storage_that_was_resized(emulated: list[Any]) -> None:
    call = make_call()
    call.kv_cache_fp8.untyped_storage().resize_(1000)
    with pytest.raises(ValueError, match=r"kv_cache: reaches byte 135168 of a storage that was resized to 1000\."):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    assert call.kv_cache_fp8.untyped_storage().nbytes() == 1000 and not emulated


def test_the_emulator_s_addresses_are_the_packed_ones_and_far_apart(emulated: list[Any]) -> None:
    indexer_rt.fp8_paged_mqa_logits(**make_packed().arguments())
    ((launch, buffers, _),) = emulated
    offsets = {arg.name: arg.offset for arg in launch.kernel.explicit_args}
    for name, buffer in buffers.items():
        assert int.from_bytes(launch.kernarg[offsets[name] :][:8], "little") == buffer.address
        assert buffer.address % 16 == 0
    ordered = sorted(buffers.values(), key=lambda buffer: buffer.address)
    for low, high in itertools.pairwise(ordered):
        assert high.address - low.address - len(low.data) > 2**43
    assert all(buffer.address < 2**47 for buffer in ordered)


def test_the_emulator_sees_the_tensor_s_own_alignment(emulated: list[Any]) -> None:
    call = make_call(block_kv=1, preshuffle=False)
    call.kv_cache_fp8 = torch.zeros(16 * 132 + 12, dtype=torch.uint8)[12:].view(16, 1, 1, 132)
    indexer_rt.fp8_paged_mqa_logits(**call.arguments())
    assert emulated[0][1]["kv_cache"].address % 16 == 12


# Code objects ---------------------------------------------------------------------------------------------------------


def test_swapped_code_objects_serve_the_next_call(op: Op, shelf: Path, tmp_path: Path, end: RecordingDevice) -> None:
    op(make_call())
    shutil.copy(shelf / "fp8_paged_mqa_logits_h32_r6_page.hsaco", tmp_path)
    indexer_rt.use_code_objects(tmp_path)
    op(make_call())
    assert [launch.kernel.name[-7:] for launch in end.launches] == ["r1_page", "r6_page"]
    with pytest.raises(ValueError, match=r"block_kv: no gather kernel for 32 heads in"):
        op(make_call(block_kv=1, preshuffle=False))


def test_a_folder_that_holds_none_changes_nothing(op: Op, tmp_path: Path) -> None:
    with pytest.raises(CodeObjectError, match=r"holds no code object"):
        indexer_rt.use_code_objects(tmp_path)
    op(make_call())


def test_the_environment_names_a_folder(
    shelf: Path, end: RecordingDevice, monkeypatch: pytest.MonkeyPatch, code_objects: Path
) -> None:
    monkeypatch.setenv("INDEXER_RT_HSACO_DIR", str(shelf))
    environment.current.cache_clear()
    monkeypatch.setattr(ops, "_current", None)
    indexer_rt.fp8_paged_mqa_logits(**make_call().arguments())
    assert end.launches[0].kernel.code_object.label.startswith(str(shelf))


def test_a_file_with_another_kernel_is_named(op: Op, shelf: Path, tmp_path: Path) -> None:
    shutil.copy(shelf / "fp8_paged_mqa_logits_h32_r6_page.hsaco", tmp_path / "fp8_paged_mqa_logits_h32_r1_page.hsaco")
    with pytest.raises(
        CodeObjectError, match=r"r1_page\.hsaco: expected kernel \w+_r1_page, holds \w+_r6_page\. Rename"
    ):
        indexer_rt.use_code_objects(tmp_path)


def test_a_file_that_is_not_the_manifest_s_is_named(op: Op, shelf: Path, tmp_path: Path) -> None:
    name = "fp8_paged_mqa_logits_h32_r1_page"
    shutil.copy(shelf / f"{name}.hsaco", tmp_path)
    (tmp_path / "manifest.json").write_text(
        f'[{{"name": "{name}", "file": "{name}.hsaco", "sha256": "{"0" * 64}", "symbol": "{name}", "problem": '
        '{"num_heads": 32, "head_dim": 128, "rows_per_wave": 1, "addressing": "page"}}]'
    )
    with pytest.raises(
        ChecksumError, match=rf"{name}\.hsaco: sha256 is [0-9a-f]{{64}}, the manifest says 0{{64}}\. Run"
    ):
        indexer_rt.use_code_objects(tmp_path)


def test_a_kernel_with_other_arguments_is_refused_by_swap_call_and_load(
    op: Op, compile_kernel: Callable[..., Path], end: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compile_kernel("fp8_paged_mqa_logits_h32_r1_page", {"logits": ("global_buffer", 8)})
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    swap = indexer_rt.use_code_objects
    for attempt in (lambda: swap(path.parent), lambda: op(make_call()), lambda: indexer_rt.load("cpu")):
        with pytest.raises(AbiMismatch, match=r"'q' is missing; 'kv_cache' is missing"):
            attempt()
        monkeypatch.setattr(ops, "_current", ops.Runtime(ops.Catalog.read(path.parent)))  # as the environment does
    assert not end.loaded and not end.launches


def test_load_reads_and_loads_everything(code_objects: Path, end: RecordingDevice) -> None:
    indexer_rt.load()
    assert sorted(end.loaded) == sorted(path.stem for path in code_objects.glob("*.hsaco"))
    with pytest.raises(ValueError, match=r"device: expected a ROCm device"):
        indexer_rt.load("xpu")


# Settings -------------------------------------------------------------------------------------------------------------


def test_strict_checks_contents_before_the_launch(
    op: Op, end: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = make_call()
    call.block_tables[1, 0] = 99
    op(call)
    monkeypatch.setenv("INDEXER_RT_STRICT", "1")
    environment.current.cache_clear()
    with pytest.raises(ValueError, match=r"block_tables: row 1, column 0 is 99, expected 0 to 15"):
        op(call)
    call.block_tables[1, 0] = 3
    kv_cache.scales_of(call.kv_cache_fp8)[3, 1] = -0.5
    with pytest.raises(ValueError, match=r"slot 1\) is -0\.5, expected >= 0"):
        op(call)
    assert len(end.launches) == 1


def test_settings_are_read() -> None:
    read = Environment.read(
        {"INDEXER_RT_HSACO_DIR": "/a", "INDEXER_RT_STRICT": "1", "INDEXER_RT_LOG": "DEBUG", "HOME": "/"}
    )
    assert read == Environment(hsaco_dir=Path("/a"), libhip=None, strict=True, log="debug")
    assert Environment.read({"INDEXER_RT_LIBHIP": "/b.so"}).libhip == Path("/b.so")
    assert Environment.read({"INDEXER_RT_EMULATOR": "fast"}) == Environment(fast_emulator=True)
    assert Environment.read({"INDEXER_RT_EMULATOR": "strict"}) == Environment()
    assert Environment.read({"INDEXER_RT_ENABLE": "1"}) == Environment(enable=True)
    assert (
        Environment.read({})
        == Environment.read({"INDEXER_RT_STRICT": "0", "INDEXER_RT_HSACO_DIR": ""})
        == Environment()
    )


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"INDEXER_RT_STRICT": "yes"}, r"INDEXER_RT_STRICT: expected 0 or 1, got 'yes'"),
        ({"INDEXER_RT_ENABLE": "true"}, r"INDEXER_RT_ENABLE: expected 0 or 1, got 'true'"),
        ({"INDEXER_RT_EMULATOR": "1"}, r"INDEXER_RT_EMULATOR: expected strict or fast, got '1'"),
        ({"INDEXER_RT_LOG": "loud"}, r"INDEXER_RT_LOG: expected 0, 1 \(info\) or one of debug, .*, error, got 'loud'"),
        (
            {"INDEXER_RT_STRIKT": "1"},
            r"INDEXER_RT_STRIKT: no such setting\. indexer_rt reads INDEXER_RT_EMULATOR, INDEXER_RT_ENABLE, ",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Environment.read(variables)


def test_the_package_has_no_other_names() -> None:
    assert "fp8_paged_mqa_logits" in dir(indexer_rt) and callable(indexer_rt.reference.fp8_paged_mqa_logits)
    with pytest.raises(AttributeError, match=r"module 'indexer_rt' has no attribute 'logits'"):
        indexer_rt.logits  # noqa: B018
