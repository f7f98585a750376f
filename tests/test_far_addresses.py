"""Addresses and offsets that need more than 32 bits: far pages and scales, far rows, tensors across 4 GiB lines.

Memory is reserved and, but for what a case uses, never touched. The emulator faults on any access outside a tensor, so
an offset that loses its high bits shows as a wrong value or a fault.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from cases import GUARD, Case, Inputs, check, make
from reports import far_rows, run
from test_same_bits import LAYOUTS, every_layout

from indexer_rt import kv_cache
from indexer_rt.device import EmulatedDevice
from indexer_rt.problem import Tensors, extent_bytes

pytestmark = pytest.mark.usefixtures("fewest_groups")

GIB = 2**30


def move_blocks(inputs: Inputs, stride: int, targets: list[int]) -> None:
    """Move a case's blocks to the block ids ``targets``, ``stride`` bytes apart, and its tables with them."""
    needed = inputs.tables.clone()
    moved, taken = {}, 0
    pool = torch.empty(max(targets) * stride + inputs.cache[0].numel(), dtype=torch.uint8)
    far = pool.as_strided((max(targets) + 1, *inputs.cache.shape[1:]), (stride, *inputs.cache.stride()[1:]))
    for row, ends in enumerate(inputs.case.ends()):
        for column in range(-(-max(ends) // inputs.case.block_kv)):
            block = int(needed[row, column])
            if block not in moved:
                moved[block] = targets[taken]
                far[targets[taken]] = inputs.cache[block]
                taken += 1
            inputs.tables[row, column] = moved[block]
    assert taken == len(targets)
    inputs.cache = far


@every_layout
@pytest.mark.parametrize("line", [2 * GIB, 4 * GIB, 6 * GIB], ids=["2GiB", "4GiB", "6GiB"])
def test_a_block_may_lie_across_a_line(layout: str, line: int) -> None:
    """Three blocks: one before the line, one whose keys lie before it and whose last bytes after it, one after it."""
    block_kv = LAYOUTS[layout]["block_kv"]
    size = block_kv * 132
    # A multiple of 4 bytes that puts block 2's scales (its last 4 * block_kv bytes) at the line.
    stride = (line - block_kv * 128) // 2 // 4 * 4
    inputs = make(Case((2 * block_kv, block_kv), next_n=2 if block_kv > 1 else 1, **LAYOUTS[layout]))
    wanted = run(inputs).clone()
    check(inputs)
    inputs.clear()
    move_blocks(inputs, stride, [2, 1, 3])
    assert 2 * stride < line <= 2 * stride + size and 3 * stride > line
    assert torch.equal(run(inputs), wanted)


@pytest.mark.parametrize("layout, first", [("kv1", 2**25), ("kv16", 2**21), ("kv64-preshuffled", 2**19)])
def test_dense_pools_of_more_than_four_gib_are_read(layout: str, first: int) -> None:
    """A pool that is dense, as serving stacks have it: the last blocks' keys and scales lie past 2**32 bytes."""
    block_kv = LAYOUTS[layout]["block_kv"]
    inputs = make(Case((130, 67), next_n=2, **LAYOUTS[layout]))
    wanted = run(inputs).clone()
    check(inputs)
    inputs.clear()
    blocks = sum(-(-n // block_kv) for n in (130, 67))
    ids = first + torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
    move_blocks(inputs, block_kv * 132, ids.tolist())
    assert int(ids.min()) * block_kv * 132 > 2**32 and inputs.cache.is_contiguous()
    assert torch.equal(run(inputs), wanted)


@pytest.mark.parametrize("preshuffle", [False, True], ids=["plain", "preshuffled"])
def test_scales_of_a_block_larger_than_two_gib_are_read(preshuffle: bool) -> None:
    """One block of 16.2 million tokens: its keys end, and its scales begin, almost 2**31 bytes into it."""
    block_kv = (2**31 // 132 - 16) // 16 * 16
    inputs = make(Case((77,), next_n=2, block_kv=128, preshuffle=preshuffle))
    wanted = run(inputs).clone()
    check(inputs)
    inputs.clear()
    own = int(inputs.tables[0, 0])
    values, scales = kv_cache.values_of(inputs.cache)[own], kv_cache.scales_of(inputs.cache)[own]
    flat = torch.empty(block_kv * 132, dtype=torch.uint8)
    flat[: 128 * 128] = values.view(-1)
    flat[block_kv * 128 : block_kv * 128 + 4 * 128] = scales.view(torch.uint8)
    assert 2**30 < block_kv * 128 < 2**31
    large = flat.view(1, block_kv, 1, 132)
    assert torch.equal(run(inputs, kv_cache_fp8=large, block_tables=torch.zeros(1, 1, dtype=torch.int32)), wanted)


@every_layout
@pytest.mark.parametrize("line", [2 * GIB, 4 * GIB], ids=["2GiB", "4GiB"])
@pytest.mark.parametrize("clean", [False, True], ids=["as-it-was", "clean"])
def test_rows_of_the_output_may_lie_across_a_line(layout: str, line: int, clean: bool) -> None:
    inputs = make(Case((70, 0, 65), next_n=2, clean_logits=clean, **LAYOUTS[layout]))
    # Row 4 of the output, the fifth of six, begins 40 cells before the line.
    inputs.base = far_rows(inputs.base, (line - 160) // 4 // 4)
    inputs.out = inputs.base[1:-1, GUARD : GUARD + inputs.case.columns]
    start = 4 * inputs.out.stride(0) * 4
    assert start < line < start + 65 * 4
    run(inputs)
    check(inputs)


@every_layout
@pytest.mark.parametrize("name", [name for name in Tensors._fields if name != "cu_seqlens_q"])
def test_a_tensor_may_lie_across_a_four_gib_line(layout: str, name: str) -> None:
    """The kernel sees the tensor's middle at a multiple of 2**32, so that carries out of the low half count."""
    inputs = make(Case((130, 67, 3, 90), next_n=3, clean_logits=True, **LAYOUTS[layout]))
    addresses = EmulatedDevice.addresses

    def across(self: EmulatedDevice, tensors: Tensors, pointers: tuple[int, ...]) -> tuple[int, ...]:
        index = Tensors._fields.index(name)
        half = extent_bytes(tensors[index]) // 2 // 16 * 16
        result = list(addresses(self, tensors, pointers))
        result[index] = (result[index] >> 32 << 32) + 2**32 - half
        return tuple(result)

    with mock.patch.object(EmulatedDevice, "addresses", across):
        run(inputs)
    check(inputs)
