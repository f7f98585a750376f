"""Which code object solves which problem, why others do not, and what a folder of code objects must look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calls import make_call, make_packed

from indexer_rt.catalog import Catalog, addressing_of, best_rows, units_of
from indexer_rt.errors import CodeObjectError

ALL_ROWS = [1, 2, 3, 4, 6]


def name_of(rows: int, addressing: str, heads: int = 32) -> str:
    return f"fp8_paged_mqa_logits_h{heads}_r{rows}_{addressing}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file (empty: catalog opens none) for each variant of 32 heads."""
    for addressing in ("page", "gather"):
        for rows in ALL_ROWS:
            (tmp_path / f"{name_of(rows, addressing)}.hsaco").touch()
    return tmp_path


def line(name: str, rows: int = 1, addressing: str = "page", **changes: Any) -> dict[str, Any]:
    problem = {"num_heads": 32, "head_dim": 128, "rows_per_wave": rows, "addressing": addressing}
    return {"name": name, "file": f"{name}.hsaco", "sha256": "0" * 64, "symbol": name, "problem": problem} | changes


def write_manifest(folder: Path, lines: Any) -> Path:
    (folder / "manifest.json").write_text(json.dumps(lines))
    return folder


# Choosing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "next_n, rows",
    [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 6),
        (6, 6),
        (7, 4),
        (8, 4),
        (9, 6),
        (10, 6),
        (12, 6),
        (13, 6),
        (16, 6),
        (100, 6),
    ],
)
def test_groups_of_large_problems_are_as_few_as_can_be(next_n: int, rows: int) -> None:
    assert choose(next_n, ALL_ROWS, 1000) == rows


def choose(next_n: int, available: list[int], steps: int, num_cus: int = 1) -> int:
    """Choose for one sequence of so many steps of 64 tokens."""
    return best_rows({rows: -(-next_n // rows) * steps for rows in available}, num_cus)


def test_rows_come_from_what_is_there() -> None:
    assert choose(4, [1, 2], 1000) == 2
    assert choose(5, [2], 1000) == 2
    assert choose(1, [3, 6], 1000) == 3
    assert choose(0, ALL_ROWS, 1000) == 1


@pytest.mark.parametrize(
    "next_n, steps, wanted",
    [
        (6, 256, 1),  # 6 units of one row per compute unit
        (6, 257, 2),  # a few more, 3 of two rows
        (6, 1024, 2),  # 12 of two rows
        (6, 1025, 3),
        (6, 2048, 3),  # 16 of three rows
        (6, 2049, 6),
        (5, 1024, 2),
        (2, 2048, 2),
        (1, 1536, 1),
        (1, 2048, 1),  # two rows make no fewer units
        (1, 3072, 1),
        (1, 256000, 1),
    ],
)
def test_rows_of_small_problems_are_few(next_n: int, steps: int, wanted: int) -> None:
    assert choose(next_n, ALL_ROWS, steps, num_cus=256) == wanted


def test_the_device_decides_what_is_small(folder: Path) -> None:
    call, catalog = make_call(batch=4, next_n=6), Catalog.read(folder)  # 4 sequences of 200 tokens at most: 16 steps
    chosen = {num_cus: catalog.choose(call.check(), num_cus=num_cus).rows_per_wave for num_cus in (1, 2, 4, 16)}
    assert chosen == {1: 6, 2: 3, 4: 2, 16: 1}


def test_units_of_packed_rows_are_no_more_than_the_rows() -> None:
    call = make_packed(counts=(1, 4))
    assert [units_of(call.check(), rows, 200) for rows in (1, 2, 4)] == [5 * 4, 4 * 4, 2 * 4]


@pytest.mark.parametrize("block_kv", [1, 2, 4, 8])
def test_small_blocks_are_gathered(folder: Path, block_kv: int) -> None:
    entry = Catalog.read(folder).choose(make_call(block_kv=block_kv, preshuffle=False).check(), num_cus=1)
    assert (entry.name, entry.addressing, entry.rows_per_wave) == (name_of(1, "gather"), "gather", 1)


@pytest.mark.parametrize("preshuffle", [False, True])
@pytest.mark.parametrize("block_kv", [16, 48, 64, 128, 640])
def test_multiples_of_16_are_pages(folder: Path, block_kv: int, preshuffle: bool) -> None:
    call = make_call(block_kv=block_kv, preshuffle=preshuffle, next_n=5)
    assert Catalog.read(folder).choose(call.check(), num_cus=1).addressing == "page"


def test_rows_can_be_chosen_by_hand(folder: Path) -> None:
    catalog = Catalog.read(folder)
    assert catalog.choose(make_call().check(), 6, num_cus=1).name == name_of(6, "page")
    assert catalog.choose(make_packed(counts=(1, 4)).check(), num_cus=1).name == name_of(4, "page")


@pytest.mark.parametrize(
    "arguments, options, reason",
    [
        ((32, 64, 64, True), {}, "head_dim: expected 128, got 64."),
        ((32, 256, 64, True), {}, "head_dim: expected 128, got 256."),
        ((8, 128, 64, True), {}, "num_heads: expected 32, got 8."),
        ((0, 128, 64, True), {}, "num_heads: expected 32, got 0."),
        ((32, 128, 24, False), {}, "block_kv: expected one of 1, 2, 4, 8 or a multiple of 16, got 24."),
        ((32, 128, 0, False), {}, "block_kv: expected one of 1, 2, 4, 8 or a multiple of 16, got 0."),
        ((32, 128, -16, False), {}, "block_kv: expected one of 1, 2, 4, 8 or a multiple of 16, got -16."),
        (
            (32, 128, 2**24, False),
            {},
            "block_kv: expected less than 16268815 (a block's bytes are counted in 31 bits), got 16777216.",
        ),
        (
            (32, 128, 1, True),
            {},
            "preshuffle: expected False for block_kv 1, got True. Preshuffled blocks are tiles of 16 tokens; smaller "
            "blocks "
            "are plain.",
        ),
        (
            (32, 128, 1, False),
            {"kv_block_stride": 2**32},
            "kv_cache_fp8: expected a block stride below 4294967296 bytes for block_kv 1, got 4294967296.",
        ),
        ((32, 128, 64, True), {"rows_per_wave": 5}, "rows_per_wave: expected one of 1, 2, 3, 4, 6 or None, got 5."),
        ((32, 128, 64, True), {"rows_per_wave": 0}, "rows_per_wave: expected one of 1, 2, 3, 4, 6 or None, got 0."),
        ((32, 128, 64, True), {"rows_per_wave": -1}, "rows_per_wave: expected one of 1, 2, 3, 4, 6 or None, got -1."),
    ],
)  # fmt: skip
def test_what_is_not_covered_has_a_reason(folder: Path, arguments: Any, options: Any, reason: str) -> None:
    assert Catalog.read(folder).why_not(*arguments, **options) == reason


def test_what_is_covered_has_none(folder: Path) -> None:
    catalog = Catalog.read(folder)
    for block_kv in (1, 2, 4, 8, 16, 64, 640):
        assert catalog.why_not(32, 128, block_kv, False) is None
        assert catalog.why_not(32, 128, block_kv, False, kv_block_stride=2**32 - 4) is None
    assert catalog.why_not(32, 128, 16, True, kv_block_stride=2**40, rows_per_wave=6) is None


def test_a_folder_without_one_addressing_says_so(folder: Path) -> None:
    for path in folder.glob("*_gather.hsaco"):
        path.unlink()
    reason = Catalog.read(folder).why_not(32, 128, 1, False)
    assert reason == f"block_kv: no gather kernel for 32 heads in {folder}, which block_kv 1 needs."


def test_choose_raises_the_reason(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^num_heads: expected 32, got 8\.$"):
        Catalog.read(folder).choose(make_call(heads=8).check(), num_cus=1)


def test_addressing_follows_the_block_size() -> None:
    assert [addressing_of(block_kv) for block_kv in (1, 8, 16, 64)] == ["gather", "gather", "page", "page"]


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_manifest_is_read(tmp_path: Path) -> None:
    names = [name_of(2, "page"), name_of(3, "gather")]
    write_manifest(tmp_path, [line(names[0], 2), line(names[1], 3, "gather")])
    first, second = Catalog.read(tmp_path).entries
    assert (first.name, first.path, first.sha256) == (names[0], tmp_path / f"{names[0]}.hsaco", "0" * 64)
    assert (second.rows_per_wave, second.addressing, second.symbol) == (3, "gather", names[1])


def test_file_names_serve_without_a_manifest(folder: Path) -> None:
    entries = Catalog.read(folder).entries
    assert len(entries) == 10 and all(entry.sha256 is None for entry in entries)
    assert {(entry.rows_per_wave, entry.addressing) for entry in entries} == {
        (rows, addressing) for rows in ALL_ROWS for addressing in ("page", "gather")
    }


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(CodeObjectError, match=r"nowhere: no such folder of code objects\. Run \./build\.sh"):
        Catalog.read(tmp_path / "nowhere")


@pytest.mark.parametrize("with_manifest", [False, True])
def test_an_empty_folder_says_so(tmp_path: Path, with_manifest: bool) -> None:
    if with_manifest:
        write_manifest(tmp_path, [])
    with pytest.raises(CodeObjectError, match=r"holds no code object of fp8_paged_mqa_logits\. Run \./build\.sh"):
        Catalog.read(tmp_path)


def test_a_foreign_file_name_says_so(folder: Path) -> None:
    (folder / "other.hsaco").touch()
    with pytest.raises(
        CodeObjectError, match=r"other\.hsaco: its name does not say what it solves\. Name it fp8_paged"
    ):
        Catalog.read(folder)


@pytest.mark.parametrize(
    "lines, words",
    [
        ({}, r"manifest\.json: expected a JSON array, got dict"),
        ([3], r"manifest\.json: entry 0: expected 'problem' of type dict, got None"),
        ([line("a"), line("b", file=7)], r"entry 1: expected 'file' of type str, got 7"),
        ([line("a", file="../a.hsaco")], r"entry 0: 'file' is '\.\./a\.hsaco', expected a name in the same folder"),
        ([line("a", sha256=None)], r"entry 0: expected 'sha256' of type str, got None"),
        ([line("a", 1, "scatter")], r"entry 0: 'addressing' is 'scatter', expected 'page' or 'gather'"),
        ([line("a", rows="1")], r"entry 0: expected 'rows_per_wave' of type int, got '1'"),
        ([line("a", rows=0)], r"entry 0: 'rows_per_wave' is 0, expected at least 1"),
        ([line("a", rows=True)], r"entry 0: expected 'rows_per_wave' of type int, got True"),
        ([line("a", 2), line("b", 2)], r"a and b solve the same problems\. Remove one"),
    ],
)
def test_a_wrong_manifest_says_where(tmp_path: Path, lines: Any, words: str) -> None:
    write_manifest(tmp_path, lines)
    with pytest.raises(CodeObjectError, match=words):
        Catalog.read(tmp_path)


def test_a_manifest_that_is_no_json_says_so(tmp_path: Path) -> None:
    for text in (b"[{", b"\xff\xfe", b"[" * 100000):
        (tmp_path / "manifest.json").write_bytes(text)
        with pytest.raises(CodeObjectError, match=r"manifest\.json: cannot be read: .* Run \./build\.sh"):
            Catalog.read(tmp_path)


@pytest.mark.parametrize(
    "arguments, name", [(("cuda",), "num_heads"), ((32, 128.0), "head_dim"), ((32, 128, True), "block_kv")]
)
def test_what_is_asked_of_numbers_takes_numbers(arguments: tuple[Any, ...], name: str) -> None:
    full = (*arguments, 128, 64)[:3] if len(arguments) < 3 else arguments
    with pytest.raises(TypeError, match=f"{name}: expected an int, got "):
        Catalog.shipped().why_not(*full, False)
