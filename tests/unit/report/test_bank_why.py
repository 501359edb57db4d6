"""The story of one experience, against what a run that was told step by step is known to have done."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from crl.errors import BadInput
from crl.report.bank import entries_after
from crl.report.story import LEFT, Story, history_listing, story_of, story_tree, word_diff
from crl.report.views import query
from crl.report.why import stories, why
from crl.run.pruned import PRUNED, Pruned, add_pruned
from tests.unit.report.scripted import Ask, ScriptedRun, experiment


class Told:
    """A run in which `merged` is made by two merges one after the other and updated three times."""

    def __init__(self, root: Path) -> None:
        with ScriptedRun(root) as run:
            run.initialize()
            self.a, self.b, self.c, self.twin = run.play(
                Ask("add", "go left", episodes=(0, 1)), Ask("add", "go right", episodes=(1,)), Ask("add", "wait"),
                Ask("add", "go left", family="pond"),
            )  # fmt: skip
            run.play(
                Ask("update", "go far left", entry=self.a, episodes=(0,)),
                Ask("update", "go far right", entry=self.b, episodes=(1,)),
                guided=[(self.a, True), (self.b, False)],
            )
            (self.inner,) = run.play(merges=[Ask("merge", "left or right", parents=(self.a, self.b))])
            run.play(Ask("update", "left, then right", entry=self.inner), guided=[(self.inner, True)])
            run.play(
                Ask("update", "wait", entry=self.inner),  # c says so already
                Ask("update", "left, then right", entry=self.inner),  # it says so itself
                Ask("update", "right, then left", entry=self.inner),
                guided=[(self.inner, False)],
            )
            (self.merged,) = run.play(merges=[Ask("merge", "first text", parents=(self.inner, self.c))])
            run.play(Ask("update", "second text", entry=self.merged), guided=[(self.merged, True)])
            run.play(Ask("update", "first text", entry=self.merged), guided=[(self.merged, False)])
            run.play(Ask("update", "fourth text", entry=self.merged), guided=[(self.merged, True)])
            run.play(
                merges=[Ask("keep", entry=self.merged, text="fourth text")],
                guided=[(self.merged, True), (self.merged, False)],
                evaluated=[(self.merged, True), (self.merged, False)],
            )
            run.play(guided=[(self.merged, True)], evaluated=[(self.merged, True)])
            self.path = run.path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("runs"))


def printed(story: Story, *, full: bool = False) -> str:
    out = Console(file=io.StringIO(), width=240)
    out.print(story_tree(story, full=full))
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def every(story: Story) -> Iterator[Story]:
    """The story and those of all its ancestors."""
    yield story
    for version in story.versions:
        for parent in version.parents:
            yield from every(parent)


def test_an_entry_merged_twice_and_updated_three_times_tells_the_whole_story(told: Told) -> None:
    story = why(told.path, told.merged)
    assert story.fate == "in the bank after round 11"
    assert [(v.version, v.kind, v.round, v.text) for v in story.versions] == [
        (1, "merge", 6, "first text"),
        (2, "update", 7, "second text"),
        (3, "update", 8, "first text"),
        (4, "update", 9, "fourth text"),
    ]
    # A text that came back is not credited with the games of the first time, and the other way round.
    assert [[(use.round, use.success) for use in v.uses] for v in story.versions] == [
        [(7, True)],
        [(8, False)],
        [(9, True)],
        [(10, True), (10, False), (11, True)],
    ]
    assert [v.mean_outcome for v in story.versions] == [1.0, -1.0, 1.0, pytest.approx(1 / 3)]
    assert [v.guided_minus_free for v in story.versions] == [1.0, -1.0, 1.0, pytest.approx(1 / 3)]
    assert [[(use.round, use.success) for use in v.evaluations] for v in story.versions] == [
        [], [], [], [(10, True), (10, False), (11, True)],
    ]  # fmt: skip
    assert [(kept.round, kept.version) for kept in story.events if kept.kind == "keep"] == [(10, 4)]
    inner, waiting = story.versions[0].parents
    assert (inner.entry_id, waiting.entry_id) == (told.inner, told.c)
    assert inner.fate == f"left the bank in round 6: merged into {told.merged}"
    assert [v.text for v in inner.versions] == ["left or right", "left, then right", "right, then left"]
    assert [(r.round, r.asked, r.text, r.reason, r.other) for r in inner.refused] == [
        (5, "update", "wait", "duplicate", told.c),
        (5, "update", "left, then right", "unchanged", told.inner),
    ]
    left, right = inner.versions[0].parents
    assert [[v.text for v in each.versions] for each in (left, right)] == [
        ["go left", "go far left"],
        ["go right", "go far right"],
    ]
    assert [(use.round, use.success) for use in left.versions[0].uses] == [(2, True)] and not left.versions[1].uses
    sources = left.versions[0].episodes
    assert [(each.episode_id, each.success, each.goal) for each in sources] == [
        ("r0001-lake-g0000-m000", True, "reach the goal"),
        ("r0001-lake-g0000-m001", False, "reach the goal"),
    ]
    assert left.versions[1].episodes[0].guided_by == told.a
    # Written by the extractor as trained up to the round before.
    for each in every(story):
        for version in each.versions:
            assert version.writing is not None and version.writing.updates == version.round - 1
            assert version.writing.prompt == f"prompt of {version.writing.generation_id}"
    assert {each.entry_id for each in every(story)} == {told.merged, told.inner, told.a, told.b, told.c}


def test_the_tree_says_all_of_it(told: Told) -> None:
    story = why(told.path, told.merged)
    text = printed(story)
    for each in every(story):
        assert each.entry_id in text and each.fate in text
        for version in each.versions:
            assert f"version {version.version}, {version.kind} in round {version.round}: {version.text}" in text
            assert version.writing is not None and f"prompt: {version.writing.prompt}" in text
            for source in version.episodes:
                assert f"{source.episode_id} ({'won' if source.success else 'lost'})" in text
            for use in version.uses:
                assert f"{use.episode_id}: {'won' if use.success else 'lost'}, similarity 0.50" in text
        for refused in each.refused:
            assert f"refused in round {refused.round}: {refused.asked}: {refused.reason}" in text
            assert f"wanted: {refused.text}" in text
    assert "used in 3 episodes, credit +0.33, guided minus free +0.33" in text
    assert "shown in 3 held-out games after round 10, 11: 2 won (no credit)" in text
    assert "all versions: used in 6 episodes, credit +0.33" in text
    assert "a merge looked at it and kept it in round 10" in text


def test_json_holds_the_same_and_comes_back(told: Told) -> None:
    story = why(told.path, told.merged)
    plain = json.loads(json.dumps(story.plain()))
    assert story_of(plain) == story
    assert (plain["uses"], plain["mean_outcome"], plain["fate"]) == (6, pytest.approx(1 / 3), story.fate)


def test_it_agrees_with_the_lineage_view(told: Told) -> None:
    sql = "SELECT entry_id, version, kind, written_round, text, extractor_updates, used_in, outcome FROM lineage"
    expected = [
        (each.entry_id, version.version, version.kind, version.round, version.text, version.round - 1,
         use.episode_id if use else None, use.outcome if use else None)
        for each in stories(told.path, [told.merged, told.inner, told.a, told.b, told.c, told.twin]).values()
        for version in each.versions
        for use in version.uses or (None,)
    ]  # fmt: skip
    assert sorted(query(told.path, sql)[1], key=str) == sorted(expected, key=str)


def test_the_same_text_in_two_families_is_two_stories(told: Told) -> None:
    twin, first = why(told.path, told.twin), why(told.path, told.a)
    assert (twin.family, first.family) == ("pond", "lake")
    assert twin.versions[0].content_digest == first.versions[0].content_digest
    assert not twin.uses and len(first.uses) == 1


def test_as_it_stood_after_an_earlier_round(told: Told) -> None:
    then = why(told.path, told.merged, until=8)
    assert [v.text for v in then.versions] == ["first text", "second text", "first text"]
    assert then.fate == "in the bank after round 8" and len(then.uses) == 2
    assert why(told.path, told.a, until=2).fate == "in the bank after round 2"
    with pytest.raises(BadInput, match="up to round 5"):
        why(told.path, told.merged, until=5)


def test_history_tells_one_line_an_event(told: Told) -> None:
    story = why(told.path, told.inner)
    happenings = story.history()
    assert [(each["round"], each["kind"], each["version"]) for each in happenings] == [
        (3, "merge", 1), (4, "update", 2), (5, "rejected", 2), (5, "rejected", 2), (5, "update", 3), (6, "merged", 3),
    ]  # fmt: skip
    made, rewritten, refused, *_, left = happenings
    assert rewritten["before"] == "left or right" and rewritten["after"] == "left, then right"
    assert rewritten["output"] == "UPDATE: left, then right" and rewritten["operation_id"] == "d-r0004-0-o0"
    assert (made["uses"], made["mean_outcome"]) == (1, 1.0)
    assert refused["remark"] == f"update: duplicate of {told.c}" and refused["after"] == "wait"
    assert left["remark"] == f"into {told.merged}" and (left["before"], left["after"]) == ("right, then left", None)
    kinds = [each["kind"] for each in why(told.path, told.merged).history()]
    assert kinds == ["merge", "update", "update", "update", "keep"]
    out = Console(file=io.StringIO(), width=240)
    out.print(history_listing(story).rendered(None))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "[-left-] {+left,+}" not in text and "[-left,-] {+right,+} then [-right-] {+left+}" in text


def test_it_says_which_checkpoints_were_pruned(told: Told) -> None:
    def writings() -> dict[str | None, bool]:
        found = [version.writing for version in why(told.path, told.inner).versions]
        return {writing.checkpoint: writing.pruned for writing in found if writing is not None}

    first = "rounds/0002/update_extractor/checkpoint"
    assert len(writings()) > 1 and not any(writings().values()), "nothing was pruned"
    entry = Pruned(round=2, stage="update_extractor", path="checkpoint", sha256s={}, bytes=1, manifest="m")
    try:
        add_pruned(told.path, entry, token=1)
        assert {place for place, pruned in writings().items() if pruned} == {first}
        text = printed(why(told.path, told.inner))
        assert f"{first} (2 updates, pruned since)" in text and text.count("pruned") == 1
        # A stage that was redone wrote it again.
        (told.path / first).mkdir()
        assert not any(writings().values())
    finally:
        (told.path / first).rmdir()
        (told.path / PRUNED).unlink()


def test_a_word_diff_gives_both_texts_back() -> None:
    before, after = "go  left, then wait", "go right, then wait here"
    pieces = list(word_diff(before, after))
    assert pieces == [
        ("same", "go"), ("gone", "left,"), ("new", "right,"), ("same", "then wait"), ("new", "here"),
    ]  # fmt: skip
    assert " ".join(piece for kind, piece in pieces if kind != "new").split() == before.split()
    assert " ".join(piece for kind, piece in pieces if kind != "gone").split() == after.split()


@pytest.mark.slow
def test_an_id_that_came_back_has_two_lives(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, experiment(method__recipe__bank__capacity=2)) as run:
        run.initialize()
        first, second = run.play(Ask("add", "one"), Ask("add", "two"))
        run.play(Ask("update", "one more", entry=first), guided=[(first, True)])
        run.play(Ask("add", "three"), guided=[(first, False)])  # capacity: `first` is the oldest
        run.play(Ask("update", "gone", entry=first))  # refused: it is not there
        run.play(Ask("drop", entry=second))
        run.play(Ask("add", "one", entry=first))
        run.play(guided=[(first, True)])
        path = run.path
    story = why(path, first)
    assert [(v.version, v.kind, v.round, v.text) for v in story.versions] == [
        (1, "add", 1, "one"), (2, "update", 2, "one more"), (1, "add", 6, "one"),
    ]  # fmt: skip
    assert [[use.round for use in v.uses] for v in story.versions] == [[2], [3], [7]]
    assert [event.reason for event in story.events if event.kind in LEFT] == ["capacity_fifo"]
    assert [(each.round, each.reason, each.version) for each in story.refused] == [(4, "unknown_entry", None)]
    text = printed(story)
    assert "left the bank in round 3: evicted (capacity_fifo)" in text and "came back in round 6" in text
    assert why(path, second).fate == "left the bank in round 5: dropped"
    kinds = [each.kind for each in story.events]
    assert kinds == ["add", "update", "evict", "rejected", "add"]
    versions = query(path, f"SELECT version, written_round, used_round FROM lineage WHERE entry_id = '{first}'")[1]
    assert versions == [(1, 1, 2), (2, 2, 3), (1, 6, 7)]


def test_what_never_came_in_says_why_and_an_unknown_id_names_close_ones(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path) as run:
        run.initialize()
        first, refused = run.play(Ask("add", "one"), Ask("add", "one"))
        path = run.path
    story = why(path, refused)
    assert story.fate == "it never came into the bank"
    assert story.refused[0].other == first
    assert f"refused in round 1: add: duplicate of {first}" in printed(story)
    with pytest.raises(BadInput) as caught:
        why(path, f"{first}x")
    assert first in str(caught.value.expected)


def test_model_text_is_never_markup_and_prompts_are_shortened(tmp_path: Path) -> None:
    text = "[red]go[/red] [/] :smile: <script>"
    with ScriptedRun(tmp_path) as run:
        run.initialize()
        (entry,) = run.play(Ask("add", text + " on" * 120))
        path = run.path
    assert text in printed(why(path, entry)) and "output: …" in printed(why(path, entry))
    assert f"output: ADD: {text}"[:60] in printed(why(path, entry), full=True)


@pytest.mark.slow
def test_a_text_that_is_longer_than_the_embedder_reads_says_so(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path) as run:
        run.initialize()
        first, short = run.play(Ask("add", "a long story", cut=True), Ask("add", "a short one"))
        run.play(Ask("update", "shorter", entry=first))
        (merged,) = run.play(merges=[Ask("merge", "all of it again", parents=(first, short), cut=True)])
        path = run.path
    assert [[each.embedder_cut for each in why(path, name).versions] for name in (first, short, merged)] == [
        [True, False], [False], [True],
    ]  # fmt: skip
    told = "the embedder reads only the beginning of it: it is found by that alone"
    assert printed(why(path, first)).count(told) == printed(why(path, merged)).count(told) - 1 == 1
    assert told not in printed(why(path, short))
    assert [(each.entry_id, each.embedder_cut) for each in entries_after(path, 1)] == [(first, True), (short, False)]
    assert [each.embedder_cut for each in entries_after(path, 3)] == [True]
    assert query(path, "SELECT round, embedder_cut FROM bank ORDER BY ALL")[1] == [
        (1, False), (1, True), (2, False), (2, False), (3, True),
    ]  # fmt: skip


@pytest.mark.slow
def test_each_of_several_experiences_of_an_episode_has_its_use(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path) as run:
        run.initialize()
        first, second = run.play(Ask("add", "one"), Ask("add", "two"))
        run.play(guided=[((first, second), True), (second, False)], evaluated=[((second, first), True)])
        path = run.path
    uses = {name: why(path, name).versions[0].uses for name in (first, second)}
    assert [(use.success, use.outcome, use.similarity) for use in uses[first]] == [(True, 1.0, 0.5)]
    assert [(use.success, use.similarity) for use in uses[second]] == [(True, 0.375), (False, 0.5)]
    assert all(len(why(path, name).versions[0].evaluations) == 1 for name in (first, second))
    sql = "SELECT used_in, outcome, used_similarity FROM lineage WHERE entry_id = $e ORDER BY ALL"
    assert [(name, len(query(path, sql, {"e": name})[1])) for name in (first, second)] == [(first, 1), (second, 2)]
    assert query(path, sql, {"e": second})[1][0][1:] == (1.0, 0.375)
    assert [(each.uses, each.retrieved) for each in entries_after(path, 2)] == [(1, 1), (2, 2)]
    shown = query(path, "SELECT entry_id, unnest(entry_ids) FROM episodes WHERE guided ORDER BY ALL")[1]
    assert shown == sorted([(first, first), (first, second), (second, second)])
