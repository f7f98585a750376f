"""Reported faults, section D: what block tables hold."""

from __future__ import annotations

import pytest
import torch
from calls import make_call
from cases import Case, check, make
from reports import INT32_MAX, LAYOUTS, base, both_layouts, run

import indexer_rt
from indexer_rt.errors import EmulatorFault

pytestmark = pytest.mark.usefixtures("fewest_groups")


@both_layouts
@pytest.mark.parametrize("unused", [-1, INT32_MAX])
def test_d01_unused_columns_are_not_followed(layout: str, unused: int) -> None:
    inputs = base(layout)
    for row, tokens in enumerate((130, 67)):
        inputs.tables[row, -(-tokens // LAYOUTS[layout]["block_kv"]) :] = unused
    run(inputs)
    check(inputs)


def test_d04_a_table_of_int64_is_refused() -> None:
    call = make_call()
    call.block_tables = call.block_tables.long()
    with pytest.raises(
        TypeError, match=r"^block_tables: expected int32, got int64\. Convert with \.to\(torch\.int32\)"
    ):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())


def test_d05_lengths_of_int64_are_refused() -> None:
    call = make_call()
    call.context_lens = call.context_lens.long()
    with pytest.raises(
        TypeError, match=r"^context_lens: expected int32, got int64\. Convert with \.to\(torch\.int32\)"
    ):
        indexer_rt.fp8_paged_mqa_logits(**call.arguments())


def test_d05_lengths_on_another_device_are_refused() -> None:
    arguments = make_call().arguments()
    elsewhere = {name: value.to("meta") for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    match = r"^context_lens: is on cpu, q_fp8 is on meta\. All tensors must be on one device; nothing is copied\.$"
    with pytest.raises(ValueError, match=match):
        indexer_rt.fp8_paged_mqa_logits(**arguments | elsewhere | {"context_lens": arguments["context_lens"]})


@both_layouts
def test_d06_blocks_may_be_shared_and_repeated(layout: str) -> None:
    inputs = make(Case((200, 150, 130), next_n=2, max_model_len=256, **LAYOUTS[layout]))
    inputs.tables[1, :2] = inputs.tables[0, :2]
    inputs.tables[2, 1] = inputs.tables[2, 0]
    run(inputs)
    check(inputs)


def _id_past_the_cache():
    inputs = make(Case((190,), max_model_len=256, num_blocks=3, table_width=3))
    inputs.tables[0] = torch.tensor([0, 3, 1])
    return inputs


def test_d07_the_strict_mode_refuses_an_id_past_the_cache(strict: None) -> None:
    match = r"^block_tables: row 0, column 1 is 3, expected 0 to 2 for a cache of 3 blocks\.$"
    with pytest.raises(ValueError, match=match):
        run(_id_past_the_cache())


def test_d07_an_id_past_the_cache_is_on_trust_and_faults_in_the_emulator() -> None:
    text = " ".join(indexer_rt.fp8_paged_mqa_logits.__doc__.split())
    assert "On trust, checked with INDEXER_RT_STRICT=1" in text and "block ids that are needed lie in the cache" in text
    with pytest.raises(EmulatorFault, match="kv_cache"):
        run(_id_past_the_cache())
