"""Whatever words are typed: exit code 0 or 2, no traceback, and nothing written where it is 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cli.conftest import ROOT, Outcome

Crl = Callable[..., Outcome]

ODD = st.sampled_from(
    ["", ".", "..", "/", "/proc", "~x", "a\0b", "\x1b[2J", "[red]", "²", "-1", "--", "x" * 300, "a/" * 2500, "9" * 5000]
)
WORD = st.one_of(ODD, st.text(max_size=12))
COMMAND = st.sampled_from(
    ["status", "verify", "sql", "catalog", "report", "evaluate", "redo", "approve", "resume", "mend", "train", "doctor",
     "table", "warm-start", "compare", "bank show", "bank diff", "bank why", "bank history", "bank search",
     "bank export", "bank import", "checks list", "checks show", "checks docs", "bank", "checks"]
)  # fmt: skip
OPTION = st.sampled_from(
    [
        "--round",
        "--seeds",
        "--from",
        "--to",
        "--arms",
        "--conditions",
        "--experiment",
        "--family",
        "--format",
        "-n",
        "--tasks",
        "--episodes",
        "--metric",
    ]
)
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(command=COMMAND, words=st.lists(WORD, max_size=3), options=st.lists(st.tuples(OPTION, WORD), max_size=2))
def test_any_words(
    command: str, words: list[str], options: list[tuple[str, str]], crl: Crl, runs: Path, tmp_path: Path
) -> None:
    outcome = crl(*command.split(), *(word for pair in options for word in pair), *words)
    assert outcome.code in (0, 2), outcome
    assert "Traceback" not in outcome.err and "\x1b" not in outcome.out + outcome.err
    assert outcome.code == 0 or outcome.err.strip()
    assert list(tmp_path.iterdir()) == []


KEY = st.one_of(
    st.lists(
        st.sampled_from(["method", "families", "roles", "actor", "0", "²", "-1", "", "seed", "name", "prompts", "kind"])
        | st.text(max_size=5),
        min_size=1,
        max_size=6,
    ).map(".".join),
    st.text(max_size=20),
)


@RELAXED
@given(key=KEY, value=WORD)
def test_any_setting(
    key: str, value: str, crl: Crl, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    # The last setting cannot be: nothing is trained, whatever the first one does.
    words = ("--set", f"{key}={value}", "--set", "method.rollout.group_size=5")
    outcome = crl("train", "conf/tiny.yaml", "--no-prefect", *words)
    assert outcome.code == 2 and outcome.out == "", outcome
    assert "Traceback" not in outcome.err and "\x1b" not in outcome.err
    assert list(tmp_path.iterdir()) == []
