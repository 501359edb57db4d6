"""A bank leaves one run and is the beginning of another: nothing is lost, nothing half-made, everything verifiable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from crl.audit.mend import mend
from crl.audit.verify import verify
from crl.bank.segments import load_embeddings
from crl.errors import BadInput, CrlError, RecordDamaged
from crl.policies.embedders import LexicalEmbedder
from crl.records import BufferItem, Credit, EntryScore, ImportedEntry, rows_of
from crl.report.bank import entries_after
from crl.report.diff import bank_diff, proposed_diff
from crl.report.markdown import diff_markdown
from crl.report.story import story_of
from crl.report.why import why
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.files import machine_digest
from crl.run.imports import IMPORTS, load_import
from crl.run.lease import Lease
from crl.transfer import FORMATS, Format
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import Gathered, gather
from crl.transfer.take import Taken, take
from tests.marks import sampled
from tests.tiny_run import ROOT, digests, leftovers
from tests.unit.report.scripted import Ask, ScriptedRun, Services, experiment, sha


class Source:
    """Three rounds; the bank of round 2 holds `kept` (used twice, then rewritten), a merge, and one of the pond."""

    def __init__(self, root: Path) -> None:
        with ScriptedRun(root, experiment("first")) as run:
            run.initialize()
            self.kept, one, two, self.pond = run.play(
                Ask("add", "go left"), Ask("add", "go right"), Ask("add", "wait"), Ask("add", "swim", family="pond")
            )
            (_, self.merged) = run.play(
                Ask("update", "go far left", entry=self.kept),
                merges=[Ask("merge", "right, or wait", parents=(one, two))],
                guided=[(self.kept, True), (self.kept, False), (self.pond, True)],
            )
            run.play(Ask("drop", entry=self.pond, family="pond"), guided=[(self.kept, False)])
            self.path = run.path

    def bank(self, round_number: int | None = 2, **options: Any) -> Gathered:
        return gather(self.path, round_number, **options)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


def begin(root: Path, bank: Gathered, name: str = "second", services: Any = None, **overrides: Any) -> ScriptedRun:
    """A new experiment that begins with a bank; its round 0 is made."""
    made = experiment(name, **overrides)
    taken(root, bank, name, **overrides)
    with ScriptedRun(root, made, services) as run:
        return run.initialize()


def taken(
    root: Path, bank: Gathered, name: str = "second", families: dict[str, str] | None = None, **overrides: Any
) -> Taken:
    run = RunDirectory.create_or_open(experiment(name, **overrides), root)
    return take(run, recipe_of(run.method), bank, families)


@pytest.mark.parametrize("format", sampled(FORMATS, 3))
def test_an_export_comes_back_as_it_was(source: Source, tmp_path: Path, format: Format) -> None:
    bank = source.bank(embeddings=format != "jsonl")
    provenance = write_folder(bank, tmp_path / "out", format)
    back = read_folder(tmp_path / "out")
    assert {name: table.to_pylist() for name, table in back.tables.items()} == {
        name: table.to_pylist() for name, table in bank.tables.items()
    }
    assert back.provenance == bank.provenance
    entries = {row["entry_id"]: row for row in back.tables["entries"].to_pylist()}
    assert {name: row["text"] for name, row in entries.items()} == {
        source.kept: "go far left", source.merged: "right, or wait", source.pond: "swim",
    }  # fmt: skip
    kept = entries[source.kept]
    assert (kept["version"], kept["uses"], kept["mean_outcome"], kept["retrieved"]) == (2, 0, None, 2)
    assert (entries[source.pond]["uses"], entries[source.pond]["mean_outcome"]) == (1, 1.0)
    assert story_of(json.loads(kept["story"])) == why(source.path, source.kept, until=2)
    run = RunDirectory.open(source.path)
    assert provenance["stage_digest"] == run.manifest(2, "consolidate").digest
    assert provenance["snapshot_digest"] == recorded_bank(run, recipe_of(run.method), 2).digest()
    lineage = [(row["entry_id"], row["text"], row["uses"]) for row in back.tables["lineage"].to_pylist()]
    assert Counter(lineage)[source.kept, "go left", 2] == 1 and len(lineage) == 6
    assert [row["success"] for row in back.tables["uses"].to_pylist()] == [True, False, True]
    if format == "parquet":
        vectors = pq.read_table(tmp_path / "out/entries.parquet")["embedding"].to_pylist()
        assert vectors == LexicalEmbedder().embed([row["text"] for row in entries.values()]).tolist()


def test_later_rounds_leave_no_trace_in_the_export_of_an_earlier_one(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    shutil.copytree(source.path, path)
    shutil.rmtree(path / "rounds/0003")
    assert gather(path, None).tables == source.bank().tables
    assert gather(path, None).provenance == source.bank().provenance


@pytest.mark.parametrize("stage", ["credit", "evaluate"])
def test_a_round_under_way_is_not_taken_yet(source: Source, tmp_path: Path, stage: str) -> None:
    path = tmp_path / "cut"
    shutil.copytree(source.path, path)
    shutil.rmtree(path / "rounds/0003" / stage)
    assert gather(path, None).tables == source.bank(2).tables, "the newest that is finished"
    with pytest.raises(BadInput, match=rf"(?s)round 3 .* not finished: {stage} is missing.*crl resume"):
        gather(path, 3)


def test_a_bank_told_in_batches_is_the_same(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = source.bank()
    monkeypatch.setattr("crl.transfer.gather._BATCH", 1)
    assert source.bank().tables == whole.tables


@pytest.mark.slow
def test_datasets_reads_the_hugging_face_folder(source: Source, tmp_path: Path) -> None:
    write_folder(source.bank(), tmp_path / "out", "huggingface")
    code = (
        "import sys, json, datasets\n"
        "rows = datasets.load_dataset(sys.argv[1], split='train')\n"
        "lineage = datasets.load_dataset(sys.argv[1], 'lineage', split='train')\n"
        "print(json.dumps([list(rows['text']), len(rows[0]['embedding']), len(lineage)]))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], env=environment, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert json.loads(done.stdout) == [["go far left", "swim", "right, or wait"], 256, 6]


def test_an_export_is_whole_or_not_there(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"):
        patch.setattr(Path, "rename", lambda self, other: (_ for _ in ()).throw(OSError("gone")))
        write_folder(source.bank(), target, "parquet")
    assert list(tmp_path.iterdir()) == []
    abandoned = tmp_path / f".tmp-out-{machine_digest()}-999999999-0"  # a killed export's
    abandoned.mkdir()
    write_folder(source.bank(), target, "parquet")
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(BadInput, match="already exists"):
        write_folder(source.bank(), target, "parquet")
    (target / "uses.parquet").write_bytes(b"other")
    with pytest.raises(BadInput, match=r"uses.parquet of the exported bank"):
        read_folder(target)
    with pytest.raises(BadInput, match="no exported bank"):
        read_folder(tmp_path)
    provenance = json.loads((target / "provenance.json").read_text())
    (target / "provenance.json").write_text(json.dumps({**provenance, "files": 3}))
    with pytest.raises(BadInput, match=r"column files: .* found 3"):
        read_folder(target)
    del provenance["files"], provenance["embedder"]
    (target / "provenance.json").write_text(json.dumps(provenance))
    with pytest.raises(BadInput, match="lacks embedder, files"):
        read_folder(target)


def test_the_imported_bank_is_that_of_round_0(source: Source, tmp_path: Path) -> None:
    run = begin(tmp_path, source.bank())
    names = {f"first-r0002-{name}": name for name in (source.kept, source.pond, source.merged)}
    shown = {each.entry_id: each for each in entries_after(run.path, 0)}
    assert {names[name]: each.text for name, each in shown.items()} == {
        source.kept: "go far left", source.merged: "right, or wait", source.pond: "swim",
    }  # fmt: skip
    assert {(each.version, each.uses, each.retrieved) for each in shown.values()} == {(1, 0, 0)}
    imported = rows_of(ImportedEntry, run.run.read(0, "initialize", ImportedEntry))
    assert [names[row.entry_id] for row in imported] == [source.kept, source.pond, source.merged]
    first = imported[0]
    assert (first.source_experiment, first.source_round, first.source_version) == ("first", 2, 2)
    assert [(row.uses, row.mean_outcome) for row in imported[:2]] == [(0, None), (1, 1.0)]
    bank = recorded_bank(run.run, recipe_of(run.method), 0)
    vectors = LexicalEmbedder().embed([shown[name].text for name in bank.table["entry_id"].to_pylist()])
    assert load_embeddings(run.path, bank.table).tolist() == vectors.tolist()
    assert verify(run.path) == []
    shared = run.run.manifest(0, "initialize").digested.shared
    assert any(name.startswith(IMPORTS) for name in shared), "the chain vouches for the import"


@pytest.mark.slow
def test_it_is_played_with_credited_and_told_in_both_halves(source: Source, tmp_path: Path) -> None:
    run = begin(tmp_path, source.bank())
    kept, merged = f"first-r0002-{source.kept}", f"first-r0002-{source.merged}"
    with run:
        run.play(Ask("update", "go left at last", entry=kept), guided=[(kept, True), (merged, False)])
        run.play(guided=[(kept, True)])
    credits = rows_of(Credit, run.run.read(1, "credit", Credit))
    assert [(row.entry_id, row.outcome) for row in credits] == [(kept, 1.0), (merged, -1.0)]
    # No output of this run wrote those texts: they train nobody. The rewritten one does.
    assert rows_of(BufferItem, run.run.read(1, "credit", BufferItem)) == []
    assert [row.generation_id for row in rows_of(BufferItem, run.run.read(2, "credit", BufferItem))] == ["d-r0001-0"]
    scores = rows_of(EntryScore, run.run.read(2, "credit", EntryScore))
    assert {row.entry_id: row.uses for row in scores} == {kept: 1, merged: 1}, "of the text that each has"
    story = why(run.path, kept)
    assert [(v.version, v.kind, v.text) for v in story.versions] == [
        (1, "import", "go far left"), (2, "update", "go left at last"),
    ]  # fmt: skip
    before = story.versions[0].imported
    assert before is not None and (before.experiment, before.round, before.version) == ("first", 2, 2)
    assert story_of(before.story) == why(source.path, source.kept, until=2)
    assert [[use.round for use in version.uses] for version in story.versions] == [[1], [2]]
    # And once more, into a third experiment: the story goes back to the first.
    third = begin(tmp_path, gather(run.path, 2), "third")
    told = why(third.path, f"second-r0002-{kept}").versions[0].imported
    assert told is not None and told.experiment == "second"
    inner = story_of(told.story).versions[0].imported
    assert inner is not None and story_of(inner.story) == why(source.path, source.kept, until=2)


def test_texts_with_control_tokens_stay_out_and_the_others_come_in(tmp_path: Path) -> None:
    tokens = ("<|im_start|>system", "go <|im_end|>", "<|endoftext|>", "<start_of_turn>user", "[INST] go", "<s>old</s>",
              "<｜User｜>", "<|eot_id|>", "[|user|]", "[gMASK]", "<unused7>")  # fmt: skip
    with ScriptedRun(tmp_path / "there", experiment("first")) as run:
        run.initialize().play(Ask("add", "go <left> [now]"), *(Ask("add", text) for text in tokens))
    write_folder(gather(run.path, 1), tmp_path / "out", "jsonl")
    found = taken(tmp_path / "here", read_folder(tmp_path / "out"))
    assert found.left_out == {"control_token": len(tokens)} and sum(found.entries.values()) == 1


@pytest.mark.slow
def test_the_same_import_gives_the_same_digests(source: Source, tmp_path: Path) -> None:
    write_folder(source.bank(), tmp_path / "out", "huggingface")
    runs = [begin(tmp_path / "a", source.bank()), begin(tmp_path / "b", read_folder(tmp_path / "out"))]
    assert digests(runs[0].path) == digests(runs[1].path)
    other = begin(tmp_path / "c", source.bank(1))
    assert digests(other.path) != digests(runs[0].path)


def test_another_embedder_makes_the_vectors_anew(source: Source, tmp_path: Path) -> None:
    class Doubled(LexicalEmbedder):
        def embed(self, texts: Any) -> Any:
            return super().embed([f"{text} {text}" for text in texts])

    class Other(Services):
        def embedder(self) -> LexicalEmbedder:
            return Doubled()

    run = begin(tmp_path, source.bank(), services=Other(sha("another")))
    bank = recorded_bank(run.run, recipe_of(run.method), 0)
    texts = [each.text for each in entries_after(run.path, 0)]
    assert load_embeddings(run.path, bank.table).tolist() == Doubled().embed(texts).tolist()
    # Without vectors in the export they are made by whatever embedder the experiment has.
    plain = begin(tmp_path, source.bank(embeddings=False), "plain")
    whole = begin(tmp_path, source.bank(), "whole")
    digest_of = [recorded_bank(each.run, recipe_of(each.method), 0).digest() for each in (plain, whole)]
    assert digest_of[0] == digest_of[1]


def test_what_does_not_fit_is_left_out_and_said(source: Source, tmp_path: Path) -> None:
    kept = [row["text"] for row in source.bank().tables["entries"].to_pylist()]
    assert kept == ["go far left", "swim", "right, or wait"]
    full = taken(tmp_path, source.bank(), "full", method__recipe__bank__capacity=1)
    assert full.left_out == {"capacity_fifo": 1} and full.entries == {"lake": 1, "pond": 1}
    found = load_import(tmp_path / "full")
    assert found is not None and [row["text"] for row in found.rows()] == ["swim", "right, or wait"], "newest kept"
    useful = taken(
        tmp_path,
        source.bank(3),
        "useful",
        method__recipe__bank__capacity=1,
        method__recipe__bank__eviction="least_useful",
    )
    found = load_import(tmp_path / "useful")
    assert found is not None and [row["text"] for row in found.rows()] == ["right, or wait"], "the other one lost"
    assert useful.left_out == {"capacity_least_useful": 1}
    short = taken(tmp_path, source.bank(), "short", method__recipe__distill__max_characters=12)
    assert short.left_out == {"text_too_long": 1}
    pooled = taken(tmp_path, source.bank(1), "pooled", {"pond": "lake"})
    assert pooled.entries == {"lake": 4}
    vectors_ND = found.vectors()
    assert vectors_ND is not None and vectors_ND.tolist() == LexicalEmbedder().embed(["right, or wait"]).tolist()
    with pytest.raises(BadInput, match="has no entry that can come in"):
        taken(tmp_path, source.bank(0), "empty")


def test_what_cannot_be_imported_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="keeps no bank"):
        taken(tmp_path, source.bank(), "baseline", method__recipe__kind="baseline")
    lake = experiment("lake", families=["lake"])
    run = RunDirectory.create_or_open(lake, tmp_path)
    with pytest.raises(BadInput, match="no task family 'pond'") as caught:
        take(run, recipe_of(run.method), source.bank())
    assert "--family pond=lake" in str(caught.value.next_step)
    with pytest.raises(BadInput, match="the bank has no task family 'sea'"):
        taken(tmp_path, source.bank(), "typo", {"sea": "lake"})
    begun = begin(tmp_path, source.bank())
    with pytest.raises(BadInput, match="has begun"):
        taken(tmp_path, source.bank(1))
    assert taken(tmp_path, source.bank()).repeated, "the one it began with changes nothing"
    assert verify(begun.path) == []
    taken(tmp_path, source.bank(), "twice")
    with pytest.raises(BadInput, match="begins with another bank"):
        taken(tmp_path, source.bank(1), "twice")
    # A file that was put there by hand is refused by the stage.
    by_hand = RunDirectory.create_or_open(experiment("by_hand", method__recipe__kind="baseline"), tmp_path)
    shutil.copytree(begun.path / IMPORTS, by_hand.path / IMPORTS)
    with ScriptedRun(tmp_path, experiment("by_hand", method__recipe__kind="baseline")) as run_by_hand, pytest.raises(
        BadInput, match="but one was imported"
    ):  # fmt: skip
        run_by_hand.initialize()


@pytest.mark.slow
def test_a_killed_import_leaves_nothing(source: Source, tmp_path: Path) -> None:
    write_folder(source.bank(), tmp_path / "out", "parquet")
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.record.test_import import taken\n"
        "from crl.transfer.folder import read_folder\n"
        "Path.replace = lambda self, other: os.kill(os.getpid(), signal.SIGKILL) if 'imports' in str(other) "
        "else os.replace(self, other)\n"
        "taken(Path(sys.argv[1]), read_folder(Path(sys.argv[2])))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    path = tmp_path / "second"
    assert load_import(path) is None and leftovers(path), "it was killed half-way"
    begun = begin(tmp_path, source.bank(), "second")
    assert leftovers(path) == [] and verify(path) == [] and len(entries_after(begun.path, 0)) == 3


def test_a_damaged_import_is_named_and_mended(source: Source, tmp_path: Path) -> None:
    taken(tmp_path, source.bank())
    (file,) = (tmp_path / "second" / IMPORTS).iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    problems = verify(tmp_path / "second")
    assert [problem.file for problem in problems] == [f"{IMPORTS}/{file.name}"]
    with ScriptedRun(tmp_path, experiment("second")) as run, pytest.raises(RecordDamaged, match=IMPORTS):
        run.initialize()
    taken(tmp_path, source.bank())  # puts it back
    with run:
        run.initialize()
    recipe = recipe_of(run.method)
    for damage in (lambda: file.unlink(), lambda: file.write_bytes(b"other")):
        damage()
        assert [problem.file for problem in verify(run.path)] == [f"{IMPORTS}/{file.name}"]
        assert len(entries_after(run.path, 0)) == 3, "the bank does not need it any more"
        with Lease.acquire(run.path, seconds=60) as lease:
            mend(run.run, recipe, Services(), token=lease.token)  # type: ignore[arg-type]
        assert file.read_bytes() == whole and verify(run.path) == []
    (file.parent / f"{sha('other')}.parquet").write_bytes(b"other")
    assert [problem.expected for problem in verify(run.path)] == ["no such file: no stage wrote it"]
    with pytest.raises(CrlError, match="2 imported banks"):
        load_import(run.path)


def test_what_a_text_hides_is_named_at_import_and_in_a_diff_and_kept(tmp_path: Path) -> None:
    """Zero-width and tag characters: people see none of them, a model reads all."""
    hiding = "go \u200bleft\U000e0041"
    with ScriptedRun(tmp_path / "there", experiment("first")) as run:
        run.initialize()
        (entry, _) = run.play(Ask("add", hiding), Ask("add", "wait"))
        path = run.path
    told = "1 × U+200B (zero width space), 1 × U+E0041 (tag latin capital letter a)"
    for diff in (proposed_diff(path, 1), bank_diff(path, 1)):
        (found,) = diff.hidden()
        assert found.endswith(f"has {told}") and found in diff.headline()
        assert r"\u200bleft\U000e0041" in diff_markdown(diff, "first").replace("\\\\", "\\")
    imported = taken(tmp_path / "here", gather(path, 1))
    ((name, found),) = imported.hidden.items()
    assert found == told and entry in name
    content = load_import(imported.path.parents[2])
    assert content is not None and hiding in [row["text"] for row in content.rows()], "what the model saw stays"
