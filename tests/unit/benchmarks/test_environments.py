"""`benchmarks/environments.py`: every built-in environment is a case, ours and the other alternate, pages are whole."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import environments as bench
from crl.config import ENVIRONMENTS
from crl.errors import BadInput


class Counted:
    """A player of episodes that last three actions."""

    def __init__(self, name: str, told: list[tuple[str, list[int]]]) -> None:
        self.name, self.told, self.left = name, told, 0

    def reset(self, seeds: range) -> None:
        self.told.append((self.name, list(seeds)))
        self.left = 3
        sum(range(20_000))  # a clock of processor time has to tick

    def step(self) -> int:
        sum(range(20_000))
        self.left -= 1
        return 2 if self.left >= 0 else 0

    def close(self) -> None:
        self.told.append((self.name, []))


def test_ours_and_the_other_play_the_same_seeds_in_turn() -> None:
    told: list[tuple[str, list[int]]] = []
    case = bench.Case("made", lambda: Counted("ours", told), lambda: Counted("other", told), "another", slots=2)
    measured = bench.measure(case, repeats=3, seconds=0.0)
    turns = [each for each in told if each[1] and each[1][0] >= 1000]
    assert [name for name, _ in turns] == ["ours", "other", "other", "ours", "ours", "other"]
    assert turns[0][1] == turns[1][1] == [1000, 1001] and turns[2][1] == turns[3][1] != turns[0][1]
    assert told[-2:] == [("ours", []), ("other", [])], "both are closed"
    for rates in (measured.ours, measured.other):
        assert len(rates.steps) == len(rates.resets) == 3 and min(rates.steps + rates.resets) > 0
    assert len(bench.row(measured)) == len(bench.COLUMNS)


def test_a_ratio_is_of_turns_and_tells_its_spread() -> None:
    assert bench.ratio([10.0, 40.0, 90.0], [10.0, 20.0, 30.0]) == "2× (1–3)"
    assert [bench.number(value) for value in (0.01234, 5.678, 123.4, 12345.6)] == ["0.0123", "5.68", "123", "12,300"]


def test_every_built_in_environment_is_a_case() -> None:
    cases, missing = bench.all_cases()
    named = " ".join([*(case.name for case in cases), *missing]).lower()
    assert {kind for kind in ENVIRONMENTS.names() if kind not in named} == set()
    assert len({case.name for case in cases}) == len(cases)


def test_an_environment_that_cannot_be_played_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise BadInput("the games are not here")

    real = ENVIRONMENTS.validate
    made = SimpleNamespace(make=missing)
    monkeypatch.setattr(ENVIRONMENTS, "names", lambda: ["frozenlake", "shrines", "games", "needy"])
    monkeypatch.setattr(ENVIRONMENTS, "validate", lambda kind: made if kind == "games" else real(kind))
    cases, told = bench.registered.cases({"frozenlake"})
    assert [case.name for case in cases] == ["shrines"]
    assert told == ["games: the games are not here", "needy: it has settings that must be given"]
    player = cases[0].ours()
    player.reset([1, 2])
    assert player.step() == 2


def test_speeds_that_a_package_was_compared_by_take_the_place_of_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(steps=400.0, their_steps=10.0, resets=90.0, their_resets=3.0)
    monkeypatch.setattr(bench.registered, "compared", lambda kind: found)
    cells = bench.row(bench.measure(bench.Case("made", lambda: Counted("ours", []), slots=2), repeats=2, seconds=0.0))
    assert cells == ["made", "400", "90", "–", "its package", "10", "3", "–", "40× (40–40)", "30× (30–30)"]


def test_the_page_has_a_row_per_case_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "memory_of", lambda case, other, slots: float(slots))
    monkeypatch.setenv("COLUMNS", "250")
    bench.main(["--only", "shrines", "masked", "--repeats", "1", "--seconds", "0.01", "--out", str(tmp_path / "p.md")])
    written = (tmp_path / "p.md").read_text()
    rows = [line.split(" | ") for line in written.splitlines() if line.startswith(("| Sokoban", "| shrines"))]
    assert len(rows) == 2 and all(len(cells) == len(bench.COLUMNS) for cells in rows)
    assert all(re.fullmatch(r"[\d,.]+", cells[1]) and cells[3] == "128 MB" for cells in rows)
    assert (
        "python benchmarks/environments.py --repeats 1 --seconds 0.01 --slots 128 --only 'shrines' 'masked'" in written
    )
    assert "Sokoban masked, one box" in capsys.readouterr().out
    case = next(case for case in bench.all_cases()[0] if case.name == "shrines")
    assert bench.grown(case, False, 8) >= 0
    with pytest.raises(SystemExit):
        bench.main(["--only", "no such environment"])
