"""Each part of the timing model against small cases worked out by hand, and the whole against the published times."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.timing_model import baseline, choice, fit
from bench.timing_model.__main__ import CHOICE, RESULTS
from bench.timing_model.caches import Levels, Samples, levels_of, warm_share
from bench.timing_model.compute_unit import ComputeUnit, WaveWork, compile_instruction
from bench.timing_model.constants import Constants
from bench.timing_model.operator_launch import operator_launch
from bench.timing_model.prediction import bandwidth_share, place, predict, resident_workgroups
from bench.timing_model.trace import Access, Stretch, Tracer, access_of
from indexer_rt import emu, reference
from indexer_rt.catalog import FEW_UNITS, Catalog
from indexer_rt.shapes import published

# Round numbers, so that the expected clocks can be read off.
PLAIN = Constants(
    l1_latency=100, l2_latency=200, infinity_latency=500, hbm_latency=1000, scalar_latency=50, lds_latency=64,
    branch=16, translation=0, address_queue=10**6, l2_rate=64, infinity_tbps=1e6, hbm_tbps=1e6,
)  # fmt: skip
NOWHERE = Levels({}, {}, 0, 1.0)

# Words of gfx950 instructions (LLVM's encodings).
V_MOV, V_PERMLANE = (0x7E000280,), (0x7E00B501,)
S_NOP_3, S_ENDPGM, S_MOV, S_BARRIER = (0xBF800003,), (0xBF810000,), (0xBE800080,), (0xBF8A0000,)
MFMA_16 = (0xD3AD0000, 0x02021100)  # v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[0:7], v[8:15], 0
LOAD = (0xDC508000, 0x007F0000)  # global_load_dword v0, v[0:1], off
STORE = (0xDC708000, 0x007F0000)  # global_store_dword v[0:1], v0, off
WAIT_VM_0, WAIT_VM_1 = (0xBF8C0F70,), (0xBF8C0F71,)
DS_READ = (0xD86C0000, 0x00000000)  # ds_read_b32 v0, v0
WAIT_LGKM_0 = (0xBF8CC07F,)


def program(*instructions):
    """Return a stretch of these instructions (words each)."""
    code = np.array([word for words in instructions for word in words], np.uint32).tobytes()
    decoded = [instruction for _, instruction in emu.disassemble(code)]
    return Stretch(decoded, [], None, 0, len(code))


def run(*instructions, waves=1, accesses=(), levels=NOWHERE, constants=PLAIN, groups=1, resident=1, **options):
    unit = ComputeUnit(constants, {0: program(*instructions)}, levels, lambda fetched: 1.0)
    work = WaveWork([0], list(accesses))
    return unit.run([(0.0, [work] * waves)] * groups, resident, **options)


def at(level, pc=0):
    shares = tuple(float(n == level) for n in range(3))
    return Levels({pc: shares}, {pc: shares}, 0, 1.0)


def test_instructions_are_what_their_names_say():
    names = [str(i).split()[0] for i in program(V_MOV, V_PERMLANE, MFMA_16, LOAD, STORE, DS_READ).instructions]
    assert names == ["v_mov_b32_e32", "v_permlane32_swap_b32_e32", "v_mfma_f32_16x16x128_f8f6f4", "global_load_dword",
                     "global_store_dword", "ds_read_b32"]  # fmt: skip


def test_one_wave_issues_an_instruction_every_four_clocks():
    assert run(*[V_MOV] * 10, S_ENDPGM).clocks == 40
    assert run(*[S_MOV] * 5, S_ENDPGM).clocks == 20


def test_waves_of_one_simd_share_its_vector_port():
    # Five waves: two of them on SIMD 0, whose port 20 instructions hold for 80 clocks.
    outcome = run(*[V_MOV] * 10, S_ENDPGM, waves=5)
    assert outcome.clocks == 80
    # Four waves have a SIMD each.
    assert run(*[V_MOV] * 10, S_ENDPGM, waves=4).clocks == 40


def test_scalar_and_vector_work_of_two_waves_overlap():
    assert run(*[V_MOV, S_MOV] * 10, S_ENDPGM, waves=8).clocks == pytest.approx(84, abs=4)


def test_nops_hold_only_their_own_wave():
    assert run(S_NOP_3, S_ENDPGM).clocks == 16
    assert run(*[S_NOP_3] * 4, S_ENDPGM, waves=8).clocks == 64


def test_matrix_unit_takes_four_clocks_a_pass_and_lets_vector_work_by():
    # The third starts after 2 * 32 clocks, and issues in 4.
    assert run(*[MFMA_16] * 3, S_ENDPGM).clocks == 68
    # 6 vector instructions fit under one MFMA after the 8 clocks that it holds the port.
    assert run(MFMA_16, *[V_MOV] * 6, MFMA_16, S_ENDPGM).clocks == 36


def test_half_rate_formats_and_quarter_rate_instructions_cost_what_they_should():
    mfma, swap = program(MFMA_16, V_PERMLANE).instructions
    assert compile_instruction(mfma, PLAIN)[1:] == (8, 32)
    assert compile_instruction(swap, PLAIN)[1] == 8


@pytest.mark.parametrize(("level", "latency"), [(0, 200), (1, 500), (2, 1000)])
def test_load_takes_the_latency_of_its_level(level, latency):
    outcome = run(LOAD, WAIT_VM_0, S_ENDPGM, accesses=[Access((7,), 16)], levels=at(level))
    # 16 clocks of address work, a sector at 64 bytes a clock, the latency, the wait's own slot.
    assert outcome.clocks == pytest.approx(16 + 1 + latency + 4, abs=0.1)


def test_sector_in_the_l1_is_not_fetched_again():
    twice = run(LOAD, WAIT_VM_0, LOAD, WAIT_VM_0, S_ENDPGM, accesses=[Access((7,), 4)] * 2, levels=at(2))
    once = run(LOAD, WAIT_VM_0, S_ENDPGM, accesses=[Access((7,), 4)], levels=at(2))
    assert twice.clocks == pytest.approx(once.clocks + 4 + 100 + 4, abs=0.1)


def test_counted_wait_leaves_the_younger_load_in_flight():
    levels = Levels({0: (1.0, 0, 0), 8: (0, 0, 1.0)}, {0: (1.0, 0, 0), 8: (0, 0, 1.0)}, 0, 1.0)
    accesses = [Access((1,), 4), Access((2,), 4)]
    assert run(LOAD, LOAD, WAIT_VM_1, S_ENDPGM, accesses=accesses, levels=levels).clocks < 250
    assert run(LOAD, LOAD, WAIT_VM_0, S_ENDPGM, accesses=accesses, levels=levels).clocks > 1000


def test_vmcnt_falls_in_order_stores_included():
    # A fast load behind a slow one is there only after it.
    levels = Levels({0: (0, 0, 1.0), 8: (1.0, 0, 0)}, {0: (0, 0, 1.0), 8: (1.0, 0, 0)}, 0, 1.0)
    accesses = [Access((1,), 4), Access((2,), 4)]
    slow_first = run(LOAD, LOAD, WAIT_VM_0, S_ENDPGM, accesses=accesses, levels=levels)
    store_last = run(LOAD, STORE, WAIT_VM_1, S_ENDPGM, accesses=accesses, levels=levels)
    assert slow_first.clocks > 1000 and store_last.clocks > 1000


def test_loads_of_all_waves_share_the_address_unit():
    accesses = [Access((k,), 64) for k in range(4)]
    outcome = run(*[LOAD] * 4, WAIT_VM_0, S_ENDPGM, accesses=accesses, levels=at(0), waves=8)
    # 32 instructions of 64 clocks; the last hits the L1.
    assert outcome.clocks == pytest.approx(32 * 64 + 100 + 4, abs=1)


def test_bandwidth_limits_what_latency_does_not():
    # 2.4 GHz at 0.24 TB/s: 100 bytes a clock. 64 sectors take 41 clocks.
    narrow = replace(PLAIN, hbm_tbps=0.24)
    accesses = [Access(tuple(range(64 * k, 64 * k + 64)), 1) for k in range(32)]
    outcome = run(
        *[LOAD] * 32,
        WAIT_VM_0,
        S_ENDPGM,
        accesses=accesses,
        constants=narrow,
        levels=Levels({8 * k: (0, 0, 1.0) for k in range(32)}, {8 * k: (0, 0, 1.0) for k in range(32)}, 0, 1.0),
    )
    # L2 delivers 64 bytes a clock and CU, so that is the narrower one.
    assert outcome.clocks == pytest.approx(32 * 64 + 1000, rel=0.05)
    assert outcome.busy["HBM"] == pytest.approx(32 * 4096 / 100 / outcome.clocks, rel=0.05)


def test_missed_pages_hold_the_address_unit():
    far = [Access(tuple(k << 15 for k in range(8)), 8)]
    cheap = run(LOAD, WAIT_VM_0, S_ENDPGM, accesses=far, levels=at(0)).clocks
    dear = run(LOAD, WAIT_VM_0, S_ENDPGM, accesses=far, levels=at(0), constants=replace(PLAIN, translation=10)).clocks
    assert dear - cheap == 80


def test_lds_has_its_own_counter():
    outcome = run(DS_READ, WAIT_LGKM_0, S_ENDPGM)
    assert outcome.clocks == 4 + 64 + 4


def test_barrier_waits_for_the_last_wave():
    assert run(*[V_MOV] * 10, S_BARRIER, S_ENDPGM, waves=8).clocks == pytest.approx(84, abs=4)


def test_workgroups_beyond_the_slots_wait_for_one():
    assert run(*[V_MOV] * 10, S_ENDPGM, groups=3, resident=1).clocks == 120
    assert run(*[V_MOV] * 10, S_ENDPGM, groups=3, resident=3).clocks == 40


def test_cut_off_simulation_goes_on_at_its_pace():
    accesses = [Access((k,), 4) for k in range(300)]
    levels = Levels({k: (0, 0, 1.0) for k in range(0, 4000, 4)}, {}, 0, 1.0)
    code = [LOAD, WAIT_VM_0] * 300
    whole = run(*code, S_ENDPGM, accesses=accesses, levels=levels)
    cut = run(*code, S_ENDPGM, accesses=accesses, levels=levels, limit=150)
    assert cut.instructions == 150 < whole.instructions
    assert cut.clocks == pytest.approx(whole.clocks, rel=0.05)


# --- sectors ---


def test_contiguous_lanes_take_a_clock_per_64_bytes():
    access = access_of(np.uint64(1 << 20) + np.arange(64, dtype=np.uint64) * np.uint64(16), 16, "load")
    assert (len(access.sectors), access.clocks) == (16, 16)


def test_lanes_of_one_sector_count_it_once():
    access = access_of(np.full(64, 1 << 20, np.uint64), 4, "load")
    assert (len(access.sectors), access.clocks) == (1, 4)


def test_record_of_132_bytes_touches_two_or_three_sectors():
    def sectors(record):
        start = np.uint64(record * 132)
        return len(access_of(start + np.arange(33, dtype=np.uint64) * np.uint64(4), 4, "load").sectors)

    assert sectors(0) == 3
    assert sectors(15) == 3 and {sectors(k) for k in range(64)} == {3}
    # The 128 bytes of values alone: two where they are aligned, else three.
    values = [len(access_of(np.uint64(k * 132) + np.arange(8, dtype=np.uint64) * np.uint64(16), 16, "load").sectors)
              for k in range(64)]  # fmt: skip
    assert set(values) == {2, 3} and values[0] == 2


def test_lines_of_one_bank_take_turns():
    # Four lanes of 16 bytes form a group. Lines 0, 1, 2, 3 lie in four banks; 0, 4, 8, 12 in one.
    spread = np.array([0, 128, 256, 384], np.uint64)
    assert access_of(spread, 16, "load").clocks == 1
    assert access_of(spread * np.uint64(4), 16, "load").clocks == 4
    # Crossing a line looks up both.
    assert access_of(np.array([120], np.uint64), 16, "load").clocks == 1
    assert len(access_of(np.array([120], np.uint64), 16, "load").sectors) == 2


# --- caches, placement ---


def samples(sector, order, wave, modulus=1):
    count = len(sector)
    return Samples(modulus, np.array(sector, np.uint64), np.array(order), np.array(wave), np.zeros(count, int),
                   np.zeros(count, bool))  # fmt: skip


def test_second_access_of_an_xcd_hits_l2_and_of_another_the_infinity_cache():
    # Waves 0 and 8 belong to workgroups of XCD 0 and, with one wave each, wave 1 to XCD 1.
    levels = levels_of(samples([5, 5, 5], [0, 9, 9], [0, 8, 1]), Constants(), 1, 256, warm=False)
    assert levels.traffic[0] == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_access_to_a_sector_on_its_way_waits_as_long():
    levels = levels_of(samples([5, 5], [0, 0], [0, 8]), Constants(), 1, 256, warm=False)
    assert levels.latency[0] == (0, 0, 1) and levels.traffic[0] == (0.5, 0, 0.5)


def test_l2_forgets_what_was_long_ago():
    room = Constants().l2_bytes // 64
    far = samples([*range(2 * room), 0], [*range(2 * room + 1)], [0] * (2 * room + 1))
    assert levels_of(far, Constants(), 1, 256, warm=False).traffic[0][0] == 0


def test_footprint_within_the_infinity_cache_stays_there():
    assert warm_share(100, 256) == 1
    assert warm_share(256 * 1.2, 256) == pytest.approx(0.686, abs=0.002)
    assert warm_share(256 * 4.6, 256) < 0.02
    assert levels_of(samples([1, 2, 3], [0, 1, 2], [0] * 3), Constants(), 1, 256, warm=True).traffic[0] == (0, 1, 0)


def test_workgroups_go_to_the_xcds_in_turn_and_to_empty_cus_first():
    placed = place([1.0] * 512, 2, Constants())
    assert all(len(groups) == 2 for groups in placed)
    assert placed[0] == [0, 256] and placed[32] == [1, 257]
    # A long one keeps its slot: the next of its XCD goes elsewhere.
    placed = place([10.0] + [1.0] * (256 + 8), 1, Constants())
    assert placed[0] == [0]


def test_cu_with_more_to_fetch_gets_the_share_of_those_that_are_done():
    share = bandwidth_share(np.array([100.0, 100.0, 300.0, 400.0]))
    assert [share(x) for x in (0, 150, 350)] == [1 / 4, 1 / 2, 1]


# --- the slice, the baseline, the whole ---

SMALL = baseline.Case((300, 70, 257), 2, 32, 64, True, 512)


def paths_by_execution(launch, buffers):
    """Execute everything and return the pcs of every wave, in order."""
    seen = {}

    def watch(pc, instruction, waves):
        for wave in waves.tolist():
            seen.setdefault(wave, []).append(pc)

    emu.run(launch, buffers, strict=False, observer=watch)
    return seen


@pytest.mark.parametrize("block_kv", [1, 64])
@pytest.mark.parametrize("make", [baseline.baseline_launch, operator_launch], ids=["baseline", "operator"])
def test_slice_takes_the_same_paths_as_full_execution(make, block_kv):
    shape = replace(SMALL, block_kv=block_kv, preshuffle=block_kv == 64)
    launch, buffers = make(shape)
    tracer = Tracer(launch, buffers)
    trace = tracer.follow(range(tracer.workgroup_count), accesses=True)
    expected = paths_by_execution(launch, buffers)
    assert set(trace.paths) == set(expected)
    for wave, path in trace.paths.items():
        offsets = [i.offset for pc in path for i in trace.stretches[pc].instructions]
        assert offsets == [tracer.program.code_base + pc for pc in expected[wave]]
    assert len(tracer.sliced) < sum(len(b.instructions) for b in tracer.flow.blocks.values())


@pytest.mark.parametrize(("block_kv", "preshuffle"), [(1, False), (64, True)])
@pytest.mark.parametrize("next_n", [1, 2, 3, 6])
def test_baseline_computes_the_logits(block_kv, preshuffle, next_n):
    shape = baseline.Case((131, 64, 40), next_n, 32, block_kv, preshuffle, 160 if next_n < 3 else 100_000)
    launch, buffers = baseline.baseline_launch(shape)
    random = np.random.default_rng(3)
    by_name = {b.name: b for b in buffers}
    for name in ("q", "kv_cache"):
        values = torch.randn(len(by_name[name].bytes), generator=torch.Generator().manual_seed(len(name)))
        by_name[name].bytes[:] = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    pages = by_name["kv_cache"].bytes.reshape(-1, block_kv * 132)
    scales = random.uniform(0.5, 2, (len(pages), block_kv)).astype(np.float32)
    pages[:, block_kv * 128 :] = scales.view(np.uint8).reshape(len(pages), -1)
    by_name["weights"].bytes.view(np.float32)[:] = random.standard_normal(len(by_name["weights"].bytes) // 4)
    logits = by_name["logits"].bytes.view(np.float32).reshape(3 * next_n, -1)
    logits[:] = -7
    emu.run(launch, buffers)

    lens = torch.tensor(shape.lengths, dtype=torch.int32)
    expected = reference.fp8_paged_mqa_logits(
        torch.from_numpy(by_name["q"].bytes.copy()).view(torch.float8_e4m3fn).reshape(3, next_n, 32, 128),
        torch.from_numpy(pages.copy()).reshape(len(pages), block_kv, 1, 132),
        torch.from_numpy(by_name["weights"].bytes.view(np.float32).copy()).reshape(3 * next_n, 32),
        lens,
        torch.from_numpy(by_name["block_tables"].bytes.view(np.int32).copy()).reshape(3, -1),
        shape.max_model_len,
        preshuffle=preshuffle,
    ).numpy()
    written = np.isfinite(expected)
    assert (logits[~written] == -7).all()
    np.testing.assert_allclose(logits[written], expected[written], rtol=1e-4, atol=1e-2)


def test_baseline_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"takes 32 heads and blocks of 1 \(plain\) or 64"):
        baseline.baseline_launch(replace(SMALL, block_kv=16))


def test_host_rule_of_the_baseline():
    rule = baseline.baseline_rule(1, 2, 65536)
    assert (rule.rows, rule.waves, rule.chunk, rule.split, rule.groups) == (1, 4, 128, 256, 2)
    rule = baseline.baseline_rule(64, 6, 262144)
    assert (rule.rows, rule.waves, rule.chunk, rule.split, rule.groups) == (3, 4, 64, 4, 2)
    assert baseline.baseline_rule(4, 2, 65536).waves == 8


def test_every_third_row_is_held_out():
    assert [k for k in range(10) if fit.is_held_out(k)] == [2, 5, 8]


def test_resident_workgroups_follow_registers():
    launch, _ = operator_launch(SMALL, rows_per_wave=1)
    assert resident_workgroups(launch, Constants()) == 4


def test_more_work_takes_longer_and_predictions_repeat():
    short = operator_launch(baseline.Case((32768,), 1, 32, 64, True, 32768))
    long = operator_launch(baseline.Case((32768 * 8,), 1, 32, 64, True, 32768 * 8))
    first = predict(*short)
    assert predict(*short) == first
    assert predict(*long).time_us > first.time_us
    assert predict(*long, warm=False).time_us > predict(*long).time_us


def test_constants_say_where_they_are_from():
    for name, value, _, source in Constants().table():
        assert source, name
        assert float(value) >= 0
    assert sum("fitted" in source for *_, source in Constants().table()) <= 5


def test_model_keeps_its_error_on_the_baseline():
    result = fit.errors()
    used, held_out = ([error for _, error in pairs] for pairs in (result.used, result.held_out))
    assert len(used) == 7 and len(held_out) == 3
    assert fit.spread(used)[0] < 0.15 and fit.spread(used)[1] < 0.30
    assert fit.spread(held_out)[0] < 0.15 and fit.spread(held_out)[1] < 0.30


def test_results_are_marked_modelled():
    text = RESULTS.read_text()
    assert all(line.startswith("modelled,") for line in text.splitlines()[1:])


def test_the_table_is_what_the_timing_model_derives() -> None:
    with CHOICE.open() as lines:
        modelled = [choice.read(line) for line in csv.DictReader(lines)]
    assert [times.shape for times in modelled] == list(choice.shapes())
    digest = choice.code_objects_digest(Catalog.shipped())
    assert {times.code_objects for times in modelled} == {digest}, "derive it anew"
    assert choice.derive(modelled) == FEW_UNITS
    assert choice.regret(modelled, FEW_UNITS)[0] < choice.regret(modelled, {})[0] / 2
    assert all(choice.loss(modelled, share) > 0 for share in choice.SHARES)


def test_the_modelled_kernels_are_those_that_the_operator_chooses() -> None:
    with RESULTS.open() as lines:
        modelled = {line["shape"]: line["kernel"] for line in csv.DictReader(lines)}
    for name, shape in {row.shape.name: row.shape for row in published()}.items():
        assert operator_launch(baseline.Case.of(shape))[0].kernel.name == f"fp8_paged_mqa_logits_{modelled[name]}"
