"""Guests can be taken away: without all of them the core's own tests hold, and without each alone a round is trained.

To take a guest away is to delete its folder, its tests, its entry points and the experiments that name it
(:func:`without` does so to a copy of the checkout), and to write the pages anew that are made from what there is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
with (ROOT / "pyproject.toml").open("rb") as stream:
    PROJECT = tomllib.load(stream)["project"]
POINTS: dict[str, dict[str, str]] = PROJECT["entry-points"]


def folder_of(target: str) -> str:
    """The guest's folder, such as `crl/worlds/swe`, of an entry point's `module:Class`."""
    return "/".join(target.partition(":")[0].split(".")[:3])


GUESTS = sorted({folder_of(target) for named in POINTS.values() for target in named.values()})
WITH_ALL = ("crl/worlds", "tests/worlds", "tests/guests")
"""Folders that only guests use: what worlds share, and tests of several guests."""
PAGES = {
    "docs/config.md": ("docs/config_page.py",),
    "docs/schema.md": ("docs/schema_page.py",),
    "docs/splits.md": ("-m", "benchmarks.splits"),
    "data/splits.csv": ("-m", "benchmarks.splits", "--csv"),
}
MIXED = {
    "tests/docs/test_commands.py::test_every_key_named_exists": "pages of guests name keys of theirs",
    "research/tests/test_results.py": "studies of several recipes, with guests among their arms",
    **dict.fromkeys(
        [
            "tests/unit/lab/study/test_study_file.py::test_arms_of_another_study_are_run_with_what_every_arm_sets",
            "tests/unit/lab/study/test_study_file.py::test_a_recipe_that_knows_no_warm_start_begins_with_that_of_another",
        ],
        "arms of a study that are guests",
    ),
}
"""Tests that stay where they are and need a guest: why."""
LEFT = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "runs", "__pycache__", ".*_cache", ".hypothesis", "build")
MINUTES = 60


def without(guests: Collection[str], place: Path) -> Path:
    """A copy of the checkout in which these guests (folders) are not."""
    shutil.copytree(ROOT, place, ignore=LEFT)
    (place / ".git").mkdir()  # the root of a checkout
    for guest in guests:
        shutil.rmtree(place / guest)
        shutil.rmtree(place / guest.replace("crl/", "tests/", 1), ignore_errors=True)
    if set(guests) == set(GUESTS):
        for folder in WITH_ALL:
            shutil.rmtree(place / folder)
    gone = {kind for named in POINTS.values() for kind, target in named.items() if folder_of(target) in guests}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines(keepends=True)
    targets = [target for named in POINTS.values() for target in named.values() if folder_of(target) in guests]
    kept = [line for line in project if not any(f'"{target}"' in line for target in targets)]
    (place / "pyproject.toml").write_text("".join(kept), encoding="utf-8")
    install(place)
    forget(place / "conf", gone)
    return place


def install(place: Path) -> None:
    """Write the metadata that installing the copy would write: beside the sources it is found first."""
    with (place / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    record = place / "complementary_rl.egg-info"
    record.mkdir()
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (record / "PKG-INFO").write_text(f"Metadata-Version: 2.1\n{named}")
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    sections = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items()]
    (record / "entry_points.txt").write_text("\n".join(sections))


def forget(conf: Path, kinds: set[str]) -> None:
    """Delete the files that name one of these kinds, and the studies that start from such a file."""
    gone: set[Path] = set()
    for path in sorted(conf.rglob("*.yaml")):
        values = list(walk(yaml.safe_load(path.read_text(encoding="utf-8"))))
        if any(key.rpartition(".")[2] == "kind" and value in kinds for key, value in values):
            gone.add(path)
    for path in sorted(conf.glob("study/*.yaml")):
        bases = [value for key, value in walk(yaml.safe_load(path.read_text(encoding="utf-8"))) if key == "base"]
        if any((path.parent / str(base)).resolve() in {each.resolve() for each in gone} for base in bases):
            gone.add(path)
    for path in gone:
        path.unlink()


def walk(data: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a file with its value; the keys of `set` are dotted."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield str(key), value if isinstance(value, str | int | float | None) else None
        yield from walk(value)


def python(place: Path, *words: str, minutes: float = 10) -> str:
    """What a program of the copy prints; its error output where it fails."""
    done = subprocess.run(
        [sys.executable, *words], cwd=place, env={**os.environ, "PYTHONPATH": str(place)}, capture_output=True,
        text=True, timeout=60 * minutes,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without any guest, and its pages."""
    place = without(GUESTS, tmp_path_factory.mktemp("core") / "crl")
    for page, command in PAGES.items():
        (place / page).write_text(python(place, *command), encoding="utf-8")
    return place


def test_the_cores_own_tests_hold_without_any_guest(core: Path) -> None:
    listed = python(core, "-m", "crl", "env", "list", "--json")
    assert '"sokoban"' in listed and not [name for name in POINTS["crl.environments"] if f'"{name}"' in listed]
    left_out = [f"--deselect={name}" for name in MIXED]
    words = ("-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *left_out)
    told = python(core, "-m", "pytest", *words, minutes=MINUTES)
    passed = next(line for line in told.splitlines()[::-1] if " passed" in line)
    assert int(passed.split(" passed")[0].split()[-1]) > 1000, passed


@pytest.mark.parametrize("guest", GUESTS)
def test_without_one_guest_a_round_is_trained(guest: str, tmp_path: Path) -> None:
    place = without([guest], tmp_path / "crl")
    python(place, "-c", "import crl")
    assert "train" in python(place, "-m", "crl", "--help")
    kinds = {kind for named in POINTS.values() for kind, target in named.items() if folder_of(target) == guest}
    schema = python(place, "-c", "import json; from crl.config.keys import models; print(json.dumps(models()))")
    assert not [kind for kind in kinds if f'"const": "{kind}"' in schema] and '"const": "sokoban"' in schema
    few = ("--no-prefect", "--set", "method.families.0.evaluation_seeds.count=2")
    python(place, "-m", "crl", "train", "conf/tiny.yaml", "--rounds", "1", *few)
    assert "\n1 " in python(place, "-m", "crl", "status", "tiny")
