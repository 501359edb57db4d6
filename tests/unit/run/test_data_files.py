"""A run keeps the digest of the data that its environments read, and goes on with no other content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.cli.fork import changed_experiment
from crl.config import Experiment, FamilyConfig, Runtime
from crl.envs import make_environment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput, FrozenMethodChanged
from crl.preflight import checks
from crl.run.data_files import check_data, digest_of, digests_of, with_data_digests
from crl.run.directory import RunDirectory
from tests.tiny_run import experiment


class FiledConfig(FrozenLakeConfig):
    """A lake that reads a file or a folder of a person's."""

    kind: str = "tests.unit.run.test_data_files:FiledConfig"  # type: ignore[assignment]
    data: str

    def data_files(self) -> Mapping[str, Path]:
        return {self.data: Path(self.data)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text("one\n")
    return tmp_path / "tasks.jsonl"


def family(data: Path, **more: Any) -> FamilyConfig:
    return FamilyConfig.model_validate({"name": "lake", "environment": FiledConfig(data=str(data)), **more})


def of(found: FamilyConfig) -> Experiment:
    made = experiment()
    return made.model_copy(update={"method": made.method.model_copy(update={"families": [found]})})


def test_a_changed_file_is_refused_when_the_run_is_opened_again_and_wherever_it_is_played(
    data: Path, tmp_path: Path
) -> None:
    run = RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")
    kept = RunDirectory.open(run.path).method.families[0]
    assert kept.data_digests == {str(data): digest_of(data)}
    make_environment(kept).close()
    before = data.stat()
    data.write_text("two\n")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(FrozenMethodChanged, match=r"data_digests\..*tasks\.jsonl: '[0-9a-f]{12}"):
        RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")
    for attempt in (lambda: make_environment(kept), lambda: _checked(run.path)):
        with pytest.raises(BadInput) as refused:
            attempt()
        told = str(refused.value)
        assert "has changed since the run was made" in told and digest_of(data) in told
        assert kept.data_digests[str(data)] in told and "under another experiment name" in told
    data.unlink()
    with pytest.raises(BadInput, match="nothing there"):
        check_data(kept)
    data.write_text("one\n")
    assert RunDirectory.create_or_open(of(family(data)), tmp_path / "runs").method == run.method
    _checked(run.path)


def _checked(path: Path) -> None:
    """As `crl resume` checks it."""
    run = RunDirectory.open(path)
    found = Experiment.model_construct(name=run.experiment_name, method=run.method, runtime=Runtime())
    for name, check in checks(found):
        if "data of family" in name:
            check()


def test_a_folder_has_one_digest_of_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "games"
    (folder / "more").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "more" / "b").write_text("2")
    first = digest_of(folder)
    (folder / "more" / "b").rename(folder / "more" / "c")
    second = digest_of(folder)
    (folder / "more" / "c").write_text("3")
    assert len({first, second, digest_of(folder)}) == 3
    (folder / "more" / "c").write_text("2")
    (folder / "more" / "c").rename(folder / "more" / "b")
    assert digest_of(folder) == first


def test_a_family_that_changes_its_data_has_a_digest_of_each(data: Path, tmp_path: Path) -> None:
    (tmp_path / "later.jsonl").write_text("later\n")
    changes = [{"round": 3, "environment": {"data": str(tmp_path / "later.jsonl")}}]
    found = with_data_digests(of(family(data, changes=changes))).method.families[0]
    files = (tmp_path / "later.jsonl", data)
    assert found.data_digests == {str(path): digest_of(path) for path in files}
    (tmp_path / "later.jsonl").write_text("changed\n")
    check_data(found.in_round(2))
    with pytest.raises(BadInput, match="has changed"):
        check_data(found.in_round(3))


def test_a_fork_keeps_the_digest_and_takes_that_of_other_data(data: Path, tmp_path: Path) -> None:
    parent = RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")
    data.write_text("two\n")
    same = with_data_digests(changed_experiment(parent, Runtime(), "same", [], None))
    assert same.method.families[0].data_digests == parent.method.families[0].data_digests
    (tmp_path / "other.jsonl").write_text("other\n")
    pair = f"method.families.0.environment.data={tmp_path / 'other.jsonl'}"
    other = with_data_digests(changed_experiment(parent, Runtime(), "other", [pair], None))
    assert other.method.families[0].data_digests == {str(tmp_path / "other.jsonl"): digest_of(tmp_path / "other.jsonl")}


def test_without_data_nothing_is_kept() -> None:
    made = experiment()
    assert with_data_digests(made) is made and digests_of(made.method.families[0]) == {}
    assert "data_digests" not in made.method.families[0].model_dump()
