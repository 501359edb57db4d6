"""What docs/evaluation.md tells a reader to type runs, on recorded runs of the names it uses; no model plays."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.lab.study.config import load_study
from crl.lab.study.plan import study_directory
from crl.rounds.evaluate import Choice, Evaluated, chosen_method
from crl.run.directory import RunDirectory
from tests.docs.test_commands import BLOCK, ROOT
from tests.unit.cli.conftest import Outcome, crl  # noqa: F401  (fixture)
from tests.unit.lab.table.recorded import WITH, WITHOUT, Won, recorded, rows

PAGE = (ROOT / "docs/evaluation.md").read_text(encoding="utf-8")
TYPED = [line for block in BLOCK.finditer(PAGE) if block["kind"] == "sh" for line in block["body"].splitlines()]
TASKS = ("shrine0", "shrine1", "shrine2", "shrine3")
WON: Won = {(task, condition): [1, 0] for task in TASKS for condition in (WITH, WITHOUT)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that the page names, in a directory `runs`."""
    root = tmp_path_factory.mktemp("page") / "runs"
    recorded(root, "quickstart", {2: WON}, families=TASKS)
    study = load_study(ROOT / "conf/study/realms.yaml")
    for seed in study.seeds[:2]:
        name = study.run_name(next(iter(study.arms)), seed)
        recorded(study_directory(study, root), name, {2: WON}, seed=seed, families=TASKS)
    recorded(root, "plain", {2: WON}, families=TASKS, method__recipe__kind="baseline")
    return root


@pytest.mark.parametrize("typed", TYPED)
def test_a_command_of_the_page_runs(
    typed: str, runs: Path, crl: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    def play(run: RunDirectory, number: int | None, choice: Choice) -> Evaluated:
        chosen_method(run.method, choice)
        return Evaluated(2 if number is None else number, rows(2, WON), {})

    monkeypatch.setattr("crl.engine.evaluation.evaluate_round", play)
    monkeypatch.setattr("crl.preflight.check_evaluation", lambda *words: None)
    monkeypatch.chdir(runs.parent)
    monkeypatch.delenv("CRL_RUNS", raising=False)
    words = shlex.split(typed, comments=True)
    assert words[:2] in (["crl", "evaluate"], ["crl", "table"])
    # As a shell does.
    places = [place for word in words[1:] for place in (sorted(Path().glob(word)) if "*" in word else [word])]
    outcome = crl(*places)
    assert outcome.code == 0, outcome.err
    assert "0.50" in outcome.out or "0.5" in outcome.out or "50 %" in outcome.out or "7.0" in outcome.out


def test_the_page_shows_both_commands() -> None:
    assert sum(line.startswith("crl evaluate") for line in TYPED) >= 4
    assert sum(line.startswith("crl table") for line in TYPED) >= 4
