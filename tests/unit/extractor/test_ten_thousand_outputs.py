"""10,000 generated extractor outputs through distilling, merging and consolidation: no crash, one row with one reason
code each, no change of the bank without its event."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.consolidate import Consolidation, Rules, consolidate
from crl.bank.duplicates import SimilarPairs
from crl.bank.replay import replay
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.extractor.distill import DistillItem, distill_wave
from crl.extractor.formats import ReasonCode
from crl.extractor.merge import run_merge, whole_families
from crl.extractor.parse import parse_output
from crl.protocols import StopReason
from crl.records import BankEvent, Distillation, Generation, Operation, table_of
from tests.marks import sampled

WORDS = [
    "go",
    "north",
    "wait",
    "{goal}",
    "naïve",
    "🙂",
    "stairs\u2028",
    "KEEP",
    "ADD:",
    '"',
    "\\",
    "١",
    "e\u0301",
    "\ufeff",
]
STRANGE = [
    "\ud800",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "\r",
    "\x85",
    "```",
    "<think>",
    "</think>",
    "<|im_end|>",
    "NaN",
    "1e999",
    "null",
]
MEGABYTE = 1_000_000
HUGE = [
    lambda: "ADD: " + "x" * MEGABYTE,
    lambda: "[" * MEGABYTE,
    lambda: '{"a":' * (MEGABYTE // 5),
    lambda: "ADD: a\n" * (MEGABYTE // 7),
    lambda: "{" * MEGABYTE + "}" * MEGABYTE,
    lambda: " " * MEGABYTE,
    lambda: "9" * MEGABYTE,
    lambda: "KEEP " + "1," * (MEGABYTE // 2),
    lambda: "KEEP 1" + " " * MEGABYTE + "x",
    lambda: "```\n" * (MEGABYTE // 4),
    lambda: "</think>" * (MEGABYTE // 8),
    lambda: "[" + ",".join(['{"operation":"add","experience":"a"}'] * 20_000) + "]",
]


class Writer:
    """Writes outputs of every kind from a seeded stream: in form, nearly in form, and not at all."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def text(self):
        roll = self.rng.random()
        if roll < 0.05:
            return ""
        if roll < 0.1:
            return "long " * 40
        words = [self.pick(WORDS) for _ in range(int(self.rng.integers(1, 6)))]
        return " ".join(words + [self.pick(STRANGE)] * (roll > 0.93))

    def numbers(self):
        return [int(number) for number in self.rng.integers(-1, 7, int(self.rng.integers(0, 4)))]

    def line(self):
        kind = self.pick(["ADD", "ADD", "UPDATE", "RETURN", "KEEP", "DROP", "MERGE", "DELETE", "add", "chat"])
        if kind == "RETURN":
            return kind
        if kind in ("KEEP", "DROP"):
            return f"{kind} {','.join(map(str, self.numbers()))}"
        if kind == "MERGE":
            return f"{kind} {','.join(map(str, self.numbers()))}: {self.text()}"
        return f"{kind}: {self.text()}" if kind != "chat" else self.text()

    def object(self):
        kinds = ["add", "add", "update", "return", "keep", "drop", "merge", "explode", 7, None]
        item = {"operation": self.pick(kinds), "experience": self.text(), "entries": self.numbers()}
        for key in list(item):
            if self.rng.random() < 0.05:
                item[key] = self.pick([None, [], {}, [[]], True, 10**40, 1.5, "x", {"a": {"b": []}}])
            if self.rng.random() < 0.03:
                del item[key]
        return item

    def json(self):
        items = [self.object() for _ in range(int(self.pick([0, 1, 1, 1, 2, 3, 4, 9])))]
        text = json.dumps(self.pick([items, {"operations": items}, items[0] if items else {}]))
        frame = self.pick(["{}", "{}", "{}", "```json\n{}\n```", "<think>so</think>{}", "Here: {}", "```\n{}"])
        return frame.replace("{}", text, 1)

    def in_form(self, form, operations):
        """`operations`: (kind, indices, text)."""
        if form == "lines":
            return "\n".join(
                f"{kind.upper()} {','.join(map(str, indices))}".strip() + (f": {text}" if text else "")
                for kind, indices, text in operations
            )
        return json.dumps(
            [{"operation": kind, "entries": indices, "experience": text} for kind, indices, text in operations]
        )

    def good(self, form):
        number = int(self.rng.integers(400))
        return self.in_form(
            form, self.pick([[("add", [], f"note {number}")], [("update", [], f"note {number}")], [("return", [], "")]])
        )

    def good_merge(self, form):
        number = int(self.rng.integers(400))
        return self.in_form(form, self.pick([[("merge", [1, 2], f"note {number}")], [("drop", [2], "")]]))

    def broken(self, text):
        """Cut, doubled, or with something strange inside."""
        at = int(self.rng.integers(len(text) + 1))
        return self.pick([text[:at], text[at:], text + text, text[:at] + self.pick(STRANGE) + text[at:]])

    def huge(self):
        return self.pick(HUGE)()

    def output(self, form, merge=False):
        roll = self.rng.random()
        if roll < 0.001:
            return self.huge()
        if roll < 0.25:
            return self.good_merge(form) if merge else self.good(form)
        if roll < 0.3:
            return "".join(chr(int(code)) for code in self.rng.integers(0, 0x110000, 20)), StopReason.length
        lines = "\n".join(self.line() for _ in range(int(self.pick([1, 1, 1, 2, 3, 4, 12]))))
        text = (self.json() if self.rng.random() < 0.9 else lines) if form == "json" else lines
        text = self.broken(text) if self.rng.random() < 0.25 else text
        return (text, StopReason.length) if self.rng.random() < 0.03 else text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lines", "json"])
def test_ten_thousand_outputs(kit, form):
    """5,000 a form: 20 rounds of 250 episodes of two families, with a merge in every round."""
    writer = Writer(np.random.default_rng(2026))
    method = kit.method(form=form, chunk=5)
    config = BankConfig(capacity=40, eviction="least_useful" if form == "json" else "fifo")
    bank, texts, reasons, kinds, outputs, merges = Snapshot.of(0, []), {}, Counter(), Counter(), 0, 0
    options = {"seed_of": kit.seed_of, "weights_digest": "w"}
    for round_number in range(1, 21):
        names = [entry.entry_id for entry in bank.entries() if entry.family == "room"]
        items = []
        for number in range(250):
            guide = writer.pick([*names[-5:], "gone"]) if number % 2 else None
            family = "room" if number % 3 else "lake"
            episode = kit.episode(1000 * round_number + number, guide=guide, family=family)
            items.append(DistillItem(episode, ()))
        policy = kit.policy(lambda *_: writer.output(form))
        distilled = distill_wave(policy, items, round=round_number, **kit.distilling(method), **options)
        operations = [row for result in distilled for row in result.operations]
        working = Consolidation(bank, Rules(config, 60), SimilarPairs(), round=round_number)
        working.apply(operations)
        preview = working.result()
        merging = {**kit.merging(method), "applied": kit.applied(working), **options}
        policy = kit.policy(lambda *_: writer.output(form, merge=True))
        known = texts | preview.new_texts
        merged = run_merge(policy, whole_families(preview.snapshot.entries()), known, round=round_number, **merging)
        operations += [row for result in merged for row in result.operations]
        after = consolidate(bank, operations, [], Rules(config, 60), round=round_number)
        assert working.result().events == [event for event in after.events if event.kind != "evict"]

        results = [*distilled, *merged]
        outputs, merges = outputs + len(distilled), merges + len(merged)
        rows = [result.distillation for result in results]
        assert len(distilled) == len(items)
        assert len({row.distillation_id for row in rows}) == len(rows)
        reasons.update(ReasonCode(row.reason_code) for row in rows)  # any other code would raise
        for result in results:
            assert len(result.operations) == result.distillation.operations
            assert bool(result.operations) == (result.distillation.reason_code == "ok")
        assert [event.operation_id for event in after.events if event.kind != "evict"] == [
            row.operation_id for row in operations
        ]
        assert replay(bank, after.events, {row.operation_id: row for row in operations}) == after.changes
        unmade = [event for event in after.events if event.kind == "rejected"]
        assert all(event.before_digest == event.after_digest and event.reason for event in unmade)
        # All of it can be written.
        table_of(Distillation, rows)
        table_of(Operation, operations)
        table_of(BankEvent, after.events)
        table_of(Generation, [result.generation for result in results if len(result.generation.output) < MEGABYTE])
        kinds.update(event.kind for event in after.events)
        bank = Snapshot.of(round_number, kit.placed(after.snapshot.entries()))
        texts |= after.new_texts
    assert outputs == 5000 and merges > 100
    # The generator reaches what it is meant to: most reasons, and every kind of event.
    only_json = {ReasonCode.bad_json, ReasonCode.no_operation}
    never = {
        ReasonCode.prompt_too_long,
        ReasonCode.example,
    }  # nothing is too long here, and the prompts have no example
    assert set(ReasonCode) - set(reasons) - never == (only_json if form == "lines" else set())
    assert reasons[ReasonCode.ok] > 500
    assert set(kinds) == {"add", "update", "merge", "drop", "evict", "keep", "return", "rejected"}


@pytest.mark.parametrize("number", sampled(range(len(HUGE)), 3))
def test_huge_outputs(number):
    text = HUGE[number]()
    for form in ("lines", "json"):
        for kind in ("distill", "merge"):
            parsed = parse_output(
                text, format=form, max_operations=3, max_characters=40, kind=kind, source_count=5, guided=True
            )
            assert parsed.verdict == "malformed" and parsed.operations == ()


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    text=st.one_of(
        st.text(),
        st.text(st.characters(exclude_categories=())),
        st.text(alphabet='ADUPTEKRMGN:,0123 \n[]{}"\\ud8', max_size=80),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("add")),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4),
                st.dictionaries(st.sampled_from(["operation", "operations", "experience", "entries"]), inner),
            ),
        ).map(json.dumps),
    ),
    form=st.sampled_from(["json", "lines"]),
    kind=st.sampled_from(["distill", "merge"]),
    guided=st.booleans(),
)
def test_any_text_gets_one_reason(text, form, kind, guided):
    parsed = parse_output(
        text, format=form, max_operations=3, max_characters=40, guided=guided, kind=kind, source_count=5
    )
    assert isinstance(parsed.reason_code, ReasonCode)
    assert bool(parsed.operations) == (parsed.reason_code is ReasonCode.ok)
    assert parsed.verdict in {"malformed", "return", "add", "update", "mixed", "merge"}
