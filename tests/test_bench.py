"""The bench command: what it measures and how it is marked. The timer is a stand-in: there is no card here."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from indexer_rt import bench, cli, shapes
from indexer_rt.shapes import Modelled, Shape

CPU = torch.device("cpu")
SMALL = Shape(2, 3, 32, 70, 64, True, False, 200)


class FixedTimer:
    """Say that an eager call takes 9 us and one in a graph ``graph``; remember what was to be timed."""

    def __init__(self, graph: float = 7.0) -> None:
        self.graph, self.timed = graph, []

    def eager_us(self, calls: list[Callable[[], object]]) -> float:
        self.timed.append(len(dict.fromkeys(map(id, calls))))
        calls[0]()
        return 9.0

    def graph_us(self, calls: list[Callable[[], object]]) -> float:
        self.timed.append(len(dict.fromkeys(map(id, calls))))
        return self.graph


def test_bytes_and_limit_by_hand() -> None:
    shape = Shape(2, 3, 32, 70, 64, True, False, 200)
    assert shape.bytes_moved == 2 * 70 * 132 + 6 * 32 * 132 + 2 * (68 + 69 + 70) * 4
    assert shape.limit_us == pytest.approx(2.2 + shape.bytes_moved / 6.5e6)
    scattered = Shape(2, 3, 32, 70, 1, False, False, 200)
    assert scattered.limit_us == pytest.approx(2.2 + (scattered.bytes_moved + 0.45 * 140 * 132) / 6.5e6)


def test_published_rows_name_their_source_and_cover_both_block_sizes() -> None:
    rows = shapes.published()
    assert len(rows) >= 30 and all(row.source and row.kernel and row.time_us > 0 for row in rows)
    assert {row.shape.block_kv for row in rows} >= {1, 16, 64, 256}


def test_ragged_lengths_are_the_same_each_time_and_within_the_spread() -> None:
    shape = Shape(16, 2, 32, 1000, 1, False, True, 2000)
    lens = shape.workload().context_lens
    assert lens == shape.workload().context_lens and len(set(lens)) > 8
    assert all(700 <= length <= 1300 for length in lens)


def test_cold_calls_rotate_through_buffers_and_warm_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COLD_BYTES", 200_000)
    timer = FixedTimer()
    measured = bench.measure(SMALL, CPU, timer, calls=4)
    assert measured == bench.Measured(9.0, 7.0, 9.0, 7.0)
    warm_up, cold_eager, cold_graph, warm_eager, warm_graph = timer.timed
    assert cold_eager == cold_graph > 1 and warm_up == warm_eager == warm_graph == 1


def test_a_time_beyond_the_peak_bandwidth_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COLD_BYTES", 200_000)
    with pytest.raises(
        ValueError, match=r"b2-n3-h32-ctx70-kv64-preshuffled: 0\.00 us for .* the buffers were not cold"
    ):
        bench.measure(SMALL, CPU, FixedTimer(graph=0.001), calls=4)


def test_without_a_card_nothing_is_called_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shapes, "modelled", lambda: {"b16-n6-h32-ctx131072-kv64-preshuffled-ragged": Modelled(60.0, 70.0, "HBM", "abc")}
    )
    figures, picture = tmp_path / "bench.csv", tmp_path / "bench.png"
    assert cli.main(["bench", "--filter", "b16-n6", "--csv", str(figures), "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nothing is measured: no gfx950 here")
    row = next(line.split() for line in printed.splitlines() if line.startswith("b16-n6-h32-ctx131072-kv64"))
    assert row[2:4] == ["60.0", "70.0"] and row[5:7] == ["141.2", "hip"]
    assert row[7:12] == ["-"] * 5 and row[12] == "HBM"
    with figures.open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if "kv64" in line["shape"])
    assert (line["modelled_warm_us"], line["modelled_cold_us"]) == ("60.0", "70.0")
    assert line["measured_cold_graph_us"] == ""
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_measured_line_shows_the_bandwidth() -> None:
    shape = next(row.shape for row in shapes.published() if row.shape.batch == 64)
    rows = bench.lines(lambda _: bench.Measured(400.0, 300.0, 90.0, 80.0), lambda other: other == shape)
    line = rows[0]()
    assert bench.cells(line)[7:12] == (
        "80.0", "300.0", f"{300 / shape.limit_us:.2f}", f"{shape.bytes_moved / 300e6:.2f}", "400.0",
    )  # fmt: skip


@pytest.mark.parametrize("package", ["tqdm", "matplotlib"])
def test_what_is_missing_is_said_before_anything_is_measured(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    assert cli.main(["bench", "--plot", str(tmp_path / "bench.png")]) == 1
    message = f'indexer-rt bench: {package} is not installed. Run: pip install "indexer-rt[bench]"\n'
    assert capsys.readouterr() == ("", message)


def test_an_unknown_filter_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--filter", "b7-"]) == 1
    assert "no shape has 'b7-' in its name" in capsys.readouterr().err
