"""What the documentation tells a reader to type exists, and its generated parts are current."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from crl.cli import app
from crl.config.keys import field_schema
from docs.config_page import page as config_page
from docs.config_page import study_page
from docs.models_page import page as models_page
from docs.schema_page import page
from docs.skill_page import page as skill_page

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND_LINE: Any = typer.main.get_command(app)
INLINE = re.compile(r"`((?:crl|make) [^`]+)`")


def commands(tool: str) -> list[tuple[str, str]]:
    """(page, command) of every `crl …` or `make …` in shell blocks and in inline code."""
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        lines = [line for block in BLOCK.finditer(text) if block["kind"] == "sh" for line in block["body"].splitlines()]
        found += [(path.name, line) for line in [*lines, *INLINE.findall(text)] if line.split()[:1] == [tool]]
    return found


def test_there_is_something_to_check() -> None:
    assert len(commands("crl")) > 8 and len(commands("make")) > 4
    assert ("README.md", "make train") in commands("make") and ("README.md", "make test") in commands("make")


@pytest.mark.parametrize(("where", "command"), commands("make"))
def test_every_make_target_exists(where: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    assert len(words) > 1, f"{where}: {command}"
    done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: {command}\n{done.stderr}"


@pytest.mark.parametrize(("where", "command"), commands("crl"))
def test_every_crl_command_is_understood(where: str, command: str) -> None:
    """Each is parsed as typed, its options and arguments too; nothing is run."""
    words = shlex.split(command, comments=True)[1:]
    place = COMMAND_LINE
    while words and words[0] in getattr(place, "commands", {}):
        place = place.commands[words.pop(0)]
    assert not hasattr(place, "commands"), f"{where}: {command} names no command"
    if words:  # a bare name, as in `crl catalog`, is a mention and not a command line
        place.make_context("crl", words)


@pytest.mark.parametrize("path", re.findall(r"\bconf/[\w/]+\.yaml", (ROOT / "README.md").read_text(encoding="utf-8")))
def test_every_experiment_named_exists(path: str) -> None:
    from crl.config.load import load_experiment
    from crl.lab.study.config import load_study
    from crl.lab.warm.config import load_warm_start

    loaders = {"study": load_study, "warm": load_warm_start}
    assert loaders.get(Path(path).parent.name, load_experiment)(ROOT / path).name


@pytest.mark.parametrize("path", re.findall(r"`(crl/\w+/?)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
def test_every_folder_named_exists(path: str) -> None:
    assert (ROOT / path).is_dir()


def test_the_schema_page_is_current() -> None:
    text = (ROOT / "docs/schema.md").read_text(encoding="utf-8")
    assert text == page(), "write it anew: python docs/schema_page.py > docs/schema.md"


def test_the_config_page_is_current() -> None:
    text = (ROOT / "docs/config.md").read_text(encoding="utf-8")
    assert text == config_page(), "write it anew: python docs/config_page.py > docs/config.md"


def test_the_page_of_models_is_current() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert text == models_page(), "write it anew: python docs/models_page.py > docs/models.md"
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 800


def test_the_page_of_study_files_is_current() -> None:
    text = (ROOT / "docs/study_file.md").read_text(encoding="utf-8")
    assert text == study_page(), "write it anew: python docs/config_page.py study > docs/study_file.md"


def test_the_skill_for_coding_agents_is_current() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert text == skill_page(), "write it anew: python docs/skill_page.py > SKILL.md"
    assert yaml.safe_load(text.split("---\n")[1]).keys() == {"name", "description"}


KEY = re.compile(r"[`\"]((?:method|runtime)\.[a-z_.]+)\b")
FORMS = sorted((ROOT / "flows").glob("*.py"))
"""Their docstrings explain the fields of Prefect's forms."""


def test_every_key_named_exists() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (*PAGES, *FORMS)}
    named = {(name, key.rstrip(".")) for name, text in texts.items() for key in KEY.findall(text)}
    assert len(named) > 30 and ("train.py", "runtime.shards") in named
    for where, key in sorted(named):
        try:
            field_schema(key)
        except KeyError:
            pytest.fail(f"{where}: an experiment has no key {key}")
