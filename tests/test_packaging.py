"""The wheel: its tag, its content, its bytes, and that it works installed, away from the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "indexer_rt", "hsaco")
EPOCH = "1700000000"


def build_wheel(source: Path, out: Path) -> Path:
    """Build a wheel from a fresh copy of the sources, so that no stale build/ gets in."""
    source.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-I", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(source)],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(folder / "source", folder / "out")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone in a new environment that sees this one's packages after its own; return its bin/."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    # -I: an egg-info in the working directory or on PYTHONPATH would count as installed already.
    subprocess.run(
        [str(python), "-I", "-m", "pip", "install", "--no-deps", str(wheel)], check=True, capture_output=True
    )
    (site,) = folder.glob("lib/python*/site-packages")
    # A line of a .pth adds a folder but runs none of that folder's own .pth, so an editable install stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def run(bin_folder: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "INDEXER_RT_"))}
    return subprocess.run([str(bin_folder / words[0]), *words[1:]], cwd=cwd, env=env, capture_output=True, text=True)


def test_wheel_is_for_any_python_3(wheel: Path) -> None:
    assert wheel.name == "indexer_rt-0.1.0-py3-none-any.whl"


def test_h07_wheel_holds_every_code_object_of_the_manifest_with_its_hash(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entries = json.loads(archive.read("indexer_rt/hsaco/manifest.json"))
        hashes = {e["file"]: hashlib.sha256(archive.read(f"indexer_rt/hsaco/{e['file']}")).hexdigest() for e in entries}
        names = archive.namelist()
    assert hashes == {entry["file"]: entry["sha256"] for entry in entries}
    shipped = {Path(name).name for name in names if name.endswith(".hsaco")}
    assert shipped == set(hashes) == {path.name for path in (ROOT / "hsaco").glob("*.hsaco")} != set()


def test_wheel_holds_the_package_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "indexer_rt").rglob("*.py")}
    data = {f"indexer_rt/hsaco/{path.name}" for path in (ROOT / "hsaco").iterdir() if path.is_file()}
    data |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "indexer_rt" / "figures").glob("*.csv")}
    about = "indexer_rt-0.1.0.dist-info/"
    assert {name for name in names if not name.startswith(about)} == package | data
    assert about + "licenses/LICENSE" in names


def test_wheel_is_the_same_twice(wheel: Path, tmp_path: Path) -> None:
    again = build_wheel(tmp_path / "another place" / "source", tmp_path / "out")
    assert again.read_bytes() == wheel.read_bytes()


def test_metadata_asks_for_what_is_needed_and_no_torch(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read("indexer_rt-0.1.0.dist-info/METADATA").decode().splitlines()
    needed = {line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")}
    assert {n for n in needed if "extra ==" not in n} == {"hip-python>=7.2", "numpy", "pyelftools", "msgpack"}
    assert {'torch==2.13.0; extra == "cpu"', 'ziglang==0.17.1; extra == "build"'} <= needed
    assert "Requires-Python: >=3.10" in lines


def test_installed_wheel_imports_from_its_own_folder(installed: Path, tmp_path: Path) -> None:
    result = run(installed, tmp_path, "python", "-c", "import indexer_rt, indexer_rt.emu; print(indexer_rt.__file__)")
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(installed.parent)


def test_installed_wheel_verifies_its_code_objects(installed: Path, tmp_path: Path) -> None:
    result = run(installed, tmp_path, "indexer-rt", "verify")
    assert result.returncode == 0, result.stdout + result.stderr
    assert str(installed.parent) in result.stdout
    count = len(list((ROOT / "hsaco").glob("*.hsaco")))
    assert f"{count} of {count} code objects are sound" in result.stdout


def test_installed_wheel_offers_plugins_that_do_nothing_unless_enabled(installed: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.metadata, sys\n"
        "for group in ('vllm.general_plugins', 'sglang.srt.plugins'):\n"
        "    (plugin,) = importlib.metadata.entry_points(group=group, name='indexer_rt')\n"
        "    print(plugin.value, plugin.load()(), 'torch' in sys.modules)\n"
    )
    result = run(installed, tmp_path, "python", "-c", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "indexer_rt.compat.plugin:vllm_plugin None False",
        "indexer_rt.compat.plugin:sglang_plugin None False",
    ]


def test_installed_wheel_gives_information(installed: Path, tmp_path: Path) -> None:
    result = run(installed, tmp_path, "indexer-rt", "info")
    assert result.returncode == 0, result.stdout + result.stderr
    for path in (ROOT / "hsaco").glob("*.hsaco"):
        assert path.stem in result.stdout
