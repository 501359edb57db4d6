"""What docs/sql.md shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crl.report.view_sql import LINEAGE
from crl.report.views import query, write_catalog
from tests.unit.report.builder import NEW, build_run

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [block["body"] for block in BLOCK.finditer(PAGE) if block["kind"] == kind]


def test_it_asks_the_view_of_lineage(tmp_path: Path) -> None:
    (asked,) = [sql for sql in blocks("sql") if "FROM lineage" in sql]
    run = build_run(tmp_path / "run")
    assert (
        query(run, asked.replace("'…'", "'e1'"))[1]
        == query(run, asked.replace("lineage", f"({LINEAGE})").replace("'…'", "'e1'"))[1]
        != []
    )


def test_every_query_runs(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    assert len(blocks("sql")) > 3
    for sql in blocks("sql"):
        names, _ = query(run, sql)
        assert names


def test_every_command_line_runs(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) > 2
    for command in commands:
        match = re.fullmatch(r'crl sql tiny "(?P<sql>[^"]+)"(?: --format csv)?(?: --round (?P<round>\d+))?', command)
        assert match, command
        until = min(int(match["round"]), 2) if match["round"] else None
        assert query(run, match["sql"], until=until)[1]


def test_the_programs_run_and_find_the_newest_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(build_run(tmp_path / "runs" / "tiny"))
    monkeypatch.chdir(tmp_path)
    library, client = blocks("python")
    found: dict[str, Any] = {}
    exec(compile(library, "docs/sql.md", "exec"), found)
    assert found["newest"] == 2 and found["banks"].num_rows == 2
    assert found["frame"]["text"].tolist() == [NEW]
    found = {}
    exec(compile(client, "docs/sql.md", "exec"), found)
    assert found["bank"]["text"].tolist() == [NEW] and found["bank"]["round"].tolist() == [2]
