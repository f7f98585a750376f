"""The static report counts what the bytes hold, and the shipped kernels keep the figures they are built for."""

import subprocess
import sys

import pytest

from bench import static
from indexer_rt import manifest
from indexer_rt.catalog import Catalog
from indexer_rt.code_object import CodeObject
from indexer_rt.errors import CodeObjectError
from indexer_rt.flow import Flow
from indexer_rt.loops import steady_loop

BASELINE = static.Path(static.__file__).parent / "baseline" / "hsaco"


@pytest.mark.parametrize("found", static.loops_of(manifest.shipped_folder()), ids=lambda found: found[0].name)
def test_shipped_kernel_keeps_its_figures(found):
    assert static.broken_gates(*found) == []


@pytest.mark.parametrize("found", static.loops_of(manifest.shipped_folder()), ids=lambda found: found[0].name)
def test_round_counts_the_work_of_whole_steps(found):
    entry, _, loop = found
    steps = loop.steps(entry.num_heads, entry.rows_per_wave)
    assert steps == int(steps) >= 1
    assert loop.counts["mfma"] == steps * 4 * entry.rows_per_wave * max(1, entry.num_heads // 16)
    assert loop.load_bytes >= steps * manifest.STEP_TOKENS * static.TOKEN_VALUE_BYTES


def baseline(name):
    return manifest.only_kernel(CodeObject.read(BASELINE / f"baseline_paged_mqa_logits_h32_{name}.hsaco"))


@pytest.mark.parametrize(
    ("name", "rows", "loads", "drains"),
    [("r1_gather", 1, 7, 3), ("r3_gather", 3, 7, 5), ("r1_page", 1, 6, 2), ("r3_page", 3, 6, 2)],
)
def test_baseline_is_what_the_published_design_says(name, rows, loads, drains):
    loop = steady_loop(baseline(name))
    assert (loop.row_tiles, loop.counts["mfma"]) == (rows, 2 * rows)
    assert (loop.counts["load"], loop.counts["store"]) == (loads, rows)
    assert sum(wait.vmcnt == 0 for wait in loop.waits) == drains
    # Nothing is in flight across tiles.
    assert loop.waits[0].after == 0


def test_baseline_is_what_its_source_gives(tmp_path):
    pytest.importorskip("ziglang", reason="the pip toolchain is not installed")
    root = BASELINE.parents[2]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    command = ["bash", "build.sh", "--kernels", "bench/baseline", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    if "hipcc" in done.stdout:
        pytest.skip("a hipcc is installed; the objects here are made with the pip toolchain")
    for built in tmp_path.glob("*.hsaco"):
        assert built.read_bytes() == (BASELINE / built.name).read_bytes(), built.name
    assert len(list(tmp_path.glob("*.hsaco"))) == len(list(BASELINE.glob("*.hsaco"))) == 6


def test_gates_name_what_the_baseline_does_wrong():
    page = next(e for e in Catalog.shipped().entries if (e.num_heads, e.rows_per_wave, e.addressing) == (32, 1, "page"))
    kernel = baseline("r1_page")
    faults = " ".join(static.broken_gates(page, kernel, steady_loop(kernel)))
    for words in ("vector instructions per row-tile", "vmcnt(0)", "bytes of loads in flight"):
        assert words in faults


def test_kernel_without_matrix_work_has_no_steady_loop(stand_in):
    with pytest.raises(CodeObjectError, match="no loop holds a matrix instruction"):
        steady_loop(manifest.only_kernel(CodeObject.read(stand_in)))


def test_blocks_cover_the_code_and_edges_meet_blocks():
    kernel = baseline("r2_page")
    flow = Flow.of(kernel.code)
    assert sum(i.size for block in flow.blocks.values() for i in block.instructions) == len(kernel.code)
    assert all(s in flow.blocks for block in flow.blocks.values() for s in block.successors)
    assert len(flow.loops) == 1 and not flow.is_indirect


def test_report_prints_every_kernel():
    done = subprocess.run([sys.executable, "-m", "bench.static"], capture_output=True, text=True,
                          cwd=BASELINE.parents[2])  # fmt: skip
    assert done.returncode == 0, done.stderr
    for entry in Catalog.shipped().entries:
        assert entry.name in done.stdout
