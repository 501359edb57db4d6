"""The story of an experience for a terminal: as a tree, or as a table with one row per event.

What models wrote is text in it, never markup.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from crl.report.listing import Listing
from crl.report.story import LEFT, MADE, Event, Import, SourceEpisode, Story, Tried, Use, Writing, mean, story_of

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_SHORT = 200
"""Characters of a prompt or an output that are shown: the last ones, where prompts say what is asked."""


def story_tree(story: Story, *, full: bool = False) -> Tree:
    """The whole story, parents' and sources' included; `full` shows prompts and outputs whole."""
    from rich.tree import Tree

    tree = Tree(_text(f"experience {story.entry_id} (family {story.family}): {story.fate}"))
    _grow(tree, story, full)
    return tree


def history_listing(story: Story) -> Listing:
    """The events, one per row; a rewritten text shows the words that went and came."""
    rows = []
    for event in story.events:
        cells = (
            str(event.round),
            event.kind + (f" ({event.note})" if event.note else ""),
            "–" if event.version is None else str(event.version),
            event.operation_id or "–",
            str(len(event.uses)) if event.kind in MADE else "–",
            "–" if event.mean_outcome is None else f"{event.mean_outcome:+.2f}",
        )
        rows.append([*map(_text, cells), _changed(event)])
    return Listing(
        ("round", "event", "version", "asked by", "uses", "credit", "text"), rows,
        words={"text"}, right={"round", "version", "uses", "credit"}, packed=True,
    )  # fmt: skip


def word_diff(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Runs of words of two texts, each `same`, `gone` or `new`; space between words does not count."""
    old, new = before.split(), after.split()
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "same", " ".join(old[i1:i2])
            continue
        if i2 > i1:
            yield "gone", " ".join(old[i1:i2])
        if j2 > j1:
            yield "new", " ".join(new[j1:j2])


def _changed(event: Event) -> Text:
    from rich.text import Text

    if event.kind == "rejected":
        return Text("" if event.text is None else f"wanted: {event.text}")
    if event.kind in LEFT:
        return Text(f"was: {event.before}")
    if event.kind == "keep" or event.before is None:
        return Text("" if event.kind == "keep" else event.text or "")
    # Marks as well as colors: a file or a pipe has none.
    marked = {"same": ("{}", ""), "gone": ("[-{}-]", "red strike"), "new": ("{{+{}+}}", "green")}
    pieces = [(marked[kind], piece) for kind, piece in word_diff(event.before, event.text or "")]
    return Text(" ").join(Text(mark.format(piece), style) for (mark, style), piece in pieces)


def _grow(tree: Tree, story: Story, full: bool) -> None:
    left, branch = False, tree
    for event in story.events:
        if event.kind in MADE:
            if left:
                tree.add(_text(f"came back in round {event.round}"))
            branch, left = _version(tree, event, full), False
        elif event.kind == "keep":
            branch.add(_text(f"a merge looked at it and kept it in round {event.round}"))
        elif event.kind == "rejected":
            _refusal(tree, event, full)
        else:
            left = True
            if event is not story.ending:  # that is at the top already
                tree.add(_text(event.departure))
    if len(story.versions) > 1 and story.uses:
        tree.add(_text(f"all versions: {_sum_of_uses(story.uses)}"))


def _version(tree: Tree, version: Event, full: bool) -> Tree:
    branch = tree.add(_text(f"version {version.version}, {version.kind} in round {version.round}: {version.text}"))
    if version.embedder_cut:
        branch.add("the embedder reads only the beginning of it: it is found by that alone")
    if version.imported is not None:
        _import(branch, version.imported, full)
    elif not version.episodes:
        branch.add(_text("made from no episode of its own" + (": see what it is from" if version.parents else "")))
    else:
        node = branch.add(_text(f"made from {', '.join(map(_source, version.episodes))}"))
        for goal in dict.fromkeys(each.goal for each in version.episodes if each.goal):
            node.add(_text(f"goal: {goal}"))
    _writing(branch, version.writing, full)
    _trial(branch, version.tried)
    for parent in version.parents:
        known = parent.fate if parent.versions else "nothing is known of it"
        _grow(branch.add(_text(f"from {parent.entry_id}: {known}")), parent, full)
    _uses(branch, version)
    return branch


def _source(episode: SourceEpisode) -> str:
    guided = f", guided by {episode.guided_by}" if episode.guided_by else ""
    return f"{episode.episode_id} ({_outcome(episode.success)}){guided}"


def _writing(branch: Tree, writing: Writing | None, full: bool) -> None:
    if writing is None:
        return
    weights = "" if writing.weights_digest is None else f", weights {writing.weights_digest[:12]}"
    facts = [] if writing.updates is None else [f"{writing.updates} update{_s(writing.updates)}"]
    facts += ["pruned since"] if writing.pruned else []
    told = (f" ({', '.join(facts)})" if facts else "") + f"{weights}, output {writing.generation_id}"
    writer = branch.add(
        _text(f"written by {writing.role or 'a model'} {writing.checkpoint or 'of unknown weights'}{told}")
    )
    for name, text in (("prompt", writing.prompt), ("output", writing.output)):
        if text is not None:
            joined = " ".join(text.split())
            short = joined if len(joined) <= _SHORT else f"…{joined[-_SHORT:]}"
            writer.add(_text(f"{name}: {text if full else short}"))


def _trial(branch: Tree, tried: Tried | None) -> None:
    if tried is None:
        return
    if tried.difference is None:
        branch.add(_text("not tried: it stays out of the bank"))
        return
    branch.add(
        _text(
            f"tried in round {tried.round} on {tried.pairs} layout{_s(tried.pairs)}: won {tried.wins_with} with it, "
            f"{tried.wins_without} without ({tried.difference:+.2f}): {'admitted' if tried.admitted else 'kept out'}"
        )
    )


def _uses(branch: Tree, version: Event) -> None:
    if not version.uses:
        branch.add("never used")
    else:
        difference = version.guided_minus_free
        told = "" if difference is None else f", guided minus free {difference:+.2f}"
        node = branch.add(_text(f"{_sum_of_uses(version.uses)}{told}"))
        for use in version.uses:
            node.add(_text(_use(use)))
    if version.evaluations:
        won = sum(use.success for use in version.evaluations)
        rounds = ", ".join(map(str, sorted({use.round for use in version.evaluations})))
        count = len(version.evaluations)
        branch.add(_text(f"shown in {count} held-out game{_s(count)} after round {rounds}: {won} won (no credit)"))


def _use(use: Use) -> str:
    parts = [f"{use.episode_id}: {_outcome(use.success)}"]
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


def _refusal(tree: Tree, event: Event, full: bool) -> None:
    branch = tree.add(_text(f"refused in round {event.round}: {event.note}"))
    if event.text is not None:
        branch.add(_text(f"wanted: {event.text}"))
    _writing(branch, event.writing, full)
    _trial(branch, event.tried)


def _import(branch: Tree, imported: Import, full: bool) -> None:
    credit = "" if imported.mean_outcome is None else f", credit {imported.mean_outcome:+.2f}"
    node = branch.add(
        _text(
            f"imported from experiment {imported.experiment}, bank after round {imported.round} "
            f"({imported.snapshot[:12]}): there {imported.entry_id}, version {imported.version}, "
            f"used in {imported.uses} episodes{credit}"
        )
    )
    _grow(node, story_of(imported.story), full)


def _text(text: str) -> Text:
    """Text in which brackets are not markup."""
    from rich.text import Text

    return Text(text)


def _outcome(success: bool | None) -> str:
    return {True: "won", False: "lost", None: "outcome unknown"}[success]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
