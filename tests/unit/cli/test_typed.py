"""Whatever a person types ends with exit code 2 and one message: no traceback, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.marks import sampled
from tests.unit.cli.conftest import ROOT, Outcome

Crl = Callable[..., Outcome]

LONG, DEEP_PATH = "x" * 5000, "a/" * 3000
ODD_NAMES = {
    "a long name": LONG, "a long path": DEEP_PATH, "NUL": "a\0b", "a file of /proc": "/proc/self/mem",
    "below a file": "/proc/self/environ/x", "no end": "/dev/zero",
    "a directory": "/", "nothing": "", "escape": "\x1b[2J",
    "no UTF-8": "\udcff", "nobody's home": "~nobody-has-this-name/x", "a star": "*",
}  # fmt: skip

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{','.join([f'*{chr(97 + level)}'] * 10)}]\n" for level in range(9)
)
FILES: dict[str, tuple[bytes, str]] = {
    "deep": (b"a: " + b"[" * 1200 + b"]" * 1200, "levels of nesting"),
    "deep mappings": (b"a: " + b"{a: " * 1200 + b"}" * 1200, "levels of nesting"),
    "alias bomb": (BOMB.encode(), "aliases count each time"),
    "a list in itself": (b"name: x\nmethod: {families: [&b {repeat: 2, e: *b}]}\n", "inside its own definition"),
    "an integer of 10,000 digits": (b"name: x\nmethod: {seed: " + b"9" * 10_000 + b"}\n", "cannot be read as int"),
    "a hexadecimal number": (b"name: 0x" + b"f" * 20_000, "more than 64 bits"),
    "an integer of 65 bits": (b"name: 36893488147419103232", "more than 64 bits"),
    "a date that is none": (b"name: 2001-99-99", "cannot be read as timestamp"),
    "a time that is none": (b"name: 2001-01-01T25:00:00Z", "cannot be read as timestamp"),
    "a wrong tag": (b"name: !!int a", "cannot be read as int"),
    "a wrong flag": (b"name: !!bool a", "cannot be read as bool"),
    "an object of Python": (b"name: !!python/object/apply:os.system [ls]", "is not YAML"),
    "a mapping as key": (b"{{}: 1}", "is not YAML"),
    "Latin-1": (b"name: \xe9", "UTF-8"),
    "UTF-16": ("name: x".encode("utf-16"), "UTF-8"),
    "empty": (b"", "NoneType"),
    "NUL": (b"\0", "is not YAML"),
    "a control character": (b"name: \x1b[2J", "is not YAML"),
    "a key that is a number": (b"1: 2", "Keys should be strings"),
    "a key twice": (b"name: x\nmethod: {seed: 1, seed: 2}", "the key 'seed' twice, first in line 2"),
    "an octal number": (b"name: x\nmethod: {seed: 010}", "versions of YAML read differently"),
    "a time as a number": (b"name: x\nruntime: {stage_time_limit_seconds: 1:30:00}", "versions of YAML"),
}  # fmt: skip

SETTINGS = {
    ".=1": "is no key", "..=1": "is no key", "a..b=1": "is no key", "a.=1": "is no key", ".a=1": "is no key",
    "method.=1": "is no key", "method.families.0.=1": "is no key", "." * 3000 + "=1": "is no key",
    "a." * 3000 + "b=1": "is no key", "=1": "is not KEY=VALUE", "": "is not KEY=VALUE", "x" * 5000: "is not KEY=VALUE",
    "method.families.².name=x": "is no index", "method.families.٣.name=x": "is no index",
    "method.families.-1.name=x": "is no index", "method.families.+0.name=x": "is no index",
    "method.families.1_0.name=x": "is no index", f"method.families.{'9' * 10_000}.name=x": "is no index",
    f"method.seed={'9' * 10_000}": "is not YAML", f"method.seed=0x{'f' * 20_000}": "more than 64 bits",
    f"method.seed={'[' * 1200}{']' * 1200}": "levels of nesting", "method.seed=2001-99-99": "timestamp",
    "method.seed=!!int a": "cannot be read", "method.seed=&a [*a]": "inside its own definition",
    "method.families=[&a {repeat: 2, e: *a}]": "inside its own definition",
    "method.families.0.train_seeds.start=99999999999999999999": "more than 64 bits",
    f"method.prompts={LONG}": "cannot be looked for", 'method.prompts="a\\0b"': "cannot be looked for",
    f"runtime.runs={LONG}": "cannot be looked for", 'runtime.runs="a\\0b"': "cannot be looked for",
    f"method.roles.actor.model={LONG}": "cannot be looked for", 'method.roles.actor.model="a\\0b"': "looked for",
    f"method.roles.actor.model=warm:{LONG}/actor": "looked for", f"method.roles.actor.model=a/{LONG}": "looked for",
    f"method.roles.actor.model=./{LONG}": "looked for", f"method.roles.actor.model={DEEP_PATH}": "looked for",
    "method.roles.actor.model=~nobody-has-this-name/x": "home directory",
    "method.roles.actor.model=/proc": "config.json",
    "method.roles.actor.model=/proc/self/mem": "no such directory", "method.roles.actor.model=/": "config.json",
    f"method.recipe.retrieval.embedder={LONG}": "looked for", 'name="\\e[2J"': "name", "name=[red]": "name",
}  # fmt: skip


def tree(*places: Path) -> list[str]:
    return sorted(str(path) for place in places for path in place.rglob("*"))


@pytest.fixture
def refuse(crl: Crl, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that has to be refused; returns what it said."""
    monkeypatch.chdir(ROOT)

    def run(*words: str | Path) -> str:
        before = tree(tmp_path), sorted(ROOT.iterdir())
        outcome = crl(*words)
        assert outcome.code == 2 and outcome.err.strip(), outcome
        assert "Traceback" not in outcome.err and "\x1b" not in outcome.err + outcome.out
        assert len(outcome.err) < 3500, "one message, that a person reads to its end"
        assert (tree(tmp_path), sorted(ROOT.iterdir())) == before, "nothing is written"
        return outcome.err

    return run


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_of_files_runs_and_folders(name: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    odd = ODD_NAMES[name]
    for words in (
        ("train", odd), ("warm-start", odd), ("compare", odd), ("doctor", odd), ("checks", "list", "--experiment", odd),
        ("status", odd), ("resume", odd), ("verify", odd), ("mend", odd), ("sql", odd, "SELECT 1"), ("catalog", odd),
        ("report", odd), ("evaluate", odd), ("table", odd), ("redo", odd, "--from", "1/collect"), ("approve", odd),
        ("bank", "show", odd), ("bank", "diff", odd, "1"), ("bank", "why", odd, "x"), ("bank", "search", odd, "x"),
        ("bank", "export", odd, "--to", tmp_path / "e"), ("bank", "import", "conf/tiny.yaml", odd),
        ("bank", "import", odd, "nowhere"), ("checks", "docs", odd), ("checks", "show", odd), (odd,), ("bank", odd),
    ):  # fmt: skip
        refuse(*words)


@pytest.mark.parametrize("case", sampled(FILES, 2))
def test_files_that_are_no_experiment(case: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    content, words = FILES[case]
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    assert words in refuse("train", path)
    for command in (("doctor",), ("compare",), ("warm-start",), ("checks", "list", "--experiment")):
        assert str(path) in refuse(*command, path)


def test_a_directory_and_an_unreadable_file(refuse: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert "cannot be read" in refuse("train", tmp_path / "folder.yaml")
    assert "cannot be read" in refuse("train", "/proc/self/mem")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting[:40].encode("unicode_escape").decode())
def test_odd_settings(setting: str, refuse: Callable[..., str]) -> None:
    assert SETTINGS[setting] in refuse("train", "conf/tiny.yaml", "--no-prefect", "--set", setting)


def test_a_setting_that_is_given_twice(refuse: Callable[..., str]) -> None:
    twice = ("--set", "method.seed=1", "--set", "name=x", "--set", "method.seed=2")
    assert "method.seed' is given twice, as '1' and as '2'" in refuse("train", "conf/tiny.yaml", "--no-prefect", *twice)


@pytest.mark.parametrize("listed", sampled(["", ",", " , ", "x", "²", "-1", "9" * 10_000], 3))
@pytest.mark.parametrize("option", ["--arms", "--seeds"])
def test_a_study_of_which_nothing_is_selected(option: str, listed: str, refuse: Callable[..., str]) -> None:
    for more in ((), ("--table-only",)):
        said = refuse("compare", "conf/study/realms.yaml", option, listed, *more)
        assert "xpected" in said


@pytest.mark.parametrize("text", ["²", "-1", "1.5", "", " ", "9" * 10_000, "LAST", "\0"])
def test_odd_rounds_of_a_table(text: str, refuse: Callable[..., str], room: Path) -> None:
    assert "last, best" in refuse("table", "room", f"--round={text}")


@pytest.mark.parametrize("text", ["²:1", "1:²", "9" * 10_000 + ":1", "1:" + "9" * 10_000, ":", "", "-1:2", "1:0"])
def test_odd_ranges_of_seeds(text: str, refuse: Callable[..., str], room: Path) -> None:
    assert "START:COUNT" in refuse("evaluate", "room", f"--seeds={text}")


@pytest.mark.parametrize("place", ["²/collect", "9" * 10_000 + "/collect", "1/" + LONG, "1/..", "1/", "/", "1/\0"])
def test_odd_places_to_redo(place: str, refuse: Callable[..., str], room: Path) -> None:
    assert "ROUND/STAGE" in refuse("redo", "room", "--from", place)


@pytest.mark.slow
def test_odd_ids_texts_and_targets_of_a_run(refuse: Callable[..., str], room: Path) -> None:
    for odd in (LONG, "a\0b", "\udcff"):
        refuse("bank", "why", "room", odd)
        refuse("sql", "room", odd)
        refuse("report", "room", "--out", odd)
        refuse("bank", "export", "room", "--to", odd)
        refuse("evaluate", "room", "--out", odd)
    for folder in ("", "/etc"):
        assert "is a directory" in refuse("evaluate", "room", "--out", folder)
