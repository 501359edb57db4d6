"""Bad input is refused before work starts: exit code 2, one readable message, nothing made among the runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from crl.cli import main
from tests.tiny_run import CONFIG, NAME, ROOT, crl, options


@dataclass(frozen=True)
class Refused:
    """What was said, and the exit code."""

    code: int
    said: str


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$CRL_RUNS, which does not exist yet."""
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(ROOT)
    return tmp_path / "runs"


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], Refused]:
    """Run the command line in this process; it must not get as far as starting anything."""

    def run(arguments: Sequence[str]) -> Refused:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        assert printed.out == "", "nothing was begun"
        assert "Traceback" not in printed.err
        assert isinstance(ended.value.code, int)
        return Refused(ended.value.code, printed.err)

    return run


def _train(*settings: str) -> list[str]:
    return ["train", str(CONFIG), "--rounds", "1", *(word for pair in settings for word in ("--set", pair))]


REFUSALS = {
    "an unknown key": (
        ["method.roles.actor.learning_rate=1"], ["actor.learning_rate: unknown key", ".optimizer.learning_rate"]
    ),
    "a mistyped key": (["method.rollout.group_sise=4"], ["unknown key", "did you mean 'group_size'"]),
    "an unknown section": (["methods.seed=1"], ["methods", "unknown key", "did you mean 'method'"]),
    "an unknown kind of environment": (
        ["method.families.0.environment={kind: chess}"], ["chess", "shrines", "frozenlake"]
    ),
    "an unregistered environment": (
        ["method.families.0.environment={kind: nowhere:Config}"], ["nowhere:Config", "cannot be imported", "lake"]
    ),
    "an unknown model": (["method.roles.actor.model=gpt"], ["'gpt'", "tiny", "method.roles.actor.model"]),
    "an unknown model of the extractor": (
        ["method.roles.extractor.model=gpt"], ["'gpt'", "method.roles.extractor.model"]
    ),
    "a model directory without a model": (["method.roles.actor.model=./conf"], ["./conf", "config.json"]),
    "an unknown embedder": (["method.recipe.retrieval.embedder=bert"], ["bert", "minilm", "lexical"]),
    "an odd group": (["method.rollout.group_size=5"], ["group_size is 5", "even"]),
    "a value out of bounds": (["method.roles.actor.sampling.temperature=-1"], ["sampling.temperature", "-1"]),
    "overlapping seeds": (
        ["method.families.0.evaluation_seeds.start=5"], ["train_seeds and evaluation_seeds overlap"]
    ),
    "a prompt longer than the context": (
        ["method.roles.actor.context=32", "method.roles.actor.sampling.max_new_tokens=4"],
        ["the first prompt of family lake takes", "tokens", "at most 28", "method.roles.actor.context"],
    ),
    "an extractor's prompt longer than the context": (
        ["method.roles.extractor.context=64"], ["tokens", "extractor.context"]
    ),
    "a context longer than the model's": (
        ["method.roles.actor.context=4096"], ["4096", "2048", "method.roles.actor.context"]
    ),
    "a placeholder nobody fills": (["method.prompts.actor.first='{weather}'"], ["weather"]),
    "an unknown prompt file": (["method.prompts=nowhere"], ["nowhere", "minihack", "tiny"]),
    "too little disk": (
        ["runtime.min_free_gigabytes=1000000"], ["GB are free", "1000000.", "What to do", "CRL_RUNS"]
    ),
    "a name that is no name": (["name=../elsewhere"], ["name", "../elsewhere"]),
    "a setting without a value": (["method.seed"], ["--set 'method.seed'", "KEY=VALUE"]),
    "a setting that is no YAML": (["method.seed=[1"], ["method.seed", "not YAML"]),
    "an index that is none": (["method.families.7.groups=2"], ["families.7.groups", "'7'", "0"]),
    "a setting below a value": (["method.seed.deeper=1"], ["method.seed"]),
    "a list where a mapping belongs": (["method=[1, 2]"], ["method"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_an_experiment_that_cannot_run(case: str, runs: Path, refuse: Callable[[Sequence[str]], Refused]) -> None:
    settings, words = REFUSALS[case]
    refused = refuse(_train(*settings))
    assert refused.code == 2
    assert refused.said.startswith("crl: ")
    assert not [word for word in words if word not in refused.said], refused.said
    assert len(refused.said.splitlines()) < 12, "one message, that a person reads to its end"
    assert not runs.exists()


FILES = {
    "no YAML": ("method: [", ["is not YAML", "line"]),
    "tabs": ("method:\n\tseed: 1\n", ["is not YAML", "tab"]),
    "a list": ("- 1\n", ["holds a list", "mapping"]),
    "nothing": ("", ["holds a NoneType", "mapping"]),
    "a binary": ("\0\1", ["cannot be read", "not YAML"]),
    "hardly anything": ("name: x\n", ["method", "Field required"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_experiment(
    case: str, runs: Path, tmp_path: Path, refuse: Callable[[Sequence[str]], Refused]
) -> None:
    text, words = FILES[case]
    (tmp_path / "bad.yaml").write_text(text)
    refused = refuse(["train", str(tmp_path / "bad.yaml")])
    assert refused.code == 2 and str(tmp_path / "bad.yaml") in refused.said
    assert any(word in refused.said for word in words), refused.said
    assert not runs.exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", str(CONFIG), "--rounds", "-1"], "--rounds"),
        (["train", str(CONFIG), "--rounds", "many"], "--rounds"),
        (["train", str(CONFIG), "--round", "1"], "--round"),
        (["train", "conf/nowhere.yaml"], "conf/nowhere.yaml"),
        (["train"], "EXPERIMENT"),
        (["resume", "nowhere"], "nowhere"),
        (["resume", "nowhere", "--rounds", "-1"], "--rounds"),
        (["verify", "nowhere"], "nowhere"),
        (["redo", "nowhere", "--from", "1/collect"], "nowhere"),
        (["bank", "why", "nowhere", "x"], "nowhere"),
        (["fly"], "fly"),
    ],
)
def test_a_command_that_makes_no_sense(
    arguments: list[str], word: str, runs: Path, refuse: Callable[[Sequence[str]], Refused]
) -> None:
    refused = refuse(arguments)
    assert refused.code == 2 and word in refused.said
    assert not runs.exists()


def _contents(place: Path) -> dict[str, str]:
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_another_method_is_refused_and_the_keys_that_differ_are_named(
    copied: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[[Sequence[str]], Refused]
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(copied.parent))
    monkeypatch.chdir(ROOT)
    before = _contents(copied)
    changes = {"method.seed": 7, "method.roles.actor.optimizer.learning_rate": 0.5, "method.recipe.merge.every": 3}
    settings = [*options()[1::2], *(f"{key}={value}" for key, value in changes.items())]
    refused = refuse(_train(*settings))
    assert refused.code == 2
    for key, value in changes.items():
        line = next((line for line in refused.said.splitlines() if key in line), refused.said)
        assert line.endswith(f"{value} now"), line
    assert "method.seed: 1 in the run, 7 now" in refused.said
    assert "another name" in refused.said
    assert len([line for line in refused.said.splitlines() if " in the run, " in line]) == len(changes)
    assert _contents(copied) == before


@pytest.mark.parametrize("obstacle", ["the runs directory is a file", "the run directory is a file", "read-only"])
def test_a_place_that_cannot_be_written(
    obstacle: str, runs: Path, tmp_path: Path, refuse: Callable[[Sequence[str]], Refused]
) -> None:
    mounted = False
    if obstacle == "the runs directory is a file":
        runs.write_text("a file")
    elif obstacle == "the run directory is a file":
        runs.mkdir()
        (runs / NAME).write_text("a file")
    else:
        runs.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "ro,size=64m", "tmpfs", str(runs)]
        if not sys.platform.startswith("linux") or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("a read-only file system cannot be mounted here")
        mounted = True
    try:
        before = _contents(tmp_path)
        refused = refuse(_train("runtime.min_free_gigabytes=0"))
        assert refused.code == 2
        assert "run directory cannot be written" in refused.said and "CRL_RUNS" in refused.said, refused.said
        assert str(runs) in refused.said
        assert _contents(tmp_path) == before
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(runs)], check=True)


def test_from_the_shell(tmp_path: Path) -> None:
    """The exit code is the process's, the message is on standard error, and Prefect is not even started."""
    runs = tmp_path / "runs"
    refused = crl(runs, *_train("method.rollout.group_size=5"), code=2)
    assert refused.stdout == "" and "group_size is 5" in refused.stderr and "Traceback" not in refused.stderr
    assert not runs.exists() and list(tmp_path.iterdir()) == []
