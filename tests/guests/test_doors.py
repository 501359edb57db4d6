"""Guests come in by their entry points alone: nobody imports or names their modules, and naming them is light."""

from __future__ import annotations

import ast
import re

from tests.guests.test_removed import MIXED, ROOT
from tests.unit.test_imports import GUESTS, POINTS, files, house, loaded_after, module_of, room_of, trespasses


def test_nobody_imports_a_guest_and_no_guest_another() -> None:
    graph = house()
    for module, other in [
        ("crl.report.curves", "crl.recipes.erl.report"),
        ("crl.cli.env", "crl.worlds.bridges.packages"),
        ("crl.worlds.swe.rows", "crl.worlds.webshop.goals"),
        ("crl.recipes.erl.round", "crl.recipes.dreamgym.rows"),
        ("crl.recipes.erl.round", "crl.recipes.complementary.round"),
        ("crl.recipes.erl.round", "crl.lab.study.plan"),
    ]:
        assert trespasses({**graph, module: graph[module] | {other}}) == [f"{module} imports {other}"]


def test_the_core_names_no_module_of_a_guest() -> None:
    """Not even by `module:name`: deleting a guest's folder and its entry points takes it away."""
    assert {"crl.recipes.erl", "crl.worlds.swe", "crl.worlds.bridges"} <= GUESTS
    named = re.compile(rf"({'|'.join(map(re.escape, sorted(GUESTS)))})\b[\w.]*(:\w+)?")
    texts = {
        module_of(path): [
            each.value for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Constant)
        ]
        for folder in ("crl", "tasks", "flows")
        for path in files(folder)
        if named.search(path.read_text())
    }
    found = {
        module
        for module, constants in texts.items()
        if any(isinstance(each, str) and named.fullmatch(each) for each in constants)
    }
    assert {room_of(module) for module in found} == {"guests"}, "recipes name their builders and sections so"


def test_a_guest_is_named_without_a_model_library() -> None:
    """Its config and, of a recipe, its round and report are read where nothing computes."""
    configs = [target.partition(":")[0] for named in POINTS.values() for target in named.values()]
    recipes = [module.removesuffix(".config") for module in configs if module.endswith(".config")]
    parts = [f"{recipe}.{name}" for recipe in recipes for name in ("round", "report")]
    rounds = [part for part in parts if (ROOT / f"{part.replace('.', '/')}.py").is_file()]
    assert loaded_after(f"import {', '.join([*configs, *rounds])}") == set()


def test_every_test_that_needs_a_guest_and_stays_is_there() -> None:
    """Else nobody would see that a name in the list of `test_removed.py` leaves nothing out any more."""
    for name in MIXED:
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), name
