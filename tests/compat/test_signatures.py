"""The drop-ins' signatures against the upstreams', literally: names, kinds, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import upstream

from indexer_rt.compat import aiter, sglang, vllm

DROPINS = {
    "aiter": (aiter.deepgemm_fp8_paged_mqa_logits, upstream.AITER),
    "aiter-5047": (aiter.fp8_paged_mqa_logits, upstream.AITER_5047),
    "aiter-5047-is_supported": (aiter.is_supported, upstream.AITER_5047_SUPPORT),
    "vllm": (vllm.rocm_fp8_paged_mqa_logits, upstream.VLLM),
    "vllm-workspace": (vllm.in_workspace(lambda: None), upstream.VLLM),
    "sglang": (sglang.aiter_paged_mqa_logits, upstream.SGLANG),
}


@pytest.mark.parametrize(("dropin", "parameters"), DROPINS.values(), ids=DROPINS)
def test_signature_is_the_upstreams(dropin: Callable[..., Any], parameters: str) -> None:
    names: dict[str, Any] = {}
    exec(upstream.function("original", parameters), names)
    wanted = inspect.signature(names["original"])
    # follow_wrapped=False: what the function itself takes, not what a wrapper says it does.
    got = inspect.signature(dropin, follow_wrapped=False)
    assert [(p.name, p.kind, p.default) for p in got.parameters.values()] == [
        (p.name, p.kind, p.default) for p in wanted.parameters.values()
    ]
