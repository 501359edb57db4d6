"""Varied real texts with their MiniLM embeddings, for the benchmarks of the bank; nothing is downloaded.

    python benchmarks/bank_data.py [DIRECTORY] [--texts 100000] [--queries 2048]

Sentences of 5 to 40 words are taken from the docstrings of the standard library and of the installed packages (read on
this machine and never shipped). A module gives either texts or held-out queries, by the digest of its name, so no query
comes out of a docstring whose sentences are in the bank. Vectors come from the project's MiniLM, here in batches: the
project's embedder reads one text at a time, so that a vector's last bits never depend on its neighbors, which does not
matter here and takes several times as long. DIRECTORY then holds `texts.json`, `embeddings.npy` [N, 384],
`queries.json` and `queries.npy` [Q, 384]; it is left as it is where it holds enough already.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sysconfig
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n")
_LETTERS = re.compile(r"[A-Za-z ]")
_FEWEST_WORDS, _MOST_WORDS = 5, 40
_FEWEST_LETTERS = 0.8
"""Share of letters and spaces: leaves out tables, signatures and doctests."""
_HELD_OUT = 16
"""One module in so many gives queries."""


class RealData(NamedTuple):
    """Texts of a bank and queries of other origin, each with its unit vectors."""

    texts: list[str]
    embeddings_ND: NDArray[np.float32]
    queries: list[str]
    queries_QD: NDArray[np.float32]


def real_data(directory: Path, texts: int, queries: int) -> RealData:
    """The first `texts` and `queries` of the directory, made there where it holds fewer."""
    try:
        found = _load(directory)
    except (OSError, ValueError):
        found = None
    if found is None or len(found.texts) < texts or len(found.queries) < queries:
        found = _make(directory, texts, queries)
    return RealData(
        found.texts[:texts], found.embeddings_ND[:texts], found.queries[:queries], found.queries_QD[:queries]
    )


def varied_sentences(texts: int, queries: int) -> tuple[list[str], list[str]]:
    """Distinct sentences for a bank, and for queries; modules in the order of their names' digests."""
    roots = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    modules = {str(path.relative_to(root)): path for root in roots for path in root.rglob("*.py")}
    kept: dict[str, None] = {}
    asked: dict[str, None] = {}
    for digest, name in sorted((hashlib.sha256(name.encode()).digest(), name) for name in modules):
        # Twice the queries: those that are among the texts too are left out at the end.
        into, enough = (asked, 2 * queries) if digest[-1] % _HELD_OUT == 0 else (kept, texts)
        if len(into) < enough:
            into.update(dict.fromkeys(_sentences(modules[name])))
        if len(kept) >= texts and len(asked) >= 2 * queries:
            break
    if len(kept) < texts:
        raise SystemExit(f"the installed packages hold {len(kept):,} distinct sentences, {texts:,} were asked for")
    return list(kept)[:texts], [text for text in asked if text not in kept][:queries]


def _sentences(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for piece in _SENTENCE.split(ast.get_docstring(node) or ""):
            sentence = " ".join(piece.split())
            words = sentence.count(" ") + 1
            letters = len(_LETTERS.findall(sentence))
            if _FEWEST_WORDS <= words <= _MOST_WORDS and letters >= _FEWEST_LETTERS * len(sentence):
                found.append(sentence)
    return found


def _make(directory: Path, texts: int, queries: int) -> RealData:
    directory.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    kept, asked = varied_sentences(texts, queries)
    print(f"{len(kept):,} texts and {len(asked):,} queries read in {time.perf_counter() - began:.0f} s", flush=True)
    began = time.perf_counter()
    vectors_ND = _embed([*asked, *kept])
    print(f"embedded in {time.perf_counter() - began:.0f} s", flush=True)
    made = RealData(kept, vectors_ND[len(asked) :], asked, vectors_ND[: len(asked)])
    np.save(directory / "embeddings.npy", made.embeddings_ND)
    np.save(directory / "queries.npy", made.queries_QD)
    (directory / "queries.json").write_text(json.dumps(asked), encoding="utf-8")
    (directory / "texts.json").write_text(json.dumps(kept), encoding="utf-8")
    return made


def _load(directory: Path) -> RealData:
    texts: list[str] = json.loads((directory / "texts.json").read_text(encoding="utf-8"))
    queries: list[str] = json.loads((directory / "queries.json").read_text(encoding="utf-8"))
    return RealData(texts, np.load(directory / "embeddings.npy"), queries, np.load(directory / "queries.npy"))


def _embed(texts: list[str]) -> NDArray[np.float32]:
    from sentence_transformers import SentenceTransformer

    from crl.policies.embedders import resolve_embedder

    source = resolve_embedder("minilm")
    assert source is not None
    model = SentenceTransformer(str(source.path), device="cpu", local_files_only=True, trust_remote_code=False)
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # little padding in a batch
    vectors_ND = np.empty((len(texts), model.get_embedding_dimension() or 0), dtype=np.float32)
    for at in range(0, len(texts), 10_000):
        places = by_length[at : at + 10_000]
        vectors_ND[places] = model.encode(
            [texts[place] for place in places], batch_size=128, normalize_embeddings=True, show_progress_bar=False
        )
        print(f"  {at + len(places):,} of {len(texts):,}", flush=True)
    return vectors_ND


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("build/bank_data"))
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=2048)
    arguments = parser.parse_args()
    data = real_data(arguments.directory, arguments.texts, arguments.queries)
    print(f"{len(data.texts):,} texts and {len(data.queries):,} queries in {arguments.directory}")


if __name__ == "__main__":
    main()
