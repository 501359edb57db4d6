"""The image, the compose file and the Kubernetes manifests name the versions and the places that the project has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
PREFECT = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
POOL = PREFECT["definitions"]["work_pool"]
PINNED = dict(
    re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
)
IMAGE = f"prefecthq/prefect:{PINNED['prefect']}-python3.11"


def manifests() -> dict[str, dict[str, Any]]:
    """Every Kubernetes resource by `kind/name`."""
    found = {}
    for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")):
        for resource in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            found[f"{resource['kind']}/{resource['metadata']['name']}"] = resource
    return found


def test_the_image_has_the_pinned_versions() -> None:
    for name, version in re.findall(r"\b([\w-]+)==([\d.]+)", DOCKERFILE):
        assert version == PINNED[name], f"Dockerfile: {name}"
    assert len(re.findall(r"torch==", DOCKERFILE)) == 2, "one a stage"
    assert re.search(r"^FROM python:3\.11\.\d+-slim", DOCKERFILE, re.MULTILINE)
    installs = [line for line in DOCKERFILE.splitlines() if "pip install" in line and '"setuptools<81"' not in line]
    assert len(installs) == 6 and all("-c constraints.txt" in line for line in installs)
    assert '"setuptools<81"' in DOCKERFILE and "setuptools<81" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    for words in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists() and source in kept, source


def test_prefects_server_is_the_pinned_one_everywhere() -> None:
    assert COMPOSE["services"]["server"]["image"] == IMAGE
    server = manifests()["Deployment/prefect-server"]["spec"]["template"]["spec"]["containers"][0]
    assert server["image"] == IMAGE
    assert PREFECT["prefect-version"] == PINNED["prefect"]


def test_workers_serve_the_work_pool_with_its_heartbeat() -> None:
    worker = manifests()["Deployment/worker"]["spec"]["template"]["spec"]["containers"][0]
    variables = {each["name"]: each["value"] for each in worker["env"]}
    ours = COMPOSE["services"]["worker"]
    beat = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
    assert variables[beat] == ours["environment"][beat] == POOL["job_variables"]["env"][beat]
    for command in (worker["command"], ours["entrypoint"]):
        assert command[-1] == f"python -m flows.setup && exec prefect worker start --pool {POOL['name']}"


def test_every_manifest_is_in_the_namespace_and_finds_what_it_names() -> None:
    found = manifests()
    for name, resource in found.items():
        if resource["kind"] not in ("Namespace", "PriorityClass"):
            assert resource["metadata"]["namespace"] == "complementary-rl", name
    spec = found["Deployment/worker"]["spec"]["template"]["spec"]
    claims = [each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"] if "persistentVolumeClaim" in each]
    assert [f"PersistentVolumeClaim/{claim}" in found for claim in claims] == [True]
    assert found[f"PersistentVolumeClaim/{claims[0]}"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert f"PriorityClass/{spec['priorityClassName']}" in found
    assert spec["terminationGracePeriodSeconds"] >= 30
