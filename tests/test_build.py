"""build.sh: what it makes, what it refuses, which compiler it takes and what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexer_rt import manifest
from indexer_rt.code_object import CodeObject

ROOT = Path(__file__).resolve().parent.parent
VARIANT = "fp8_paged_mqa_logits_h32_r3_page"
VARIANTS = (VARIANT, "fp8_paged_mqa_logits_h32_r6_page", "fp8_paged_mqa_logits_h32_r1_gather")  # tests/kernels/
SOURCE = "fp8_paged_mqa_logits.hip"
PLAIN = "__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(q[lane], k, zero, 0, 0, 0, 0, 0, 0);"

# One way each to spoil the fixture kernel: id, text to replace, its replacement, what build.sh must say.
SPOILED = [
    (
        "scale",
        PLAIN,
        "__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(q[lane], k, zero, 0, 0, 0, lane, 0, lane);",
        "holds a v_mfma_scale_* at +0x",
    ),
    (
        "spill",
        PLAIN,
        PLAIN + " volatile float* spare = (volatile float*)logits; float held[600];"
        " _Pragma(\"unroll\") for (int i = 0; i < 600; ++i) held[i] = spare[i];"
        " _Pragma(\"unroll\") for (int i = 0; i < 600; ++i) spare[i] = held[599 - i];",
        "spills ",
    ),
    (
        "scratch",
        PLAIN,
        PLAIN + " volatile int table[64]; table[lane & 63] = lane; logits[table[row * 7 & 63]] = zero;",
        "uses scratch (",
    ),
    (
        "dynamic stack",
        PLAIN,
        PLAIN + " volatile char* heap = (volatile char*)__builtin_alloca(logits_row_stride); heap[0] = 1;",
        "uses a dynamic stack",
    ),
    (
        "too many registers",
        "amdgpu_flat_work_group_size(256, 256)",
        "amdgpu_flat_work_group_size(256, 256), amdgpu_waves_per_eu(1, 1)",
        "leaves room for 1 waves per SIMD, variants.txt wants 2",
    ),
    ("name", "KERNEL_NAME", "other_name", f"its kernel is called other_name, wanted {VARIANT}"),
    ("syntax", "const int lane", "const int 1lane", "the compiler failed with status 1"),
    (
        "two kernels",
        'extern "C"',
        'extern "C" __attribute__((global)) void spare(int* out) { *out = 1; }\nextern "C"',
        "holds 2 kernels",
    ),
]  # fmt: skip

# Bash for fake_hipcc: write the start of an offload bundle to the file after -o.
WRITE_BUNDLE = """
[[ $1 == --version ]] || { while [[ $1 != -o ]]; do shift; done; printf __CLANG_OFFLOAD_BUNDLE__ > "$2"; exit; }
"""


def build(*args: str | Path, root: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run build.sh from a foreign directory, with this Python and no HIPCC unless given."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("HIPCC", "PYTHONPATH")}
    return subprocess.run(
        [str(root / "build.sh"), *map(str, args)],
        cwd="/",
        env={**inherited, "HIPCC": "", "PYTHON": sys.executable, "PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
    )


def pip_toolchain(folder: Path) -> dict[str, str]:
    """Return the environment that hides a hipcc on PATH, so that the pip toolchain is what build.sh finds."""
    if Path("/opt/rocm/bin/hipcc").exists():
        pytest.skip("/opt/rocm/bin/hipcc exists and would be taken before the pip toolchain")
    tools = folder / "tools"
    tools.mkdir()
    for tool in "bash dirname grep head ls mktemp mkdir mv cat cmp sort nproc paste rm sed".split():
        (tools / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool} on PATH"))
    (tools / "env").symlink_to("/usr/bin/env")
    return {"PATH": str(tools)}


def script(path: Path, text: str) -> Path:
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)
    return path


def fake_hipcc(path: Path, edit: str) -> Path:
    """Write a program that is the pip toolchain's driver, with ``edit`` (bash) done to its arguments first."""
    driver = ROOT / "kernels" / "ziglang_hipcc.py"
    return script(path, f'args=("$@")\n{edit}\nexec "{sys.executable}" "{driver}" "${{args[@]}}"\n')


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "tests" / "kernels", tmp_path / "kernels"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what build.sh needs to a path with a space in it, with the fixture kernel as its kernel."""
    root = tmp_path / "some where"
    root.mkdir()
    for name in ("build.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "indexer_rt", root / "indexer_rt", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "kernels", root / "kernels")
    for path in (ROOT / "kernels").glob("*.py"):
        shutil.copy(path, root / "kernels")
    (root / "hsaco").mkdir()
    return root


def test_build_is_the_same_in_every_directory(checkout: Path, tmp_path: Path) -> None:
    env = pip_toolchain(tmp_path)
    assert build(root=checkout, **env).returncode == 0
    result = build("--kernels", ROOT / "tests" / "kernels", "--out", tmp_path / "out", **env)
    assert result.returncode == 0, result.stderr
    here = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    there = {path.name: path.read_bytes() for path in (checkout / "hsaco").iterdir()}
    assert here == there
    assert len(here) == len(VARIANTS) + 1
    for name, data in here.items():
        assert str(tmp_path).encode() not in data and str(ROOT).encode() not in data, name


def test_built_objects_are_raw_gfx950_and_the_manifest_describes_them(kernels: Path, tmp_path: Path) -> None:
    result = build("--kernels", kernels, "--out", tmp_path / "out", **pip_toolchain(tmp_path))
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "out" / "manifest.json").read_text()
    entries = json.loads(text)
    assert text == manifest.text_of(entries)
    assert [tuple(entry) for entry in entries] == [manifest.KEYS] * len(VARIANTS)
    assert {entry["compiler"] for entry in entries} == {"ziglang 0.17.1, clang version 22.1.8"}
    assert {entry["source_sha256"] for entry in entries} == {manifest.source_digest(kernels)}
    for entry in entries:
        code_object = CodeObject.read(tmp_path / "out" / entry["file"], sha256=entry["sha256"])
        assert (code_object.target, code_object.xnack, code_object.sramecc, code_object.version) == (
            "gfx950",
            "any",
            "any",
            5,
        )
        assert entry.items() >= manifest.measured(code_object).items()
        assert entry["args"][3] == {"name": "logits_row_stride", "kind": "by_value", "offset": 24, "size": 8}
        problem = entry["problem"]
        assert entry["name"] == "fp8_paged_mqa_logits_h{num_heads}_r{rows_per_wave}_{addressing}".format(**problem)
        assert f"-DGATHER={int(problem['addressing'] == 'gather')}" in entry["flags"].split()


def test_table_shows_resources(kernels: Path, tmp_path: Path) -> None:
    result = build("--kernels", kernels, "--out", tmp_path / "out", "--only", VARIANT)
    assert result.returncode == 0, result.stderr
    kernel = CodeObject.read(tmp_path / "out" / f"{VARIANT}.hsaco").kernels[VARIANT]
    heading, row = result.stdout.splitlines()[1:3]
    assert heading.split() == "variant VGPR AGPR SGPR LDS spills code bytes waves/SIMD".split()
    assert row.split() == [VARIANT, str(kernel.vgprs), "0", str(kernel.sgprs), "0", "0", str(len(kernel.code)), "8"]


def test_source_digest_depends_on_each_source_and_its_name(kernels: Path) -> None:
    before = manifest.source_digest(kernels)
    (kernels / "notes.md").write_text("not a source")
    assert manifest.source_digest(kernels) == before
    seen = {before}
    (kernels / "layout.h").write_text("// a header\n")
    seen.add(manifest.source_digest(kernels))
    (kernels / "layout.h").rename(kernels / "layouts.h")
    seen.add(manifest.source_digest(kernels))
    (kernels / "variants.txt").write_text("# none\n")
    seen.add(manifest.source_digest(kernels))
    assert len(seen) == 4


@pytest.mark.parametrize(("old", "new", "message"), [case[1:] for case in SPOILED], ids=[case[0] for case in SPOILED])
def test_spoiled_kernel_fails_the_build(kernels: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    source = kernels / SOURCE
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    result = build("--kernels", kernels, "--out", tmp_path / "out", "--only", VARIANT)
    assert result.returncode != 0
    assert f"build.sh: {VARIANT}: " in result.stderr and message in result.stderr, result.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(WRITE_BUNDLE, "an offload bundle, wanted a raw ELF", id="bundle"),
        pytest.param('args=("${args[@]/gfx950/gfx942}")', "is built for gfx942", id="gfx942"),
        pytest.param('args=("${args[@]/gfx950/gfx950:xnack+}")', "is built for xnack 'on', wanted 'any'", id="xnack"),
        pytest.param('args=("${args[@]/version=5/version=4}")', "code object ABI version byte is 2", id="v4"),
    ],
)  # fmt: skip
def test_compiler_that_makes_something_else_fails_the_build(
    kernels: Path, tmp_path: Path, edit: str, message: str
) -> None:
    source = kernels / SOURCE
    source.write_text(
        source.read_text().replace(PLAIN, "(void)k, zero;").replace("(void)k, zero", "zero + (float)k[0]")
    )
    hipcc = fake_hipcc(tmp_path / "hipcc", edit)
    result = build("--kernels", kernels, "--out", tmp_path / "out", "--only", VARIANT, HIPCC=str(hipcc))
    assert result.returncode != 0
    assert f"build.sh: {VARIANT}: " in result.stderr and message in result.stderr, result.stderr


def test_hipcc_variable_is_the_compiler(kernels: Path, tmp_path: Path) -> None:
    hipcc = fake_hipcc(tmp_path / "my hipcc", f'echo "$@" >> "{tmp_path}/log"')
    result = build("--kernels", kernels, "--out", tmp_path / "out", "--only", VARIANT, HIPCC=str(hipcc))
    assert result.returncode == 0, result.stderr
    assert "--genco --offload-arch=gfx950 --no-gpu-bundle-output -O3" in (tmp_path / "log").read_text()


def test_hipcc_on_path_comes_before_the_pip_toolchain(kernels: Path, tmp_path: Path) -> None:
    env = pip_toolchain(tmp_path)
    fake_hipcc(tmp_path / "tools" / "hipcc", f'echo "$@" >> "{tmp_path}/log"')
    result = build("--kernels", kernels, "--out", tmp_path / "out", "--only", VARIANT, **env)
    assert result.returncode == 0, result.stderr
    assert "--genco" in (tmp_path / "log").read_text()


def test_hipcc_variable_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    result = build("--out", tmp_path, HIPCC="/nowhere/hipcc")
    assert result.returncode == 1
    assert (
        result.stderr == "build.sh: HIPCC is /nowhere/hipcc, which is no program. Set HIPCC to a hipcc, or unset it.\n"
    )


def test_no_compiler_says_what_was_looked_for(tmp_path: Path) -> None:
    env = pip_toolchain(tmp_path)
    python = script(tmp_path / "python", f'[[ $* != *ziglang* ]] || exit 1\nexec "{sys.executable}" "$@"\n')
    result = build("--out", tmp_path, PYTHON=str(python), **env)
    assert result.returncode == 1
    assert result.stderr == (
        "build.sh: no compiler for gfx950. Looked for $HIPCC, hipcc on PATH, /opt/rocm/bin/hipcc and the package "
        f'ziglang of {python}. Set HIPCC, or run: pip install ".[build]", or set PYTHON to one that has it.\n'
    )


def test_python_without_the_packages_is_an_error(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'exec "{sys.executable}" -I -S "$@"\n')
    result = build("--out", tmp_path, PYTHON=str(python))
    assert result.returncode == 1
    assert "has no pyelftools or no msgpack" in result.stderr


def test_check_needs_the_pinned_toolchain(checkout: Path) -> None:
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("ziglang==0.17.1", "ziglang==0.99.0"))
    result = build("--check", root=checkout)
    assert result.returncode == 1
    assert f"--check needs ziglang 0.99.0, {sys.executable} has 0.17.1." in result.stderr


def test_check_names_every_file_that_differs(checkout: Path, tmp_path: Path) -> None:
    assert build(root=checkout, **pip_toolchain(tmp_path)).returncode == 0
    result = build("--check", root=checkout, HIPCC="/nowhere/hipcc")
    assert result.returncode == 0, result.stderr
    assert f"{len(VARIANTS)} code objects and manifest.json are byte for byte" in result.stdout

    # One flipped bit, one missing file, one stray file and a manifest with a space too many.
    folder = checkout / "hsaco"
    data = bytearray((folder / f"{VARIANT}.hsaco").read_bytes())
    data[-1] ^= 1
    (folder / f"{VARIANT}.hsaco").write_bytes(data)
    (folder / "fp8_paged_mqa_logits_h32_r6_page.hsaco").unlink()
    (folder / "stray.hsaco").write_bytes(b"")
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = build("--check", root=checkout)
    assert result.returncode == 1
    named = result.stderr.partition("Differs: ")[2].partition(". Run")[0].split()
    assert sorted(named) == sorted(
        [f"{VARIANT}.hsaco", "fp8_paged_mqa_logits_h32_r6_page.hsaco", "stray.hsaco", "manifest.json"]
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_rebuild_drops_objects_that_are_no_longer_variants(checkout: Path, tmp_path: Path) -> None:
    (checkout / "hsaco" / "stale.hsaco").write_bytes(b"old")
    (checkout / "hsaco" / "__init__.py").write_text("")
    assert build(root=checkout, **pip_toolchain(tmp_path)).returncode == 0
    names = {path.name for path in (checkout / "hsaco").iterdir()}
    assert "stale.hsaco" not in names and {"__init__.py", "manifest.json", f"{VARIANT}.hsaco"} <= names


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--fast",), "unknown argument --fast"),
        (("--only", VARIANT), "--only needs --out"),
        (("--check", "--out", "{tmp}"), "--check compares with hsaco/"),
        (("--kernels", "{kernels}", "--out", "{tmp}", "--only", "no_such"), "has no variant no_such"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(kernels: Path, tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    result = build(*(arg.format(tmp=tmp_path / "out", kernels=kernels) for arg in args))
    assert result.returncode == 1
    assert message in result.stderr


def test_variant_with_unknown_addressing_is_refused(kernels: Path, tmp_path: Path) -> None:
    (kernels / "variants.txt").write_text("fp8_paged_mqa_logits 32 1 linear 4\n")
    result = build("--kernels", kernels, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "addressing is 'linear', wanted page or gather" in result.stderr


def test_variant_with_a_column_missing_is_refused(kernels: Path, tmp_path: Path) -> None:
    (kernels / "variants.txt").write_text("fp8_paged_mqa_logits 32 1 page\n")
    result = build("--kernels", kernels, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "a line is 'fp8_paged_mqa_logits 32 1 page   ', wanted five or six columns" in result.stderr


def test_driver_refuses_what_it_cannot_honour(tmp_path: Path) -> None:
    driver = [sys.executable, str(ROOT / "kernels" / "ziglang_hipcc.py")]
    result = subprocess.run([*driver, "--genco", "--offload-arch=gfx950", "-o", str(tmp_path / "k"), "k.hip"],
                            capture_output=True, text=True)  # fmt: skip
    assert result.returncode == 1
    assert "wanted --genco, --no-gpu-bundle-output" in result.stderr and "raw=False" in result.stderr


def test_driver_stops_at_assembly_when_asked(kernels: Path, tmp_path: Path) -> None:
    driver = [sys.executable, str(ROOT / "kernels" / "ziglang_hipcc.py")]
    flags = ["--genco", "--no-gpu-bundle-output", "--offload-arch=gfx950", "-O3", "-S", "-D", "KERNEL_NAME=k"]
    macros = ["-DNUM_HEADS=32", "-DROWS_PER_WAVE=1", "-DGATHER=0"]
    subprocess.run([*driver, *flags, *macros, "-o", str(tmp_path / "k.s"), str(kernels / SOURCE)], check=True)
    assert "v_mfma_f32_16x16x128_f8f6f4" in (tmp_path / "k.s").read_text()


def test_real_hipcc_takes_the_same_line(tmp_path: Path) -> None:
    hipcc = os.environ.get("HIPCC") or shutil.which("hipcc")
    if not hipcc:
        pytest.skip("no hipcc: neither $HIPCC nor hipcc on PATH")
    result = build("--kernels", ROOT / "tests" / "kernels", "--out", tmp_path / "out", HIPCC=hipcc)
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.hsaco"))) == len(VARIANTS)
