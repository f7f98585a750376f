"""The plugins, on stub packages that have the upstreams' names and signatures; the long stories in own processes."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import upstream

from indexer_rt.compat import plugin
from indexer_rt.errors import IndexerRtError

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

Run = Callable[..., subprocess.CompletedProcess[str]]

# Calls a function in the place of an upstream's with a small problem, its window judged by the suite's own oracle.
CALL = """
def inputs(clean):
    from cases import Case, make
    return make(Case([70, 9], next_n=1, clean_logits=clean))


def judge(x, logits):
    from cases import check
    x.out.copy_(logits)
    check(x)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a script in a process that sees stub modules and this checkout."""

    def run_script(
        script: str, modules: dict[str, str], enable: str | None = "1", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        stubs = upstream.write_modules(tmp_path / "stubs", modules)
        env = {name: value for name, value in os.environ.items() if not name.startswith("INDEXER_RT_")}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, (stubs, ROOT, TESTS)))} | variables
        if enable is not None:
            env["INDEXER_RT_ENABLE"] = enable
        code = CALL + textwrap.dedent(script)
        return subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    return run_script


STACKS = ("aiter", "atom", "mine", "sglang", "vllm")


@pytest.fixture
def install_stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Return a function that makes stub modules importable in this process, until the test ends."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in STACKS]:
            del sys.modules[name]

    def install(modules: dict[str, str]) -> None:
        monkeypatch.syspath_prepend(upstream.write_modules(tmp_path / "stubs", modules))

    forget()
    yield install
    forget()


Install = Callable[[dict[str, str]], None]


def passed(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout + result.stderr


def test_vllm_plugin_replaces_both_functions_and_says_so(run: Run) -> None:
    result = run(
        f"""
        from indexer_rt.compat.plugin import vllm_plugin
        vllm_plugin()
        import {upstream.VLLM_MODULE} as ops, {upstream.VLLM_WORKSPACE_MODULE} as workspace
        x = inputs(clean=False)
        q, cache, weights, lens, tables, columns = x.arguments()
        logits = ops.sparse_attn_indexer(q, cache, weights, lens, tables, None, max_model_len=columns, compress_ratio=1)
        assert logits is workspace.given[-1] and len(workspace.given) == 1
        assert (logits[0, 70:] == 7).all() and (logits[1, 9:] == 7).all()
        logits.masked_fill_(logits == 7, 12345.0)
        judge(x, logits)

        # vLLM sets the manager late, and tests replace it: the one used is the one that is there at the call.
        ops.current_workspace_manager = lambda: Other()
        class Other:
            def get_simultaneous(self, *asked):
                return [x.out]
        x.clear()
        assert ops.rocm_fp8_paged_mqa_logits(q, cache, weights, lens, tables, None, columns) is x.out
        judge(x, x.out.clone())

        from {upstream.AITER_MODULE} import deepgemm_fp8_paged_mqa_logits
        x.clear()
        key = deepgemm_fp8_paged_mqa_logits(q, cache, weights, x.out, lens, tables, columns, True, 64)
        assert key.startswith("indexer_rt.")
        judge(x, x.out.clone())
        """,
        upstream.vllm_stub() | upstream.aiter_stub(),
    )
    passed(result)
    assert (
        f"{upstream.VLLM_MODULE}.rocm_fp8_paged_mqa_logits: replaced by "
        "indexer_rt.compat.vllm.rocm_fp8_paged_mqa_logits." in result.stderr
    )
    assert (
        f"{upstream.AITER_MODULE}.deepgemm_fp8_paged_mqa_logits: replaced by "
        "indexer_rt.compat.aiter.deepgemm_fp8_paged_mqa_logits." in result.stderr
    )


@pytest.mark.parametrize("enable", [None, "0", ""])
def test_plugins_do_nothing_and_load_nothing_unless_enabled(run: Run, enable: str | None) -> None:
    result = run(
        """
        import sys
        from indexer_rt.compat.plugin import sglang_plugin, vllm_plugin
        vllm_plugin()
        sglang_plugin()
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not loaded & {"torch", "hip", "vllm", "sglang", "aiter"}, loaded
        """,
        upstream.vllm_stub() | upstream.aiter_stub() | upstream.sglang_stub(),
        enable,
    )
    passed(result)
    assert result.stderr == ""


def test_a_misspelt_switch_is_refused(run: Run) -> None:
    result = run("from indexer_rt.compat.plugin import vllm_plugin; vllm_plugin()", {}, None, INDEXER_RT_ENABLED="1")
    assert "ValueError: INDEXER_RT_ENABLED: no such setting." in result.stderr
    result = run("from indexer_rt.compat.plugin import vllm_plugin; vllm_plugin()", {}, "yes")
    assert "ValueError: INDEXER_RT_ENABLE: expected 0 or 1, got 'yes'." in result.stderr


def test_installing_twice_is_the_same_as_once(run: Run) -> None:
    result = run(
        f"""
        from indexer_rt.compat import plugin
        first = plugin.install_vllm(), plugin.install_sglang()
        import {upstream.VLLM_MODULE} as vllm, {upstream.SGLANG_MODULE} as sglang, {upstream.AITER_MODULE} as aiter
        def now():
            return (vllm.rocm_fp8_paged_mqa_logits, sglang.aiter_paged_mqa_logits, aiter.deepgemm_fp8_paged_mqa_logits)
        before = now()
        assert plugin.install_vllm() == plugin.install_sglang() == plugin.install_aiter() == ()
        plugin.vllm_plugin()
        plugin.sglang_plugin()
        assert now() == before
        print(*first[0], *first[1], sep="\\n")
        """,
        upstream.vllm_stub() | upstream.aiter_stub() | upstream.sglang_stub(),
    )
    passed(result)
    replaced = result.stdout.split()
    assert len(replaced) == len(set(replaced)) == result.stderr.count(": replaced by ") == 4


def test_sglang_plugin_reaches_early_and_late_imports(run: Run) -> None:
    result = run(
        f"""
        import {upstream.SGLANG_CALLER} as early
        from indexer_rt.compat.plugin import sglang_plugin
        sglang_plugin()
        from {upstream.SGLANG_PACKAGE} import aiter_paged_mqa_logits as late
        from {upstream.SGLANG_MODULE} import aiter_paged_mqa_logits as own
        from {upstream.AITER_MODULE} import deepgemm_fp8_paged_mqa_logits as inner
        assert early.aiter_paged_mqa_logits is late is own
        assert inner.__module__ == "indexer_rt.compat.aiter"
        x = inputs(clean=True)
        q, cache, weights, lens, tables, columns = x.arguments()
        pool = cache.flatten(1)
        judge(x, early.aiter_paged_mqa_logits(
            q.squeeze(1), pool, weights, lens, tables, columns, preshuffle=True, kv_block_size=64))
        """,
        upstream.sglang_stub() | upstream.aiter_stub(),
    )
    passed(result)
    for module in (upstream.SGLANG_MODULE, upstream.SGLANG_PACKAGE, upstream.SGLANG_CALLER):
        assert f"{module}.aiter_paged_mqa_logits: replaced by indexer_rt.compat.sglang." in result.stderr


def test_sglang_plugin_knows_the_older_home_of_the_function(install_stubs: Install) -> None:
    install_stubs({"sglang.jit_kernel.dsa.paged_mqa_logits": upstream.sglang_source()} | upstream.aiter_stub())
    assert "sglang.jit_kernel.dsa.paged_mqa_logits.aiter_paged_mqa_logits" in plugin.install_sglang()


@pytest.mark.parametrize("module", [upstream.AITER_MODULE, upstream.AITER_OLD_MODULE])
@pytest.mark.parametrize("order", ["install-first", "atom-first"])
def test_atom_is_reached_although_it_imports_at_module_top(install_stubs: Install, module: str, order: str) -> None:
    install_stubs(
        {
            module: upstream.aiter_source(),
            upstream.ATOM_MODULE: f"from {module} import deepgemm_fp8_paged_mqa_logits\n",
        }
    )
    if order == "atom-first":
        importlib.import_module(upstream.ATOM_MODULE)
    replaced = plugin.install_aiter()
    atom = importlib.import_module(upstream.ATOM_MODULE)
    assert atom.deepgemm_fp8_paged_mqa_logits.__module__ == "indexer_rt.compat.aiter"
    early = {f"{upstream.ATOM_MODULE}.deepgemm_fp8_paged_mqa_logits"} if order == "atom-first" else set()
    assert set(replaced) == {f"{module}.deepgemm_fp8_paged_mqa_logits"} | early


def test_names_outside_the_stacks_are_left_alone(install_stubs: Install) -> None:
    install_stubs(
        upstream.aiter_stub() | {"mine": f"from {upstream.AITER_MODULE} import deepgemm_fp8_paged_mqa_logits\n"}
    )
    mine = importlib.import_module("mine")
    plugin.install_aiter()
    with pytest.raises(NotImplementedError, match="the original deepgemm_fp8_paged_mqa_logits ran"):
        mine.deepgemm_fp8_paged_mqa_logits(*range(7))


def test_the_default_of_total_cu_count_is_the_machines(install_stubs: Install) -> None:
    install_stubs(upstream.aiter_stub(upstream.AITER.replace("TotalCuCount=None", "TotalCuCount=256")))
    assert plugin.install_aiter() == (f"{upstream.AITER_MODULE}.deepgemm_fp8_paged_mqa_logits",)


def test_vllm_without_aiter_is_installed_and_said(install_stubs: Install, caplog: pytest.LogCaptureFixture) -> None:
    install_stubs(upstream.vllm_stub())
    with caplog.at_level(logging.WARNING, logger="indexer_rt"):
        assert plugin.install_vllm() == (f"{upstream.VLLM_MODULE}.rocm_fp8_paged_mqa_logits",)
    assert "aiter is not installed: there is no deepgemm_fp8_paged_mqa_logits to replace." in caplog.messages


OLD_VLLM = upstream.VLLM.replace("*, compress_ratio=1,", "")
NEW_SGLANG = upstream.SGLANG.replace("*, preshuffle", "*, q_offset, preshuffle")
NEW_AITER = upstream.AITER + "SplitKV=None, PersistentSchedule=None,"
OTHER_DEFAULT = upstream.AITER.replace("KVBlockSize=1", "KVBlockSize=64")
NO_WORKSPACE = {upstream.VLLM_MODULE: upstream.function("rocm_fp8_paged_mqa_logits", upstream.VLLM)}

REFUSALS = {
    "vllm-missing": ("vllm", {}, f"expected it in {upstream.VLLM_MODULE}, found no such module"),
    "vllm-function-missing": ("vllm", {upstream.VLLM_MODULE: "x = 1\n"}, "expected a function, found nothing"),
    "vllm-before-compress-ratio": ("vllm", upstream.vllm_stub(OLD_VLLM), "*, compress_ratio=1), got (q_fp8, "),
    "vllm-no-workspace": ("vllm", NO_WORKSPACE, "expected current_workspace_manager"),
    "vllm-other-aiter": (
        "vllm",
        upstream.vllm_stub() | upstream.aiter_stub(NEW_AITER),
        "VarCtxSchedule=None, SplitKV=None, PersistentSchedule=None)",
    ),
    "vllm-aiter-without-it": (
        "vllm",
        upstream.vllm_stub() | {"aiter.other": "x = 1\n"},
        f"expected it in {upstream.AITER_MODULE} or {upstream.AITER_OLD_MODULE}, found no such module",
    ),
    "sglang-missing": ("sglang", upstream.aiter_stub(), f"expected it in {upstream.SGLANG_MODULE} or "),
    "sglang-other-signature": (
        "sglang",
        upstream.sglang_stub(NEW_SGLANG) | upstream.aiter_stub(),
        "*, q_offset, preshuffle, kv_block_size)",
    ),
    "sglang-without-aiter": ("sglang", upstream.sglang_stub(), f"expected it in {upstream.AITER_MODULE} or "),
    "aiter-other-default": ("sglang", upstream.sglang_stub() | upstream.aiter_stub(OTHER_DEFAULT), "KVBlockSize=64,"),
    "aiter-no-signature": (
        "sglang",
        upstream.sglang_stub() | {upstream.AITER_MODULE: "deepgemm_fp8_paged_mqa_logits = type\n"},
        "its signature cannot be read",
    ),
}


@pytest.mark.parametrize(("stack", "modules", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_clear_and_replaces_nothing(
    install_stubs: Install, caplog: pytest.LogCaptureFixture, stack: str, modules: dict[str, str], message: str
) -> None:
    install_stubs(modules)
    with caplog.at_level(logging.DEBUG, logger="indexer_rt"), pytest.raises(IndexerRtError) as refusal:
        getattr(plugin, f"install_{stack}")()
    assert message in str(refusal.value)
    assert not [record for record in caplog.messages if "replaced" in record]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in STACKS:
            ours = [k for k, v in vars(module).items() if getattr(v, "__module__", "").startswith("indexer_rt")]
            assert not ours, (name, ours)


def test_a_broken_upstream_is_not_called_missing(install_stubs: Install) -> None:
    install_stubs({upstream.AITER_MODULE: "import triton_gluon\n"})
    with pytest.raises(ModuleNotFoundError, match="No module named 'triton_gluon'"):
        plugin.install_aiter()
