"""A packed study of the gallery gives the numbers that were packed with it."""

from __future__ import annotations

from pathlib import Path

PACKED = Path(__file__).parents[2] / "docs/gallery/replication-final/records.tar.xz"


def test_packed_records_give_the_packed_analysis(tmp_path, load_benchmark, capsys):
    script = load_benchmark("compare_analyses")
    packed, again = script.analyze_again(PACKED, tmp_path)
    numbers = {place for place, value in script.load(packed).items() if isinstance(value, int | float)}
    assert len(numbers & script.load(again).keys()) > 4000
    assert script.compare(packed, again, show=5) == 0, capsys.readouterr().out
