"""Content-addressed texts and embeddings: equal bytes, exact reads, damage named."""

import dataclasses
import hashlib

import numpy as np
import pytest

from crl.bank.changes import Change
from crl.bank.segments import load_embeddings, load_texts, new_segments, text_digest, with_files
from crl.errors import RecordDamaged
from crl.records import BankEntry, table_of


class Letters:
    """An embedder of four numbers a text."""

    name, dimension = "letters", 4

    def embed(self, texts):
        rows = [np.array([text.count(letter) + 1.0 for letter in "abcd"]) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def entry(name: str, text: str) -> BankEntry:
    return BankEntry(
        entry_id=name,
        family="room",
        content_digest=text_digest(text),
        segment="",
        embedding_file="",
        version=1,
        created_round=1,
        updated_round=1,
        order=0,
        operation_id="o",
        distillation_id="d",
        generation_id="g",
        episode_ids=[],
        parents=[],
        embedder_cut=False,
    )


def added(*entries: BankEntry) -> list[Change]:
    return [Change(None, each) for each in entries]


def placed(segments, *entries: BankEntry, earlier=None) -> list[BankEntry]:
    return [change.after for change in with_files(added(*entries), segments, earlier or {})]


def rows(entries):
    return table_of(BankEntry, entries)


def write(run, segments):
    for name, content in segments.files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)


TEXTS = ["abba", "go north; naïve {x}", "dddd\nsecond line 🙂"]


def test_written_and_read_back(tmp_path):
    entries = [entry(f"x{n}", text) for n, text in enumerate(TEXTS)]
    first, second = new_segments(TEXTS[:2], Letters()), new_segments(TEXTS[2:], Letters())
    whole = placed(first, *entries[:2]) + placed(second, *entries[2:])
    write(tmp_path, first)
    write(tmp_path, second)
    assert load_texts(tmp_path, rows(whole)) == {text_digest(text): text for text in TEXTS}
    assert np.array_equal(load_embeddings(tmp_path, rows(whole)), Letters().embed(TEXTS))
    assert np.array_equal(load_embeddings(tmp_path, rows(whole[::-1])), Letters().embed(TEXTS[::-1]))
    twice = [whole[0], whole[2], whole[0]]
    assert np.array_equal(load_embeddings(tmp_path, rows(twice)), Letters().embed([TEXTS[0], TEXTS[2], TEXTS[0]]))


def test_names_are_the_digests_of_the_bytes_and_order_does_not_matter():
    segments = new_segments(TEXTS, Letters())
    assert segments == new_segments([*TEXTS[::-1], TEXTS[0]], Letters())
    assert sorted(name.rsplit("/", 1)[0] for name in segments.files) == ["bank/embeddings", "bank/segments"]
    for name, content in segments.files.items():
        assert name.endswith(f"/{hashlib.sha256(content).hexdigest()}.parquet")


def test_no_new_text_makes_no_file(tmp_path):
    segments = new_segments([], Letters())
    assert segments.files == {}
    assert load_texts(tmp_path, rows([])) == {} and load_embeddings(tmp_path, rows([])).shape == (0, 0)


def test_entries_with_a_file_keep_it_and_a_missing_text_is_an_error():
    segments = new_segments(TEXTS[:1], Letters())
    old = dataclasses.replace(entry("old", TEXTS[0]), segment="bank/segments/a.parquet", embedding_file="b")
    assert placed(segments, old) == [old]
    with pytest.raises(ValueError, match="no segment holds the text of entry x"):
        placed(segments, entry("x", "another text"))


def test_a_text_that_comes_back_is_stored_once_and_an_entry_that_goes_stays_as_it_was():
    earlier = {text_digest("back again"): ("bank/segments/s.parquet", "bank/embeddings/e.parquet")}
    [back] = placed(new_segments([], Letters()), entry("x", "back again"), earlier=earlier)
    assert (back.segment, back.embedding_file) == earlier[back.content_digest]
    gone = Change(entry("x", "gone"), None)
    assert with_files([gone], new_segments([], Letters()), {}) == [gone]


@pytest.mark.parametrize("kind", ["segment", "embedding_file"])
@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_damage_is_named(tmp_path, kind, damage):
    segments = new_segments(TEXTS, Letters())
    write(tmp_path, segments)
    entries = rows(placed(segments, entry("x", TEXTS[0])))
    path = tmp_path / getattr(segments, kind)
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[:-1])
    else:
        path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(RecordDamaged) as caught:
        (load_texts if kind == "segment" else load_embeddings)(tmp_path, entries)
    assert path.name in str(caught.value)


def test_a_text_the_file_does_not_hold_is_named(tmp_path):
    segments = new_segments(TEXTS[:1], Letters())
    write(tmp_path, segments)
    stranger = dataclasses.replace(entry("x", "not there"), segment=segments.segment)
    with pytest.raises(RecordDamaged, match="it lacks the text with digest"):
        load_texts(tmp_path, rows([stranger]))


def test_an_embedder_of_the_wrong_shape_is_refused():
    class Wrong(Letters):
        dimension = 5

    with pytest.raises(ValueError, match="shape"):
        new_segments(TEXTS, Wrong())
