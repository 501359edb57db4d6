"""The study that docs/evaluation.md begins with is the tiny one, and names of studies are those of their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.lab.study.config import load_study
from crl.lab.study.plan import plan_runs
from tests.docs.test_commands import ROOT

PAGE, EARLIER = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("docs/evaluation.md", "research/earlier_studies.md")
)
((PLACE, SHOWN),) = re.findall(r'^```yaml title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The study of the page, where the page puts it, among the experiments."""
    path = tmp_path / PLACE
    path.parent.mkdir(parents=True)
    for each in ("tiny.yaml", "prompts"):
        (tmp_path / "conf" / each).symlink_to(ROOT / "conf" / each)
    path.write_text(SHOWN, encoding="utf-8")
    return path


def test_the_study_shown_is_the_tiny_one_under_another_name(shown: Path) -> None:
    study, tiny = load_study(shown), load_study(ROOT / "conf/study/tiny.yaml")
    changed = {"name": study.name, "question": study.question, "base": study.base}
    assert study == tiny.model_copy(update=changed) and f"crl compare {PLACE}" in PAGE
    runs = plan_runs(study, Path("runs"))
    assert len(runs) == 4 and f"runs/{study.name}/" in SHOWN
    assert {run.path.parent for run in runs} == {Path("runs") / study.name}


def test_names_of_studies_are_told() -> None:
    told = dict(re.findall(r"`(\w+)` is the name of `(\w+\.yaml)`", EARLIER))
    assert {file: load_study(ROOT / "conf/study" / file).name for file in told.values()} == {
        file: name for name, file in told.items()
    }
    assert set(told.values()) == {"realms.yaml"}
