"""Other recipes with real engines: what a run of two rounds trained, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crl.report.views import query
from tests.tiny_run import crl_here as crl

pytestmark = pytest.mark.slow


def test_erl_trains_every_stream_and_shows_it(run_of: Callable[[str], Path]) -> None:
    run = run_of("erl")
    names, [row] = query(
        run,
        "SELECT max(updates) AS updates, (SELECT count(*) FROM reflections) AS reflections,"
        " (SELECT list(DISTINCT role ORDER BY role) FROM samples) AS roles,"
        " (SELECT count(*) FROM metrics WHERE name = 'reference_kl' AND value > 0) AS penalized FROM weights",
    )  # fmt: skip
    found = dict(zip(names, row, strict=True))
    assert found["updates"] == 2 and int(str(found["reflections"])) > 0
    assert found["roles"] == ["actor", "reflector"] and found["penalized"] == 1, "in round 1 the weights are the base's"
    said = crl(run.parent, "status", "erl-tiny").stdout
    assert "attempts and reflections" in said and "tried again" in said
    crl(run.parent, "report", "erl-tiny")
    page = (run / "report.html").read_text()
    assert "reward gained by trying again" in page and "reflections and memory" in page


def test_dreamgym_fits_plays_in_its_model_and_shows_it(run_of: Callable[[str], Path]) -> None:
    run = run_of("dreamgym")
    names, [row] = query(
        run,
        "SELECT max(updates) FILTER (role = 'experience') AS fitted,"
        " (SELECT count(*) FROM transitions WHERE source = 'synthetic') AS dreamed,"
        " (SELECT list(DISTINCT role ORDER BY role) FROM samples) AS roles,"
        " (SELECT count(*) FROM predictions p JOIN generations g USING (generation_id)) AS traced,"
        " (SELECT count(*) FROM predictions) AS predictions,"
        " (SELECT count(*) FROM samples s JOIN transitions t ON s.generation_id LIKE '%' || t.transition_id"
        "  WHERE t.split = 'held_out') AS leaked FROM weights",
    )  # fmt: skip
    found = dict(zip(names, row, strict=True))
    assert int(str(found["fitted"])) > 10 and int(str(found["dreamed"])) > 0
    assert found["roles"] == ["actor", "experience"] and found["traced"] == found["predictions"] and not found["leaked"]
    said = crl(run.parent, "status", "dreamgym-tiny").stdout
    assert "experience model" in said and "real steps" in said
    crl(run.parent, "report", "dreamgym-tiny")
    assert "real environment steps" in (run / "report.html").read_text()


def test_replay_draws_old_samples_measures_its_updates_and_shows_it(run_of: Callable[[str], Path]) -> None:
    run = run_of("importance_replay")
    names, [row] = query(
        run,
        "SELECT (SELECT count(*) FROM replay_draws WHERE age > 0) AS old,"
        " (SELECT count(DISTINCT weights_digest) FROM generations WHERE starts_with(stage, 'probe_')) AS weights,"
        " (SELECT sum(pairs) FROM improvements) AS pairs, (SELECT max(steps) FROM extractor_tensors) AS steps,"
        " (SELECT count(*) FROM replay WHERE status = 'held' AND round = 2) AS held,"
        " (SELECT value FROM metrics WHERE stage = 'update_actor' AND name = 'ratio_max' AND round = 2) AS ratio",
    )  # fmt: skip
    found = dict(zip(names, row, strict=True))
    assert int(str(found["old"])) > 0 and float(str(found["ratio"])) > 1, "off-policy by what was stored"
    assert (found["weights"], found["pairs"], found["held"]) == (3, 24, 24) and int(str(found["steps"])) >= 8
    assert "replay and probes" in crl(run.parent, "status", run.name).stdout
    crl(run.parent, "report", run.name)
    assert "worth of the samples" in (run / "report.html").read_text()
