"""State what the upstreams publish: the signatures of their functions, and stub packages that have those names."""

from __future__ import annotations

import textwrap
from pathlib import Path

AITER = """
    q_fp8, kv_cache, weights, out_logits, context_lens, kv_indices, max_model_len,
    Preshuffle=False, KVBlockSize=1, ChunkK=256, TotalCuCount=None, WavePerEU=2, VarCtxSchedule=None,
"""
AITER_5047 = """
    q_fp8, kv_cache_fp8, weights, context_lens, block_tables, max_model_len,
    ChunkK=0, SplitKV=0, num_warps=0, TotalCuCount=256, RowsPerBlock=0, out=None,
"""
AITER_5047_SUPPORT = "num_heads, head_dim, kv_block_size=1"
VLLM = """
    q_fp8, kv_cache_fp8, weights, context_lens, block_tables, schedule_metadata, max_model_len,
    *, compress_ratio=1,
"""
SGLANG = """
    q_fp8, kv_cache_fp8, weights, seq_lens, block_tables, max_seq_len,
    *, preshuffle, kv_block_size,
"""

AITER_MODULE = "aiter.ops.triton.attention.pa_mqa_logits"
AITER_OLD_MODULE = "aiter.ops.triton.pa_mqa_logits"
VLLM_MODULE = "vllm.v1.attention.ops.rocm_aiter_mla_sparse"
VLLM_WORKSPACE_MODULE = "vllm.v1.worker.workspace"
SGLANG_MODULE = "sglang.kernels.ops.attention.dsa.paged_mqa_logits"
SGLANG_PACKAGE = "sglang.kernels.ops.attention.dsa"
SGLANG_CALLER = "sglang.srt.layers.attention.dsa.dsa_indexer"
ATOM_MODULE = "atom.models.deepseek_v2"


def function(name: str, parameters: str) -> str:
    """Return the source of a function that says it is the upstream's when it is called."""
    return f"def {name}({parameters}):\n    raise NotImplementedError('the original {name} ran')\n"


def aiter_source(parameters: str = AITER) -> str:
    return function("deepgemm_fp8_paged_mqa_logits", parameters)


def vllm_source(parameters: str = VLLM) -> str:
    """Return the module with the function and, as there, a caller that finds it among the module's globals."""
    return (
        f"from {VLLM_WORKSPACE_MODULE} import current_workspace_manager\n\n\n"
        + function("rocm_fp8_paged_mqa_logits", parameters)
        + "\n\ndef sparse_attn_indexer(*args, **kwargs):\n    return rocm_fp8_paged_mqa_logits(*args, **kwargs)\n"
    )


WORKSPACE_SOURCE = textwrap.dedent(
    """
    import torch

    given = []


    class WorkspaceManager:
        def get_simultaneous(self, *shapes_and_dtypes):
            tensors = [torch.full(shape, 7.0, dtype=dtype) for shape, dtype in shapes_and_dtypes]
            given.extend(tensors)
            return tensors


    def current_workspace_manager():
        return WorkspaceManager()
    """
)


def sglang_source(parameters: str = SGLANG) -> str:
    return function("aiter_paged_mqa_logits", parameters)


def write_modules(root: Path, modules: dict[str, str]) -> Path:
    """Write modules, given by full name, and empty packages above them. Return the root, to be put on sys.path."""
    for name, source in modules.items():
        path = root.joinpath(*name.split("."))
        for parent in path.relative_to(root).parents:
            folder = root / parent
            folder.mkdir(parents=True, exist_ok=True)
            if folder != root and not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text("")
        if name == SGLANG_PACKAGE:
            path.mkdir(exist_ok=True)
            (path / "__init__.py").write_text(source)
        else:
            path.with_suffix(".py").write_text(source)
    return root


def aiter_stub(parameters: str = AITER) -> dict[str, str]:
    return {AITER_MODULE: aiter_source(parameters)}


def vllm_stub(parameters: str = VLLM) -> dict[str, str]:
    return {VLLM_MODULE: vllm_source(parameters), VLLM_WORKSPACE_MODULE: WORKSPACE_SOURCE}


def sglang_stub(parameters: str = SGLANG) -> dict[str, str]:
    """The function, the package that re-exports it, and the layer that imports it at module top."""
    return {
        SGLANG_PACKAGE: "from .paged_mqa_logits import aiter_paged_mqa_logits\n",
        SGLANG_MODULE: sglang_source(parameters),
        SGLANG_CALLER: f"from {SGLANG_PACKAGE} import aiter_paged_mqa_logits\n",
    }
