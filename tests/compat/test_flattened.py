"""Regrouping flattened MTP rows: the same bits from one pass over the keys, by views alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import Case, check, make
from torch import Tensor

import indexer_rt
from indexer_rt import environment, ops
from indexer_rt.compat import flattened


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("INDEXER_RT_STRICT", "1")
    environment.current.cache_clear()
    yield
    environment.current.cache_clear()


def flatten(inputs: Any) -> tuple[Any, ...]:
    """Return a case's arguments as a caller flattens them: rows as sequences, tables repeated, each row's own end."""
    q, cache, weights, lens, tables, columns = inputs.arguments()
    batch, next_n = q.shape[:2]
    ends = lens if lens.ndim == 2 else lens.unsqueeze(1) - next_n + 1 + torch.arange(next_n, dtype=torch.int32)
    repeated = tables.repeat_interleave(next_n, dim=0)
    return q.flatten(0, 1), cache, weights, ends.reshape(batch * next_n).int(), repeated, columns


CASES = {
    "mtp-4": Case([9, 64, 65, 300], next_n=4),
    "mtp-3-plain-16": Case([17, 131], next_n=3, block_kv=16, preshuffle=False),
    "mtp-2-gather": Case([5, 70], next_n=2, block_kv=1, preshuffle=False),
    "any-ends": Case([[4, 90, 5], [70, 1, 0]], next_n=3),
    "one-row": Case([9, 70], next_n=1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("form", ["3d", "4d"])
def test_a09_regrouped_rows_give_the_bits_of_the_flattened_call(case: Case, form: str) -> None:
    inputs = make(case)
    q, cache, weights, ends, tables, columns = flatten(inputs)
    alone = indexer_rt.fp8_paged_mqa_logits(
        q.unsqueeze(1), cache, weights, ends, tables, columns, preshuffle=case.preshuffle, clean_logits=True
    )
    if form == "4d":
        q, ends, weights = q.unsqueeze(1), ends.unsqueeze(1), weights.unsqueeze(2)
    logits = flattened.fp8_paged_mqa_logits(
        q, cache, weights, ends, tables, columns, rows_per_sequence=case.next_n, preshuffle=case.preshuffle,
        out=inputs.out,
    )  # fmt: skip
    assert logits is inputs.out
    check(inputs)
    fresh = flattened.fp8_paged_mqa_logits(
        q, cache, weights, ends, tables, columns, rows_per_sequence=case.next_n, preshuffle=case.preshuffle
    )
    assert torch.equal(fresh, alone)


def test_regrouped_tensors_are_views_and_the_operator_sees_native_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make(Case([9, 64, 65], next_n=4))
    q, cache, weights, ends, tables, columns = flatten(inputs)
    seen: list[Tensor] = []

    def operator(q_fp8: Tensor, *rest: Any, **options: Any) -> Tensor:
        seen.extend((q_fp8, rest[2], rest[3]))
        return torch.empty(0)

    monkeypatch.setattr(ops, "fp8_paged_mqa_logits", operator)
    flattened.fp8_paged_mqa_logits(q, cache, weights, ends, tables, columns, rows_per_sequence=4, preshuffle=True)
    native, rows, first = seen
    assert native.shape == (3, 4, 32, 128) and native.data_ptr() == q.data_ptr()
    assert rows.shape == (3, 4) and rows.data_ptr() == ends.data_ptr()
    assert first.shape == (3, tables.shape[1]) and first.data_ptr() == tables.data_ptr()
    assert first.stride() == (4 * tables.stride(0), 1)


def test_regroup_reads_no_data() -> None:
    meta = flattened.regroup(
        torch.empty(6, 1, 32, 128, device="meta"),
        torch.empty(6, dtype=torch.int32, device="meta"),
        torch.empty(6, 9, dtype=torch.int32, device="meta"),
        rows_per_sequence=3,
    )
    assert [tuple(tensor.shape) for tensor in meta] == [(2, 3, 32, 128), (2, 3), (2, 9)]


def test_regroup_takes_strided_rows() -> None:
    inputs = make(Case([9, 64], next_n=2))
    q, cache, weights, ends, tables, columns = flatten(inputs)
    wide = torch.zeros(4, 2, 32, 128).to(torch.float8_e4m3fn)
    wide[:, 1] = q
    columns_of_ends = torch.full((4, 3), -7, dtype=torch.int32)
    columns_of_ends[:, 1] = ends
    flattened.fp8_paged_mqa_logits(
        wide[:, 1], cache, weights, columns_of_ends[:, 1], tables, columns, rows_per_sequence=2, preshuffle=True,
        out=inputs.out,
    )  # fmt: skip
    check(inputs)


def test_no_rows_give_no_rows() -> None:
    q, cache = torch.zeros(0, 32, 128).to(torch.float8_e4m3fn), make(Case([9])).cache
    ends, tables = torch.zeros(0, dtype=torch.int32), torch.zeros(0, 3, dtype=torch.int32)
    logits = flattened.fp8_paged_mqa_logits(
        q, cache, torch.zeros(0, 32), ends, tables, 100, rows_per_sequence=2, preshuffle=True
    )
    assert logits.shape == (0, 100)


def regroup_arguments(**changes: Any) -> dict[str, Any]:
    arguments = dict(
        q_fp8=torch.zeros(6, 32, 128),
        context_lens=torch.zeros(6, dtype=torch.int32),
        block_tables=torch.zeros(6, 4, dtype=torch.int32),
        rows_per_sequence=3,
    )
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(rows_per_sequence=4), "^rows_per_sequence: expected a divisor of the 6 rows of q_fp8, got 4"),
        (dict(q_fp8=torch.zeros(3, 2, 32, 128)), r"^q_fp8: expected flattened rows, .* got \[3, 2, 32, 128\]"),
        (dict(q_fp8=torch.zeros(6, 4096)), r"^q_fp8: expected flattened rows, .* got \[6, 4096\]"),
        (dict(context_lens=torch.zeros(2)), r"^context_lens: expected \[6\] or \[6, 1\], .* got \[2\]"),
        (dict(context_lens=torch.zeros(2, 3)), r"^context_lens: expected \[6\] or \[6, 1\], .* got \[2, 3\]"),
        (dict(block_tables=torch.zeros(2, 4)), r"^block_tables: expected \[6, table width\], .* got \[2, 4\]"),
        *(
            (dict(rows_per_sequence=n), "^rows_per_sequence: expected an integer")
            for n in (0, -1, True, "3", None, 3.0)
        ),
    ],
)
def test_regroup_says_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flattened.regroup(**regroup_arguments(**changes))


@pytest.mark.parametrize("name", ["q_fp8", "context_lens", "block_tables"])
def test_regroup_wants_tensors(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name}: expected a torch.Tensor, got list"):
        flattened.regroup(**regroup_arguments(**{name: [1]}))


def test_strict_mode_finds_rows_of_another_sequence(strict: None) -> None:
    inputs = make(Case([70, 100, 90], next_n=2))
    q, cache, weights, ends, tables, columns = flatten(inputs)
    call = dict(rows_per_sequence=2, preshuffle=True, out=inputs.out)
    flattened.fp8_paged_mqa_logits(q, cache, weights, ends, tables, columns, **call)  # poison past need may differ
    check(inputs)
    tables[3, 1] = tables[0, 1]
    wanted = f"row 3, column 1 is {tables[3, 1]}, but row 2, the first of its group of 2, has {tables[2, 1]}"
    with pytest.raises(ValueError, match=f"^block_tables: {wanted}"):
        flattened.fp8_paged_mqa_logits(q, cache, weights, ends, tables, columns, **call)


def test_strict_mode_ignores_columns_past_a_rows_need(strict: None) -> None:
    inputs = make(Case([[64, 65], [3, 2]], next_n=2))
    q, cache, weights, ends, tables, columns = flatten(inputs)
    tables[3, 1:] = -5
    flattened.fp8_paged_mqa_logits(
        q, cache, weights, ends, tables, columns, rows_per_sequence=2, preshuffle=True, out=inputs.out
    )
    check(inputs)
