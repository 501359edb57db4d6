"""A user's own data checks: Great Expectations suites as JSON files in `expectations/`, one per row type.

`expectations/episodes.json` beside an experiment file, or beside one of the two folders above it, as prompts are found,
holds for every experiment there. The content becomes `runtime.expectations`; what needs Great Expectations to be
checked (types, columns, SQL) is checked before work starts (`crl/checks/own.py`).
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from crl.errors import BadInput
from crl.paths import quoted
from crl.records import ROW_TYPE_BY_TABLE

FOLDER = "expectations"


def find_expectations(base: Path) -> dict[str, dict[str, Any]]:
    """The suites by table from the nearest folder; none where there is no such folder. Raises BadInput naming a file.

    A suite is a mapping with a list `expectations`, each of which has a `type` and `kwargs`.
    """
    folders = [folder / FOLDER for folder in (base, *base.resolve().parents[:2])]
    folder = next((each for each in folders if each.is_dir()), None)
    files = [] if folder is None else sorted(folder.glob("*.json"))
    return {path.stem: _read(path) for path in files}


def _read(path: Path) -> dict[str, Any]:
    if path.stem not in ROW_TYPE_BY_TABLE:
        close = difflib.get_close_matches(path.stem, ROW_TYPE_BY_TABLE, n=1)
        raise BadInput(
            f"{path.name} names no row type" + (f"; did you mean {close[0]}.json?" if close else ""),
            expected=f"one of {', '.join(ROW_TYPE_BY_TABLE)}",
            where=str(path),
            next_step="rename the file; `crl checks list` names the row types",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path.name} is not readable JSON: {error}", expected=_EXPECTED, where=str(path)) from None
    listed = data.get("expectations") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not all(_is_expectation(each) for each in listed):
        raise BadInput(
            f"{path.name} is not a suite of expectations",
            expected=_EXPECTED,
            where=str(path),
            next_step=f"`crl checks show {quoted(path.stem)} --format json` prints one to start from",
        )
    return {str(name): value for name, value in data.items()}


_EXPECTED = 'Great Expectations\' JSON: {"expectations": [{"type": "expect_…", "kwargs": {…}}, …]}'


def _is_expectation(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str) and isinstance(value.get("kwargs"), dict)
