"""What docs/operations.md and docs/team_server.md tell an operator to type is understood, and what they show exists."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crl import errors
from tests.docs.test_commands import BLOCK, ROOT

DOCS = ROOT / "docs"
OPERATIONS, TEAM = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("operations", "team_server"))
TEXT = OPERATIONS + TEAM
SHELL = [block["body"].replace("\\\n", "") for block in BLOCK.finditer(TEXT) if block["kind"] == "sh"]
LINES = [line for body in SHELL for line in body.splitlines()]
PICTURES = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT)
LARGEST_PICTURE = 150_000


def words_of(line: str) -> list[str]:
    """The words of a command, without the variables that stand before it."""
    words = shlex.split(line)
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words.pop(0)
    return words


PREFECT = [line for line in LINES if words_of(line)[:1] == ["prefect"]]


@functools.cache
def help_of(*command: str) -> str:
    """What `prefect … --help` says, in lines that are not cut."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"prefect {shlex.join(command)}: {done.stderr}"
    return done.stdout


def test_there_is_something_to_check() -> None:
    assert len(PREFECT) >= 4 and len(PICTURES) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("line", PREFECT)
def test_prefect_understands_every_command(line: str) -> None:
    _, group, command, *rest = words_of(line)
    said = help_of(group, command)
    for option in (word for word in rest if word.startswith("--")):
        assert re.search(rf"{re.escape(option)}\b", said), f"{line}: {option}"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m ([\w.]+)", TEXT)) - {"pytest"}))
def test_every_module_to_run_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_every_setting_named_is_one_of_prefect() -> None:
    from prefect.settings import get_current_settings
    from prefect.settings.legacy import _get_settings_fields

    known = set(_get_settings_fields(type(get_current_settings())))
    named = set(re.findall(r"\bPREFECT_[A-Z_]+", TEXT))
    assert named and named <= known, named - known


def test_the_server_is_started_as_make_ui_starts_it() -> None:
    from flows.ui import server_command

    (line,) = [line for line in LINES if "flows.server" in line]
    assert words_of(line) == ["python", "-m", *server_command(4200)]


@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_is_there_and_small(picture: str) -> None:
    assert 0 < (DOCS / picture).stat().st_size <= LARGEST_PICTURE


def test_every_step_of_a_team_server_says_whether_it_was_tested() -> None:
    steps = re.findall(r"^### \d+\. (.+)$", TEAM, re.MULTILINE)
    assert len(steps) >= 8
    assert [step for step in steps if "tested" not in step] == []


@pytest.mark.parametrize("deployment", re.findall(r"^\| `(\w+)` \|", OPERATIONS, re.MULTILINE))
def test_every_deployment_named_is_in_the_file(deployment: str) -> None:
    assert f"- name: {deployment}\n" in Path(ROOT / "prefect.yaml").read_text(encoding="utf-8")


def test_every_exit_code_is_among_the_symptoms() -> None:
    """Each class of errors has one; the codes above 128 are those of signals."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE) for code in row.split(",")}
    own = {each.exit_code for each in (errors.CrlError, *all_below(errors.CrlError))}
    assert {code for code in listed if code < 128} == own and {130, 137, 143} < listed


def all_below(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from all_below(child)


def test_every_alarm_among_the_symptoms_is_raised_by_the_code() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    part = page.partition("does not learn")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^- ((?:`\w+`(?:, )?)+):", part, re.MULTILINE) for name in row.split(", ")}
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "crl").rglob("*.py")))
    assert len(named) >= 8
    for name in (each.strip("`") for each in named):
        ending = re.sub(r"^(actor|extractor|share)_", "", name)
        assert re.search(rf"\b_?(?:{name}|{ending})\b", source), name
