"""A note that is longer than the embedder reads: every stage that writes operations says so."""

from __future__ import annotations

from types import SimpleNamespace

from crl.rounds.proposal import with_cuts
from tests.unit.bank.test_consolidate import operation


class Short:
    """Reads four characters."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def cuts(self, texts: list[str]) -> list[bool]:
        self.asked += texts
        return [len(text) > 4 for text in texts]


def test_every_text_is_asked_about_once() -> None:
    embedder = Short()
    ctx = SimpleNamespace(services=SimpleNamespace(embedder=lambda: embedder))
    asked = [operation("add", "a", "long text"), operation("add", "b", "shrt"), operation("return"),
             operation("merge", "m", "long text", parents=["a", "b"]), operation("drop", "a")]  # fmt: skip
    told = with_cuts(ctx, asked)  # type: ignore[arg-type]
    assert [each.embedder_cut for each in told] == [True, False, None, True, None]
    assert [each.operation_id for each in told] == [each.operation_id for each in asked]
    assert sorted(embedder.asked) == ["long text", "shrt"]
    assert with_cuts(ctx, asked[2:3]) == asked[2:3]  # type: ignore[arg-type]
