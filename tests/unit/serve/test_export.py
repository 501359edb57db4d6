"""The folder of an exported agent: whole or not there, the same bytes, and not believed when it is read."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.cli import main
from crl.errors import BadInput, OtherFormat
from crl.policies.sources import check_model, directory_digest, resolve_model
from crl.run.files import sha256_file
from crl.serve.export import export_agent
from crl.serve.folder import described, is_agent
from crl.serve.source import open_agent
from tests import hub as hubs
from tests.marks import sampled
from tests.unit.recipes.played import Played
from tests.unit.run.killed import run_killed
from tests.unit.serve.agents import ROUND, played


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("played"), "suppressed")


@pytest.fixture(scope="module")
def exported(run: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only."""
    folder = tmp_path_factory.mktemp("exported") / "agent"
    assert export_agent(run.run.path, folder).entries
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(exported, tmp_path / "agent")


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


def test_exporting_twice_gives_equal_files_and_no_place_of_this_machine(
    run: Played, exported: Path, tmp_path: Path
) -> None:
    export_agent(run.run.path, tmp_path / "again", ROUND)
    assert contents(tmp_path / "again") == contents(exported)
    for path in (each for each in exported.rglob("*") if each.is_file()):
        for place in (str(run.run.path.parent), str(Path.home()), str(resolve_model("tiny").path.parent)):
            assert place.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("kill_at", sampled([21, 1, 2, 5, 9, 13, 17, 26, 31, 36, 42, 48], 12))
def test_killed_at_any_step_there_is_no_folder_or_a_whole_one(
    run: Played, exported: Path, tmp_path: Path, kill_at: int
) -> None:
    target = tmp_path / "agent"
    ended = run_killed(_export, tmp_path, run.run.path, kill_at=kill_at)
    assert not ended and not target.exists(), "killed before the rename"
    with pytest.raises(BadInput):
        open_agent(target)
    assert not any(is_agent(left) and len(contents(left)) < len(contents(exported)) for left in tmp_path.iterdir())
    _export(tmp_path, run.run.path)
    assert contents(target) == contents(exported)
    assert [path.name for path in tmp_path.iterdir()] == ["agent"], "typed again, it sweeps"


def _export(root: Path, run: Path) -> None:
    export_agent(run, root / "agent")


def test_a_failure_leaves_nothing(run: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.serve.export.model_card", lambda *words, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_agent(run.run.path, tmp_path / "agent")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_cut_short_or_changed_is_refused(folder: Path) -> None:
    for name in sorted(contents(folder)):
        if name.endswith(("README.md", "experience.json")):
            continue  # a card may be edited
        path, kept = folder / name, (folder / name).read_bytes()
        for content in (None, kept[:-1], kept[:-1] + bytes([kept[-1] ^ 1])):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            if not (name.endswith(".safetensors") and content is not None and len(content) == len(kept)):
                with pytest.raises(BadInput, match="is not what was written"):
                    described(folder)
            path.write_bytes(kept)
    (folder / "README.md").write_text("# Mine\n")
    assert open_agent(folder).entries


def test_a_snapshot_of_links_as_the_hub_keeps_it_opens(folder: Path, tmp_path: Path) -> None:
    for at, path in enumerate(sorted(each for each in folder.rglob("*") if each.is_file())):
        path.rename(tmp_path / f"blob{at}")
        path.symlink_to(tmp_path / f"blob{at}")
    assert open_agent(folder).entries


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "experience.json"
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def _family(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["method"]["families"][0]
    return found


ENDLESS = (
    "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}"
)
CODE = {"kind": "tests.unit.serve.nobody:Config"}
HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "recipe": (lambda told: told["method"]["recipe"].update(CODE), "is not installed here"),
    "nothing": (lambda told: told.clear(), "cannot be read"),
    "method": (lambda told: told.update(method={"families": 3}), "its method cannot be read"),
    "seed": (lambda told: told["method"].update(seed="one"), "its method cannot be read"),
    "outside": (
        lambda told: told["files"].update({"../elsewhere.json": {"bytes": 2, "sha256": "0"}}),
        "elsewhere.json of the exported agent",
    ),
    "endless": (
        lambda told: told["method"]["roles"]["actor"].update(chat_template=ENDLESS),
        "role actor cannot be used: its chat template",
    ),
    "kind": (lambda told: told.update(kind="other"), "cannot be read"),
    "counts": (lambda told: told.update(counts=[["x", "y", "z"]]), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_nobody_exported_is_refused(folder: Path, name: str) -> None:
    change, told = HOSTILE[name]
    (folder.parent / "elsewhere.json").write_text("{}")
    changed(folder, change)
    with pytest.raises(BadInput, match=told):
        open_agent(folder)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff", b'{"format": NaN}', b"[]"])
def test_a_description_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / "experience.json").write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read"):
        open_agent(folder)


def test_an_environment_that_is_code_or_reads_files_is_named_and_never_made(folder: Path) -> None:
    changed(folder, lambda told: _family(told).update(environment={**CODE, "path": "/etc/passwd"}))
    with open_agent(folder) as agent, pytest.raises(BadInput, match="cannot be made from an exported folder"):
        assert agent.retrieve("lake", "lake") is not None
        agent.environment("lake")
    assert not any("nobody" in name for name in sys.modules)


def test_another_format_another_embedder_and_another_role_are_told(folder: Path) -> None:
    with pytest.raises(BadInput, match="has the weights of role actor"):
        assert open_agent(folder, role="extractor").weights
    with pytest.raises(BadInput, match=f"holds round {ROUND}"):
        open_agent(folder, 1)
    changed(folder, lambda told: told["embedder"].update(digest="0" * 64))
    with open_agent(folder) as agent, pytest.raises(BadInput, match="the embedder lexical has digest"):
        agent.retrieve("lake", "lake")
    changed(folder, lambda told: told.update(format_version=0))
    with pytest.raises(OtherFormat, match="exported in format 0"):
        open_agent(folder)


def test_the_weights_are_a_model_whatever_is_beside_them(folder: Path) -> None:
    check_model(str(folder))
    before = directory_digest(folder)
    changed(folder, lambda told: told.update(round=9))
    shutil.rmtree(folder / "bank")
    assert directory_digest(folder) == before == resolve_model(str(folder)).digest


def test_its_prompts_are_those_of_an_experiment_file(run: Played, exported: Path) -> None:
    for name, prompts in (("all", run.method.prompts), ("pond", run.method.families[1].prompts)):
        plain = yaml.safe_load((exported / "prompts" / f"{name}.yaml").read_text())
        kind = type(run.method.prompts["actor"])
        assert {each: kind.model_validate(prompt) for each, prompt in plain.items()} == prompts


def test_the_card_is_from_the_record(run: Played, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "transformers" and "base_model" not in front
    told = json.loads((exported / "experience.json").read_text())
    for part in (told["digest"], run.run.method_digest, "with bank", "held-out seeds 1000000", "## Limits"):
        assert part in card
    assert "chosen on these same games" not in card


def test_only_a_finished_round_leaves(run: Played, tmp_path: Path) -> None:
    path = shutil.copytree(run.run.path, tmp_path / "played")
    shutil.rmtree(path / f"rounds/{ROUND:04d}/health")
    shutil.rmtree(path / f"rounds/{ROUND:04d}/evaluate")
    assert export_agent(path, tmp_path / "newest").description["round"] == ROUND - 1
    with pytest.raises(BadInput, match=f"round {ROUND} of .* is not finished"):
        export_agent(path, tmp_path / "unfinished", ROUND)
    assert not (tmp_path / "unfinished").exists()


def crl(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_the_command_exports_and_says_what_it_cannot(
    run: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "agent"
    assert crl("export", run.run.path, "--best", "--to", to) == 0
    assert "the base model as it is" in capsys.readouterr().out
    assert open_agent(to).round == open_agent(run.run.path, best=True).round
    assert "chosen on these same games" in (to / "README.md").read_text()
    for words, told in (
        (["--to", to], "already exists"),
        (["--to", tmp_path / "no/where"], "there is no directory"),
        (["--to", tmp_path / "a", "--best", "--round", "1"], "both given"),
        (["--to", tmp_path / "a", "--merge"], "no adapter to merge"),
        (["--to", tmp_path / "a", "--push", "x"], "names no repository"),
        (["--to", tmp_path / "a", "--role", "critic"], "has no role 'critic'"),
        (["--to", tmp_path / "a", "--round", "7"], "round 7"),
    ):
        assert crl("export", run.run.path, *words) == 2
        assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


@pytest.mark.slow
def test_its_bank_begins_another_experiment(
    run: Played, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    words = ("--set", "name=next", "--set", "method.recipe.bank.duplicates=keep", "--family", "pond=lake")
    assert crl("bank", "import", "conf/tiny.yaml", exported, *words) == 0
    assert f"{len(open_agent(exported).entries)} entries of played" in capsys.readouterr().out


def test_it_is_uploaded_as_it_is(
    run: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with hubs.served() as hub:
        hubs.asked_here(hub, tmp_path / "cache", monkeypatch)
        (tmp_path / "commits").mkdir()
        hub.uploads = tmp_path / "commits"
        words = ("export", run.run.path, "--push", "ada/agent", "--to")
        assert crl(*words, tmp_path / "first") == 2, "without a login"
        assert "hf auth login" in capsys.readouterr().err and is_agent(tmp_path / "first")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert crl(*words, tmp_path / "agent") == 0
        assert f"{hub.address}/ada/agent" in capsys.readouterr().out
        assert hub.private == {"ada/agent"}
        (commit,) = hub.commits["ada/agent"].values()
        assert contents(commit) == contents(tmp_path / "agent")
        assert crl(*words, tmp_path / "more") == 0, "the repository is there"
    assert crl(*words, tmp_path / "away") == 2, "the Hub is gone"
    assert "could not be uploaded" in capsys.readouterr().err and is_agent(tmp_path / "away")
