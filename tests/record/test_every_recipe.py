"""Whatever the recipe: each view answers, each sample has its token record, and the checks pass natively, too."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.audit.audit import problems_of
from crl.records import BankEntry
from crl.report.views import query
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory, manifests
from tests.recipe_runs import OTHERS
from tests.tiny_run import crl_here

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["complementary", *OTHERS])
def run(request: pytest.FixtureRequest, finished: Path, run_of: Callable[[str], Path]) -> Path:
    return finished if request.param == "complementary" else run_of(request.param)


def test_each_view_answers_and_counts_what_the_manifests_count(run: Path) -> None:
    names = [name for (name,) in query(run, "SELECT table_name FROM information_schema.tables")[1]]
    counted: dict[str, int] = {}
    for manifest in manifests(RunDirectory.open(run).path).values():
        for table, rows in manifest.rows().items():
            counted[table] = counted.get(table, 0) + rows
    assert counted.keys() & set(names)
    counted.pop(BankEntry.table, None)  # the view of that name is put together from what every round changed
    for name in names:
        columns, rows = query(run, f"SELECT * FROM {name}")
        assert columns, name
        assert name not in counted or len(rows) == counted[name], name


def test_each_sample_is_learned_from_tokens_that_were_recorded(run: Path) -> None:
    _, [(samples, found)] = query(
        run,
        "SELECT count(*), count(g.generation_id) FROM samples s"
        " LEFT JOIN (SELECT DISTINCT generation_id FROM generations) g USING (generation_id)",
    )
    assert samples == found > 0


def test_the_record_is_sound_and_the_commands_of_reading_show_it(run: Path) -> None:
    opened = RunDirectory.open(run)
    assert problems_of(opened, recipe_of(opened.method)) == []
    assert "intact" in crl_here(run.parent, "verify", run.name).stdout
    said = crl_here(run.parent, "status", run.name).stdout
    assert {"1", "2"} <= set(re.findall(r"^(\d+) ", said, re.MULTILINE)), "a line for every round"


def test_native_expectations_pass_on_every_table(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    said = crl_here(tmp_path, "checks", "docs", copy.name).stdout
    assert "index.html" in said and "broken" not in said
    stages = [f"{path.parent.name}" for path in (copy / "rounds/0002").glob("*/manifest.json")]
    pages = [path.read_text(encoding="utf-8") for path in (copy / "cache/data_docs/validations").rglob("*.html")]
    assert len(pages) >= len(stages) and not [page for page in pages if "Failed" in page]
