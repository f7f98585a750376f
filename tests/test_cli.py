"""The command line: what it prints, what it finds wrong, and its exit status."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hip_standin
import pytest

from indexer_rt import cli, demo, environment, hip, kv_cache, manifest, ops
from indexer_rt.code_object import CodeObject
from indexer_rt.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = json.loads((ROOT / "hsaco" / "manifest.json").read_text())
NAME, OTHER = "fp8_paged_mqa_logits_h32_r3_page", "fp8_paged_mqa_logits_h32_r1_page"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the code object called NAME and one other to a folder that a test may spoil."""
    folder = tmp_path / "objects"
    folder.mkdir()
    entries = [entry for entry in SHIPPED if entry["name"] in (NAME, OTHER)]
    for entry in entries:
        shutil.copy(ROOT / "hsaco" / entry["file"], folder)
    (folder / "manifest.json").write_text(manifest.text_of(entries))
    return folder


def edit_entry(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    entries = json.loads((folder / "manifest.json").read_text())
    edit(next(entry for entry in entries if entry["name"] == NAME))
    (folder / "manifest.json").write_text(manifest.text_of(entries))


def edit_code_object(folder: Path, edit: Callable[[bytearray], None]) -> None:
    """Change a code object's bytes and the manifest's hash with them."""
    path = folder / f"{NAME}.hsaco"
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)
    edit_entry(folder, lambda entry: entry.update(sha256=hashlib.sha256(data).hexdigest()))


def faults_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Verify a spoiled folder; return its fault messages without their common start."""
    assert cli.main(["verify", str(folder)]) == 1
    printed = capsys.readouterr()
    assert "1 of 2 code objects are sound" in printed.out
    lines = printed.err.splitlines()
    assert all(line.startswith(f"indexer-rt verify: {NAME}: ") for line in lines), lines
    return [line.removeprefix(f"indexer-rt verify: {NAME}: ") for line in lines]


def test_verify_finds_the_shipped_code_objects_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"{len(SHIPPED)} of {len(SHIPPED)} code objects are sound" in printed.out
    assert "source hash" in printed.out
    rows = [line.split() for line in printed.out.splitlines() if line.startswith("fp8_")]
    assert [row[0] for row in rows] == [entry["name"] for entry in SHIPPED]
    assert all(int(row[1]) > 100 and row[2] == "sound" for row in rows)


# A wrong value for each key of an entry that the ELF proves.
WRONG = {
    "target": "gfx942",
    "symbol": "other",
    "launch": {"block": 128, "lds_bytes": 0},
    "vgprs": 1,
    "agprs": 256,
    "sgprs": 1,
    "spills": 1,
    "kernarg_bytes": 4,
    "args": [],
    "compiler": "clang version 1.0",
}


@pytest.mark.parametrize("key", WRONG)
def test_verify_finds_a_manifest_field_that_the_elf_denies(
    folder: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_entry(folder, lambda entry: entry.update({key: WRONG[key]}))
    (fault,) = faults_of(folder, capsys)
    assert fault.startswith(f"{key}: the manifest says {WRONG[key]!r}, the ELF says ")


@pytest.mark.parametrize("field", ["name", "kind", "offset", "size"])
def test_verify_finds_one_wrong_argument_field(folder: Path, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    edit_entry(folder, lambda entry: entry["args"][2].update({field: 12345}))
    (fault,) = faults_of(folder, capsys)
    assert fault.startswith("args: the manifest says ") and "12345" in fault


@pytest.mark.parametrize(
    ("key", "value"), [("num_heads", 64), ("head_dim", 64), ("rows_per_wave", 2), ("addressing", "gather")]
)
def test_verify_finds_a_problem_that_the_flags_deny(
    folder: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_entry(folder, lambda entry: entry["problem"].update({key: value}))
    assert any(str(value) in fault or "GATHER" in fault for fault in faults_of(folder, capsys))


def test_verify_finds_flags_of_another_variant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_entry(folder, lambda entry: entry.update(flags=entry["flags"].replace("ROWS_PER_WAVE=3", "ROWS_PER_WAVE=2")))
    (fault,) = faults_of(folder, capsys)
    assert fault.startswith("flags define ") and "'ROWS_PER_WAVE': '3'" in fault


def test_verify_finds_registers_that_leave_too_little_room(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_entry(folder, lambda entry: entry.update(flags=entry["flags"].replace("PER_SIMD=2", "PER_SIMD=4")))
    (fault,) = faults_of(folder, capsys)
    assert fault == "flags: WAVES_PER_SIMD is 4, but the registers leave room for 2"


@pytest.mark.parametrize("key", ["name", "file", "sha256", "problem", "compiler", "flags"])
@pytest.mark.parametrize("value", [None, 7, [1]])
def test_verify_names_a_manifest_field_of_the_wrong_type(
    folder: Path, key: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads((folder / "manifest.json").read_text())[:1]
    entries[0][key] = value
    (folder / "manifest.json").write_text(manifest.text_of(entries))
    assert cli.main(["verify", str(folder)]) == 1
    assert f"entry 0: expected {key!r} of type " in capsys.readouterr().err


def test_verify_finds_a_flipped_bit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"{NAME}.hsaco"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (fault,) = faults_of(folder, capsys)
    assert f"{path}: sha256 is {hashlib.sha256(data).hexdigest()}, the manifest says " in fault


def test_verify_finds_an_instruction_that_does_not_decode(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = CodeObject.read(folder / f"{NAME}.hsaco").kernels[NAME].code

    def spoil(data: bytearray) -> None:
        start = data.index(code)
        data[start : start + 4] = b"\xff\xff\xff\xff"

    edit_code_object(folder, spoil)
    (fault,) = faults_of(folder, capsys)
    assert "ffffffff" in fault and "+0x0" in fault


def test_verify_finds_a_scaled_mfma(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = CodeObject.read(folder / f"{NAME}.hsaco").kernels[NAME].code
    # v_mfma_scale_f32_16x16x128_f8f6f4 v[2:5], v[4:11], v[4:11], 0, v2, v3 op_sel_hi:[0,0,0], as LLVM 22 assembles it.
    scaled = b"".join(word.to_bytes(4, "little") for word in (0xD3AC0000, 0x00020702, 0xD3AD0802, 0x02020904))

    def spoil(data: bytearray) -> None:
        start = data.index(code)
        data[start : start + 16] = scaled

    edit_code_object(folder, spoil)
    assert any("holds a v_mfma_scale_* at +0x0" in fault for fault in faults_of(folder, capsys))


def test_verify_finds_a_missing_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / f"{NAME}.hsaco").unlink()
    (fault,) = faults_of(folder, capsys)
    assert (
        fault
        == f"{folder / NAME}.hsaco: cannot be read: No such file or directory. Run ./build.sh or reinstall the wheel."
    )


def test_verify_finds_a_file_that_the_manifest_does_not_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(folder / f"{NAME}.hsaco", folder / "stray.hsaco")
    assert cli.main(["verify", str(folder)]) == 1
    assert "stray.hsaco has no entry in manifest.json" in capsys.readouterr().err


def test_verify_finds_sources_that_the_code_objects_were_not_made_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder.rename(folder.with_name("hsaco"))
    kernels = Path(shutil.copytree(ROOT / "kernels", folder.parent / "kernels"))
    assert cli.main(["verify", str(folder)]) == 0
    (kernels / "late.h").write_text("// not in the build\n")
    assert cli.main(["verify", str(folder)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("source_sha256: the manifest says " in line for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[", "not a manifest (JSONDecodeError"),
        ("[{}]", "not a manifest (KeyError: 'name')"),
        ("[\n\n]\n", "lists no code object"),
        ("reordered", "keys, order or spacing are not what build.sh writes"),
    ],
)  # fmt: skip
def test_verify_refuses_what_is_no_manifest(
    folder: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "manifest.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(json.dumps(SHIPPED[::-1]) if text == "reordered" else text)
    assert cli.main(["verify", str(folder)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"indexer-rt verify: {path}: ") and message in error


def test_setting_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.current.cache_clear()
    monkeypatch.setenv("INDEXER_RT_HSACO", "/a/typo")
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["info"])
    environment.current.cache_clear()
    assert exit_info.value.code == 2
    assert "indexer-rt: error: INDEXER_RT_HSACO: no such setting." in capsys.readouterr().err


@pytest.fixture
def no_runtime_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `info` from searching for a HIP runtime: hip-python remembers for good that a process found none."""
    monkeypatch.setattr(hip, "runtime_version", lambda: "not searched for")


@pytest.mark.usefixtures("no_runtime_search")
def test_folder_named_by_the_environment_is_the_one_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.current.cache_clear()
    monkeypatch.setenv("INDEXER_RT_HSACO_DIR", str(folder))
    try:
        assert cli.main(["info"]) == 0
    finally:
        environment.current.cache_clear()
    assert f"code objects in {folder}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_runtime_search")
def test_info_lists_the_code_objects_and_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    for entry in SHIPPED:
        row = next(line.split() for line in out.splitlines() if line.startswith(entry["name"]))
        assert row[1:3] == ["gfx950", "v5"] and row[-1] == entry["sha256"][:12]
        assert row[3:8] == [str(entry[k]) for k in ("vgprs", "agprs", "sgprs")] + [
            str(entry["launch"]["lds_bytes"]),
            "0",
        ]
    for arg in SHIPPED[0]["args"]:
        assert [str(arg["offset"]), str(arg["size"]), arg["name"], arg["kind"]] in [
            line.split() for line in out.splitlines()
        ]


def test_info_refuses_a_folder_without_code_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "folder_in_use", lambda: tmp_path)
    assert cli.main(["info"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"indexer-rt info: {tmp_path}: holds no code object. Run ./build.sh")


def test_reader_that_leaves_early_is_no_traceback() -> None:
    body = "import sys; from indexer_rt import cli; input(); sys.exit(cli.main(['info']))"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", body], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_info_works_without_hip_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hip, "_started", [])
    monkeypatch.setitem(sys.modules, "hip", None)
    assert cli.main(["info"]) == 0
    assert "HIP runtime: none that can be used. hip-python cannot be imported" in capsys.readouterr().out


def test_info_says_that_there_is_no_runtime_and_where_it_was_looked_for() -> None:
    script = "import sys; from indexer_rt import cli; sys.exit(cli.main(['info']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "HIP runtime: none that can be used. hipInit: no usable HIP runtime: failed to dlopen" in done.stdout
    assert "Looked in: INDEXER_RT_LIBHIP (not set); torch (" in done.stdout


def test_info_gives_the_version_and_file_of_the_runtime(tmp_path: Path) -> None:
    # In a process of its own: hip-python remembers a library that it once did not find.
    library = hip_standin.compile_standin(tmp_path)
    code = "from indexer_rt import cli; raise SystemExit(cli.main(['info']))"
    variables = os.environ | {"INDEXER_RT_LIBHIP": str(library)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert f"HIP runtime: 7.2.26015 ({library})\n" in done.stdout


def test_info_works_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["info"]) == 0
    assert "HIP runtime: not looked for: torch is not installed." in capsys.readouterr().out


def test_demo_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == f"indexer-rt demo: {cli.NO_TORCH}\n"
    assert 'pip install "indexer-rt[cpu]"' in cli.NO_TORCH and "ROCm" in cli.NO_TORCH


NO_TORCH_HERE = """
import sys

class NoTorch:
    def find_spec(name, *rest):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, NoTorch)
"""


@pytest.mark.parametrize(("command", "status"), [("--help", 0), ("info", 0), ("verify", 0), ("demo", 1)])
def test_command_line_starts_without_torch(command: str, status: int) -> None:
    # A process of its own: here every module that imports torch is loaded already.
    body = f"{NO_TORCH_HERE}from indexer_rt import cli\nsys.exit(cli.main(['{command}']))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INDEXER_RT_")}
    done = subprocess.run([sys.executable, "-c", body], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["fp8_paged_mqa_logits", "kv_cache"])
def test_import_without_torch_says_what_to_install(name: str) -> None:
    body = f"{NO_TORCH_HERE}from indexer_rt import {name}"
    done = subprocess.run([sys.executable, "-c", body], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {cli.NO_TORCH}"


@pytest.mark.parametrize("seed", ["-1", "1.5", str(2**63)])
def test_demo_refuses_what_is_no_seed(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["demo", f"--seed={seed}"])
    assert exit_info.value.code == 2
    assert f"argument --seed: expected 0 to 2**63 - 1, got {seed!r}" in capsys.readouterr().err


def test_demo_agrees_with_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"{len(demo.CASES)} of {len(demo.CASES)} cases agree with the reference." in printed.out
    rows = [line for line in printed.out.splitlines() if " rows, block " in line]
    assert len(rows) == len(demo.CASES)
    if "the emulator" in printed.out:
        assert all(row.endswith(" s emulated") for row in rows)
        assert "says nothing of the kernel's speed" in printed.out
    else:
        assert all(row.endswith(" us measured") for row in rows)


def wrong_value(logits: Any) -> None:
    logits[0, 0] += 1e-4 * logits[0, 0].abs() + 1e-3


def wrong_nan(logits: Any) -> None:
    logits[0, 0] = float("nan")


def wrong_unwritten(logits: Any) -> None:
    logits[0, 0] = float("-inf")


def wrong_too_far(logits: Any) -> None:
    logits[-1, -1] = 0.0


@pytest.mark.parametrize("spoil", [wrong_value, wrong_nan, wrong_unwritten, wrong_too_far])
def test_demo_fails_on_a_wrong_cell(
    spoil: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = ops.fp8_paged_mqa_logits

    def spoiled(*args: Any, **kwargs: Any) -> Any:
        logits = op(*args, **kwargs)
        spoil(logits)
        return logits

    case = Workload(2, 64, True, (70, 3), 100)
    monkeypatch.setattr(demo, "CASES", (case,))
    assert cli.main(["demo"]) == 0
    monkeypatch.setattr(ops, "fp8_paged_mqa_logits", spoiled)
    assert cli.main(["demo"]) == 1
    printed = capsys.readouterr()
    assert f"indexer-rt demo: disagrees with the reference: {demo.describe(case)}\n" in printed.err
    assert "0 of 1 cases agree" in printed.out


def test_demo_poisons_what_must_not_be_read() -> None:
    import torch

    step = Workload(2, 64, False, (70, 0), 100).make_step(torch.Generator().manual_seed(1))
    assert step.block_tables[0, 2:].tolist() == [-1, -1] and step.block_tables[1].tolist() == [-1] * 4
    blocks = step.block_tables[0, :2].tolist()
    scales = kv_cache.scales_of(step.kv_cache_fp8)
    assert scales[blocks[0]].isfinite().all() and scales[blocks[1], :6].isfinite().all()
    assert int(scales.isfinite().sum()) == 70


@pytest.mark.usefixtures("no_runtime_search")
def test_info_reports_the_steady_loops(capsys):
    assert cli.main(["info", "--loops"]) == 0
    words = capsys.readouterr().out
    assert "VALU/tile" in words and "waits of the loop" in words
    assert "fp8_paged_mqa_logits_h32_r6_page: " in words
