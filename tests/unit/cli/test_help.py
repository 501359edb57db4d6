"""Every help text is whole on a terminal of 80 columns: no summary is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from crl.cli import app
from tests.unit.cli.conftest import Crl


def commands(found: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield name
    for word, inner in getattr(found, "commands", {}).items():
        yield from commands(inner, (*name, word))


ROOT = Path(__file__).parents[3]
EVERY = list(commands(get_command(app)))


def test_every_command_is_looked_at() -> None:
    assert {(), ("train",), ("bank",), ("bank", "why"), ("doctor",)} <= set(EVERY) and len(EVERY) > 20


@pytest.mark.parametrize("name", EVERY, ids=" ".join)
def test_nothing_is_cut_at_80_columns(crl: Crl, monkeypatch: pytest.MonkeyPatch, name: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = crl(*name, "--help")
    assert shown.code == 0 and "Usage: crl" in shown.out
    several = ("[ARGS]...", "{RUN}...", "{RUN SQL}...", "{EXPERIMENT}...", "[EXPERIMENT]...")
    assert "…" not in shown.out and "..." not in re.sub("|".join(map(re.escape, several)), "", shown.out)
    assert max(map(len, shown.out.splitlines())) <= 80


def test_every_command_that_a_message_names_is_there() -> None:
    sources = [path.read_text(encoding="utf-8") for room in ("crl", "flows") for path in (ROOT / room).rglob("*.py")]
    named = {found for text in sources for found in re.findall(r"`crl ([a-z]+(?:-[a-z]+)*)", text)}
    assert {"train", "verify"} <= named <= {name[0] for name in EVERY if name}


@pytest.mark.parametrize("name", [(), ("bank",)], ids=["crl", "bank"])
def test_a_list_of_commands_says_each_in_one_whole_sentence(
    crl: Crl, monkeypatch: pytest.MonkeyPatch, name: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = crl(*name, "--help").out.partition("Commands:\n")[2].splitlines()
    inner = [each for each in EVERY if each[:-1] == name and each]
    assert len(listed) == len(inner), "one line per command"
    for line in listed:
        assert line.endswith("."), line


@pytest.mark.parametrize("limit", ["--seconds", "--memory"])
@pytest.mark.parametrize("number", ["inf", "1e12", "nan", "0"])
def test_a_limit_of_a_query_is_one_that_can_be_held_to(crl: Crl, limit: str, number: str) -> None:
    refused = crl("sql", "tiny", "SELECT 1", limit, number)
    assert refused.code == 2 and limit in refused.err and "Traceback" not in refused.err
