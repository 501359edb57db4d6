"""A run keeps the digest of the data that its environments read, and goes on with no other content."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.audit.data import data_problems, has_data
from crl.audit.verify import verify
from crl.cli.fork import changed_experiment
from crl.config import Experiment, FamilyConfig, Runtime
from crl.engine.services import EngineServices
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

    PATHS: ClassVar[tuple[str, ...]] = ("data",)

    def data_files(self) -> Mapping[str, Path]:
        return {"data": Path(self.data)}


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
    assert kept.data_digests == {"data": digest_of(data)}
    make_environment(kept).close()
    before = data.stat()
    data.write_text("two\n")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    again = lambda: RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")  # noqa: E731
    for attempt in (again, lambda: make_environment(kept), lambda: _checked(run.path)):
        with pytest.raises(FrozenMethodChanged) as refused:
            attempt()
        told = str(refused.value)
        assert "has changed since the run was made" in told and digest_of(data) in told
        assert kept.data_digests["data"] in told and str(data) in told and "under another experiment name" in told
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
    assert found.data_digests == {"data": digest_of(data), "data@3": digest_of(tmp_path / "later.jsonl")}
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
    assert other.method.families[0].data_digests == {"data": digest_of(tmp_path / "other.jsonl")}


def test_without_data_nothing_is_kept() -> None:
    made = experiment()
    assert with_data_digests(made) is made and digests_of(made.method.families[0]) == {}
    assert "data_digests" not in made.method.families[0].model_dump()


def test_a_file_that_was_moved_is_the_same_experiment(data: Path, tmp_path: Path) -> None:
    run = RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")
    moved = tmp_path / "other place" / "renamed.jsonl"
    moved.parent.mkdir()
    data.rename(moved)
    with pytest.raises(FrozenMethodChanged, match="its new path goes on with the run"):
        _checked(run.path)
    again = RunDirectory.create_or_open(of(family(moved)), tmp_path / "runs")
    assert again.method_digest == run.method_digest == RunDirectory.open(run.path).method_digest
    assert RunDirectory.open(run.path).method.families[0].environment == FiledConfig(data=str(moved))
    _checked(run.path)
    assert not [problem for problem in verify(run.path) if "experiment" in problem.file]


def test_other_settings_of_the_environment_are_another_experiment_still(data: Path, tmp_path: Path) -> None:
    RunDirectory.create_or_open(of(family(data)), tmp_path / "runs")
    other = FamilyConfig(name="lake", environment=FiledConfig(data=str(data), max_turns=3))
    with pytest.raises(FrozenMethodChanged, match=r"environment\.max_turns: \d+ in the run, 3 now"):
        RunDirectory.create_or_open(of(other), tmp_path / "runs")


NAMES = st.text("ab é.-_☃", min_size=1, max_size=6).filter(lambda name: name.strip(".") and not name.startswith("."))
TREES = st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=40), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(TREES, st.data())
def test_whatever_changes_in_a_folder_changes_its_digest_and_where_it_is_does_not(tree: Any, drawn: Any) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "games")
        for (place, name), content in tree.items():
            (folder / place).mkdir(parents=True, exist_ok=True)
            (folder / place / name).write_bytes(content)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        whole, listed = digest_of(folder), digest_of(files)
        (folder / ".cache").mkdir()
        (folder / ".cache" / "lock").write_text("a tool was here")
        assert digest_of(folder) == whole
        elsewhere = folder.rename(Path(made, "moved here"))
        files = [elsewhere / path.relative_to(folder) for path in files]
        assert (digest_of(elsewhere), digest_of(files)) == (whole, listed)
        path = drawn.draw(st.sampled_from(files))
        content, how = path.read_bytes(), drawn.draw(st.sampled_from(["byte", "more", "name", "gone", "new"]))
        before = path.stat()
        if how == "byte" and content:
            at = drawn.draw(st.integers(0, len(content) - 1))
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # size and time say nothing
        elif how in ("byte", "more"):
            path.write_bytes(content + b"\n")
        elif how == "new":
            (path.parent / "new").write_bytes(b"")
            files.append(path.parent / "new")
        else:
            path.rename(path.with_name("z"))
            files[files.index(path)] = path.with_name("z")
            if how == "gone":
                files.remove(path.with_name("z"))
                path.with_name("z").unlink()
        assert digest_of(elsewhere) != whole
        assert not files or digest_of(files) != listed


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "game").write_text("1")
    (tmp_path / "data" / "train").symlink_to(tmp_path / "far")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    before = digest_of(tmp_path / "data")
    (tmp_path / "far" / "game").write_text("2")
    assert digest_of(tmp_path / "data") != before


def test_verify_reads_the_data_and_names_what_is_not_as_it_was(data: Path, tmp_path: Path) -> None:
    method = RunDirectory.create_or_open(of(family(data)), tmp_path / "runs").method
    assert has_data(method) and not list(data_problems(method)) and not has_data(experiment().method)
    before, expected = data.stat(), method.families[0].data_digests["data"]  # type: ignore[index]
    data.write_text("two\n")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    [problem] = data_problems(method)
    assert (problem.file, problem.severity, problem.expected) == (str(data), "data", f"SHA-256 {expected}")
    assert problem.found == digest_of(data)
    data.unlink()
    assert [problem.found for problem in data_problems(method)] == ["nothing there"]


def test_an_environment_that_is_made_already_is_not_lent_over_other_data(data: Path, tmp_path: Path) -> None:
    services = EngineServices(RunDirectory.create_or_open(of(family(data)), tmp_path / "runs"))
    first = services.environment("lake", 1)
    assert services.environment("lake", 2) is first
    data.write_text("two\n")
    with pytest.raises(FrozenMethodChanged, match=r"tasks\.jsonl has changed"):
        services.environment("lake", 3)
