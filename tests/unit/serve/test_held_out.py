"""`crl evaluate` of an exported agent: the games of its round are played again, and compared with those in the folder.

Its model is told what to say here; `tests/record/test_export.py` plays with real ones.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.checks.outside import require_sound
from crl.cli import main
from crl.config.engines import VllmEngine
from crl.errors import BadInput
from crl.records import Evaluation, rows_of
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK, Choice
from crl.run.files import sha256_file
from crl.serve import held_out
from crl.serve.export import export_agent
from crl.serve.folder import EPISODES, OfFolder
from crl.serve.held_out import Comparison, digest_of, evaluate_folder
from tests.marks import sampled
from tests.unit.recipes.played import Played, Policy, act
from tests.unit.serve.agents import CHANGES, ROUND, played
from tests.unit.serve.test_export import changed


@pytest.fixture(scope="module", params=sampled(CHANGES, 2))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("played"), request.param)


@pytest.fixture(scope="module")
def exported(run: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only."""
    folder = tmp_path_factory.mktemp("exported") / "agent"
    export_agent(run.run.path, folder, ROUND)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(exported, tmp_path / "agent")


class Told(Policy):
    """A model that is told what to say."""

    def close(self) -> None:
        """Nothing to free."""


@pytest.fixture(autouse=True)
def model(unvalidated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what to say, and Great Expectations takes no seconds."""
    monkeypatch.setattr(held_out, "require_sound", lambda brought: None)
    monkeypatch.setattr("crl.serve.folder.load_policy", lambda *words, **more: Told(act))


def other(read: str, generator: Any) -> str:
    """An actor that plays otherwise."""
    return "up"


def crl(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def compared(folder: Path, **choice: Any) -> Comparison:
    _, found = evaluate_folder(OfFolder(folder), Choice(**choice))
    assert found is not None
    return found


def test_every_episode_of_the_record_comes_again(run: Played, exported: Path) -> None:
    evaluated, found = evaluate_folder(OfFolder(exported))
    assert evaluated.rows == run.rows(Evaluation, "evaluate", ROUND)
    assert any(row.guided for row in evaluated.rows) and evaluated.round == ROUND
    assert found is not None and found.same and found.holds
    assert found.equal == found.episodes == len(evaluated.rows)
    assert found.digest == found.stored_digest == digest_of(evaluated.rows[::-1]), "whatever their order"
    assert [each.condition for each in found.successes] == [WITH_BANK, WITHOUT_BANK]
    assert all(each.success == each.stored for each in found.successes)


def test_what_is_stored_are_the_episodes_of_the_record(run: Played, exported: Path) -> None:
    expected = run.rows(Evaluation, "evaluate", ROUND)
    assert rows_of(Evaluation, pq.read_table(exported / EPISODES)) == expected
    told = json.loads((exported / "experience.json").read_text())["evaluation"]
    assert (told["episodes"], told["digest"]) == (len(expected), digest_of(expected))
    assert told["digest"] in (exported / "README.md").read_text()


def test_round_0_has_the_random_policy_as_well(run: Played, tmp_path: Path) -> None:
    export_agent(run.run.path, tmp_path / "first", 0)
    found = compared(tmp_path / "first")
    assert found.same and [each.condition for each in found.successes] == ["random", WITHOUT_BANK]


def test_some_of_the_games_are_compared_with_the_same_ones(run: Played, exported: Path) -> None:
    found = compared(exported, tasks=("pond",), episodes=2, conditions=("with",))
    assert found.same and found.episodes == 2
    evaluated, none = evaluate_folder(OfFolder(exported), Choice(seeds=None, episodes=5, conditions=("without",)))
    assert none is not None and none.episodes == 6 < len(evaluated.rows) == 10, "some are beyond those of the run"


def test_other_episodes_are_told_by_where_they_were_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crl.serve.folder.load_policy", lambda *words, **more: Told(other))
    monkeypatch.setattr(held_out, "processor", lambda: "Abacus, wood")
    version = held_out.metadata.version("torch")
    changed(folder, lambda told: told["evaluation"].update(processor="Abacus, wood", torch=version))
    same = compared(folder)
    assert same.expects_equal and not same.same and not same.holds and same.equal < same.episodes
    assert crl("evaluate", folder) == 1
    assert "the same processor computed both, so the episodes should be equal" in capsys.readouterr().out
    changed(folder, lambda told: told["evaluation"].update(processor="Slide rule"))
    elsewhere = compared(folder)
    assert not elsewhere.expects_equal and elsewhere.successes == same.successes
    assert elsewhere.holds == all(each.stored.low <= each.success.mean <= each.stored.high for each in same.successes)
    assert crl("evaluate", folder) == (0 if elsewhere.holds else 1)
    told = capsys.readouterr().out
    assert "computed by Slide rule" in told and "computed by Abacus, wood" in told
    assert f"the figures of the folder {'hold' if elsewhere.holds else 'do not hold'}" in told


def test_another_engine_computed_otherwise(run: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = held_out.write_episodes(run.run, ROUND, tmp_path / "plain")
    role = run.run.method.role("actor").model_copy(update={"engine": VllmEngine()})
    served = run.run.method.model_copy(update={"roles": {**run.run.method.roles, "actor": role}})
    monkeypatch.setattr(type(run.run), "method_of", lambda self, number, stage: served)
    other = held_out.write_episodes(run.run, ROUND, tmp_path / "served")
    assert (
        plain is not None and other is not None and other == {**plain, "processor": f"{plain['processor']} with vllm"}
    )


def test_on_another_processor_the_figure_decides(exported: Path) -> None:
    found = compared(exported)
    figure = found.successes[0]
    far = held_out.dataclasses.replace(figure.success, mean=1.0 if figure.stored.high < 1 else 0.0)
    moved = held_out.dataclasses.replace(found, digest="0" * 64, computed="A", stored_computed="B")
    assert moved.holds, "equal figures"
    assert not held_out.dataclasses.replace(moved, stored_computed="A").holds, "the same processor"
    unknown = held_out.dataclasses.replace(moved, stored_computed=None)
    assert unknown.holds and any("an unknown machine" in line for line in unknown.lines())
    outside = held_out.dataclasses.replace(moved, successes=(held_out.dataclasses.replace(figure, success=far),))
    if not outside.successes[0].inside:
        assert not outside.holds and any("outside the stored" in line for line in outside.lines())
    else:
        pytest.fail("the interval of few games is not everything")


@pytest.mark.parametrize("name", ["model.safetensors", EPISODES, "bank/data/train-00000-of-00001.parquet"])
def test_what_was_changed_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert crl("evaluate", folder) == 2
    said = capsys.readouterr().err
    assert f"{name} of the exported agent is not what was written" in said and "What to do: " in said


def test_episodes_that_somebody_wrote_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "require_sound", require_sound)

    def stored(content: bytes) -> None:
        (folder / EPISODES).write_bytes(content)
        changed(folder, lambda told: told["files"].update({EPISODES: _written(folder / EPISODES)}))

    table = pq.read_table(folder / EPISODES)
    cases = (
        (table.slice(1), "episodes"),
        (table.drop_columns("reward"), "evaluations"),
        (table.set_column(table.schema.get_field_index("turns"), "turns", _turns(table)), "cannot be taken"),
        (table.take([1, *range(1, len(table))]), "cannot be taken"),
        (_with_other_reward(table), "digest"),
    )
    for changed_table, said in cases:
        pq.write_table(changed_table, folder / "new")
        stored((folder / "new").read_bytes())
        with pytest.raises(BadInput, match=said):
            compared(folder)
    stored(b"PAR1")
    with pytest.raises(BadInput, match=EPISODES):
        compared(folder)


def _written(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _turns(table: Any) -> Any:
    return pa.array([each - 100 for each in table["turns"].to_pylist()])


def _with_other_reward(table: Any) -> Any:
    rewards = pa.array([each + 1.0 for each in table["reward"].to_pylist()])
    return table.set_column(table.schema.get_field_index("reward"), "reward", rewards)


def test_a_bank_that_was_taken_away_is_noticed(folder: Path) -> None:
    """The games without it come out equal, and are not all."""
    shutil.rmtree(folder / "bank")
    changed(folder, lambda told: [told["files"].pop(name) for name in [*told["files"]] if name.startswith("bank/")])
    with pytest.raises(BadInput, match=r"it has e0002/with_bank/\S+, and the folder has no such game"):
        evaluate_folder(OfFolder(folder))
    assert compared(folder, conditions=("without",)).same


def test_what_cannot_be_played_again_is_refused(
    folder: Path, run: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        ((folder, "--round", "1"), f"holds round {ROUND}"),
        ((folder, "--tasks", "sea"), "no task 'sea'"),
        ((folder, "--conditions", "random"), "nothing to play of the conditions random"),
        ((tmp_path,), "is neither a run nor an exported agent"),
    ):
        assert crl("evaluate", *words) == 2
        assert said in capsys.readouterr().err
    export_agent(run.run.path, tmp_path / "extractor", ROUND, role="extractor")
    assert not (tmp_path / "extractor" / EPISODES).exists()
    assert crl("evaluate", tmp_path / "extractor") == 2
    assert "has the weights of role extractor, and the actor plays" in capsys.readouterr().err


def test_games_that_need_a_second_model_are_refused(folder: Path) -> None:
    agent = OfFolder(folder)
    asking = {"search_and_ask": {"uses": 1}}
    rollout = agent.method.rollout.model_validate(agent.method.rollout.model_dump() | asking)
    agent.method = agent.method.model_copy(update={"rollout": rollout})
    with pytest.raises(BadInput, match="asks the extractor while it plays"):
        evaluate_folder(agent)


def test_a_folder_without_episodes_is_played_and_compared_with_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changed(folder, lambda told: (told["files"].pop(EPISODES), told.pop("evaluation")))
    assert crl("evaluate", folder, "--episodes", "1", "--out", tmp_path / "rows.parquet") == 0
    said = capsys.readouterr().out
    assert "no episodes of these games" in said and "4 rows written to" in said
    assert crl("evaluate", folder, "--episodes", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["compared"] is None


def test_the_result_as_data(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crl("evaluate", exported, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(exported) and found["compared"]["same"] and found["compared"]["holds"]
    assert found["compared"]["episodes"] == 12 and found["round"] == ROUND
    assert crl("evaluate", exported) == 0
    assert "12 episodes are equal to those in the folder, digest " in capsys.readouterr().out
