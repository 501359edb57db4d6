"""A bank leaves as skills and comes back untried. What somebody else wrote is read, and refused by name if it harms."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from crl.audit.verify import verify
from crl.config.yaml_text import read_value
from crl.errors import BadInput
from crl.records import ImportedEntry, rows_of
from crl.report.bank import entries_after
from crl.report.why import why
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.imports import load_import
from crl.transfer.gather import gather
from crl.transfer.skills import is_skills, read_skills, write_skills
from crl.transfer.take import Taken, take
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

TEXTS = (
    "go left",
    "# first\n\n> look\n```\n## no heading\n```",
    "two lines\n  indented  \n\nand a last one\n",
    "---\nname: other\n---",
    "never used, und Umlaute: ÄÖ 🙂 <b>",
)
LIMIT = 400


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Four entries of the lake, the second used twice and won once, the first used and lost; one of the pond."""
    with ScriptedRun(tmp_path_factory.mktemp("source"), experiment("first")) as run:
        run.initialize()
        names = run.play(*(Ask("add", text) for text in TEXTS[:4]), Ask("add", TEXTS[4], family="pond"))
        run.play(guided=[(names[1], True), (names[1], False), (names[0], False), (names[3], True)])
        return run.path, names


def skill(folder: Path, text: str, name: str = "SKILL.md") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def written(name: str, body: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: How it is done.\n{more}---\n{body}"


def texts(path: Path, limit: int = LIMIT) -> list[str]:
    """The texts that a folder gives, the first of a file first."""
    rows = read_skills(path, limit).tables["entries"].to_pylist()
    return [row["text"] for row in reversed(rows)]


def taken(root: Path, path: Path, families: dict[str, str] | None = None, **overrides: object) -> Taken:
    run = RunDirectory.create_or_open(experiment("second", **overrides), root)
    return take(run, recipe_of(run.method), read_skills(path, LIMIT), families)


def test_a_bank_comes_back_as_it_was_and_untried(source: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, names = source
    assert write_skills(gather(path, 2, embeddings=False), tmp_path / "out") == {"lake": 4, "pond": 1}
    content = (tmp_path / "out/lake/SKILL.md").read_text()
    found = re.findall(r"^## (\S+): (.*)$", content, re.MULTILINE)
    assert found == [
        (names[3], "used in 1 episode, 1 won"), (names[1], "used in 2 episodes, 1 won"),
        (names[0], "used in 1 episode, 0 won"), (names[2], "never used"),
    ]  # fmt: skip
    front = read_value(content.split("---\n")[1])
    assert front["name"] == "lake" and "lake" in front["description"] and "reach the goal" in front["description"]
    assert front["metadata"]["family"] == "lake" and front["metadata"]["round"] == "2"
    behind = (tmp_path / "out/lake/references/episodes.md").read_text().split("\n## ")
    assert sorted(each.split("\n")[0] for each in behind[1:]) == sorted(names[:4])
    (second,) = (each for each in behind if each.startswith(names[1]))
    assert "add in round 1, from r0001-lake-g0000-m000 (won)" in second
    assert "guided r0002-lake-g0000-m000: won, similarity 0.50" in second
    assert "guided r0002-lake-g0000-m001: lost" in second

    made = taken(tmp_path, tmp_path / "out")
    assert made.entries == {"lake": 4, "pond": 1} and not made.left_out
    with ScriptedRun(tmp_path, experiment("second")) as run:
        run.initialize()
    shown = entries_after(run.path, 0)
    assert sorted(each.text for each in shown) == sorted(TEXTS)
    assert {(each.version, each.uses, each.retrieved) for each in shown} == {(1, 0, 0)}
    rows = rows_of(ImportedEntry, run.run.read(0, "initialize", ImportedEntry))
    assert {(row.uses, row.mean_outcome) for row in rows} == {(0, None)} and verify(run.path) == []
    entry = next(each for each in shown if each.text == TEXTS[1])
    before = why(run.path, entry.entry_id).versions[0].imported
    assert before is not None and "used in 2 episodes, 1 won" in str(before.story)
    # And once more: the files of a bank that came from skills hold the same texts in the same order.
    write_skills(gather(run.path, 0, embeddings=False), tmp_path / "again")
    assert texts(tmp_path / "again") == texts(tmp_path / "out")


def test_equal_banks_give_equal_files_written_whole(
    source: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = source
    bank = gather(path, 2, embeddings=False)
    for name in ("one", "two"):
        write_skills(bank, tmp_path / name)
    files = sorted(each.relative_to(tmp_path / "one") for each in (tmp_path / "one").rglob("*.md"))
    assert len(files) == 4
    assert all((tmp_path / "one" / each).read_bytes() == (tmp_path / "two" / each).read_bytes() for each in files)
    with pytest.raises(BadInput, match="already exists"):
        write_skills(bank, tmp_path / "one")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"):
        patch.setattr(Path, "rename", lambda self, other: (_ for _ in ()).throw(OSError("gone")))
        write_skills(bank, tmp_path / "three")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "two"]
    with pytest.raises(BadInput, match="has no entry"):
        write_skills(gather(path, 0, embeddings=False), tmp_path / "empty")


def test_what_is_behind_the_first_comes_back_too(
    source: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.transfer.skills._FIRST", 1)
    path, _ = source
    write_skills(gather(path, 2, embeddings=False), tmp_path / "out")
    assert "3 more stand in `references/more.md`" in (tmp_path / "out/lake/SKILL.md").read_text()
    assert sorted(texts(tmp_path / "out")) == sorted(TEXTS)


def test_a_person_may_edit_the_file(source: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, _ = source
    write_skills(gather(path, 2, embeddings=False), tmp_path / "out")
    file = tmp_path / "out/pond/SKILL.md"
    file.write_text(file.read_text().replace("> never used", "> rarely used") + "\n## My own\n\nSwim first.\n")
    assert texts(tmp_path / "out/pond") == [TEXTS[4].replace("never", "rarely"), "My own\nSwim first."]


def test_a_folder_of_somebody_else_gives_its_sections(tmp_path: Path) -> None:
    body = (
        "\nBefore the first heading.\n\n# A title alone\n\n## Look\n\nLook left.\n\n"
        "```sh\n# no heading\nls\n```\n\n## Long ##\n\nOne paragraph.\nIt goes on.\n\n- an item\n  of two lines\n"
        "- another\n\n1. a third\n\n```\na\n\n- b\n```\n"
    )
    folder = skill(tmp_path / "any/lake", written("git-tips", body, "license: MIT\nallowed-tools: Bash\n"))
    skill(folder, "# not read", "references/more.md")
    assert texts(tmp_path / "any", 60) == [
        "Before the first heading.", "Look\nLook left.\n\n```sh\n# no heading\nls\n```",
        "Long\nOne paragraph.\nIt goes on.", "Long\n- an item\n  of two lines", "Long\n- another", "Long\n1. a third",
        "Long\n```\na\n\n- b\n```",
    ]  # fmt: skip
    assert len(texts(folder, 1000)) == 3, "the folder itself; what fits is one entry"
    with pytest.raises(BadInput, match="no task family 'git-tips'") as caught:
        taken(tmp_path, folder)
    assert "--family git-tips=lake" in str(caught.value.next_step)
    assert taken(tmp_path, folder, {"git-tips": "lake"}).entries == {"lake": 3}
    full = taken(tmp_path / "full", folder, {"git-tips": "lake"}, method__recipe__bank__capacity=1)
    content = load_import(full.path.parents[2])
    assert content is not None and [row["text"] for row in content.rows()] == ["Before the first heading."], "the first"


def test_windows_line_ends_and_a_mark_of_order_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "tips"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(b"\xef\xbb\xbf" + written("tips", "# A\nb\n").replace("\n", "\r\n").encode())
    assert texts(folder) == ["A\nb"]


def test_headings_are_those_of_markdown_however_long(tmp_path: Path) -> None:
    """A pattern that tries every blank of the last one would not end."""
    lines = ("## A ##", "b", "### C# ", "d", "#no", "## ##", "e", f"# f{' ' * 2_000_000}g", "h")
    found = texts(skill(tmp_path / "tips", written("tips", "\n".join(lines))), 5_000_000)
    assert found[:3] == ["A\nb", "C#\nd\n#no", "e"] and len(found[3]) == 2_000_004


HOSTILE = {
    "its front matter is no YAML": "---\nname: [a\n---\n",
    "found the key 'name' twice": "---\nname: a\nname: b\ndescription: c\n---\n",
    "does not begin with front matter": "# A title\n",
    "no keys": "---\n- a\n---\n",
    "its name is 'Ä-b'": written("Ä-b", ""),
    "its name is 'a--b'": written("a--b", ""),
    "its name is '../up'": written("../up", ""),
    "its name is 'aaaa": written("a" * 65, ""),
    "its name is '3'": written("3", ""),
    "no description": "---\nname: a\n---\n",
    "its metadata name the task family '../x'": written("a", "", "metadata:\n  family: ../x\n"),
    "aliases count each time": "---\na: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{each}: &{each} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
              for old, each in zip("abcdef", "bcdefg", strict=True)) + "---\n",
    "levels of nesting": f"---\na: {'[' * 200}{']' * 200}\n---\n",
    "line 5 holds the control character '\\x1b'": written("a", "bad \x1b[2J"),
}  # fmt: skip


@pytest.mark.parametrize("told", HOSTILE)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, told: str) -> None:
    skill(tmp_path / "good", written("good", "fine"))
    skill(tmp_path / "bad", HOSTILE[told])
    with pytest.raises(BadInput, match=r"SKILL\.md") as caught:
        read_skills(tmp_path, LIMIT)
    assert told in str(caught.value) and caught.value.where == str(tmp_path / "bad/SKILL.md")


def test_links_pipes_and_what_is_too_large_are_refused_by_name(tmp_path: Path) -> None:
    secret = skill(tmp_path / "secret", written("secret", "a key"))

    def told(folder: Path, problem: str) -> None:
        with pytest.raises(BadInput, match=problem):
            read_skills(folder, LIMIT)

    (tmp_path / "one").mkdir()
    (tmp_path / "one/linked").symlink_to(secret)
    told(tmp_path / "one", "linked: it is a link")
    (tmp_path / "two/a").mkdir(parents=True)
    (tmp_path / "two/a/SKILL.md").symlink_to(secret / "SKILL.md")
    told(tmp_path / "two", r"SKILL.md: it is a link")
    told(tmp_path / "two/a", r"SKILL.md: it is a link")
    skill(tmp_path / "three/a", written("a", "", "metadata:\n  family: lake\n"))
    skill(tmp_path / "elsewhere", "## x: never used\n\n> y\n", "more.md")
    (tmp_path / "three/a/references").symlink_to(tmp_path / "elsewhere")
    told(tmp_path / "three", "references: it is a link")
    (tmp_path / "four/a").mkdir(parents=True)
    os.mkfifo(tmp_path / "four/a/SKILL.md")
    told(tmp_path / "four", "a pipe or a device")
    skill(tmp_path / "five/a", written("a", ""))
    with (tmp_path / "five/a/SKILL.md").open("ab") as file:
        file.truncate(11_000_000)
    told(tmp_path / "five", "more than the 10,000,000 bytes")
    skill(tmp_path / "six/a", written("same", "b"))
    skill(tmp_path / "six/b", written("same", "b"))
    told(tmp_path / "six", "the name 'same' is that of .*six/a/SKILL.md, too")
    (tmp_path / "seven/a").mkdir(parents=True)
    (tmp_path / "seven/a/SKILL.md").write_bytes(b"---\nname: a\xff")
    told(tmp_path / "seven", "it is not UTF-8: byte 11")
    told(skill(tmp_path / "eight", written("a", "# A title\n")), "it holds no text to learn from")
    assert not is_skills(tmp_path / "nothing") and not is_skills(tmp_path / "one/nothing")


def test_names_are_those_that_agents_take(tmp_path: Path) -> None:
    families = ["a_b", "a__b", "a_b_", "z9"]
    with ScriptedRun(tmp_path, experiment("first", families=families)) as run:
        run.initialize()
        run.play(*(Ask("add", f"{family} <left>", family=family) for family in families))
    names = write_skills(gather(run.path, None, embeddings=False), tmp_path / "out")
    assert sorted(names) == ["a-b", "a-b-2", "a-b-3", "z9"]
    back = read_skills(tmp_path / "out", LIMIT)
    assert back.provenance["families"] == sorted(families), "a family comes back under its own name"
    for name in names:
        front = yaml.safe_load((tmp_path / f"out/{name}/SKILL.md").read_text().split("---\n")[1])
        assert front["name"] == name and re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name)
        assert not set("<>") & set(front["description"])
