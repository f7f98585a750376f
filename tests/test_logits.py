"""The shipped code objects against the formula, in the emulator: every variant, layout and seam."""

import pytest
from cases import Case, check, make
from emulation import emulation

import indexer_rt
from indexer_rt.catalog import Catalog

LAYOUTS = {
    "kv1": dict(block_kv=1, preshuffle=False),
    "kv16": dict(block_kv=16, preshuffle=False),
    "kv16-preshuffled": dict(block_kv=16, preshuffle=True),
    "kv64": dict(block_kv=64, preshuffle=False),
    "kv64-preshuffled": dict(block_kv=64, preshuffle=True),
}
ROWS_PER_WAVE = (1, 2, 3, 4, 6)

# Ragged batches of 1 to 5 sequences; every next_n from 1 to 8 meets every layout and every rows_per_wave.
BATCHES = {
    1: (137,),
    2: (1, 300),
    3: (0, 64, 65),
    4: (3, 2, 1, 4),
    5: (5, 4, 128, 15, 200),
    6: (63, 0, 17),
    7: (7, 260),
    8: (8, 7, 16, 129),
}
SEAMS = [seam + offset for seam in (16, 64, 128, 2048, 4096) for offset in (-1, 0, 1)]


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture(params=ROWS_PER_WAVE, ids=lambda rows: f"r{rows}")
def rows_per_wave(request):
    return request.param


# How many waves share the work. Left to itself the operator launches enough for one step each on problems of this size;
# few waves walk through many steps, sequences and groups of rows each, which is what they do on large problems.
NUM_WAVES = (None, 2)


@pytest.fixture(params=NUM_WAVES, ids=["all-waves", "2-waves"])
def num_waves(request):
    return request.param


def run_and_check(case: Case, num_waves: int | None) -> None:
    inputs = make(case)
    with emulation(num_waves=num_waves):
        result = indexer_rt.fp8_paged_mqa_logits(
            *inputs.arguments(), preshuffle=case.preshuffle, out=inputs.out, clean_logits=case.clean_logits,
            rows_per_wave=case.rows_per_wave,
        )  # fmt: skip
    assert result is inputs.out
    check(inputs)


@pytest.mark.parametrize("next_n", BATCHES, ids=lambda n: f"n{n}")
def test_ragged_batch_matches_reference(layout, rows_per_wave, num_waves, next_n):
    run_and_check(Case(BATCHES[next_n], next_n=next_n, rows_per_wave=rows_per_wave, **layout), num_waves)


@pytest.mark.parametrize("num_waves", [None, 37], ids=["all-waves", "37-waves"])
def test_seams_match_reference(layout, rows_per_wave, num_waves):
    run_and_check(Case(SEAMS, next_n=2, rows_per_wave=rows_per_wave, **layout), num_waves)


@pytest.mark.parametrize("max_model_len, clean", [(1, True), (33, False), (100, True), (1531, False), (1601, True)])
def test_max_model_len_clips(layout, rows_per_wave, num_waves, max_model_len, clean):
    run_and_check(
        Case((90, 0, 1600, 34), next_n=3, max_model_len=max_model_len, clean_logits=clean, rows_per_wave=rows_per_wave,
             **layout),
        num_waves,
    )  # fmt: skip


@pytest.mark.parametrize("clean", [False, True], ids=["as-it-was", "clean"])
def test_per_row_ends_match_reference(layout, rows_per_wave, num_waves, clean):
    ends = [[70, 3, 0, 131, 64], [0, 0, 0, 0, 0], [1, 2, 300, 299, 5]]
    run_and_check(Case(ends, next_n=5, clean_logits=clean, rows_per_wave=rows_per_wave, **layout), num_waves)


def test_per_row_ends_of_many_sequences_match_reference(layout, num_waves):
    ends = [[(37 * b + 11 * n) % 150 if b % 3 else 0 for n in range(6)] for b in range(70)]
    run_and_check(Case(ends, next_n=6, rows_per_wave=3, **layout), num_waves)


@pytest.mark.parametrize("variant", Catalog.shipped().entries, ids=lambda entry: entry.name.partition("logits_")[2])
@pytest.mark.parametrize("preshuffle", [False, True], ids=["plain", "preshuffled"])
def test_every_code_object_matches_reference(variant, preshuffle, num_waves):
    if preshuffle and variant.addressing == "gather":
        pytest.skip("blocks of less than 16 tokens are plain")
    run_and_check(
        Case((77, 0, 64, 1, 330), next_n=2 * variant.rows_per_wave + 1, num_heads=variant.num_heads,
             rows_per_wave=variant.rows_per_wave, block_kv=48 if variant.addressing == "page" else 2,
             preshuffle=preshuffle, clean_logits=True, max_model_len=333),
        num_waves,
    )  # fmt: skip


@pytest.mark.parametrize("block_kv", [1, 2, 4, 8, 16, 32, 48, 64, 80, 128, 256, 640, 2048])
@pytest.mark.parametrize("preshuffle", [False, True], ids=["plain", "preshuffled"])
def test_every_kind_of_block_matches_reference(block_kv, preshuffle):
    if preshuffle and block_kv < 16:
        pytest.skip("blocks of less than 16 tokens are plain")
    lens = (block_kv - 1, block_kv, block_kv + 1, 2 * block_kv + 17, 1299)
    run_and_check(Case(lens, next_n=2, block_kv=block_kv, preshuffle=preshuffle), num_waves=3)
