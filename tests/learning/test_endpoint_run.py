"""A whole round whose extractor is behind an endpoint: what it said is in the record, the key is nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from crl.audit.verify import require_intact
from crl.config.load import parse_experiment
from crl.engine.driver import Driver
from crl.engine.events import LogLine
from crl.preflight import check_ready
from crl.records import Episode, Generation, Operation, Weights
from crl.run.directory import RunDirectory
from tests.fake_vllm import serving
from tests.learning.harness import rows
from tests.learning.test_token_exactness import EXPERIMENT

pytestmark = pytest.mark.slow

KEY = "sk-nowhere-to-be-found"


def test_a_frozen_extractor_writes_a_bank_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    data = yaml.safe_load(EXPERIMENT)
    method = data["method"]
    method["families"] = [{**method["families"][0], "groups": 2}]
    method["recipe"] = {"kind": "static_online", "retrieval": {"embedder": "lexical", "threshold": -1.0}}
    extractor = {"model": "endpoint:some/model", "engine": "openai", "context": 20_000}
    method["roles"]["extractor"] = {**extractor, "sampling": {"max_new_tokens": 24}}
    said = {"message": {"content": "ADD: Walk around the holes."}, "finish_reason": "stop"}
    with serving() as fake:
        fake.faults["/v1/chat/completions"] = lambda body: (200, {"choices": [said]})
        data["runtime"] = {"servers": {"extractor": {"address": f"{fake.address}/v1", "key_variable": "THE_KEY"}}}
        experiment = parse_experiment(data, base=Path(), where="test")
        check_ready(experiment, tmp_path / experiment.name, rounds=1)
        run, lines = RunDirectory.create_or_open(experiment, tmp_path), list[str]()
        with Driver(run, experiment.runtime) as driver:
            driver.subscribe(lambda event: lines.append(event.text) if isinstance(event, LogLine) else None)
            driver.set_target(1)
            driver.run_rounds(1)
        keys = {(path, headers.get("Authorization")) for path, _, headers in fake.requests}
        assert keys == {("/v1/models", None), ("/v1/chat/completions", f"Bearer {KEY}")}
        asked = fake.asked("/v1/chat/completions")
    require_intact(run.path)
    episodes = rows(run, Episode, "collect", [1])
    written = rows(run, Generation, "distill", [1])
    assert len(asked) == len(written) == len(episodes) > 0
    assert {each.output for each in written} == {"ADD: Walk around the holes."}
    assert all(asked_for["messages"][0]["content"] == "Answer with ADD: text." for asked_for in asked)
    for each in written:
        sampled = [index for index, mask in zip(each.token_ids, each.loss_mask, strict=True) if mask]
        assert "".join(map(chr, sampled[:-1])) == each.output and set(each.logprobs) == {0.0}
    assert {each.text for each in rows(run, Operation, "distill", [1])} == {"Walk around the holes."}
    [row] = [each for each in rows(run, Weights, "initialize", [0]) if each.role == "extractor"]
    assert row.source == "endpoint:some/model"
    kept = [path for path in run.path.rglob("*") if path.is_file()]
    assert kept and not any(KEY.encode() in path.read_bytes() for path in kept)
    assert not any(KEY in line for line in lines)
