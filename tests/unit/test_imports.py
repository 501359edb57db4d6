"""Who imports whom: the direction that the design sets, and lightness of the command line."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "prefect", "great_expectations", "pandas", "trl", "deepspeed", "peft", "faiss")
MODEL_LIBRARIES = {"torch", "transformers", "trl", "deepspeed", "peft"}
HELP = "from crl.cli import main\ntry:\n    main({})\nexcept SystemExit as end:\n    assert not end.code"
# The command line is the front door: the one module that reaches up to the flows, by name and when it runs.
FRONT_DOOR = "crl/cli/train.py"
# The house, from the ground up. An import stays in its room or goes to a lower floor.
FLOORS = (
    ("crl.limits",),
    (
        "crl.errors",
        "crl.paths",
        "crl.records",
        "crl.config",
        "crl.protocols",
        "crl.text",
        "crl.faults",
    ),
    ("crl.run", "crl.checks"),
    ("crl.envs", "crl.policies", "crl.gateway", "crl.rollout", "crl.extractor", "crl.bank", "crl.credit", "crl.learn"),
    ("crl.rounds", "crl.recipes"),
    ("crl.audit",),
    ("crl.engine", "crl.report", "crl.preflight"),
    ("crl.transfer", "crl.trackers", "crl.validation", "crl.serve", "guests"),
    ("crl.lab",),
    ("crl.cli", "crl.api", "crl"),
    ("crl.__main__",),
    ("tasks",),
    ("flows",),
)
# Who imports a room of its own floor: the vocabulary is built in this order, programs are played through the gateway,
# the runs of a study are tracked, an agent leaves with its bank, and `crl.open` opens the interface.
NEIGHBORS = {
    "crl.paths": {"crl.errors"},
    "crl.config": {"crl.errors", "crl.paths", "crl.records"},
    "crl.protocols": {"crl.config", "crl.records"},
    "crl.text": {"crl.errors", "crl.config", "crl.records", "crl.protocols"},
    "crl.faults": {"crl.errors", "crl.protocols", "crl.text"},
    "crl.rollout": {"crl.gateway"},
    "crl.recipes": {"crl.rounds"},
    "crl.serve": {"crl.transfer"},
    "crl": {"crl.api"},
}
# The top room may use everything below, and only these use it. Guests are imported by nobody but the laboratory: they
# are found by their entry points.
USERS = {"crl.lab": {"crl.cli", "flows"}, "guests": {"crl.lab"}}
with (ROOT / "pyproject.toml").open("rb") as stream:
    POINTS = tomllib.load(stream)["project"].get("entry-points", {})
# What worlds share, and the folders of guests: a guest imports no other.
SHARED = (
    "crl.worlds.json_files",
    "crl.worlds.programs",
    "crl.worlds.records",
    "crl.worlds.sandbox",
    "crl.worlds.search",
)
GUESTS = {
    ".".join(target.split(":")[0].split(".")[:3]) for named in POINTS.values() for target in named.values()
}  # fmt: skip
Graph = dict[str, set[str]]


def files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module a file imports, wherever in the file; type-checking blocks count too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found += (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Call) and _called(node).endswith("import_module"):
            found += (ast.literal_eval(arg) for arg in node.args if isinstance(arg, ast.Constant))
    return tuple(found)


def _called(call: ast.Call) -> str:
    """The last word of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def importers(folder: str, of: set[str]) -> list[str]:
    """Which files below a folder import one of these top-level packages."""
    return [
        str(path.relative_to(ROOT))
        for path in files(folder)
        if any(module.partition(".")[0] in of for module in imports(path))
    ]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def house() -> Graph:
    """Which modules each module of the house imports, inside functions and type-checking blocks too.

    `from package import name` is an import of the module `package.name` where there is one. The front door is left out.
    """
    paths = {module_of(path): path for folder in ("crl", "tasks", "flows") for path in files(folder)}
    return {
        module: {
            name
            for name in imports(path)
            if name in paths
            and name != module
            and not (str(path.relative_to(ROOT)) == FRONT_DOOR and room_of(name) == "flows")
        }
        for module, path in paths.items()
    }


def guest_of(module: str) -> str | None:
    """The guest that a module belongs to; what worlds share is one too. None: it belongs to the core."""
    if module == "crl.worlds" or any(module == shared or module.startswith(f"{shared}.") for shared in SHARED):
        return "crl.worlds"
    folder = ".".join(module.split(".")[:3])
    return folder if folder in GUESTS else None


def room_of(module: str) -> str:
    """The room a module is in: `crl.bank` of `crl.bank.store`, `flows` of `flows.train`; guests are one."""
    if guest_of(module) is not None:
        return "guests"
    return ".".join(module.split(".")[: 2 if module.startswith("crl") else 1])


def recipe_of(module: str) -> str:
    """The recipe whose room a module is in; empty of all others."""
    return module.split(".")[2] if module.startswith("crl.recipes.") else ""


def trespasses(graph: Graph) -> list[str]:
    """Imports that go up, to another recipe, to a room of the same floor that is not named as a neighbor, or to one for
    others."""
    floor_of = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    found = []
    for module, imported in graph.items():
        for other in imported:
            here, there = room_of(module), room_of(other)
            recipes = {recipe_of(module), recipe_of(other)} - {""}
            if here == there == "guests":
                allowed = guest_of(other) in (guest_of(module), "crl.worlds")
            elif len(recipes) > 1:
                allowed = False
            elif here != there and there in USERS:
                allowed = here in USERS[there]
            else:
                allowed = here == there or floor_of[there] < floor_of[here] or there in NEIGHBORS.get(here, set())
            if not allowed:
                found.append(f"{module} imports {other}")
    return sorted(found)


def cycle_in(graph: Graph) -> list[str]:
    """Modules that import each other in a circle; none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = house()
    assert "crl.records" in graph["crl.protocols"] and len(graph) > 250, "the house is read"
    assert cycle_in(graph) == []


def test_every_room_has_a_floor_and_no_import_goes_up() -> None:
    graph = house()
    assert {room_of(module) for module in graph} | {"guests"} == {room for rooms in FLOORS for room in rooms}
    assert trespasses(graph) == []


def test_a_circle_and_an_import_upward_would_be_seen() -> None:
    graph = house()
    for module, other in [
        ("crl.bank.segments", "crl.credit.uses"),
        ("crl.run.files", "crl.recipes"),
        ("crl.errors", "crl.config.load"),
        ("crl.envs.levels", "crl.bank.retrieve"),
        ("crl.rounds.publish", "crl.recipes.complementary.plan"),
        ("tasks.stage", "flows.training"),
        ("crl.api", "crl.lab.table.build"),
    ]:
        assert trespasses({**graph, module: graph[module] | {other}}) == [f"{module} imports {other}"]
    assert set(cycle_in({**graph, "crl.records.base": {"crl.protocols"}})) >= {"crl.protocols", "crl.records.base"}
    assert importers("crl", {"flows", "tasks"}) == [FRONT_DOOR]


def test_the_library_imports_no_prefect() -> None:
    assert importers("crl", {"prefect"}) == []
    assert importers("flows", {"prefect"}) and importers("tasks", {"prefect"}), "this test would see an import"


def test_model_libraries_stay_in_policies_learn_and_engine() -> None:
    allowed = ("crl/policies/", "crl/learn/", "crl/engine/")
    # `crl doctor` asks torch which GPU there is. A guest may have a file of its own that computes.
    found = {name for name in importers("crl", MODEL_LIBRARIES) if not name.startswith(allowed)}
    of_guests = {name for name in found if guest_of(module_of(ROOT / name)) is not None}
    assert found - of_guests == {"crl/cli/doctor.py"}


def loaded_after(statement: str, names: tuple[str, ...] = HEAVY) -> set[str]:
    """Which of these modules are loaded after a statement, in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


@pytest.mark.parametrize(
    "statement",
    [
        "import crl, crl.config, crl.records, crl.protocols, crl.config.load, crl.api, crl.report.views, "
        "crl.report.summary, crl.report.bank, crl.run.directory, crl.report.diff, crl.rounds.approvals, "
        "crl.recipes.complementary.round",
        HELP.format(["--help"]),
        pytest.param(HELP.format(["train", "--help"]), marks=pytest.mark.slow),
    ],
)
def test_start_up_is_light(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_credit_loads_no_model_library_not_even_through_others() -> None:
    modules = [module_of(path) for path in files("crl/credit")]
    assert "crl.credit.samples" in modules and "crl.credit.rules.outcome" in modules
    assert loaded_after(f"import {', '.join(modules)}") == set()


def test_help_needs_no_library_of_data() -> None:
    assert loaded_after(HELP.format(["--help"]), ("duckdb", "numpy", "pyarrow", "pydantic", "rich")) == set()


def test_the_package_itself_loads_no_other_library() -> None:
    code = "import sys; before = set(sys.modules); import crl; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.partition(".")[0] in ("duckdb", "pyarrow", "pydantic")}


def test_settings_are_read_without_any_stage() -> None:
    code = "import sys, crl.recipes.complementary.config; print(*[name for name in sys.modules if 'crl.r' in name])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith(("crl.rounds.", "crl.recipes.complementary."))}
    assert loaded == {"crl.recipes.complementary.config", "crl.rounds.impossible"}


def test_this_test_sees_a_heavy_import() -> None:
    assert loaded_after("import pandas") == {"pandas"}
