"""Where the files are that come with the project, and which one a name means."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from crl.config.load import experiment_files, load_experiment
from crl.errors import BadInput
from crl.paths import experiment_file, shipped, shipped_names

ROOT = Path(__file__).parents[2]
TINY = ROOT / "conf/tiny.yaml"


def test_a_checkout_has_them_around_the_package_and_a_wheel_inside(tmp_path: Path) -> None:
    assert shipped() == ROOT
    package = tmp_path / "site-packages/crl"
    package.mkdir(parents=True)
    spec = importlib.util.spec_from_file_location("paths_elsewhere", shutil.copy(ROOT / "crl/paths.py", package))
    assert spec is not None and spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert elsewhere.shipped() == package.parent
    (package / "shipped").mkdir()
    assert elsewhere.shipped() == package / "shipped"


def test_nothing_else_says_where_they_are() -> None:
    guess = re.compile(r"""parents?\[?\d?\]? / ["'](conf|data|prefect\.yaml)\b""")
    found = [
        path.relative_to(ROOT).as_posix()
        for room in ("crl", "flows", "tasks")
        for path in (ROOT / room).rglob("*.py")
        if guess.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml", "conf/tiny", "conf/tiny.yaml", "./tiny"])
def test_a_name_means_the_shipped_file_where_no_such_file_is_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()  # a folder is no experiment
    assert experiment_file(name) == TINY
    assert load_experiment(name) == load_experiment(TINY)
    here = tmp_path / (name if name.endswith(".yaml") else f"{name}.yaml")
    here.parent.mkdir(exist_ok=True)
    here.write_text(TINY.read_text().replace("name: tiny", "name: mine"))
    if name.endswith(".yaml"):
        assert load_experiment(name).name == "mine", "the file that is here comes first"


@pytest.mark.parametrize("name", ["prompts/tiny", "../conf/tiny", "/tiny", "conf", "", ".", "README.md"])
def test_what_is_no_shipped_experiment_stays_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert experiment_file(name) == Path(name)


def test_a_name_that_is_none_says_which_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="did you mean 'quickstart'"):
        load_experiment("quikstart")


def test_a_copy_elsewhere_finds_its_prompts_and_prompts_beside_it_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copy(TINY, tmp_path / "copy.yaml"))
    assert load_experiment(copy) == load_experiment(TINY)
    (tmp_path / "prompts").mkdir()
    own = (ROOT / "conf/prompts/tiny.yaml").read_text().replace("system:", "system: Mine. #", 1)
    (tmp_path / "prompts/tiny.yaml").write_text(own)
    assert load_experiment(copy).method.prompts != load_experiment(TINY).method.prompts
    copy.write_text(copy.read_text().replace("prompts: tiny", "prompts: tinny"))
    with pytest.raises(BadInput, match=r"(?s)no prompt file 'tinny'.*copy\.yaml.*write prompts/tinny\.yaml"):
        load_experiment("copy.yaml")


def test_experiments_of_the_working_folder_are_offered_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TINY, tmp_path / "mine.yaml")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    offered = experiment_files()
    assert offered[0] == "mine.yaml" and "other.yaml" not in offered
    assert {f"conf/{name}.yaml" for name in shipped_names()} >= set(offered[1:]) >= {"conf/tiny.yaml"}
