"""`crl bank …` as typed: what each command prints, in which formats, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.engine.services import EngineServices
from crl.report.why import why
from tests.unit.cli.conftest import ROOT, Outcome
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

Crl = Callable[..., Outcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory with `story`, of three rounds, and `large`, of 205 entries."""
    root = tmp_path_factory.mktemp("runs")
    with ScriptedRun(root, experiment("story")) as run:
        run.initialize()
        first, second, _ = run.play(Ask("add", "go left"), Ask("add", "go right"), Ask("add", "swim", family="pond"))
        run.play(Ask("update", "go far left", entry=first), guided=[(first, True)])
        run.play(merges=[Ask("merge", "left or right", parents=(first, second))], guided=[(first, False)])
    with ScriptedRun(root, experiment("large", method__recipe__bank__capacity=300)) as run:
        run.initialize()
        entries = run.play(*(Ask("add", f"lesson {number}") for number in range(205)))
        run.play(guided=[(entries[77], True)])
    return root


@pytest.fixture
def story(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRL_RUNS", str(made))
    return made / "story"


FIRST, MERGED = "x-d-r0001-0-o0", "x-m-r0003-0-o0"


def test_show_in_three_formats(crl: Crl, story: Path) -> None:
    table = crl("bank", "show", "story", "--round", "2").out
    assert "bank after round 2" in table and "go far left" in table and "3 entries" in table
    rows = list(csv.DictReader(io.StringIO(crl("bank", "show", "story", "--round", "2", "--format", "csv").out)))
    assert (rows[0]["entry_id"], rows[0]["text"], rows[0]["uses"]) == (FIRST, "go far left", "0")
    assert "+1.00" not in table, "the game that was won saw the words of round 1"
    assert rows[1]["mean_outcome"] == ""
    lines = crl("bank", "show", "story", "--family", "pond", "--format", "json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["swim"]
    assert crl("bank", "show", "story", "--round", "0").out.startswith("the bank after round 0 is empty")


def test_a_large_bank_is_paged_and_says_so(crl: Crl, story: Path) -> None:
    page = crl("bank", "show", "large").out
    assert "50 of 205 entries (the most used first; all: --limit 0)" in page
    assert "lesson 77" in page.splitlines()[2] and "+1.00" in page.splitlines()[2]
    assert "205 entries;" in crl("bank", "show", "large", "--limit", "0").out
    assert len(crl("bank", "show", "large", "--format", "json").out.splitlines()) == 205
    newest = crl("bank", "show", "large", "--sort", "newest", "--limit", "2", "--format", "json").out.splitlines()
    assert [json.loads(line)["text"] for line in newest] == ["lesson 204", "lesson 203"]


def test_diff_of_a_round_and_of_two(crl: Crl, story: Path) -> None:
    assert "added 3" in crl("bank", "diff", "story", "1").out
    assert json.loads(crl("bank", "diff", "story", "1", "--format", "json").out)["counts"] == {"added": 3}
    net = crl("bank", "diff", "story", "1", "3").out
    assert "3 → 2 entries: added 1, removed 2" in net and f"merged into {MERGED} in round 3" in net
    plain = json.loads(crl("bank", "diff", "story", "1", "2", "--format", "json").out)
    assert [(each["kind"], each["before"], each["after"]) for each in plain["changes"]] == [
        ("updated", "go left", "go far left")
    ]
    assert crl("bank", "diff", "story", "3", "1").code == 2
    updated = crl("bank", "diff", "story", "2").out
    assert "was: go left" in updated and "now: go far left" in updated


@pytest.mark.parametrize("words", [("show",), ("why", MERGED), ("history", MERGED), ("search", "go"), ("diff", 1, 99)])
def test_a_round_without_a_bank_is_refused(crl: Crl, story: Path, words: tuple[str, ...]) -> None:
    name, *more = words
    refused = crl("bank", name, "story", *more, *(() if name == "diff" else ("--round", "99")))
    assert refused.code == 2 and "round 99 of" in refused.err and f"`crl bank show {story}`" in refused.err


@pytest.mark.slow
def test_a_round_that_does_not_exist_names_those_that_do(crl: Crl, story: Path, tmp_path: Path) -> None:
    for words in (
        ("bank", "show", "story", "--round", 99), ("bank", "diff", "story", 99), ("bank", "diff", "story", 1, 99),
        ("bank", "export", "story", "--to", tmp_path / "x", "--round", 99), ("sql", "story", "SELECT 1", "--round", 99),
        ("sql", "story", "FROM bank_at(99)"), ("redo", "story", "--from", "99/collect"),
    ):  # fmt: skip
        refused = crl(*words)
        assert refused.code == 2 and "0 to 3" in refused.err and "99" in refused.err, words


def test_why_and_history(crl: Crl, story: Path) -> None:
    tree = crl("bank", "why", "story", MERGED).out
    parts = ("left or right", f"from {FIRST}: left the bank in round 3", "go far left", "r0002-lake-g0000-m000: won")
    assert all(part in tree for part in parts)
    assert json.loads(crl("bank", "why", "story", MERGED, "--format", "json").out) == why(story, MERGED).plain()
    assert "in the bank after round 2" in crl("bank", "why", "story", FIRST, "--round", "2").out
    lines = crl("bank", "history", "story", FIRST).out
    assert "[-left-]" not in lines and "{+far+}" in lines and f"merged (into {MERGED})" in lines
    events = json.loads(crl("bank", "history", "story", FIRST, "--format", "json").out)
    assert [(each["round"], each["kind"]) for each in events] == [(1, "add"), (2, "update"), (3, "merged")]
    assert crl("bank", "why", "story", "x-nothing").code == crl("bank", "history", "story", "x-nothing").code == 2
    early = crl("bank", "why", "story", MERGED, "--round", "1")
    assert early.code == 2 and f"`crl bank show {story} --round 1` lists them" in early.err


def test_search(crl: Crl, story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ((), ("--lexical",)):
        found = crl("bank", "search", "story", "go right", "--round", "1", "-n", "1", *options).out
        assert "go right" in found and "1.000" in found and "swim" not in found
    lines = crl("bank", "search", "story", "swim", "--format", "json").out.splitlines()
    assert json.loads(lines[0])["cosine"] == pytest.approx(1) and len(lines) == 2
    assert "nothing found" in crl("bank", "search", "story", "fly", "--lexical").out
    monkeypatch.setattr(EngineServices, "model_digest", lambda self, role: "f" * 64)
    refused = crl("bank", "search", "story", "go right")
    assert refused.code == 4 and "the embedder lexical has digest ffff" in refused.err and "Expected" in refused.err
    assert crl("bank", "search", "story", "go right", "--lexical").code == 0


def test_export_then_import(
    crl: Crl, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unvalidated: None
) -> None:
    monkeypatch.chdir(ROOT)
    runs, folder = tmp_path / "other", tmp_path / "bank"
    said = crl("bank", "export", "story", "--to", folder, "--round", "2", "--format", "huggingface").out
    assert "3 entries of story, bank after round 2" in said and "load_dataset" in said
    assert str(folder / "README.md") in said and (folder / "README.md").is_file()
    assert crl("bank", "export", "story", "--to", folder).code == 2
    words = ("bank", "import", "conf/tiny.yaml", folder, "--runs", runs)
    refused = crl(*words)
    assert refused.code == 2 and "--family pond=lake" in refused.err
    assert not runs.exists(), "what is refused leaves nothing behind"
    done = crl(*words, "--family", "pond=lake", "--set", "method.seed=5")
    assert "tiny begins with 3 entries of story, bank after round 2: 3 in family lake" in done.out
    assert f"next: crl train conf/tiny.yaml --runs {runs} --set method.seed=5" in done.out
    again = crl("bank", "import", runs / "tiny", "story", "--round", "2", "--family", "pond=lake")
    assert "nothing changed" in again.out, "a run and its export are the same bank"
    assert f"next: crl resume {runs / 'tiny'} --rounds 3" in again.out
    other = crl("bank", "import", runs / "tiny", "story", "--family", "pond=lake").err
    assert "begins with another bank: that of story, after round 2" in other
    nobody = crl("bank", "import", runs / "tiny", "nosuch")
    assert nobody.code == 2 and "a folder of `crl bank export`" in nobody.err
    assert crl("bank", "import", runs / "tiny", folder, "--round", "1").code == 2
    assert crl("bank", "import", runs / "tiny", folder, "--family", "pond").code == 2
    assert crl("bank", "import", runs / "tiny", folder, "--set", "method.seed=1").code == 2


def test_skills_out_and_in(crl: Crl, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runs, folder = tmp_path / "other", tmp_path / "skills"
    words = ("bank", "export", "story", "--to", folder, "--format", "skills", "--round", "2")
    assert crl(*words, "--embeddings").code == 2
    said = crl(*words).out
    assert "3 entries of story, bank after round 2" in said
    assert f"{folder}/lake/SKILL.md: 2 experiences, the best first" in said
    assert f"{folder}/pond/SKILL.md: 1 experience, the best first" in said
    taken = ("bank", "import", "conf/tiny.yaml", folder, "--runs", runs)
    refused = crl(*taken)
    assert refused.code == 2 and "--family pond=lake" in refused.err and not runs.exists()
    assert crl(*taken, "--family", "pond=lake", "--round", "2").code == 2
    done = crl(*taken, "--family", "pond=lake").out
    assert f"tiny begins with 3 entries of the skills in {folder}: 3 in family lake" in done
    assert "what a file says of them is in `crl bank why`" in done
    (tmp_path / "skills/lake/SKILL.md").write_text("---\nname: lake\ndescription: d\n---\nhid\u200bden\n")
    hidden = crl("bank", "import", "conf/tiny.yaml", folder / "lake", "--runs", tmp_path / "third").out
    assert "hidden characters in lake-r0000-lake-0001: 1 × U+200B (zero width space)" in hidden
