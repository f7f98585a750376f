"""The HIP end, without a GPU: real hip-python on a stand-in libamdhip64, and torch's view of the device replaced."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from indexer_rt import device, hip
from indexer_rt.code_object import CodeObject
from indexer_rt.errors import HipError, RuntimeNotFound
from indexer_rt.launch import Launch

ARCH = "gfx950:sramecc+:xnack-"
ROOT = Path(__file__).parent.parent


class FakeTorch:
    """Say what torch would about its devices: ``arches[i]`` is device i. Remembers which device was current."""

    def __init__(self, *arches: str, num_cus: int = 256) -> None:
        self.arches, self.num_cus, self.current, self.capturing = arches, num_cus, 0, False
        self.entered: list[int] = []

    def install(self, patch: pytest.MonkeyPatch) -> FakeTorch:
        patch.setattr(torch.version, "hip", "7.2.0")
        patch.setattr(torch.cuda, "current_device", lambda: self.current)
        patch.setattr(torch.cuda, "get_device_properties", self.properties)
        patch.setattr(torch.cuda, "device", self.device)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        patch.setattr(torch.cuda, "current_stream", lambda i: types.SimpleNamespace(cuda_stream=0x1000 + i))
        return self

    def properties(self, which: Any) -> types.SimpleNamespace:
        index = torch.device(which).index if not isinstance(which, int) else which
        return types.SimpleNamespace(
            gcnArchName=self.arches[self.current if index is None else index], multi_processor_count=self.num_cus
        )

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        self.entered.append(index)
        try:
            yield
        finally:
            self.current = before


class FakeHip:
    """Answer hip-python's calls: ``codes[call]`` where given, else success. Remembers the calls."""

    Status = enum.IntEnum(
        "Status",
        {
            "hipSuccess": 0,
            "hipErrorInvalidValue": 1,
            "hipErrorInvalidImage": 200,
            "hipErrorNoBinaryForGpu": 209,
            "hipErrorSharedObjectInitFailed": 303,
            "hipErrorNotFound": 500,
            "hipErrorIllegalAddress": 700,
            "hipErrorContextIsDestroyed": 709,
            "hipErrorUnknown": 999,
        },
    )

    def __init__(self, **codes: int) -> None:
        self.codes, self.calls = codes, []

    def answer(self, call: str, result: Any = None) -> Any:
        self.calls.append(call)
        return (self.Status(self.codes.get(call, 0)), *([] if result is None else [result]))

    def hipModuleLoadData(self, image: bytes) -> Any:
        assert image.startswith(b"\x7fELF")
        return self.answer("hipModuleLoadData", object())

    def hipModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return self.answer("hipModuleGetFunction", name)

    def hipModuleLaunchKernel(self, *arguments: Any) -> Any:
        return self.answer("hipModuleLaunchKernel")

    def hipRuntimeGetVersion(self) -> Any:
        return self.Status(self.codes.get("hipRuntimeGetVersion", 0)), 70226015


@pytest.fixture
def launched(stand_in: Path) -> Launch:
    kernel = CodeObject.read(stand_in).kernels[stand_in.stem]
    return Launch(kernel, (3, 1, 1), (256, 1, 1), 0, bytes(range(168)))


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    monkeypatch.delenv("HSA_OVERRIDE_GFX_VERSION", raising=False)
    monkeypatch.setattr(hip, "_devices", {})
    return FakeTorch(ARCH, ARCH).install(monkeypatch)


@pytest.fixture
def fake_hip(monkeypatch: pytest.MonkeyPatch) -> FakeHip:
    fake = FakeHip()
    monkeypatch.setattr(hip, "_library", lambda: fake)
    return fake


# The real bindings on a stand-in library ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ziglang", reason="the pip toolchain is not installed")
    pytest.importorskip("hip", reason="hip-python is not installed")
    library = tmp_path_factory.mktemp("lib") / "libamdhip64.so"
    source = Path(__file__).parent / "stub_libamdhip64.c"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-o", library, source],
        check=True,
        capture_output=True,
    )
    return library


def run_python(body: str, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python text in a fresh process, where no HIP library is open yet."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("INDEXER_RT_", "ROCM_"))}
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent)))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)],
        env=inherited | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


PRELUDE = """
    import ctypes, json, sys
    import pytest
    from test_hip import ARCH, FakeTorch, last_launch
    from indexer_rt import hip
    from indexer_rt.code_object import CodeObject
    from indexer_rt.errors import HipError
    from indexer_rt.launch import Launch
    FakeTorch(ARCH, ARCH).install(pytest.MonkeyPatch())
    (kernel,) = CodeObject.read(sys.argv[1]).kernels.values()
    launch = Launch(kernel, (3, 1, 1), (256, 1, 1), 16, bytes(range(168)))
    end = hip.HipDevice(1)
"""


def last_launch(library: str) -> dict[str, Any]:
    """Read from the stand-in library, open in this process, what it was last told to launch."""

    class Last(ctypes.Structure):
        _fields_ = (
            ("grid", ctypes.c_uint32 * 3),
            ("block", ctypes.c_uint32 * 3),
            ("lds_bytes", ctypes.c_uint32),
            ("stream", ctypes.c_uint64),
            ("kernarg_bytes", ctypes.c_uint64),
            ("kernarg", ctypes.c_uint8 * 4096),
        )

    stub = ctypes.CDLL(library)
    stub.stub_last.restype = ctypes.POINTER(Last)
    stub.stub_counts.restype = ctypes.POINTER(ctypes.c_uint64)
    stub.stub_name.restype = ctypes.c_char_p
    last = stub.stub_last().contents
    return {
        "grid": list(last.grid),
        "block": list(last.block),
        "lds_bytes": last.lds_bytes,
        "stream": last.stream,
        "kernarg": list(last.kernarg[: last.kernarg_bytes]),
        "counts": stub.stub_counts()[:3],
        "name": stub.stub_name().decode(),
    }


def test_a_launch_reaches_the_library_as_it_was_packed(stub_library: Path, stand_in: Path) -> None:
    body = PRELUDE + "    for _ in range(3): end.run(launch, None)\n    print(json.dumps(last_launch(sys.argv[2])))\n"
    done = run_python(body, stand_in, stub_library, INDEXER_RT_LIBHIP=str(stub_library))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "grid": [3, 1, 1],
        "block": [256, 1, 1],
        "lds_bytes": 16,
        "stream": 0x1001,
        "kernarg": list(range(168)),
        "counts": [1, 1, 3],  # loaded once, launched three times
        "name": stand_in.stem,
    }


def test_the_bindings_own_search_finds_a_library_too(stub_library: Path, stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").symlink_to(stub_library)
    done = run_python(
        PRELUDE + "    end.run(launch, None)\n    print('launched')\n",
        stand_in,
        ROCM_PATH=str(tmp_path),
        LD_LIBRARY_PATH=str(tmp_path / "lib"),
    )
    assert done.stdout == "launched\n", done.stderr


def test_the_library_s_errors_have_their_real_names(stub_library: Path, stand_in: Path) -> None:
    body = PRELUDE + (
        "    ctypes.CDLL(sys.argv[2]).stub_fail(b'hipModuleLoadData', 209)\n"
        "    for _ in range(2):\n"
        "        with pytest.raises(HipError) as caught: end.run(launch, None)\n"
        "        print(caught.value.code, caught.value.name, caught.value.call, '|', caught.value)\n"
        "    print(last_launch(sys.argv[2])['counts'])\n"
    )
    done = run_python(body, stand_in, stub_library, INDEXER_RT_LIBHIP=str(stub_library))
    assert done.returncode == 0, done.stderr
    first, second, counts = done.stdout.splitlines()
    assert first == second and first == (
        f"209 hipErrorNoBinaryForGpu hipModuleLoadData | hipModuleLoadData({stand_in} (for gfx950, code object v5); "
        "on cuda:1 "
        f"({ARCH})): hipErrorNoBinaryForGpu (209). HIP runtime 7.2.26015. The image is for another GPU than this "
        "device."
    )
    assert counts == "[2, 0, 0]"  # tried again, and nothing was done with the module of the failed load


def test_no_runtime_says_what_to_do(stand_in: Path) -> None:
    pytest.importorskip("hip", reason="hip-python is not installed")
    if any(Path(p).exists() for p in ("/opt/rocm", "/dev/kfd")):
        pytest.skip("this machine has ROCm")
    body = PRELUDE + (
        "    from indexer_rt.errors import RuntimeNotFound\n"
        "    with pytest.raises(RuntimeNotFound) as caught: end.load(kernel)\n"
        "    print(caught.value)\n"
    )
    done = run_python(body, stand_in)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hipModuleLoadData: no usable HIP runtime: failed to dlopen")
    assert "Install ROCm 7.2 or newer, or set INDEXER_RT_LIBHIP to libamdhip64.so. CPU tensors need none" in done.stdout


def test_importing_the_package_loads_neither_torch_nor_hip() -> None:
    done = run_python(
        "import sys, indexer_rt; print([m for m in ('torch', 'hip', 'rocm.bindings') if m in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


# Finding hip-python ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_import(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(hip, "_imported", [])
    return monkeypatch


def test_missing_bindings_say_what_to_install(fresh_import: pytest.MonkeyPatch) -> None:
    fresh_import.setitem(sys.modules, "hip", None)
    with pytest.raises(
        RuntimeNotFound, match=r"hip-python cannot be imported \(.*\)\. .*pip install 'hip-python>=7\.2'"
    ):
        hip._library()


def test_another_package_of_the_same_name_is_named(fresh_import: pytest.MonkeyPatch) -> None:
    impostor = types.ModuleType("hip")
    impostor.hip = types.ModuleType("hip.hip")
    impostor.hip.__file__ = "/site-packages/hip/hip.py"
    fresh_import.setitem(sys.modules, "hip", impostor)
    with pytest.raises(RuntimeNotFound, match=r"the module 'hip' at /site-packages/hip/hip\.py is not hip-python"):
        hip._library()


def test_a_library_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeNotFound, match=r"INDEXER_RT_LIBHIP: .*gone\.so is not a file\. Set it to a libamdhip64"):
        hip._point_at(tmp_path / "gone.so")


def test_older_bindings_are_told_the_library_their_own_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libamdhip64.so").touch()
    older = types.ModuleType("hip")
    older.chip = types.ModuleType("hip.chip")
    monkeypatch.setitem(sys.modules, "rocm.bindings.util", None)
    monkeypatch.setitem(sys.modules, "hip", older)
    hip._point_at(tmp_path / "libamdhip64.so")
    assert older.chip.DLL == str(tmp_path / "libamdhip64.so").encode()


# Devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx950", "gfx950:sramecc+:xnack-", "gfx950:xnack+"])
def test_a_gfx950_with_any_features_is_taken(fake_torch: FakeTorch, arch: str) -> None:
    fake_torch.arches = (arch,)
    assert device.why_not("cuda:0") is None
    assert device.of("cuda:0").name == f"cuda:0 ({arch})"


@pytest.mark.parametrize("arch", ["gfx942:sramecc+:xnack-", "gfx90a", "gfx1201", "gfx9500"])
def test_another_gpu_is_refused_before_any_hip_call(fake_torch: FakeTorch, fake_hip: FakeHip, arch: str) -> None:
    fake_torch.arches = (arch,)
    with pytest.raises(
        ValueError, match=rf"device: cuda:0 is {arch}; the code objects run on gfx950".replace("+", r"\+")
    ):
        device.of("cuda:0")
    assert fake_hip.calls == []


def test_each_device_is_asked_about_itself(fake_torch: FakeTorch) -> None:
    fake_torch.arches = ("gfx1036", ARCH)
    assert device.why_not("cuda:0") is not None and device.why_not("cuda:1") is None
    assert device.of("cuda:1") is device.of("cuda:1")
    fake_torch.current = 1
    assert device.of("cuda") is device.of("cuda:1")


def test_a_spoofed_architecture_is_refused(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "9.5.0")
    with pytest.raises(
        ValueError, match=r"HSA_OVERRIDE_GFX_VERSION=9\.5\.0 makes the driver report another GPU.*Unset it"
    ):
        device.of("cuda:0")


def test_a_torch_for_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ValueError, match=r"device: cuda:0 belongs to a torch built for CUDA .* Install torch for ROCm"):
        device.of("cuda:0")


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"device: expected a ROCm device \('cuda'\) or 'cpu' \(emulated\), got xpu:0"):
        device.of("xpu:0")


@pytest.mark.parametrize("num_cus", [1, 32, 64])
def test_the_number_of_compute_units_is_the_device_s(fake_torch: FakeTorch, num_cus: int) -> None:
    fake_torch.num_cus = num_cus
    assert device.of("cuda:0").num_cus == num_cus


def test_work_is_done_on_the_tensor_s_device_and_the_current_one_is_restored(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch
) -> None:
    device.of("cuda:1").run(launched, None)
    assert set(fake_torch.entered) == {1} and fake_torch.current == 0


def test_modules_are_loaded_once_per_device(fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch) -> None:
    for _ in range(1000):
        device.of("cuda:0").run(launched, None)
    device.of("cuda:1").load(launched.kernel)
    assert fake_hip.calls.count("hipModuleLoadData") == 2 and fake_hip.calls.count("hipModuleLaunchKernel") == 1000


def test_loading_while_capturing_says_to_load_before(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch
) -> None:
    fake_torch.capturing = True
    end = device.of("cuda:0")
    with pytest.raises(HipError, match=r"is not loaded on cuda:0 .*being captured\. Call indexer_rt\.load\(\) before"):
        end.run(launched, None)
    assert fake_hip.calls == []
    fake_torch.capturing = False
    end.load(launched.kernel)
    fake_torch.capturing = True
    end.run(launched, None)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, code, name, advice",
    [
        ("hipModuleLoadData", 200, "hipErrorInvalidImage", "could not read the image"),
        ("hipModuleLoadData", 209, "hipErrorNoBinaryForGpu", "for another GPU than this device"),
        ("hipModuleLoadData", 303, "hipErrorSharedObjectInitFailed", "newer than this ROCm can read"),
        ("hipModuleGetFunction", 500, "hipErrorNotFound", "holds no kernel of that name"),
    ],
)
def test_a_failed_load_names_file_targets_runtime_and_error(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch, call: str, code: int, name: str, advice: str
) -> None:
    fake_hip.codes[call] = code
    for _ in range(2):  # the second call gives the same clear error
        with pytest.raises(HipError) as caught:
            device.of("cuda:0").run(launched, None)
        message, label = str(caught.value), launched.kernel.code_object.label
        assert (caught.value.code, caught.value.name, caught.value.call) == (code, name, call)
        assert message.startswith(f"{call}({label} (for gfx950, code object v5); on cuda:0 ({ARCH})): {name} ({code}).")
        assert "HIP runtime 7.2.26015" in message and advice in message
    assert "hipModuleLaunchKernel" not in fake_hip.calls


@pytest.mark.parametrize(
    "code, name, advice",
    [
        (1, "hipErrorInvalidValue", "refused an argument"),
        (700, "hipErrorIllegalAddress", "It may come from earlier work"),
        (709, "hipErrorContextIsDestroyed", "another copy of the HIP runtime"),
        (999, "hipErrorUnknown", "It may come from earlier work on the device"),
    ],
)
def test_a_failed_launch_names_kernel_device_and_error_and_is_not_retried(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch, code: int, name: str, advice: str
) -> None:
    fake_hip.codes["hipModuleLaunchKernel"] = code
    with pytest.raises(HipError) as caught:
        device.of("cuda:0").run(launched, None)
    assert str(caught.value).startswith(
        f"hipModuleLaunchKernel({launched.kernel.name} on cuda:0 ({ARCH}), grid (3, 1, 1), block (256, 1, 1)): {name} "
        f"({code})."
    )
    assert advice in str(caught.value)
    assert fake_hip.calls.count("hipModuleLaunchKernel") == 1


def test_an_unknown_runtime_version_does_not_hide_the_error(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch
) -> None:
    fake_hip.codes.update(hipModuleLoadData=209, hipRuntimeGetVersion=1)
    with pytest.raises(HipError, match=r"hipErrorNoBinaryForGpu \(209\)\. HIP runtime of unknown version\."):
        device.of("cuda:0").load(launched.kernel)


def test_other_errors_of_the_bindings_pass(
    fake_torch: FakeTorch, fake_hip: FakeHip, launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(image: bytes) -> Any:
        raise RuntimeError("something else")

    monkeypatch.setattr(fake_hip, "hipModuleLoadData", broken)
    with pytest.raises(RuntimeError, match=r"^something else$"):
        device.of("cuda:0").load(launched.kernel)
