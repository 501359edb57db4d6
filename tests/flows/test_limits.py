"""One run of an experiment at a time: a limit that would be no lock is an error, whoever waits says for whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.settings import get_current_settings
from prefect.states import Running

from crl.config import Runtime
from crl.engine.driver import watch
from crl.engine.events import Event, Waits
from crl.errors import ConcurrencyLimitMissing, LeaseHeld
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from flows import limits
from flows.limits import Waiting, ensure_limit, hold, limit_name
from flows.train import train
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.tiny_run import ROOT
from tests.unit.engine.harness import digests, make_driver, make_experiment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]

REFUSE = Runtime(when_busy="refuse")
TRAIN = (
    "import json, sys; from flows.train import train; from tests.unit.engine.harness import make_experiment;"
    "print(json.dumps(train(make_experiment(when_busy=sys.argv[1]), rounds=2)))"
)


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an experiment whose limit exists."""
    name = request.node.name.split("[")[0].replace("_", "-")[:50]
    ensure_limit(name)
    yield name
    with get_client(sync_client=True) as client:
        if client.read_global_concurrency_limits(limit=200, offset=0):
            client.delete_global_concurrency_limit_by_name(limit_name(name))


def change(name: str, **values: Any) -> None:
    with get_client(sync_client=True) as client:
        client.update_global_concurrency_limit(limit_name(name), GlobalConcurrencyLimitUpdate(**values))


def slots(name: str) -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(limit_name(name)).active_slots


def test_an_evaluation_is_in_nobodys_way(experiment: str, tmp_path: Path) -> None:
    """It changes nothing and holds nothing, although it carries the name of the experiment."""
    with get_client(sync_client=True) as client:
        runs = [
            client.create_flow_run(flow(lambda: None, name=name), name=name, tags=[experiment], state=Running())
            for name in ("evaluate", "train", "resume")
        ]
        try:
            assert Waiting(experiment, tmp_path, REFUSE)._in_the_way() == ["flow run 'resume'", "flow run 'train'"]
        finally:
            for run in runs:
                client.delete_flow_run(run.id)


def test_a_limit_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConcurrencyLimitMissing, match="crl-nobodys does not exist"), hold("nobodys", tmp_path, REFUSE):
        raise AssertionError("no limit, no lock")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"active": False}, "is switched off"),
        ({"limit": 0}, "lets through 0 runs"),
        ({"limit": 2}, "lets through 2 runs"),
        ({"slot_decay_per_second": 0.1}, "slot decay"),
    ],
)
def test_a_limit_that_would_be_no_lock_is_an_error_and_set_up_mends_it(
    experiment: str, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    change(experiment, **values)
    with pytest.raises(ConcurrencyLimitMissing, match=said) as raised, hold(experiment, tmp_path, REFUSE):
        raise AssertionError("a limit that keeps nobody out was taken for a lock")
    assert "python -m flows.setup" in str(raised.value)
    assert ensure_limit(experiment) and not ensure_limit(experiment)
    with hold(experiment, tmp_path, REFUSE):
        assert slots(experiment) == 1
    assert slots(experiment) == 0


def test_a_run_without_a_limit_fails_its_flow_and_says_which_command_makes_it(
    fake: Callable[[dict[str, Any]], Path],
) -> None:
    path = fake({})
    RunDirectory.create_or_open(make_experiment(), path.parent)  # so this is not its first run
    with get_client(sync_client=True) as client:
        ensure_limit("fake")
        client.delete_global_concurrency_limit_by_name("crl-fake")
    state = train(make_experiment(), rounds=1, return_state=True)
    assert state.is_failed() and state.message.startswith("ConcurrencyLimitMissing: the concurrency limit crl-fake")
    assert "python -m flows.setup" in state.message and not RunDirectory.open(path).rounds()


def test_refuse_names_the_owner_and_wait_ends_with_patience(experiment: str, tmp_path: Path) -> None:
    with hold(experiment, tmp_path, REFUSE), Lease.acquire(tmp_path, seconds=30):
        for runtime in (REFUSE, Runtime(wait_seconds=0)):
            with pytest.raises(LeaseHeld, match=rf"process {os.getpid()} on"), hold(experiment, tmp_path, runtime):
                raise AssertionError("two hold the slot")


@pytest.mark.parametrize("runtime", [Runtime(), REFUSE])
def test_a_slot_that_nobody_will_free_does_not_block_for_long(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    change(experiment, active_slots=1)  # as after a server that forgot its leases
    monkeypatch.setattr(limits, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.2)
    told: list[Event] = []
    stop = watch(told.append)
    with hold(experiment, tmp_path, runtime):
        assert slots(experiment) == 1
    stop()
    assert [event.reason for event in told if isinstance(event, Waits)] == [
        "waiting for nobody the record knows of (a slot that a dead run left is free within two minutes): "
        "the experiment's slot is taken"
    ]


def test_a_slot_is_never_freed_while_the_record_has_an_owner(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(experiment, active_slots=1)
    monkeypatch.setattr(limits, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.2)
    with (
        Lease.acquire(tmp_path, seconds=30),
        pytest.raises(LeaseHeld, match="of waiting"),
        hold(experiment, tmp_path, Runtime(wait_seconds=3)),
    ):
        raise AssertionError("two hold the slot")
    assert slots(experiment) == 1


def start_training(runs: Path, policy: str, fake: dict[str, Any]) -> subprocess.Popen[str]:
    settings = get_current_settings()
    variables = {
        **os.environ, "CRL_RUNS": str(runs), "CRL_FAKE": json.dumps(fake),
        "PREFECT_API_URL": str(settings.api.url), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, policy], cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def attempts(path: Path) -> list[tuple[str, int]]:
    """Beginnings and ends of attempts, as the journal has them."""
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    return [(line["event"], line["token"]) for line in lines if line["event"].startswith("attempt_")]


@pytest.mark.parametrize("policy", ["wait", "refuse"])
def test_of_two_that_start_at_the_same_second_one_works(policy: str, tmp_path: Path) -> None:
    """Two processes on one new experiment; the journal shows one attempt after the other, never two at once."""
    both = [start_training(tmp_path, policy, {}) for _ in range(2)]
    ended = [(process.communicate(timeout=PATIENCE_SECONDS), process.returncode) for process in both]
    said = "\n".join(error[-1500:] for (_, error), _ in ended)
    codes = sorted(code for _, code in ended)
    seen = attempts(tmp_path / "fake")
    for begin, end in zip(seen[::2], seen[1::2], strict=True):
        assert (begin[0], end[0]) == ("attempt_started", "attempt_ended") and begin[1] == end[1], seen
    worked = [json.loads(out.splitlines()[-1])["rounds"] for (out, _), code in ended if code == 0]
    if policy == "wait":
        assert codes == [0, 0], said
        assert sorted(worked) == [[0, 1, 2], [3, 4]]
    else:
        # Refused, unless this machine was so slow that the first had ended already.
        assert codes == [0, 1] or sorted(worked) == [[0, 1, 2], [3, 4]], said
        if codes == [0, 1]:
            assert "LeaseHeld" in said and len(seen) == 2
    with make_driver(tmp_path / "undisturbed") as driver:
        driver.run_rounds(max(round_number for rounds in worked for round_number in rounds))
        assert digests(RunDirectory.open(tmp_path / "fake")) == digests(driver.run)


def test_a_run_that_waits_shows_it_and_goes_on_when_the_other_was_ended(tmp_path: Path) -> None:
    marker = tmp_path / "asleep"
    first = start_training(tmp_path, "wait", {"draw": ["sleep_once", str(marker)]})
    wait_until(marker.exists, "the first one works")
    second = start_training(tmp_path, "wait", {})

    def waits() -> list[Any]:
        with get_client(sync_client=True) as client:
            return [run for run in client.read_flow_runs(limit=200) if run.state_name == limits.STATE_NAME]

    wait_until(lambda: bool(waits()), "the second one waits")
    (waiter,) = waits()
    assert waiter.name.startswith("fake: 2 rounds") and waiter.tags == ["fake"]
    assert "waiting for flow run 'fake: rounds 0–2', process" in waiter.state.message
    time.sleep(2 * limits.POLL_SECONDS)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_SECONDS)
    out, error = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, error[-3000:]
    # What the first one left is finished first: both asked for two rounds.
    assert json.loads(out.splitlines()[-1])["rounds"] == [1, 2]
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(str(waiter.id)))
        assert found.state_name == "Completed" and found.name == "fake: rounds 1–2"
