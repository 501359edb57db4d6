"""The README's blocks are made from a run: what it says of one is true of that one."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.readme import COLUMNS, blocks, inserted, main, picture
from crl.report.views import query
from tests.unit.report.builder import build_run
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

README = """# A page

<!-- from a run: ending -->

```
27 stages ran
```

Between, a block of another kind.

```sh
make train
```
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ScriptedRun(tmp_path_factory.mktemp("runs"), experiment("told")) as scripted:
        scripted.initialize()
        (entry,) = scripted.play(Ask("add", "keep to the wall " * 20))
        scripted.play(guided=[(entry, True), (entry, False)])
        return scripted.path


def test_counts_and_story_are_those_of_the_run(run: Path) -> None:
    found = blocks(run)
    stages = query(run, "SELECT count(*) FROM stages")[1][0][0]
    assert found["ending"].startswith(f"{stages} stages ran; in total, the stages of this run have taken ")
    assert "everything is in runs/told/:" in found["ending"]
    lines = found["why"].splitlines()
    assert lines[0].startswith("experience x-d-r0001-0-o0") and any("used in 2 episodes" in line for line in lines)
    assert max(map(len, lines)) == COLUMNS and lines[1].endswith(" …"), "a long line says that it is cut"


def test_blocks_are_put_in_their_places_and_nowhere_else(run: Path) -> None:
    found = blocks(run)
    text, missing = inserted(README, found)
    assert missing == ["why"] and "27 stages" not in text and found["ending"] in text
    assert text.replace(found["ending"], "27 stages ran") == README
    assert inserted(text, found) == (text, ["why"]), "again changes nothing"


def test_picture_and_page_are_written_and_the_rest_is_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(README)
    main(run, tmp_path)
    assert blocks(run)["ending"] in (tmp_path / "README.md").read_text()
    assert "<!-- from a run: why -->\n```\nexperience x-d-r0001-0-o0" in capsys.readouterr().out
    assert ElementTree.parse(tmp_path / "docs/quickstart.svg").getroot().tag.endswith("svg")


def test_the_picture_is_svg_that_shows_the_rounds_and_asks_no_server(tmp_path: Path) -> None:
    svg = picture(build_run(tmp_path))
    text = " ".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "held out, with bank" in text and "seconds per stage" in text
    assert "@font-face" not in svg and "cdn" not in svg
