"""The story of an experience as a tree for a terminal. What models wrote is text in it, never markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from crl.report.story import (
    Import,
    Life,
    Refused,
    SourceEpisode,
    Story,
    Use,
    Version,
    Writing,
    mean,
    story_of,
    told_ending,
)

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_SHORT = 200
"""Characters of a prompt or an output that are shown: the last ones, where prompts say what is asked."""


def why_tree(story: Story, *, full: bool = False) -> Tree:
    """The whole story, parents' and sources' included; `full` shows prompts and outputs whole."""
    from rich.tree import Tree

    tree = Tree(plain(f"experience {story.entry_id} (family {story.family}): {story.fate}"))
    _grow(tree, story, full)
    return tree


def plain(text: str) -> Text:
    """Text in which brackets are not markup."""
    from rich.text import Text

    return Text(text)


def outcome(success: bool | None) -> str:
    """How a game ended."""
    return {True: "won", False: "lost", None: "outcome unknown"}[success]


def short(text: str, limit: int = _SHORT) -> str:
    """The end of a text on one line."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"…{joined[-limit:]}"


def _grow(tree: Tree, story: Story, full: bool) -> None:
    for number, life in enumerate(story.lives):
        if number:
            tree.add(plain(f"came back in round {life.versions[0].round}"))
        for version in life.versions:
            _version(tree, version, full)
        _refusals(tree, life.refused, full)
        if life.ending is not None and _worth_telling(story, life):
            tree.add(plain(told_ending(life.ending)))
    _refusals(tree, story.refused, full)
    uses = story.uses
    if len(story.versions) > 1 and uses:
        tree.add(plain(f"all versions: {_sum_of_uses(uses)}"))


def _worth_telling(story: Story, life: Life) -> bool:
    """The last ending stands at the top already."""
    return life is not story.lives[-1]


def _version(tree: Tree, version: Version, full: bool) -> None:
    branch = tree.add(plain(f"version {version.version}, {version.kind} in round {version.round}: {version.text}"))
    if version.embedder_cut:
        branch.add("the embedder reads only the beginning of it: it is found by that alone")
    if version.imported is not None:
        _import(branch, version.imported, full)
    else:
        _sources(branch, version)
    if version.writing is not None:
        _writing(branch, version.writing, full)
    for parent in version.parents:
        known = parent.fate if parent.lives else "nothing is known of it"
        _grow(branch.add(plain(f"from {parent.entry_id}: {known}")), parent, full)
    _uses(branch, version)
    if version.kept:
        rounds = ", ".join(str(each.round) for each in version.kept)
        branch.add(plain(f"a merge looked at it and kept it in round {rounds}"))


def _sources(branch: Tree, version: Version) -> None:
    if not version.episodes:
        branch.add(plain("made from no episode of its own" + (": see what it is from" if version.parents else "")))
        return
    node = branch.add(plain(f"made from {', '.join(_source(each) for each in version.episodes)}"))
    for goal in dict.fromkeys(each.goal for each in version.episodes if each.goal):
        node.add(plain(f"goal: {goal}"))


def _source(episode: SourceEpisode) -> str:
    guided = f", guided by {episode.guided_by}" if episode.guided_by else ""
    return f"{episode.episode_id} ({outcome(episode.success)}){guided}"


def _writing(branch: Tree, writing: Writing, full: bool) -> None:
    weights = "" if writing.weights_digest is None else f", weights {writing.weights_digest[:12]}"
    facts = [] if writing.updates is None else [f"{writing.updates} update{_s(writing.updates)}"]
    facts += ["pruned since"] if writing.pruned else []
    told = f" ({', '.join(facts)})" if facts else ""
    writer = branch.add(
        plain(
            f"written by extractor {writing.checkpoint or 'of unknown weights'}{told}{weights}, "
            f"output {writing.generation_id}"
        )
    )
    for name, text in (("prompt", writing.prompt), ("output", writing.output)):
        if text is not None:
            writer.add(plain(f"{name}: {text if full else short(text)}"))


def _uses(branch: Tree, version: Version) -> None:
    if not version.uses:
        branch.add("never used")
    else:
        differences = mean(use.guided_minus_free for use in version.uses)
        told = "" if differences is None else f", guided minus free {differences:+.2f}"
        node = branch.add(plain(f"{_sum_of_uses(version.uses)}{told}"))
        for use in version.uses:
            node.add(plain(_use(use)))
    if version.evaluations:
        won = sum(use.success for use in version.evaluations)
        rounds = ", ".join(map(str, sorted({use.round for use in version.evaluations})))
        count = len(version.evaluations)
        branch.add(plain(f"shown in {count} held-out game{_s(count)} after round {rounds}: {won} won (no credit)"))


def _use(use: Use) -> str:
    parts = [f"{use.episode_id}: {outcome(use.success)}"]
    if use.similarity is not None:
        parts.append(f"similarity {use.similarity:.2f}")
    if use.guided_minus_free is not None:
        parts.append(f"guided minus free {use.guided_minus_free:+.2f} (free mean {use.free_mean:+.2f})")
    return ", ".join(parts)


def _sum_of_uses(uses: Iterable[Use]) -> str:
    listed = list(uses)
    credit = mean(use.outcome for use in listed)
    told = "not credited yet" if credit is None else f"credit {credit:+.2f}"
    return f"used in {len(listed)} episode{_s(len(listed))}, {told}"


def _refusals(tree: Tree, refused: Iterable[Refused], full: bool) -> None:
    for each in refused:
        branch = tree.add(plain(f"refused in round {each.round}: {each.told}"))
        if each.text is not None:
            branch.add(plain(f"wanted: {each.text}"))
        if each.writing is not None:
            _writing(branch, each.writing, full)


def _import(branch: Tree, imported: Import, full: bool) -> None:
    credit = "" if imported.mean_outcome is None else f", credit {imported.mean_outcome:+.2f}"
    node = branch.add(
        plain(
            f"imported from experiment {imported.experiment}, bank after round {imported.round} "
            f"({imported.snapshot[:12]}): there {imported.entry_id}, version {imported.version}, "
            f"used in {imported.uses} episodes{credit}"
        )
    )
    _grow(node, story_of(imported.story), full)


def _s(count: int) -> str:
    return "" if count == 1 else "s"
