"""Clients that exist: every view of a catalog answers in DuckDB from 1.0 on, as in the one that wrote it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.made_run import Size, make
from crl.report.views import CATALOG, write_catalog
from tests.unit.report.builder import build_run

pytestmark = pytest.mark.slow

CLIENTS = ("1.0.0", "1.1.3", "1.2.2", "1.3.2", "1.4.4", "1.5.6")
STRANGE = "räks [a]* 100% #1 'quoted'?"
BROKEN = {
    "room": {"games": 4, "broken": 1, "kinds": [{"error": "OSError", "location": "a.py:1", "games": 1, "seed": 7}]},
    "$ca've.": {"games": 2, "broken": 1, "kinds": [{"error": "KeyError", "location": "b.py:2", "games": 1, "seed": 8}]},
}
TIMINGS = {"retrieval": {"batches": 2, "items": 8, "seconds": 0.5, "longest": 0.25}}
CLIENT = """
import json, sys
import duckdb
answers = {}
with duckdb.connect(sys.argv[1], read_only=True) as client:
    views = client.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL").fetchall()
    for name in [f'"{view}"' for (view,) in views] + sys.argv[2:]:
        try:
            answers[name] = sorted(
                str([round(value, 9) if isinstance(value, float) else value for value in row])
                for row in client.execute(f"FROM {name}").fetchall()
            )
        except duckdb.Error as error:
            answers[name] = str(error)
print(json.dumps([duckdb.__version__, answers]))
"""
ASKED = ("bank_at(2)", "bank_at(7)", "bank_diff(1, 2)", "(SELECT wilson_low(1, 2), wilson_high(2, 2))")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build_run(tmp_path_factory.mktemp("runs") / STRANGE)
    manifest = path / "rounds/0002/collect/manifest.json"
    content = json.loads(manifest.read_text())
    content["provenance"] |= {"timings": TIMINGS, "broken": BROKEN}
    manifest.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with DuckDB of this version."""
    folder = tmp_path_factory.mktemp("client")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--target"]
    done = subprocess.run([*install, str(folder), f"duckdb=={request.param}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"duckdb {request.param} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


def answers(catalog: Path, client: Path | None = None) -> tuple[str, dict[str, list[str] | str]]:
    """The version of a client, and what every view and macro of a catalog says to it."""
    paths = {"PYTHONPATH": str(client)} if client else {}
    asked = [sys.executable, "-c", CLIENT, str(catalog), *ASKED]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=paths)
    version, found = json.loads(done.stdout)
    return version, found


def test_all_views_answer_in_every_client_alike(
    run: Path, client: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    empty = tmp_path / "nothing yet"
    empty.mkdir()
    for path in (run, empty):
        catalog = write_catalog(path)
        (version, found), (_, expected) = answers(catalog, client), answers(catalog)
        assert version == request.node.callspec.params["client"]
        assert found.keys() == expected.keys() and len(found) > 45
        for name, rows in found.items():
            if isinstance(expected[name], str):  # a round without a bank; versions word what is around it differently
                assert "there is no bank after round" in expected[name] and "there is no bank after round" in rows
            else:
                assert rows == expected[name], name
    _, found = answers(write_catalog(run), client)
    assert [len(found[name]) for name in ('"broken_games"', '"timings"', '"episodes"', '"lineage"')] == [2, 1, 8, 3]


def test_no_client_gets_another_run_or_half_a_bank(run: Path, client: Path, tmp_path: Path) -> None:
    first = Path(shutil.copytree(run, tmp_path / "first"))
    write_catalog(first)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    _, found = answers(copy / CATALOG, client)
    assert [name for name, said in found.items() if "copied or moved" not in said and not name.startswith("(")] == []
    first.rename(tmp_path / "moved")
    _, found = answers(copy / CATALOG, client)
    assert [name for name, said in found.items() if "crl catalog RUN" not in said and not name.startswith("(")] == []
    short = make(tmp_path / "short", 3, Size(entries=12, changes=8, groups=4, capacity=6))
    (short / "rounds/0002/consolidate/bank_changes.parquet").unlink()
    _, found = answers(write_catalog(short), client)
    assert "crl verify RUN" in found['"bank"'] and "crl verify RUN" in found["bank_at(2)"]


names = st.text(st.characters(exclude_characters="/\\", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@example(STRANGE)
@given(names.filter(lambda name: name not in (".", "..")))
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_catalog_below_a_folder_of_any_name(tmp_path_factory: pytest.TempPathFactory, run: Path, name: str) -> None:
    path = Path(shutil.copytree(run, tmp_path_factory.mktemp("named") / name / "run"))
    with duckdb.connect(str(write_catalog(path)), read_only=True) as opened:
        assert opened.execute("SELECT count(*) FROM episodes").fetchall() == [(8,)]
        assert opened.execute("SELECT count(*) FROM bank_at(2)").fetchall() == [(1,)]
        assert opened.execute("SELECT count(*) FROM distillations").fetchall() == [(3,)]


def test_what_the_catalog_says_without_its_cache(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "run"))
    write_catalog(path)
    shutil.rmtree(path / "cache")
    opened = duckdb.connect(str(path / CATALOG), read_only=True)
    with opened, pytest.raises(duckdb.Error, match="crl catalog RUN"):
        opened.execute("FROM episodes")
    write_catalog(path)
    with duckdb.connect(str(path / CATALOG), read_only=True) as opened:
        assert len(opened.execute("FROM episodes").fetchall()) == 8
