"""Taking a bank in: what of it fits the experiment becomes the one file that its round 0 begins with.

Ids get the name of their experiment and round in front, so they differ from all that the new run will make. What is
left out (a family that is full, a text that is too long, holds a control token or is there twice) is said and is in the
file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.bank.segments import text_digest
from crl.config import Method
from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted
from crl.policies.embedders import embedder_digest, load_embedder
from crl.records import vectors_of
from crl.rounds.proposal import capacities_of
from crl.rounds.publish import check_vectors
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file
from crl.run.imports import EMBEDDING, BankImport, bank_import, imported_files, load_import, write_import
from crl.run.journal import Journal
from crl.run.lease import Lease
from crl.text.unicode import hidden_in
from crl.transfer.gather import ExportedEntry, Gathered

_LEASE_SECONDS = 60.0
_CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>\n]{1,64}[|｜]>"
    r"|</?(?:s|bos|eos|pad|unk|mask|sop|eop|think|tool_call|tool_response|im_start|im_end|unused\d+|fim_\w+"
    r"|(?:start|end)_of_(?:turn|image))>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|[gs]?MASK)\]|\[\|[^|\]\n]{1,64}\|\]|<</?SYS>>",
    re.IGNORECASE,
)
"""How the chat templates of today write their control tokens. An import is made before a model is loaded."""


@dataclass(frozen=True)
class Taken:
    """What came of an import."""

    path: Path
    """The file, in the run directory."""
    entries: dict[str, int]
    """Entries by task family."""
    left_out: dict[str, int]
    """Entries that were left out, by reason."""
    repeated: bool
    """Whether the same bank had been imported before."""
    hidden: dict[str, str]
    """By entry, what its text has that nobody sees and a model reads."""


def take(run: RunDirectory, recipe: Recipe, source: Gathered, families: Mapping[str, str] | None = None) -> Taken:
    """Import a bank into an experiment whose round 0 has not been made. `families` maps names there to names here.

    The same bank may be imported again: that changes nothing, and puts back a file that was lost or damaged. Raises
    BadInput where the experiment keeps no bank, has begun, begins with another one, or lacks a family; LeaseHeld.
    """
    return put(run, fitting(run.method, recipe, source, families or {}))


def put(run: RunDirectory, content: BankImport) -> Taken:
    """As :func:`take`, of a file that :func:`fitting` made."""
    with Lease.acquire(run.path, seconds=_LEASE_SECONDS) as lease:
        repeated = _allowed(run, content)
        path = write_import(run.path, content, token=lease.token)
        provenance = content.provenance()
        if not repeated:
            told = {name: provenance["source"][name] for name in ("experiment", "round", "snapshot_digest")}
            Journal(run.path).record("bank_imported", token=lease.token, digest=content.digest, **told)
    rows = content.rows()
    hidden = {row["entry_id"]: found for row in rows if (found := hidden_in(row["text"]))}
    return Taken(path, dict(Counter(row["family"] for row in rows)), provenance["left_out"], repeated, hidden)


def fitting(method: Method, recipe: Recipe, source: Gathered, families: Mapping[str, str]) -> BankImport:
    """The file for an experiment of this method. Raises BadInput where it can begin with no such bank, or where vectors
    of the experiment's own embedder are not those of their texts; nothing is written, so it can be asked before the
    experiment is made."""
    if not recipe.has_bank:
        does = "complementary, static_online, experience_only or offline_bank"
        raise BadInput(f"recipe {recipe.name} keeps no bank", expected=f"a recipe that does: {does}")
    content = _prepared(method, source, families)
    table, told, use = source.tables[ExportedEntry.table], source.provenance["embedder"], method.recipe.embedder()
    if use is None or EMBEDDING not in table.column_names:
        return content
    try:
        own = embedder_digest(use.name) == told["digest"]
    except BadInput:  # it cannot be had on this machine: round 0 says so
        return content
    if own:
        rows = table.select(["entry_id", "text"]).to_pylist()
        check_vectors(rows, vectors_of(table[EMBEDDING]), load_embedder(use.name, use.query_instruction), told["name"])
    return content


def _prepared(method: Method, source: Gathered, families: Mapping[str, str]) -> BankImport:
    """The file for a method. Raises BadInput where a task family is missing."""
    names = _families(method, source, families)
    where = source.provenance
    prefix = f"{where['experiment']}-r{where['round']:04d}-"
    table = source.tables[ExportedEntry.table]
    # The vectors never become Python numbers: of a large bank those would take many times the room of all the rest.
    columns = [name for name in table.column_names if name != EMBEDDING]
    entries = table.select(columns).to_pylist()
    chosen, left_out = _chosen(method, entries, names)
    kept = [entries[row] for row in chosen]
    if not kept:
        raise BadInput(
            f"the bank of {where['experiment']} after round {where['round']} has no entry that can come in",
            expected="a bank with entries",
            next_step=f"left out: {dict(Counter(left_out.values()))}" if left_out else "name another round",
        )
    rows = [
        {
            **{name: entry[name] for name in ("content_digest", "uses", "mean_outcome", "story", "text")},
            **{f"source_{name}": where[name] for name in ("experiment", "round")},
            **{f"source_{name}": entry[name] for name in ("entry_id", "family", "version")},
            **{name: prefix + entry[name] for name in ("entry_id", "generation_id", "operation_id", "distillation_id")},
            **{name: [prefix + each for each in entry[name]] for name in ("episode_ids", "parents")},
            "family": names[entry["family"]],
            "source_snapshot": where["snapshot_digest"],
        }
        for entry in kept
    ]
    vectors_ND = vectors_of(table[EMBEDDING])[chosen] if EMBEDDING in table.column_names else None
    # Which libraries wrote the export says nothing about what is imported.
    plain = {name: value for name, value in where.items() if name != "versions"}
    counts = dict(sorted(Counter(left_out.values()).items()))
    return bank_import(rows, vectors_ND, {"source": plain, "families": dict(sorted(names.items())), "left_out": counts})


def _families(method: Method, source: Gathered, asked: Mapping[str, str]) -> dict[str, str]:
    """Family here by family there."""
    here = [family.name for family in method.families]
    there = source.provenance["families"]
    for name in sorted(set(asked) - set(there)):
        raise BadInput(
            f"the bank has no task family {name!r}", expected=f"one of {', '.join(there) or '(it is empty)'}"
        )
    names = {name: asked.get(name, name) for name in there}
    missing = {name: target for name, target in names.items() if target not in here}
    if missing:
        first = sorted(missing)[0]
        raise BadInput(
            f"the experiment has no task family {', '.join(repr(missing[name]) for name in sorted(missing))}",
            expected=f"one of {', '.join(here)}",
            next_step=f"say where those experiences belong: --family {first}={here[0]}",
        )
    return names


def _chosen(
    method: Method, entries: list[dict[str, Any]], names: Mapping[str, str]
) -> tuple[list[int], dict[str, str]]:
    """Rows of the entries that come in, the oldest first, and those that do not: the reason by id."""
    left_out: dict[str, str] = {}
    held: set[tuple[str, str]] = set()
    by_family: dict[str, list[dict[str, Any]]] = {}
    by_age = sorted(range(len(entries)), key=lambda row: (entries[row]["order"], entries[row]["entry_id"]))
    for entry in (entries[row] for row in by_age):
        if text_digest(entry["text"]) != entry["content_digest"]:
            raise RecordDamaged(
                f"the text of {entry['entry_id']} has digest {text_digest(entry['text'])}",
                expected=entry["content_digest"],
                next_step="export the bank again",
            )
        place = (names[entry["family"]], entry["content_digest"])
        if len(entry["text"]) > method.recipe.bank_use().max_characters:
            left_out[entry["entry_id"]] = "text_too_long"
        elif _CONTROL_TOKEN.search(entry["text"]):
            left_out[entry["entry_id"]] = "control_token"
        elif place in held and method.recipe.bank_use().bank.duplicates != "keep":
            left_out[entry["entry_id"]] = "duplicate"
        else:
            held.add(place)
            by_family.setdefault(place[0], []).append(entry)
    capacities, rules = capacities_of(method), method.recipe.bank_use().bank
    for family, listed in by_family.items():
        # What a full family evicts first stays out: the least useful, or the oldest.
        order = listed if rules.eviction == "fifo" else sorted(listed, key=_usefulness)
        for entry in order[: max(0, len(listed) - capacities.get(family, rules.capacity))]:
            left_out[entry["entry_id"]] = f"capacity_{rules.eviction}"
    return [row for row in by_age if entries[row]["entry_id"] not in left_out], left_out


def _usefulness(entry: Mapping[str, Any]) -> tuple[float, int]:
    """As eviction computes it of a text that was used: the mean outcome, shrunk toward 0 by one use."""
    uses = entry["uses"]
    return (entry["mean_outcome"] or 0.0) * uses / (uses + 1), entry["order"]


def _allowed(run: RunDirectory, content: BankImport) -> bool:
    """Whether the import is there already; raises BadInput where it may not be made."""
    if run.is_complete(0, "initialize"):
        recorded = run.manifest(0, "initialize").digested.shared
        if content.relative in recorded:
            return True
        raise BadInput(
            f"experiment {run.experiment_name} has begun: its round 0 is made",
            expected="an experiment without a round, or the import it began with",
            where=str(run.path),
            next_step="a bank is imported before round 0: give the experiment another name",
        )
    for path in imported_files(run.path):
        if path.name == Path(content.relative).name:
            return path.is_file() and sha256_file(path) == content.digest
        raise BadInput(
            f"experiment {run.experiment_name} begins with another bank: {_told(run.path)}",
            expected="one import per experiment",
            where=str(path),
            next_step=f"to begin with this one instead, remove that file first: rm {quoted(path)}",
        )
    return False


def _told(run_path: Path) -> str:
    try:
        found = load_import(run_path)
    except RecordDamaged as error:
        return error.found
    if found is None:
        return "its file is gone"
    source = found.provenance()["source"]
    return f"that of {source['experiment']}, after round {source['round']}"
