"""Energy as devices report it, from counters and a program that stand in for the real ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ablationlab.core.energy import EnergyMeter, gpu_watts
from ablationlab.pipeline import Options, _energy_measured
from ablationlab.records.energy import Energy, EnergyReading, overlap
from ablationlab.records.results import Results
from ablationlab.records.storage import ResultsFolder
from ablationlab.report.page.rest import energy_text, version_table
from analysis.builder import make_plan, study


@pytest.fixture
def packages(tmp_path: Path) -> Callable[..., Path]:
    """Writes the counters of packages, in microjoules, as Linux shows them."""

    def write(*counters: int, limit: int = 1_000_000_000) -> Path:
        for number, counter in enumerate(counters):
            package = tmp_path / "powercap" / f"intel-rapl:{number}"
            package.mkdir(parents=True, exist_ok=True)
            (package / "energy_uj").write_text(f"{counter}\n")
            (package / "max_energy_range_uj").write_text(f"{limit}\n")
            part = package.with_name(f"intel-rapl:{number}:0")  # a part of the package must not count again
            part.mkdir(exist_ok=True)
            (part / "energy_uj").write_text("5\n")
        return tmp_path / "powercap"

    return write


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of nvidia-smi that prints this."""

    def write(printed: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return write


def test_packages_are_added_up_also_where_a_counter_wraps(packages):
    place = packages(4_000_000, 999_000_000)
    with EnergyMeter(gpu=False, powercap=place) as meter:
        packages(10_000_000, 3_000_000)  # 6 J, and 1 + 3 J over the limit of 1000 J
    assert meter.joules == {"rapl": pytest.approx(10.0)}


def test_what_counts_the_whole_machine_is_not_added_to_its_packages(packages):
    powercap = packages(0, 0)
    (powercap / "intel-rapl:0" / "name").write_text("package-0\n")
    (powercap / "intel-rapl:1" / "name").write_text("psys\n")
    with EnergyMeter(gpu=False, powercap=powercap) as meter:
        packages(100_000_000, 150_000_000)
    assert meter.joules == {"rapl": 100.0}


def test_the_power_of_gpus_is_added_up_over_time(smi, tmp_path):
    smi("300.0\\n100.0\\n")
    assert gpu_watts() == 400.0
    with EnergyMeter(gpu=True, powercap=tmp_path / "none") as meter:
        pass
    assert meter.joules["nvidia-smi"] == pytest.approx(400.0 * meter.seconds, rel=0.5)


@pytest.mark.parametrize("printed", ["[N/A]\\n", "", "300\\n[N/A]\\n", "nan\\n", "-5\\n"])
def test_a_gpu_that_reports_no_power_is_not_counted(smi, tmp_path, printed):
    smi(printed)
    with EnergyMeter(gpu=True, powercap=tmp_path / "none") as meter:
        pass
    assert meter.joules == {}


def energy(began: str, seconds: float, joules: float | None) -> Energy:
    readings = () if joules is None else (EnergyReading(source="rapl", joules=joules),)
    return Energy(plan_hash="p", began=f"2026-01-01T{began}+00:00", seconds=seconds, readings=readings)


def test_commands_that_measured_at_once_have_no_sum():
    first, later, beside = energy("10:00:00", 60, 1e6), energy("10:02:00", 60, 2e6), energy("10:00:30", 60, 1e6)
    assert not overlap([later, first])
    assert energy_text([first, later]).startswith("3.00\u202fMJ in ")
    assert overlap([first, beside])
    assert energy_text([first, beside]) == "not known: two commands measured the same devices at once"
    assert energy_text([energy("10:00:00", 60, None)]) == "not reported by this machine"
    assert energy_text([]) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("began", began) for began in ("x", "", "2026-01-01T10:00:00", "0001-01-01")),
        *(("seconds", seconds) for seconds in (-1, math.nan, math.inf, 1e12)),
        *(("readings", [{"source": "rapl", "joules": joules}]) for joules in (-1, math.nan, math.inf, "NaN", 1e30)),
        ("plan_hash", "another"),
    ],
)
def test_a_record_of_no_time_or_an_impossible_number_is_left_out_and_named(tmp_path, key, value):
    make_plan(study()).create(tmp_path / "plan.lock")
    plan_hash = Results.open(tmp_path).plan.plan_hash
    kept = energy("10:00:00", 60, 1e6).model_copy(update={"plan_hash": plan_hash})
    for number in (1, 2):
        kept.create(tmp_path / "energy" / f"000{number}.json")
    path = tmp_path / "energy" / "0002.json"
    data = json.loads(path.read_text()) | {key: value}
    del data["seal"]  # as a file of an earlier version
    path.write_text(json.dumps(data))
    results = Results.open(tmp_path)
    assert [record.began for record in results.energy] == [kept.began]
    (damage,) = results.problems
    assert damage.file == "energy/0002.json"
    assert "move it away" in damage.text


def test_counters_without_a_limit_are_not_used(packages):
    place = packages(10_000_000)
    (place / "intel-rapl:0" / "max_energy_range_uj").unlink()
    with EnergyMeter(gpu=False, powercap=place) as meter:
        packages(4_000_000)
    assert meter.joules == {}


def test_a_command_that_trains_leaves_a_record_even_if_it_is_stopped(tmp_path, monkeypatch, smi):
    monkeypatch.setattr("ablationlab.core.energy.POWERCAP", tmp_path / "none")
    smi("300\\n")  # of a GPU that a study on the processor does not use
    results = ResultsFolder(tmp_path)
    make_plan(study()).create(results.plan)
    with pytest.raises(KeyboardInterrupt), _energy_measured(results, Options(device="cpu")):
        raise KeyboardInterrupt
    with _energy_measured(results, Options(device="auto")):
        pass
    records = Results.open(tmp_path).energy
    assert not any(record.readings for record in records)
    assert [record.plan_hash for record in records] == [Results.open(tmp_path).plan.plan_hash] * 2
    (tmp_path / "energy" / "0001.json").unlink()
    with _energy_measured(results, Options(device="cpu")):  # after a gap: no name is taken twice
        pass
    assert sorted(path.name for path in (tmp_path / "energy").iterdir()) == ["0002.json", "0003.json"]
    assert "energy" in {row[0].text for row in version_table(Results.open(tmp_path)).rows}
