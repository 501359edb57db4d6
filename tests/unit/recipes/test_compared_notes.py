"""Several outputs about one episode in whole rounds: compared by the same games, paid by it, one of them admitted. What
must not leak is read from the records of the run by SQL."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.errors import BadInput
from crl.records import (
    TRIAL,
    BankEvent,
    BufferItem,
    Credit,
    Distillation,
    Episode,
    Generation,
    Metric,
    Operation,
    Sample,
    Trial,
)
from crl.report.views import query
from tests.unit.recipes.played import ROOT, VERDICTS, Played, Policy, experiment
from tests.unit.recipes.test_trial import FEW, Watching

ROUNDS, LAYOUTS, OUTPUTS = 3, 4, 3
SETTINGS: dict[str, Any] = {
    **FEW,
    "method__evaluation__every": 1,
    "method__recipe__trial": {"layouts": LAYOUTS, "threshold": 0.25, "reuse_rounds": 0},
    "method__recipe__distill__outputs": OUTPUTS,
}


def writing(read: str, generator: np.random.Generator) -> str:
    """One of five texts, or nothing that can be parsed."""
    return "what?" if generator.random() < 0.2 else f"ADD: {generator.choice(sorted(VERDICTS))}"


def played(root: Path, **changes: Any) -> Played:
    made = experiment(**{**SETTINGS, **changes})
    services = Watching(made)
    services._policies["extractor"] = Policy(writing)
    return Played(root, made, ROUNDS, services, services.order)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("compared"))


def asked(run: Played, sql: str) -> list[tuple[Any, ...]]:
    _, rows = query(run.run.path, sql)
    return [tuple(row) for row in rows]


COMPARED = """
SELECT DISTINCT b.compared_in, b.generation_id, t.round, t.family, t.content_digest
FROM buffer b JOIN trials t USING (generation_id) WHERE b.compared_in IS NOT NULL
"""


def test_every_episode_has_its_outputs_with_one_prompt_and_streams_of_their_own(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        listed = defaultdict(list)
        prompts = {row.generation_id: row.prompt for row in run.rows(Generation, "distill", number)}
        for row in run.rows(Distillation, "distill", number):
            listed[row.episode_id].append(row)
        assert listed.keys() == {row.episode_id for row in run.rows(Episode, "collect", number)}
        for episode_id, rows in listed.items():
            assert [row.candidate for row in rows] == list(range(OUTPUTS))
            assert [row.distillation_id for row in rows] == [
                f"d-{episode_id}",
                f"d-{episode_id}-n1",
                f"d-{episode_id}-n2",
            ]
            assert len({prompts[row.generation_id] for row in rows}) == 1
    found = asked(run, "SELECT count(DISTINCT reason_code), count(DISTINCT verdict) FROM distillations")
    assert found == [(2, 2)], "some outputs are malformed"
    texts = asked(run, "SELECT round, episode_ids, count(DISTINCT text) AS n FROM operations GROUP BY ALL HAVING n > 1")
    assert texts, "outputs about one episode differ"


def test_no_game_of_a_comparison_is_a_task_of_the_round(run: Played) -> None:
    games = asked(run, "SELECT count(*) FROM episodes WHERE stage = 'trial'")
    assert games[0][0] > ROUNDS * LAYOUTS
    same = """
        SELECT p.episode_id FROM episodes p JOIN episodes e ON p.round = e.round AND p.family = e.family
        WHERE p.stage = 'trial' AND e.stage = 'collect'
        AND (p.environment_seed = e.environment_seed OR (p.task_digest = e.task_digest AND p.task_digest <> ''))
    """
    assert asked(run, same) == []
    own = f"""
        SELECT c.generation_id FROM ({COMPARED}) c
        JOIN episodes e ON e.episode_id = c.compared_in
        JOIN episodes p ON p.stage = 'trial' AND p.round = c.round AND p.content_digests[1] = c.content_digest
        WHERE p.environment_seed = e.environment_seed OR (p.task_digest = e.task_digest AND p.task_digest <> '')
    """
    assert asked(run, own) == []


def test_what_is_compared_has_equal_games_and_equal_streams(run: Played) -> None:
    by_group = f"""
        WITH notes AS ({COMPARED}), games AS (
            SELECT n.compared_in, n.content_digest, list_sort(list(DISTINCT (e."group", e.environment_seed))) AS played
            FROM notes n JOIN episodes e ON e.stage = 'trial' AND e.round = n.round AND e.family = n.family
            AND e.content_digests[1] = n.content_digest GROUP BY ALL
        ) SELECT compared_in, count(*), count(DISTINCT played), min(len(played)) FROM games GROUP BY compared_in
    """
    rows = asked(run, by_group)
    assert rows and all(kinds == 1 and games >= 1 for _, _, kinds, games in rows)
    assert any(texts > 1 for _, texts, _, _ in rows)
    for number in range(1, ROUNDS + 1):
        episodes = run.rows(Episode, TRIAL, number)
        texts = len({tuple(row.content_digests) for row in episodes})
        layouts = len({row.group for row in episodes})
        # A layout has one sampling stream, which each of its episodes is given once: each text, and none.
        assert len(run.services.actor.seeds[number]) == layouts <= LAYOUTS
        assert set(run.services.actor.seeds[number].values()) == {texts}


@pytest.mark.slow
def test_evaluation_sees_no_text_that_the_bank_did_not_take(run: Played) -> None:
    shown = "SELECT round, unnest(entry_ids) AS entry_id FROM evaluations WHERE guided"
    assert asked(run, shown)
    unseen = f"""
        SELECT * FROM ({shown}) s WHERE NOT EXISTS (
            SELECT 1 FROM bank_events v JOIN trials t USING (operation_id)
            WHERE v.entry_id = s.entry_id AND v.round <= s.round AND v.kind <> 'rejected' AND t.admitted)
    """
    assert asked(run, unseen) == []
    kept_out = "SELECT DISTINCT v.kind FROM bank_events v JOIN trials t USING (operation_id) WHERE NOT t.admitted"
    assert asked(run, kept_out) == [("rejected",)]
    untested = """
        SELECT v.event_id FROM bank_events v ANTI JOIN trials t ON t.operation_id = v.operation_id AND t.admitted
        WHERE v.kind IN ('add', 'update')
    """
    assert asked(run, untested) == []


def test_advantages_are_those_of_the_episode_from_the_buffer_to_the_sample(run: Played) -> None:
    expected: dict[str, tuple[str, float]] = {}
    for number in range(1, ROUNDS + 1):
        earned = defaultdict(list)
        for row in run.rows(Trial, TRIAL, number):
            if row.pairs:
                earned[row.generation_id].append(2 * (row.wins_with - row.wins_without) / row.pairs)
        groups = defaultdict(list)
        for output in run.rows(Distillation, "distill", number):
            if output.generation_id in earned:
                groups[output.episode_id].append(output.generation_id)
        for episode_id, names in groups.items():
            rewards = np.array([np.mean(earned[name]) for name in names], dtype=np.float64)
            spread = np.sqrt(np.mean((rewards - rewards.mean()) ** 2))
            if len(names) > 1:
                values = (rewards - rewards.mean()) / spread if spread > 1e-6 else 0 * rewards
                expected |= {name: (str(episode_id), float(v)) for name, v in zip(names, values, strict=True)}
    trained, waiting = {}, {}
    for number in range(1, ROUNDS + 1):
        for sample in run.rows(Sample, "credit", number):
            if sample.generation_id in expected:
                trained[sample.generation_id] = sample.advantage
        waiting = {row.generation_id: row for row in run.rows(BufferItem, "credit", number)}
        for row in waiting.values():
            found = None if row.compared_in is None else (row.compared_in, row.advantage)
            assert found == (pytest.approx(expected[row.generation_id]) if row.generation_id in expected else None)
            assert row.kind != "malformed" or row.compared_in is None
    assert trained and trained == pytest.approx({name: expected[name][1] for name in trained})
    metrics = {row.name: row.value for row in run.rows(Metric, "health", 1)}
    assert metrics["outputs_compared"] >= 2 and 0 <= metrics["outputs_compared_differing"] <= 1


def test_the_queries_of_the_page_answer(run: Played) -> None:
    page = (ROOT / "docs/compared_notes.md").read_text(encoding="utf-8")
    outputs, own_tasks = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    rows = asked(run, outputs)
    trials = [row for number in range(1, ROUNDS + 1) for row in run.rows(Trial, TRIAL, number)]
    assert len(rows) == len(trials) and {row[5] for row in rows} == {row.reason_code for row in trials}
    assert any(row[6] is not None for row in rows)
    assert asked(run, own_tasks) == [(0,)]


def test_what_another_output_outdid_stays_out_and_says_so(run: Played) -> None:
    out = set()
    for number in range(1, ROUNDS + 1):
        events = {row.operation_id: row for row in run.rows(BankEvent, "consolidate", number)}
        texts = {row.operation_id: row.text for row in run.rows(Operation, "distill", number)}
        for row in run.rows(Trial, TRIAL, number):
            event = events[row.operation_id]
            assert row.admitted or (event.kind, event.reason) == ("rejected", row.reason_code)
            if row.reason_code == "outdone":
                out.add(texts[row.operation_id])
                assert row.difference is not None and row.difference >= 0.25
    assert problems_of(run.run, run.recipe) == []
    assert out <= set(VERDICTS)


def test_games_and_outputs_are_counted_in_estimates(run: Played) -> None:
    most = run.method.recipe.outputs(run.method)
    assert most["extractor"] == OUTPUTS * run.method.episodes
    for number in range(1, ROUNDS + 1):
        games = sum(len(run.rows(Episode, stage, number)) for stage in ("collect", TRIAL))
        assert run.method.episodes < games <= most["actor"]
        metrics = {row.name: row.value for row in run.rows(Metric, "health", number)}
        episodes = [row for stage in ("collect", TRIAL) for row in run.rows(Episode, stage, number)]
        assert metrics["actor_tokens_sampled"] == sum(row.tokens_sampled for row in episodes)
        written = run.rows(Generation, "distill", number)
        assert metrics["extractor_tokens_sampled"] == sum(sum(row.loss_mask) for row in written)


@pytest.mark.slow
def test_a_version_that_waits_does_not_stand_in_the_way_of_another_output(tmp_path: Path) -> None:
    """Of updates of one proven entry one alone may wait: outputs about an episode are looked at one by one."""
    changes = {
        "method__recipe__bank__proven": {"uses": 1, "outcome": -1},
        "method__recipe__bank__duplicates": "reject",
        "method__recipe__retrieval__count_weight": 0.0,
        "method__recipe__trial": {"layouts": LAYOUTS, "threshold": -1, "reuse_rounds": 0},
    }
    made = experiment(**{**SETTINGS, **changes})
    services = Watching(made)

    def rewriting(read: str, generator: np.random.Generator) -> str:
        """What guides in round 2 is proven by round 3, in which it is rewritten."""
        number = services.actor.place[0]
        text = f"{generator.choice(['win', 'lose'])} {generator.integers(1000)}"
        if re.search(r"Advice: (win|lose)", read):
            return f"UPDATE: {text}" if number == ROUNDS else "RETURN"
        return f"ADD: {text}" if number == 1 else "RETURN"

    services._policies["extractor"] = Policy(rewriting)
    run = Played(tmp_path, made, ROUNDS, services, services.order)
    updates = [row for row in run.rows(Operation, "distill", ROUNDS) if row.kind == "update"]
    proven = {row.entry_id for row in run.rows(Credit, "credit", ROUNDS - 1)}
    trials = {row.operation_id: row for row in run.rows(Trial, TRIAL, ROUNDS)}
    tried = defaultdict(list)
    for row in updates:
        if row.entry_id in proven:
            tried[row.episode_ids[0]].append(trials[row.operation_id])
    assert tried
    for rows in tried.values():
        assert len(rows) == OUTPUTS and all(row.pairs for row in rows), "each of them was played"
        assert sum(row.admitted for row in rows) == 1
    events = {row.operation_id: row for row in run.rows(BankEvent, "consolidate", ROUNDS)}
    taken = [events[row.operation_id] for rows in tried.values() for row in rows if row.admitted]
    assert any(event.kind != "rejected" for event in taken), "and the best comes in, whichever of them it is"
    assert {event.reason for event in taken if event.kind == "rejected"} <= {"version_waits", "proven"}
    assert problems_of(run.run, run.recipe) == []


REFUSED = [
    ("recipe.distill.outputs", {"method__recipe__trial": None}, "recipe.trial"),
    ("recipe.trial.screen", {"method__recipe__trial": {"layouts": 4, "screen": 2, "reuse_rounds": 0}}, "leave it out"),
    ("recipe.trial.reuse_rounds", {"method__recipe__trial": {"layouts": 4}}, "set it to 0"),
    (
        "recipe.trial.reward",
        {"method__recipe__trial": {"layouts": 4, "reuse_rounds": 0, "reward": "both"}},
        "leave it out",
    ),
    ("families.0.train_seeds", {"method__families__0__train_seeds__count": 7}, "train_seeds.count"),
]


@pytest.mark.parametrize(("where", "changes", "next_step"), REFUSED)
def test_settings_that_would_compare_nothing_are_refused(where: str, changes: dict[str, Any], next_step: str) -> None:
    with pytest.raises(BadInput) as caught:
        experiment(**{**SETTINGS, **changes})
    assert caught.value.where == f"method.{where}" and next_step in str(caught.value.next_step)
    assert caught.value.expected


def test_one_output_is_the_default_and_no_part_of_the_method() -> None:
    one = {key: value for key, value in SETTINGS.items() if not key.endswith("outputs")}
    explicit = experiment(**one, method__recipe__distill__outputs=1)
    assert explicit.method.model_dump() == experiment(**one).method.model_dump()
    assert "outputs" not in explicit.method.model_dump()["recipe"]["distill"]
    assert experiment(**SETTINGS, method__recipe__kind="static_online").method, (
        "an untrained extractor may have several"
    )
