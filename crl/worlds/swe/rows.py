"""A task in SWE-Bench's own row format, and the files that hold such rows.

| column | what it holds |
|---|---|
| `instance_id` | name of the task, once per file |
| `repo` | repository as `owner/name`, or a name of a folder; where it is on this machine, the config says |
| `base_commit` | the commit that the task begins at |
| `problem_statement` | what is wrong, in words: all that the actor is told |
| `patch`, `test_patch` | the reference fix, and what it changes in tests, as unified diffs |
| `FAIL_TO_PASS`, `PASS_TO_PASS` | names of tests: a list, or the text of a JSON list as in the official data set |

Files and folders are read by `crl/worlds/records.py`; of a folder with splits, one is chosen by `/split` behind the
path. Other columns (`version`, `hints_text`, …) are kept in `model_extra`.

Source of the format: SWE-Bench (Jimenez et al., arXiv 2310.06770).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.records import OutsideRows, Rules, table_of
from crl.records import Row as RecordRow
from crl.worlds.json_files import check_spelling
from crl.worlds.records import KINDS, records, splits_of

WHERE = "method.families[].environment.rows"
_SHOWN = 60


def _names(value: Any) -> Any:
    """A list of names, also from the text of a JSON list."""
    if value is None:
        return ()
    if isinstance(value, str):
        if not value.strip():
            return ()
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a text that is no JSON list: {error}") from None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError("expected a list of test names, or the text of a JSON list of them")
    return tuple(value)


def _text(value: Any) -> Any:
    return "" if value is None else value


NEXT_STEP = "correct or remove the row, or get the data set again"
TestNames = Annotated[tuple[str, ...], BeforeValidator(_names)]
Diff = Annotated[str, BeforeValidator(_text)]


class Row(BaseModel):
    """One task. A row without a test that has to pass is refused: nothing would decide its reward."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, populate_by_name=True)

    instance_id: str = Field(min_length=1, max_length=200)
    repo: str = Field(min_length=1, max_length=200)
    base_commit: str = Field(min_length=1, max_length=200)
    problem_statement: str = Field(min_length=1)
    patch: Diff = ""
    test_patch: Diff = ""
    fail_to_pass: TestNames = Field(alias="FAIL_TO_PASS")
    pass_to_pass: TestNames = Field((), alias="PASS_TO_PASS")
    image: str | None = Field(None, validation_alias=AliasChoices("image", "image_name", "docker_image"))
    """Container image of the row, for `sandbox: container`."""

    @field_validator("fail_to_pass")
    @classmethod
    def _something_decides(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("no test is named: nothing would decide the reward")
        return names

    @field_validator("base_commit", "repo")
    @classmethod
    def _no_option(cls, value: str) -> str:
        """Both are handed to `git`, which takes what begins with a dash for an option."""
        if value.startswith("-") or re.search(r"[\s\x00]", value):
            raise ValueError(f"{value[:_SHOWN]!r} cannot be a name of git's")
        return value

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that have to pass, each once."""
        return tuple(dict.fromkeys([*self.fail_to_pass, *self.pass_to_pass]))

    @property
    def content(self) -> str:
        """What the task is about: its repository, and what is wrong."""
        return f"{self.repo}: {self.problem_statement}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow(RecordRow):
    """A task of a person's file, as Great Expectations looks at it before it is played."""

    table: ClassVar[str] = "swe_tasks"
    rules: ClassVar[Rules] = Rules(
        key=("instance_id",),
        filled=("instance_id", "repo", "base_commit"),
        ranges={"fail_to_pass": (1, None)},
        rows={"the problem is said in words": "trim(problem_statement) <> ''"},
    )
    instance_id: Annotated[str, "name of the task"]
    repo: Annotated[str, "repository"]
    base_commit: Annotated[str, "commit that it begins at"]
    problem_statement: Annotated[str, "what is wrong"]
    fail_to_pass: Annotated[int, "tests that decide"]


def outside_rows(rows: Sequence[Row], file: str) -> OutsideRows:
    """The tasks of a file, before they are taken."""
    listed = [
        TaskRow(
            instance_id=each.instance_id,
            repo=each.repo,
            base_commit=each.base_commit,
            problem_statement=each.problem_statement,
            fail_to_pass=len(each.fail_to_pass),
        )
        for each in rows
    ]
    return OutsideRows(TaskRow, table_of(TaskRow, listed), file, NEXT_STEP)


def load_rows(name: str | Path, *, where: str = WHERE) -> list[Row]:
    """All rows of a file or folder, in their order.

    Raises BadInput that names the file, the row and the column where something cannot be read, and for an
    `instance_id` that is there twice.
    """
    rows: list[Row] = []
    seen: dict[str, str] = {}
    for place, record in _records(Path(name), where):
        row = row_of(record, place)
        if row.instance_id in seen:
            raise bad_row(
                f"instance_id {row.instance_id!r} is also that of {seen[row.instance_id]}", "names that differ", place
            )
        seen[row.instance_id] = place
        rows.append(row)
    if not rows:
        raise bad_row("it holds no row", "at least one row of SWE-Bench's format", str(name))
    return rows


def row_of(record: Any, where: str) -> Row:
    """A record as a row. Raises BadInput that names the file, the line and the column."""
    if not isinstance(record, Mapping):
        raise bad_row(f"it is {_shown(record)}", "an object with the columns of SWE-Bench", where)
    check_spelling(record, _COLUMNS, bad_row, where)
    try:
        return Row.model_validate(dict(record))
    except ValidationError as error:
        first = error.errors()[0]
        column = ".".join(str(part) for part in first["loc"]) or "?"
        found = "it is missing" if first["type"] == "missing" else f"{_shown(first['input'])}: {first['msg']}"
        raise bad_row(f"column {column}: {found}", _EXPECTED.get(column, "a text"), where) from None


_COLUMNS = (
    *("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch", "split"),
    *("FAIL_TO_PASS", "fail_to_pass", "PASS_TO_PASS", "pass_to_pass"),
)
_EXPECTED = {
    "FAIL_TO_PASS": "at least one name of a test, as a list or as the text of a JSON list",
    "PASS_TO_PASS": "names of tests, as a list or as the text of a JSON list",
    "base_commit": "a commit of the repository",
    "repo": "owner/name",
}


def bad_row(found: str, expected: str, where: str) -> BadInput:
    """A row, or a file of rows, that cannot be read."""
    return BadInput(
        f"a row of SWE-Bench's format cannot be read: {found}",
        expected=expected,
        where=where,
        next_step=NEXT_STEP,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _records(path: Path, where: str) -> Iterator[tuple[str, Any]]:
    """Each record of a file or folder, and how a message names it."""
    path = possible_path(path, "the rows", where=where, home=True)
    if not path.exists():
        raise BadInput(
            f"there are no rows at {short(path)}",
            expected=f"a file ({', '.join(KINDS)}) or a folder that datasets.save_to_disk wrote",
            where=where,
            next_step="correct the path, or leave `rows` out to play the tasks that ship",
        )
    if splits := splits_of(path) if path.is_dir() else []:
        raise BadInput(
            f"the data set at {short(path)} has splits",
            expected="the folder of one split: " + ", ".join(splits),
            where=where,
            next_step=f"name one of them, such as {path / splits[0]}",
        )
    yield from records(path, bad_row)
