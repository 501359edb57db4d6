"""An export that is not as `crl bank export` writes it is refused with one message, before anything is made."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from crl.cli import main
from crl.errors import BadInput
from crl.records import schema_of
from crl.run.directory import RunDirectory
from crl.run.imports import bank_import, load_import
from crl.transfer import FORMATS
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import TABLES, Gathered, gather
from tests.marks import sampled
from tests.record.damages import (
    Damage,
    at,
    card,
    cell,
    content,
    linked,
    raw,
    removed,
    rewritten,
    rows,
    text,
    vectors,
)
from tests.record.test_import import Source, experiment, taken
from tests.tiny_run import ROOT
from tests.unit.report.scripted import Ask, ScriptedRun

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def exports(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exports")
    for each in FORMATS:
        write_folder(source.bank(), root / each, each)
    return root


CARD_TEXTS = ("experiment", "method_digest", "stage", "stage_digest", "snapshot_digest")
CARD_NUMBERS = ("round", "entries", "format_version")
CARD_KEYS = (*CARD_TEXTS, *CARD_NUMBERS, "format", "embedder", "families", "versions", "files")
COLUMNS = {name: schema_of(row_type).names for name, row_type in TABLES.items()}
OPTIONAL = ("mean_outcome",)


def told_cases() -> Iterator[tuple[str, Damage]]:
    yield "card empty", raw(b"")
    for name, made in {"text": b"hello", "list": b"[]", "null": b"null", "number": b"3", "latin": b'{"a": "\xff"}',
                       "deep": b"[" * 100_000, "cut": b'{"format": '}.items():  # fmt: skip
        yield f"card {name}", raw(made)
    for key in CARD_KEYS:
        yield f"card without {key}", card(lambda made, key=key: made.pop(key))
        yield f"card null {key}", card(lambda made, key=key: made.update({key: None}))
    for key in CARD_TEXTS:
        for value in (3, "", "a\nb", "x" * 2000, "\ud800"):
            yield f"card {key} {value!r:.9}", card(lambda made, key=key, value=value: made.update({key: value}))
    for key in CARD_NUMBERS:
        for value in (-1, "1", 1.5, True):
            yield f"card {key} {value!r}", card(lambda made, key=key, value=value: made.update({key: value}))
    for value in ("lexical", [], {}, {"name": "lexical"}, {"name": 3, "digest": "a" * 64, "dimension": 256},
                  {"name": "lexical", "digest": 3, "dimension": 256},
                  {"name": "lexical", "digest": "a" * 64, "dimension": "256"},
                  {"name": "lexical", "digest": "a" * 64, "dimension": 0},
                  {"name": "lexical", "digest": "a" * 64, "dimension": 128}):  # fmt: skip
        yield f"card embedder {value!r}", card(lambda made, value=value: made.update(embedder=value))
    yield "card families", card(lambda made: made.update(families=["lake", 3]))
    yield "card family unknown", card(lambda made: made.update(families=["lake"]))
    yield "card entries more", card(lambda made: made.update(entries=99))
    yield "card round before", card(lambda made: made.update(round=0))
    yield "card more", card(lambda made: made.update(surprise=1))
    for column in COLUMNS["entries"]:
        yield f"dropped {column}", rows(lambda listed, column=column: [row.pop(column) for row in listed])
        yield (
            f"renamed {column}",
            rows(lambda listed, column=column: [row.update({column + "2": row.pop(column)}) for row in listed]),
        )
        if column not in OPTIONAL:
            yield f"null {column}", cell(column, None)
    for column in ("text", "uses", "entry_id"):
        value = "x" if column == "uses" else 7
        yield (
            f"{value} in {column}",
            rows(lambda listed, column=column, value=value: [row.update({column: value}) for row in listed]),
        )
    for value in ("", " ", "a\nb", "a\0b", "x" * 1024, " a", "a\u202eb"):
        yield f"id {value!r:.9}", cell("entry_id", value)
        yield f"generation {value!r:.9}", cell("generation_id", value)
        yield f"parent {value!r:.9}", cell("parents", ["a", value])
    yield "id twice", rows(lambda listed: listed[1].update(entry_id=listed[0]["entry_id"]))
    yield "row twice", rows(lambda listed: listed.append(listed[0]))
    for column in ("version", "order", "created_round", "updated_round", "retrieved", "uses"):
        yield f"{column} negative", cell(column, -1)
    yield "version 0", cell("version", 0)
    yield "updated before created", cell("created_round", 9)
    for number in (NAN, INF, 1.5, -2.0):
        yield f"mean outcome {number}", cell("mean_outcome", number, row=0)
    unused = rows(lambda listed: next(row for row in listed if not row["uses"]).update(mean_outcome=0.5))
    yield "outcome without a use", unused
    yield "outcome NaN", cell("outcome", NAN, "uses", 0)
    yield "outcome 0.5", cell("outcome", 0.5, "uses", 0)
    yield "similarity NaN", cell("similarity", NAN, "uses", 0)
    yield "lineage null text", cell("text", None, "lineage")
    yield "lineage negative", cell("round", -1, "lineage")
    for value in ("", " \n\t", "a\0b", "a\x1bb", "a\rb", "a\x7fb", "a\x85b", "\u200b\ufeff", "\u00a0"):
        yield f"text {value!r}", text(value)
    yield "text of another digest", cell("text", "something else")
    for value in ("no json", "[]", "3", "{}", '{"entry_id": NaN}', "[" * 100_000, "null"):
        yield f"story {value:.9}", cell("story", value)
    yield "family in a path", rows(lambda listed: [row.update(family="../lake") for row in listed])
    for value in ("../first", "First", "a b", "[red]"):
        yield f"card experiment {value}", card(lambda made, value=value: made.update(experiment=value))
    for name, change in story_changes().items():
        yield f"story {name}", rows(lambda listed, change=change: listed[1].update(story=change(listed[1]["story"])))
    yield "story of another", rows(lambda listed: listed[1].update(story=listed[0]["story"]))


def story_changes() -> dict[str, Callable[[str], str]]:
    """What the types of a story allow, and its readers cannot take."""

    def first(**values: Any) -> Callable[[str], str]:
        def change(story: str) -> str:
            plain = json.loads(story)
            plain["events"][0].update(values)
            return json.dumps(plain)

        return change

    where = {"experiment": "e", "round": 1, "snapshot": "s", "entry_id": "x", "family": "f", "version": 1, "uses": 0,
             "mean_outcome": None}  # fmt: skip
    return {
        "a kind that is none": first(kind="explode"),
        "a version without a text": first(text=None),
        "a version without a number": first(version=None),
        "a story inside that is none": first(imported={**where, "story": {"surprise": 1}}),
        "a key twice": lambda story: story.replace("{", '{"entry_id": "other",', 1),
        "half of a surrogate pair": lambda story: story.replace("go", "\\ud800"),
        "a number beyond all bounds": lambda story: story.replace('"round":1', '"round":1e999'),
    }


def file_cases() -> Iterator[tuple[str, Damage]]:
    changes: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda made: b"",
        "foreign": lambda made: b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "cut": lambda made: made[: len(made) // 2],
        "without an end": lambda made: made[:-9],
    }
    for name, change in changes.items():
        for table in TABLES:
            for vouched in (True, False):
                yield f"{table} {name} {vouched}", content(change, vouched=vouched, table=table)
    yield "unreadable", lambda folder: linked(folder / "entries.parquet", "/proc/self/mem")
    yield "pipe", lambda folder: os.mkfifo(removed(folder / "entries.parquet"))
    yield "folder", lambda folder: removed(folder / "entries.parquet").mkdir()
    yield "in a circle", lambda folder: linked(folder / "uses.parquet", "uses.parquet")


def json_cases() -> Iterator[tuple[str, Damage]]:
    """Bytes of a JSON file; the card vouches for it."""
    changes: dict[str, Callable[[bytes], bytes]] = {
        "a key twice": lambda made: made.replace(b"{", b'{"round": 2, "round": 2, ', 1),
        "BOM": lambda made: b"\xef\xbb\xbf" + made,
        "deep": lambda made: b'{"a":' * 100_000 + made,
        "an empty line": lambda made: made + b"\n",
        "UTF-16": lambda made: made.decode().encode("utf-16"),
        "no number": lambda made: made.replace(b'"round": ', b'"round": NaN, "more": ', 1),
    }
    for name, change in changes.items():
        yield f"lineage {name}", content(change, vouched=True, table="lineage")
        if name != "an empty line":  # which is allowed in JSON
            yield f"card {name}", lambda folder, change=change: rewritten(folder / "provenance.json", change)
    yield "half of a surrogate pair", text("a\ud800b")
    yield "half of one in an output", cell("output", "a\udfff", "lineage")


def vector_cases() -> Iterator[tuple[str, Damage]]:
    yield "NaN", vectors(at(NAN))
    yield "infinity", vectors(at(INF))
    yield "-infinity", vectors(at(-INF))
    yield "zero", vectors(lambda made: made * 0)
    yield "long", vectors(lambda made: made * 3)
    yield "dimension", vectors(lambda made: made[:, :128].copy())
    yield "null", rows(lambda listed: listed[1].update(embedding=None))
    yield "hole", rows(lambda listed: listed[1].update(embedding=[None, *listed[1]["embedding"][1:]]))


def neighbors() -> Iterator[tuple[str, Damage]]:
    """A value of another kind in a cell that chance names."""
    chance = random.Random(12)
    wrong = {
        "str": [3, ["x"], True, 1.5], "int": [-1, "1", 1.5, None, True, 2**70], "bool": [1, "yes", None],
        "float | None": ["1", NAN, INF, 99.0, True], "list[str]": [None, "x", [3], [None], [""], ["x\n"]],
        "str | None": [3, ["x"], True, 1.5], "int | None": [-1, "1", 1.5, True], "list[bool]": [None, "x", [3], [None]],
    }  # fmt: skip
    for number in range(60):
        table = chance.choice(list(TABLES))
        column = chance.choice(COLUMNS[table])
        kind = str(TABLES[table].__annotations__[column]).removeprefix("A[").split(", ")[0]
        value = chance.choice(wrong[kind])
        yield f"{number} {table} {column} {value!r}", cell(column, value, table, 0)


TOLD, FILES, VECTORS, NEAR = list(told_cases()), list(file_cases()), list(vector_cases()), list(neighbors())
EVERY = [(f, *case) for f in ("parquet", "jsonl") for case in TOLD]
EVERY += [("jsonl", *case) for case in json_cases()]
EVERY += [("parquet", *case) for case in (*FILES, *VECTORS)] + [("jsonl", *case) for case in NEAR]


def damaged(exports: Path, tmp_path: Path, form: str, damage: Damage) -> Path:
    shutil.copytree(exports / form, tmp_path / "bank")
    damage(tmp_path / "bank")
    return tmp_path / "bank"


@pytest.mark.parametrize(
    ("form", "damage"), sampled([(f, d) for f, _, d in EVERY], 7), ids=[f"{f} {n}" for f, n, _ in EVERY]
)
def test_a_damaged_export_is_refused(exports: Path, tmp_path: Path, form: str, damage: Damage) -> None:
    with pytest.raises(BadInput) as caught:
        read_folder(damaged(exports, tmp_path, form, damage))
    assert caught.value.exit_code == 2 and len(str(caught.value)) < 2500


def test_there_are_many_of_them() -> None:
    assert len(EVERY) >= 80


@pytest.mark.parametrize(("form", "damage"), [pytest.param(f, d, id=f"{f} {n}") for f, n, d in EVERY[::29]])
def test_the_command_refuses_it_and_writes_nothing(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str,
    damage: Damage,
) -> None:  # fmt: skip
    monkeypatch.chdir(ROOT)
    folder = damaged(exports, tmp_path, form, damage)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["bank", "import", "conf/tiny.yaml", str(folder), "--runs", str(tmp_path / "runs")])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("crl: ") and "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_the_message_names_file_row_and_column(exports: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"entries.parquet: row 2, column uses: .*found -1"):
        read_folder(damaged(exports, tmp_path, "parquet", cell("uses", -1)))


@pytest.mark.slow
def test_a_bank_of_which_nothing_comes_in_makes_no_run(source: Source, exports: Path, tmp_path: Path) -> None:
    write_folder(source.bank(0), tmp_path / "empty", "parquet")
    with pytest.raises(SystemExit) as ended:
        main(["bank", "import", str(ROOT / "conf/tiny.yaml"), str(tmp_path / "empty"), "--runs", str(tmp_path / "r")])
    assert ended.value.code == 2 and not (tmp_path / "r").exists()


def test_unusual_texts_come_back_as_they_were(tmp_path: Path, unvalidated: None) -> None:
    odd = "tab\tline\nnät <action>go</action> a<b|c>d \U0001f600 \u202b <b> 1 < 2 | 3 > 2"
    with ScriptedRun(tmp_path, experiment("first")) as run:
        run.initialize().play(Ask("add", odd))
    for form in FORMATS:
        bank = gather(run.path, 1)
        write_folder(bank, tmp_path / form, form)
        assert read_folder(tmp_path / form).tables["entries"].equals(bank.tables["entries"])


def forged(bank: Gathered) -> Gathered:
    entries = bank.tables["entries"]
    column = entries["embedding"].combine_chunks().take(pa.array([1, 2, 0]))
    made = entries.set_column(entries.column_names.index("embedding"), entries.schema.field("embedding"), column)
    return Gathered({**bank.tables, "entries": made}, bank.provenance)


@pytest.mark.parametrize("target", sampled(["a run", "a file"], 2))
def test_vectors_of_other_texts_are_refused_before_anything_is_written(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    write_folder(forged(source.bank()), tmp_path / "bank", "parquet")
    words = [str(tmp_path / "bank"), "--family", "pond=lake"]
    if target == "a run":
        words = [str(RunDirectory.create_or_open(experiment("second"), tmp_path).path), *words[:1]]
    else:
        words = [str(ROOT / "conf/tiny.yaml"), *words, "--runs", str(tmp_path / "runs")]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["bank", "import", *words])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "(row 1) is not that of its text" in said and "lexical" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_vectors_of_another_embedder_do_not_keep_a_bank_out(source: Source, tmp_path: Path) -> None:
    bank = forged(source.bank())
    bank.provenance["embedder"]["digest"] = "a" * 64
    assert taken(tmp_path, bank).entries == {"lake": 2, "pond": 1}


def test_vectors_of_other_texts_are_not_believed(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(name: str) -> str:
        raise BadInput(f"there is no embedder {name}")

    with monkeypatch.context() as elsewhere:  # where the embedder is not, nobody can tell before round 0
        elsewhere.setattr("crl.transfer.take.embedder_digest", not_here)
        taken(tmp_path, forged(source.bank()))
    with ScriptedRun(tmp_path, experiment("second")) as run:
        with pytest.raises(BadInput, match=r"vector of first-r0002-\S+ \(row 1\) is not that of its text"):
            run.initialize()
        # Nor vectors of another dimension.
        found = load_import(run.path)
        assert found is not None and found.vectors() is not None
        (run.path / found.relative).unlink()
        cut = bank_import(found.rows(), np.ones((3, 8), np.float32), found.provenance())
        (run.path / cut.relative).write_bytes(cut.content)
        with pytest.raises(BadInput, match="is not that of its text"):
            run.initialize()
