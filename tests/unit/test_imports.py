"""Who imports whom: the direction that the design sets, lightness of the command line, and the size of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "prefect", "great_expectations", "pandas", "trl", "deepspeed", "peft", "faiss")
MODEL_LIBRARIES = {"torch", "transformers", "trl", "deepspeed", "peft"}
VOCABULARY = {"crl.config", "crl.records", "crl.errors", "crl.protocols"}
ROOMS = ("bank", "extractor", "rollout", "learn")
HELP = "from crl.cli import main\ntry:\n    main({})\nexcept SystemExit as end:\n    assert not end.code"
# The command line is the front door: the one module that reaches up to the flows, by name and when it runs.
FRONT_DOOR = "crl/cli/train.py"


def files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file; type-checking blocks count too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (ast.literal_eval(arg) for arg in node.args if isinstance(arg, ast.Constant))


def importers(folder: str, of: set[str]) -> list[str]:
    """Which files below a folder import one of these top-level packages."""
    return [
        str(path.relative_to(ROOT))
        for path in files(folder)
        if any(module.partition(".")[0] in of for module in imports(path))
    ]


def test_the_library_imports_no_prefect() -> None:
    assert importers("crl", {"prefect"}) == []
    assert importers("flows", {"prefect"}) and importers("tasks", {"prefect"}), "this test would see an import"


def test_direction_is_flows_then_tasks_then_crl() -> None:
    assert importers("crl", {"flows", "tasks"}) == [FRONT_DOOR]
    assert importers("tasks", {"flows"}) == []


def test_model_libraries_stay_in_policies_learn_and_engine() -> None:
    allowed = ("crl/policies/", "crl/learn/", "crl/engine/")
    # `crl doctor` asks torch which GPU there is.
    found = [name for name in importers("crl", MODEL_LIBRARIES) if not name.startswith(allowed)]
    assert found == ["crl/cli/doctor.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_do_not_know_each_other(room: str) -> None:
    others = {f"crl.{name}" for name in (*ROOMS, "recipes", "engine", "report", "cli", "lab", "checks") if name != room}
    for path in files(f"crl/{room}"):
        known = {".".join(module.split(".")[:2]) for module in imports(path)}
        assert not known & others, f"{path.relative_to(ROOT)} imports {sorted(known & others)}"


def test_the_vocabulary_knows_nobody() -> None:
    for path in [*files("crl/config"), ROOT / "crl/errors.py", ROOT / "crl/protocols.py"]:
        known = {module for module in imports(path) if module.startswith("crl.")}
        modules = {".".join(module.split(".")[:2]) for module in known}
        assert modules <= VOCABULARY, f"{path.relative_to(ROOT)} imports {sorted(modules - VOCABULARY)}"
    for path in files("crl/records"):
        assert not [module for module in imports(path) if module.startswith("crl") and "crl.records" not in module]


def loaded_after(statement: str) -> set[str]:
    """Which heavy modules are loaded after a statement, in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


@pytest.mark.parametrize(
    "statement",
    [
        "import crl",
        "import crl.config, crl.records, crl.protocols, crl.config.load",
        HELP.format(["--help"]),
        HELP.format(["train", "--help"]),
        "import crl.report.views, crl.report.summary, crl.report.bank, crl.run.directory",
        "import crl.api",
        "import crl.report.diff, crl.recipes.approvals, crl.recipes.complementary.round",
    ],
)
def test_start_up_is_light(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_the_package_itself_loads_no_other_library() -> None:
    code = "import sys; before = set(sys.modules); import crl; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.partition(".")[0] in ("duckdb", "pyarrow", "pydantic")}


def test_this_test_sees_a_heavy_import() -> None:
    assert loaded_after("import pandas") == {"pandas"}


def test_no_file_is_longer_than_400_lines() -> None:
    folders = ("crl", "flows", "tasks", "tests", "benchmarks", "examples")
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for name in folders for path in files(name)}
    assert lengths
    assert not {str(path.relative_to(ROOT)): count for path, count in lengths.items() if count > 400}
