"""Fixtures that several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hip_standin
import pytest

from indexer_rt import call, catalog, environment, hip, launch, ops, torch_gpu

# bench/ is not installed; an installed indexer_rt still comes first.
sys.path.append(str(Path(__file__).resolve().parent.parent))

_C_TYPES = {("global_buffer", 8): "char*", ("by_value", 8): "long", ("by_value", 4): "int"}

# HIP text of a kernel that takes the operator's arguments and uses them all, so that it runs on any of the operator's
# inputs: the first work-item of the grid writes the sum of its scalars to the first logit.
_BODY = """
extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void {name}({parameters}) {{
  if (__builtin_amdgcn_workgroup_id_x() == 0 && __builtin_amdgcn_workitem_id_x() == 0)
    *(float*)logits = (float)({total});
}}
"""


def hip_source(name: str, abi: dict[str, tuple[str, int]]) -> str:
    parameters = ", ".join(f"{_C_TYPES[kind]} {arg}" for arg, kind in abi.items())
    total = " + ".join(arg for arg, (kind, _) in abi.items() if kind == "by_value") or "0"
    return _BODY.format(name=name, parameters=parameters, total=total)


def compile_hip(source: str, directory: Path, name: str, *flags: str) -> Path:
    """Compile HIP text to ``directory/name.hsaco`` with the pip toolchain."""
    text, assembly, relocatable, hsaco = (directory / f"{name}.{end}" for end in ("hip", "s", "o", "hsaco"))
    text.write_text(source)
    zig = [sys.executable, "-m", "ziglang"]
    hip = ["-x", "hip", "--offload-arch=gfx950", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O3"]
    steps = (
        [*zig, "clang", *hip, "-mcode-object-version=5", "-fhip-kernel-arg-name", *flags, "-S", "-o", assembly, text],
        [*zig, "clang", "--target=amdgcn-amd-amdhsa", "-mcpu=gfx950", "-c", assembly, "-o", relocatable],
        [*zig, "ld.lld", "-shared", relocatable, "-o", hsaco],
    )
    for step in steps:
        done = subprocess.run([str(part) for part in step], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return hsaco


@pytest.fixture(scope="session")
def compile_kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles a kernel taking ``abi`` into a new folder and returns the file."""
    pytest.importorskip("ziglang", reason="the pip toolchain is not installed")

    def compile_one(name: str, abi: dict[str, tuple[str, int]] = launch.ABI, *flags: str) -> Path:
        return compile_hip(hip_source(name, abi), tmp_path_factory.mktemp("kernel"), name, *flags)

    return compile_one


@pytest.fixture(scope="session")
def stand_in(compile_kernel: Callable[..., Path]) -> Path:
    """Return a code object with the operator's arguments and none of its arithmetic, named as a page kernel."""
    return compile_kernel("fp8_paged_mqa_logits_h32_r2_page")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stand-in for every variant of 32 heads, named as catalog wants it, without a manifest."""
    pytest.importorskip("ziglang", reason="the pip toolchain is not installed")
    folder, work = tmp_path_factory.mktemp("shelf"), tmp_path_factory.mktemp("work")
    for addressing in ("page", "gather"):
        for rows in (1, 2, 3, 4, 6):
            name = f"fp8_paged_mqa_logits_h32_r{rows}_{addressing}"
            compile_hip(hip_source(name, launch.ABI), work, name).rename(folder / f"{name}.hsaco")
    return folder


@pytest.fixture(scope="session")
def loaded_standin(tmp_path_factory: pytest.TempPathFactory) -> hip_standin.Standin:
    """Return the stand-in that this process has mapped as its one libamdhip64."""
    pytest.importorskip("hip", reason="hip-python is not installed")
    return hip_standin.Standin(hip_standin.compile_standin(tmp_path_factory.mktemp("hip")))


@pytest.fixture
def standin(loaded_standin: hip_standin.Standin, monkeypatch: pytest.MonkeyPatch) -> hip_standin.Standin:
    """Return the stand-in as a new process would find it: nothing counted, nothing fails, no module loaded by us."""
    for name in ("HSA_OVERRIDE_GFX_VERSION", *(name for name in os.environ if name.startswith("INDEXER_RT_"))):
        monkeypatch.delenv(name, raising=False)
    loaded_standin.reset()
    monkeypatch.setattr(hip, "_devices", {})
    monkeypatch.setattr(ops, "_current", None)
    monkeypatch.setattr(call, "own", call.Own())
    monkeypatch.setattr(ops, "own", call.own)
    environment.current.cache_clear()
    yield loaded_standin
    environment.current.cache_clear()
    loaded_standin.reset()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the preconditions that cost reads of device data, as INDEXER_RT_STRICT=1 does."""
    monkeypatch.setattr(environment, "current", lambda: environment.Environment(strict=True))


@pytest.fixture
def gpu(standin: hip_standin.Standin, monkeypatch: pytest.MonkeyPatch) -> hip_standin.Gpu:
    """Put the HIP end under CPU tensors: answer for torch about GPUs, two MI355X."""
    gpu = hip_standin.Gpu(standin)
    monkeypatch.setattr(torch_gpu, "_current", gpu)
    return gpu


def pytest_terminal_summary(terminalreporter) -> None:
    """Print what caught each planted mistake (tests/test_mutations.py), and the score."""
    stats = terminalreporter.stats
    reports = [report for outcome in ("passed", "failed") for report in stats.get(outcome, ()) if report.when == "call"]
    caught = [(name, text, report.passed) for report in reports for name, text in report.user_properties]
    lines = [(text, passed) for name, text, passed in caught if name == "mutation"]
    if lines:
        terminalreporter.section("planted mistakes")
        for text, _ in sorted(lines):
            terminalreporter.write_line(text[:160])
        terminalreporter.write_line(f"score: {sum(passed for _, passed in lines)} of {len(lines)} caught")


@pytest.fixture
def fewest_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose rows per wave as for large problems, so that small ones meet the kernels of many rows too."""
    monkeypatch.setattr(catalog, "FEW_UNITS", {})
