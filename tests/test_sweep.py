"""The sweep: its grid, its sample, its file, and that it tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from indexer_rt import cli, ops, sweep
from indexer_rt.comparison import Comparison
from indexer_rt.workload import Workload


def test_grid_has_512_cases_of_distinct_names() -> None:
    assert len({case.name for case in sweep.all_cases()}) == 512


def test_sample_is_fixed_and_meets_every_value_of_every_axis() -> None:
    sample = sweep.sample()
    assert len(set(sample)) == 40 and sample == sweep.sample()
    for axis in ("batch", "next_n", "num_heads", "ctx", "block_kv", "ragged"):
        assert {getattr(case, axis) for case in sample} == {getattr(case, axis) for case in sweep.all_cases()}, axis


def test_ragged_lengths_stay_within_30_percent_and_differ() -> None:
    even, ragged = (sweep.Case(16, 1, 32, 8192, 64, share).workload() for share in (0.0, 0.3))
    assert set(even.context_lens) == {8192}
    assert all(8192 * 0.7 <= length <= 8192 * 1.3 for length in ragged.context_lens)
    assert len(set(ragged.context_lens)) == 16 and ragged.max_model_len == 16384


def test_a_run_is_resumed_and_reports_what_was_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "sweep.csv"
    words = ["sweep", "--filter", "b1-n1-h32-ctx1024-kv64", "--output", str(output)]
    assert cli.main(words) == 0
    assert "2 of 2 cases agree" in capsys.readouterr().out
    rows = list(sweep.read(output).values())
    assert [row.case for row in rows if row.agrees and row.cells] == [row.case for row in rows]
    output.write_text(output.read_text().replace("True,True", "False,False", 1))
    assert cli.main(words) == 1
    printed = capsys.readouterr()
    assert "2 cases, 2 of them in" in printed.out and "1 of 2 cases agree" in printed.out
    assert "mask equal False" in printed.err


def test_a_foreign_file_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "other.csv"
    output.write_text("a,b\n1,2\n")
    assert cli.main(["sweep", "--output", str(output)]) == 1
    assert "expected the columns case, variant" in capsys.readouterr().err
    assert output.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    "spoil, is_mask_wrong",
    [
        (lambda logits: logits[1, :70].mul_(1.001), False),
        (lambda logits: logits[0, 3].fill_(torch.nan), False),
        (lambda logits: logits[0, 5].fill_(-torch.inf), True),
        (lambda logits: logits[1, 70].fill_(0), True),
    ],
)
def test_comparison_notices(spoil, is_mask_wrong: bool) -> None:
    workload = Workload(1, 64, True, (70, 70), 100)
    step, options = workload.make_step(torch.Generator().manual_seed(3)), workload.options
    comparison, logits = Comparison(step, options), ops.fp8_paged_mqa_logits(*step, **options)
    assert comparison.of(logits).agrees
    spoil(logits)
    verdict = comparison.of(logits)
    assert not verdict.agrees and verdict.mask_equal is not is_mask_wrong
