"""The Dockerfile and every file of `deploy` pass the linters that docs/team_server.md names; that of SkyPilot a schema
of the fields that its documentation has."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINTERS = {
    "Dockerfile": "hadolint",
    "deploy/compose*.yaml": "check-jsonschema --builtin-schema vendor.compose-spec",
    "deploy/skypilot.yaml": "check-jsonschema --schemafile tests/unit/skypilot_fields.yaml",
    "deploy/slurm/*.sbatch": "bash -n",
    "deploy/kubernetes/*.yaml": "kubernetes-validate --strict",
}
FILES = {str(path.relative_to(ROOT)): command for glob, command in LINTERS.items() for path in sorted(ROOT.glob(glob))}
PLANTED = [
    ("Dockerfile", "apt-get install --yes ", "apt-get install ", "DL3014"),
    ("deploy/compose.yaml", "    image: postgres", "    imagee: postgres", "imagee"),
    ("deploy/compose.yaml", "    init: true", "    init: [true]", "init"),
    ("deploy/compose.gpu.yaml", "    ipc: host", "    ipc: [host]", "ipc"),
    ("deploy/skypilot.yaml", "job_recovery:", "job_recover:", "job_recover"),
    ("deploy/skypilot.yaml", "[143]", "[1430]", "1430"),
    ("deploy/slurm/train.sbatch", "exit 143\n}", "exit 143\n", "syntax error"),
    ("deploy/kubernetes/worker.yaml", "  replicas: 1", "  replicas: one", "replicas"),
    ("deploy/kubernetes/worker.yaml", "      shareProcessNamespace:", "      shareProcessNamespaces:", "Namespaces"),
]


def refusal(file: str, where: Path) -> str:
    """What the linter of a file says of the one at `where`; empty where it accepts it."""
    name, *options = shlex.split(FILES[file])
    # Beside the interpreter: the environment need not be on the path.
    tool = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if tool is None:
        pytest.skip(f"{name} is not installed (the extra dev has it)")
    done = subprocess.run([tool, *options, str(where)], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_file_has_a_linter() -> None:
    assert FILES.keys() == {
        "Dockerfile",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*") if path.is_file()),
    }


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_accepted(file: str) -> None:
    assert refusal(file, ROOT / file) == ""


@pytest.mark.parametrize(("file", "right", "wrong", "told"), PLANTED, ids=[f"{case[0]} {case[3]}" for case in PLANTED])
def test_a_planted_error_is_found(tmp_path: Path, file: str, right: str, wrong: str, told: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(right) == 1
    planted = tmp_path / Path(file).name
    planted.write_text(text.replace(right, wrong), encoding="utf-8")
    assert told in refusal(file, planted)


def test_the_page_on_team_servers_names_these_commands() -> None:
    page = (ROOT / "docs/team_server.md").read_text(encoding="utf-8")
    for glob, command in LINTERS.items():
        assert f"\n{command} {glob}\n" in page
