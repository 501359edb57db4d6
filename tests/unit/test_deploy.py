"""The image, the compose file and the Kubernetes manifests name the versions and the places that the project has."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.config import RoleConfig
from crl.config.engines import ServerConfig
from crl.engine.vllm_server import command_line, environment
from flows.setup import WORKER_ENVIRONMENT
from flows.ui import server_command

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
GPU = yaml.safe_load((ROOT / "deploy/compose.gpu.yaml").read_text(encoding="utf-8"))
ENGINES, TEAM = ((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("engines", "team_server"))
PREFECT = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
WORK_POOL = PREFECT["definitions"]["work_pool"]
PINNED, TRACKERS = (
    dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("constraints.txt", "constraints-trackers.txt")
)


def manifests() -> dict[str, dict[str, Any]]:
    """Every Kubernetes resource by `kind/name`, in the order that `kubectl apply` takes them."""
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
    assert len(installs) == 8 and all(re.search(r"-c constraints(-trackers)?\.txt", line) for line in installs)
    assert '"setuptools<81"' in DOCKERFILE and "setuptools<81" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_each_environment_has_exactly_one_faiss() -> None:
    """Both are the module `faiss`: no other extra and no dependency may bring one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {name: lines for name, lines in project["optional-dependencies"].items() if "faiss" in str(lines)}
    assert asked == {"cpu": ["faiss-cpu>=1.15"], "gpu": ["faiss-gpu>=1.15.1"]} and "faiss" not in str(
        project["dependencies"]
    )
    assert PINNED["faiss-cpu"] == PINNED["faiss-gpu"]
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    for name in ("cpu", "gpu"):
        (stage,) = [each for each in stages if f'-e ".[{name},' in each]
        assert stage.splitlines()[0].endswith({"cpu": "AS cpu", "gpu": "AS cuda"}[name])
    for given, expected in (("FAISS=gpu", ".[gpu,"), ("FAISS=cpu", ".[cpu,")):
        done = subprocess.run(
            ["make", "--dry-run", "--always-make", "setup", given], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert expected in done.stdout, given


@pytest.mark.slow
@pytest.mark.parametrize(("name", "with_gpu"), [("faiss-gpu", True), ("faiss-cpu", False)])
def test_the_wheel_of_an_extra_has_what_its_name_says(name: str, with_gpu: bool, tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), f"{name}=={PINNED[name]}"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index has it: {done.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        classes = wheel.read("faiss/swigfaiss.py").decode()
    assert ("class GpuIndexFlatIP" in classes) is ("class StandardGpuResources" in classes) is with_gpu


def test_the_image_has_every_tracker_as_it_was_tried() -> None:
    page = (ROOT / "docs/trackers.md").read_text(encoding="utf-8")
    tried = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in (each.partition(">=")[0] for each in extras["trackers"]):
        assert TRACKERS[name] == tried[name], name
    assert DOCKERFILE.count('pip install -c constraints-trackers.txt -e ".[trackers]"') == 2, "one a stage"
    assert {name for name in TRACKERS if PINNED.get(name, TRACKERS[name]) != TRACKERS[name]} == {
        "importlib_metadata",
        "pillow",
    }


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    for words in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists() and source in kept, source


def test_prefects_server_is_ours_and_goes_by_the_name_that_workers_call() -> None:
    """`flows.server`, which keeps web pages out, in the image of the project."""
    ours = COMPOSE["services"]["server"]
    assert ours["image"] == COMPOSE["services"]["worker"]["image"]
    container = manifests()["Deployment/prefect-server"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "complementary-rl:cpu"
    variables = {each["name"]: each.get("value") for each in container["env"]}
    (named,) = [each["value"] for each in worker_container()["env"] if each["name"] == "PREFECT_API_URL"]
    for words, hosts, address in (
        (ours["entrypoint"], ours["environment"]["CRL_HOSTS"], COMPOSE["x-environment"]["PREFECT_API_URL"]),
        (container["command"], variables["CRL_HOSTS"], named),
    ):
        assert words == ["python", "-m", *server_command(4200)[:1], "--host", "0.0.0.0"]
        assert address == f"http://{hosts}:4200/api"
    (header,) = container["readinessProbe"]["httpGet"]["httpHeaders"]
    assert header == {"name": "Host", "value": "localhost"}, "a probe goes by the pod's address"
    assert PREFECT["prefect-version"] == PINNED["prefect"]


def worker_container() -> dict[str, Any]:
    container: dict[str, Any] = manifests()["Deployment/worker"]["spec"]["template"]["spec"]["containers"][0]
    return container


def test_workers_serve_the_work_pool_with_its_environment() -> None:
    worker = worker_container()
    # The image sets the others.
    image = dict(re.findall(r"^ +(?:ENV )?(\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    variables = image | {each["name"]: each["value"] for each in worker["env"]}
    ours = COMPOSE["services"]["worker"]
    exported = dict(re.findall(r"(\w+)=(\S+)", "\n".join(re.findall(r"^export .+$", TEAM, re.MULTILINE))))
    for name, value in WORKER_ENVIRONMENT.items():
        assert variables[name] == ours["environment"][name] == exported[name] == value, name
    assert "job_variables" not in str(PREFECT), "the pool takes none"
    for command in (worker["command"], ours["entrypoint"]):
        assert command[-1] == f"python -m flows.setup && exec prefect worker start --pool {WORK_POOL['name']}"


def test_process_1_of_a_worker_waits_for_orphans() -> None:
    assert COMPOSE["services"]["worker"]["init"] is True
    assert manifests()["Deployment/worker"]["spec"]["template"]["spec"]["shareProcessNamespace"] is True


def test_only_the_file_for_gpus_asks_for_gpus() -> None:
    assert "nvidia" not in str(COMPOSE) and COMPOSE["services"]["worker"]["image"].endswith(":cpu}")
    worker, vllm = GPU["services"]["worker"], GPU["services"]["vllm"]
    assert worker["image"].endswith(":cuda}") and "nvidia" in str(worker["deploy"]) and "nvidia" in str(vllm["deploy"])


def test_the_vllm_server_is_started_as_one_that_takes_weights_is() -> None:
    """As `crl.engine.vllm_server` and docs/engines.md start theirs; sizes are the machine's."""
    vllm = GPU["services"]["vllm"]
    options = dict(word.partition("=")[::2] for word in vllm["command"])
    own = command_line(Path("python"), Path("model"), Path("socket"), RoleConfig(), ServerConfig())
    (typed,) = re.findall(r"^VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 (python .*\\\n.*)$", ENGINES, re.MULTILINE)
    for words in (own, shlex.split(typed)):
        assert vllm["entrypoint"][1:] == words[1:3]
        for name in ("--logprobs-mode", "--generation-config"):
            assert options[name] == words[words.index(name) + 1], name
        for name in ("--model", "--dtype", "--max-model-len", "--tokens-only"):
            assert name in words and name in options, name
    assert vllm["environment"]["VLLM_SERVER_DEV_MODE"] == environment(ServerConfig(), 1)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "ports" not in vllm, "it asks for no key"
    assert vllm["volumes"] == COMPOSE["services"]["worker"]["volumes"], "weights are handed over through a folder"


def test_leases_of_prefects_server_outlive_it() -> None:
    name = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
    (told,) = re.findall(rf"export {name}=(\S+)", TEAM)
    server = COMPOSE["services"]["server"]
    assert server["environment"][name] == told
    (volume,) = server["volumes"]
    source, _, target = volume.partition(":")
    assert source in COMPOSE["volumes"] and target == server["environment"]["PREFECT_HOME"]
    found = manifests()
    spec = found["Deployment/prefect-server"]["spec"]["template"]["spec"]
    container = spec["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables[name] == told
    (mount,), (kept,) = container["volumeMounts"], spec["volumes"]
    assert mount == {"name": kept["name"], "mountPath": variables["PREFECT_HOME"]}
    assert f"PersistentVolumeClaim/{kept['persistentVolumeClaim']['claimName']}" in found
    assert found["Deployment/prefect-server"]["spec"]["strategy"] == {"type": "Recreate"}


def test_any_password_reaches_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import Settings
    from sqlalchemy import make_url

    database, server = (COMPOSE["services"][name]["environment"] for name in ("database", "server"))
    password = "a@b%41/c:d?#$x"
    for whose in ("API", "SERVER"):  # a whole address would win
        monkeypatch.delenv(f"PREFECT_{whose}_DATABASE_CONNECTION_URL", raising=False)
    for name, value in ((name, value) for name, value in server.items() if "DATABASE" in name):
        monkeypatch.setenv(name, value.replace("${POSTGRES_PASSWORD}", password))
    address = Settings().server.database.connection_url
    assert address is not None
    url = make_url(address.get_secret_value())
    assert (url.password, url.host, url.port, url.drivername) == (password, "database", 5432, "postgresql+asyncpg")
    assert (url.username, url.database) == (database["POSTGRES_USER"], database["POSTGRES_DB"])
    assert database["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")


def test_the_namespace_is_applied_before_what_is_in_it() -> None:
    assert next(iter(manifests())) == "Namespace/complementary-rl"


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
