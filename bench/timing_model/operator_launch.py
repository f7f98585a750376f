"""Set up launches of the operator's own kernels for a shape, planned as on a device of 256 CUs, without data."""

from __future__ import annotations

from pathlib import Path

from indexer_rt import launch, manifest
from indexer_rt.catalog import Catalog
from indexer_rt.code_object import CodeObject
from indexer_rt.emu import Buffer
from indexer_rt.launch import Launch
from indexer_rt.problem import Problem

from .baseline import HEAD_DIM, NUM_CUS, TOKEN_BYTES, Case, buffers_of


def problem_of(case: Case, buffers: dict[str, Buffer]) -> Problem:
    """Describe the call of a case whose tensors are ``buffers``."""
    import torch

    rows, heads = case.batch * case.next_n, case.heads
    width = len(buffers["block_tables"].bytes) // 4 // case.batch
    return Problem(
        device=torch.device("cpu"),
        num_heads=heads,
        head_dim=HEAD_DIM,
        num_blocks=len(buffers["kv_cache"].bytes) // (case.block_kv * TOKEN_BYTES),
        block_kv=case.block_kv,
        batch=case.batch,
        next_n=case.next_n,
        num_rows=rows,
        max_model_len=case.max_model_len,
        # As a server's: for max_model_len tokens. The columns past the longest sequence are not made, nor ever read.
        table_width=-(-case.max_model_len // case.block_kv),
        preshuffle=case.preshuffle,
        is_packed=False,
        lens_per_row=False,
        clean_logits=False,
        q_seq_stride=case.next_n * heads * HEAD_DIM,
        q_row_stride=heads * HEAD_DIM,
        kv_block_stride=case.block_kv * TOKEN_BYTES,
        weights_seq_stride=case.next_n * heads * 4,
        weights_row_stride=heads * 4,
        lens_seq_stride=4,
        lens_row_stride=0,
        table_row_stride=width * 4,
        logits_row_stride=case.max_model_len * 4,
    )


def operator_launch(
    case: Case, *, rows_per_wave: int | None = None, folder: Path | None = None
) -> tuple[Launch, list[Buffer]]:
    """Launch the kernel that the catalog chooses for a case, on the grid that launch.plan chooses.

    ``rows_per_wave`` overrides the one. Raises ValueError where the operator would.
    """
    buffers = buffers_of(case)
    problem = problem_of(case, buffers)
    entry = (Catalog.shipped() if folder is None else Catalog.read(folder)).choose(
        problem, rows_per_wave, num_cus=NUM_CUS
    )
    kernel = manifest.only_kernel(CodeObject.read(entry.path))
    plan = launch.plan(problem, kernel, rows_per_wave=entry.rows_per_wave, num_cus=NUM_CUS)
    names = ("q", "kv_cache", "weights", "context_lens", "block_tables", None, "logits")
    made = plan.at(tuple(0 if name is None else buffers[name].address for name in names))
    return made, list(buffers.values())
