"""The cache helpers against the format's definition, byte by byte."""

from __future__ import annotations

import struct

import pytest
import torch

from indexer_rt import kv_cache


def random_keys(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("preshuffle", [False, True])
@pytest.mark.parametrize("block_kv", [16, 64, 128])
def test_every_byte_lies_where_the_format_says(block_kv: int, preshuffle: bool) -> None:
    values = torch.randint(0, 256, (3, block_kv, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    scales = random_keys(3, block_kv)
    cache = kv_cache.assemble(kv_cache.preshuffle_values(values) if preshuffle else values, scales)
    assert cache.shape == (3, block_kv, 1, 132) and cache.dtype == torch.uint8
    for block in range(3):
        data = bytes(cache[block].flatten().tolist())
        for t in range(block_kv):
            for d in range(128):
                at = (t // 16) * 2048 + (d // 16) * 256 + (t % 16) * 16 + d % 16 if preshuffle else t * 128 + d
                assert data[at] == values[block, t, d]
            assert struct.unpack_from("<f", data, block_kv * 128 + 4 * t)[0] == scales[block, t]


def test_a_one_hot_key_lands_in_one_byte() -> None:
    keys = torch.zeros(64, 128)
    for t in range(64):
        keys[t, (7 * t + 3) % 128] = 448.0
    data = kv_cache.pack(keys, 64, preshuffle=True).flatten()[: 64 * 128]
    hot = sorted(
        (t // 16) * 2048 + (d // 16) * 256 + (t % 16) * 16 + d % 16
        for t, d in ((t, (7 * t + 3) % 128) for t in range(64))
    )
    assert data.nonzero().flatten().tolist() == hot
    assert set(data[hot].tolist()) == {0x7E}


def test_unpreshuffle_undoes_preshuffle() -> None:
    values = torch.randint(0, 256, (4, 32, 128), dtype=torch.uint8)
    assert torch.equal(kv_cache.unpreshuffle_values(kv_cache.preshuffle_values(values)), values)
    fp8 = values.view(torch.float8_e4m3fn)
    assert kv_cache.preshuffle_values(fp8).dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("block_kv, preshuffle", [(1, False), (8, False), (16, True), (64, False), (64, True)])
def test_dequantize_gives_the_keys_back_within_half_a_step(block_kv: int, preshuffle: bool) -> None:
    keys = random_keys(128, 128) * torch.logspace(-3, 3, 128).unsqueeze(1)
    cache = kv_cache.pack(keys.bfloat16(), block_kv, preshuffle=preshuffle)
    back = kv_cache.dequantize(cache, preshuffle=preshuffle).reshape(128, 128)
    wanted, scales = keys.bfloat16().float(), kv_cache.scales_of(cache).reshape(128, 1)
    # e4m3 has 3 fraction bits: half a step is 2**-4 of a normal number, 2**-10 of the scale below 2**-6.
    assert bool(((back - wanted).abs() <= torch.maximum(wanted.abs() * 2**-4, scales * 2**-10) * 1.0001).all())
    assert torch.equal(scales, wanted.abs().amax(1, keepdim=True) / 448)


def test_pack_fills_the_last_block_with_zero_keys_of_scale_one() -> None:
    cache = kv_cache.pack(random_keys(70, 128), 64, preshuffle=True)
    assert cache.shape == (2, 64, 1, 132)
    assert torch.equal(kv_cache.scales_of(cache)[1, 6:], torch.ones(58))
    assert not kv_cache.dequantize(cache, preshuffle=True)[1, 6:].any()


def test_pack_takes_whole_blocks() -> None:
    keys = random_keys(3, 16, 128)
    assert torch.equal(
        kv_cache.pack(keys, 16, preshuffle=False), kv_cache.pack(keys.reshape(48, 128), 16, preshuffle=False)
    )


def test_ue8m0_rounds_scales_up_to_powers_of_two() -> None:
    keys = torch.zeros(5, 128)
    keys[0, 0], keys[1, 0], keys[2, 0], keys[3, 0] = 448.0, 449.0, 224.0, 1e-3
    _, scales = kv_cache.quantize(keys, scale_format="ue8m0")
    assert scales.tolist() == [1.0, 2.0, 0.5, 2.0**-18, 1.0]  # 1e-3 / 448 = 2.23e-6, just below 2**-18 = 3.8e-6


@pytest.mark.parametrize("scale_format", ["float32", "ue8m0"])
def test_tiny_and_huge_keys_quantise_to_finite_values(scale_format: str) -> None:
    keys = torch.tensor([[1e-45], [1e-38], [3e38], [0.0]]).expand(4, 128)
    values, scales = kv_cache.quantize(keys, scale_format=scale_format)
    assert bool(values.float().isfinite().all()) and bool(scales.isfinite().all()) and bool((scales > 0).all())
    assert scales[0] == 2.0**-126 and scales[3] == 1.0


def test_views_share_memory_and_honour_the_block_stride() -> None:
    pool = torch.zeros(5, 16 * 132 + 64, dtype=torch.uint8)
    cache = pool.as_strided((5, 16, 1, 132), (pool.stride(0), 132, 132, 1))
    kv_cache.scales_of(cache)[3, 2] = 2.5
    kv_cache.values_of(cache)[4, 1, 5] = 9
    assert struct.unpack("<f", bytes(pool[3, 2048 + 8 : 2048 + 12].tolist()))[0] == 2.5
    assert pool[4, 128 + 5] == 9 and pool.count_nonzero() == 3
    assert torch.equal(kv_cache.values_of(cache.squeeze(2)), kv_cache.values_of(cache))
    assert torch.equal(kv_cache.scales_of(cache.view(torch.float8_e4m3fn)), kv_cache.scales_of(cache))


def test_empty_caches_are_caches() -> None:
    cache = kv_cache.pack(torch.zeros(0, 128), 16, preshuffle=True)
    assert cache.shape == (0, 16, 1, 132)
    assert kv_cache.dequantize(cache, preshuffle=True).shape == (0, 16, 128)


def test_errors_say_what_was_wanted() -> None:
    zeros = torch.zeros(2, 16, 1, 132, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"kv_cache: expected uint8 or float8_e4m3fn, got int8\. A block is fp8"):
        kv_cache.values_of(zeros.view(torch.int8))
    with pytest.raises(
        ValueError, match=r"kv_cache: expected \[num_blocks, block_kv, 1, head_dim \+ 4\].*got \[2, 2112\]"
    ):
        kv_cache.values_of(zeros.reshape(2, -1))
    with pytest.raises(
        ValueError, match=r"expected every block dense, strides \[any, 132, \.\.\., 1\], got \[4224, 264"
    ):
        kv_cache.values_of(torch.zeros(2, 16, 1, 264, dtype=torch.uint8)[..., :132])
    with pytest.raises(ValueError, match=r"scales at multiples of 4 bytes, got storage offset 2 and block stride"):
        kv_cache.scales_of(torch.zeros(2 * 2112 + 2, dtype=torch.uint8)[2:].view(2, 16, 1, 132))
    with pytest.raises(ValueError, match=r"values: expected block_kv and head_dim in multiples of 16, got 8 and 128"):
        kv_cache.preshuffle_values(torch.zeros(1, 8, 128, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"values: expected a 1-byte dtype .* got float32 \[1, 16, 128\]"):
        kv_cache.unpreshuffle_values(torch.zeros(1, 16, 128))
    with pytest.raises(TypeError, match=r"keys: expected a floating dtype, got int32"):
        kv_cache.quantize(torch.zeros(1, 128, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"scale_format: expected 'float32' or 'ue8m0', got 'fp4'"):
        kv_cache.quantize(torch.zeros(1, 128), scale_format="fp4")
    keys = torch.zeros(4, 2, 128)
    keys[2, 1, 7] = float("nan")
    with pytest.raises(ValueError, match=r"keys: expected finite numbers, got inf or NaN in row \[2, 1\]"):
        kv_cache.quantize(keys)
    with pytest.raises(ValueError, match=r"block_kv: expected at least 1, got 0"):
        kv_cache.pack(torch.zeros(1, 128), 0, preshuffle=False)
    with pytest.raises(
        ValueError, match=r"keys: expected \[num_tokens, head_dim\] or \[num_blocks, 32, head_dim\], got \[4, 2, 128\]"
    ):
        kv_cache.pack(torch.zeros(4, 2, 128), 32, preshuffle=False)
    with pytest.raises(TypeError, match=r"values, scales: expected uint8 .* got float32, float32"):
        kv_cache.assemble(torch.zeros(1, 1, 128), torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"values, scales: expected .* got \[1, 2, 128\] and \[1, 1\]"):
        kv_cache.assemble(torch.zeros(1, 2, 128, dtype=torch.uint8), torch.zeros(1, 1))
