"""Parts run by a process that has no driver: under whose token, in which engine, and for how long that lives."""

from __future__ import annotations

import dataclasses
import threading

import psutil
import pytest

from crl.engine import detached
from crl.engine.detached import run_order
from crl.errors import EngineDied, StaleAttempt
from crl.run.lease import Lease
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.engine.fake_recipe import PARTS
from tests.unit.engine.harness import digests, make_driver
from tests.unit.engine.test_driver import gone

pytestmark = pytest.mark.slow

SECONDS = 10.0
"""Until an engine whose attempt has ended must be gone."""


class OrdersOnly(Exception):
    """Raised by a part runner that only wants the orders."""


def orders_of(driver):
    """Bring a run to its first stage in parts, and get the orders of its parts."""
    taken = []

    def take(spread):
        taken.extend(spread.order(part) for part in spread.parts)
        raise OrdersOnly

    driver.run_round(0)
    driver.run_stage(1, "draw")
    driver.spread_with(take)
    with pytest.raises(OrdersOnly):
        driver.run_stage(1, "spread")
    driver.spread_with(None)
    return taken


def wait_until_gone(pid):
    wait_until(lambda: gone(pid), "the engine of the attempt is gone", SECONDS)


def test_parts_run_elsewhere_join_to_the_same_stage_and_are_not_run_twice(tmp_path):
    with make_driver(tmp_path / "plain") as driver:
        driver.run_rounds(1)
        expected = digests(driver.run)
    lines, metrics = [], []
    with make_driver(tmp_path / "detached", {"spread/1": ["say", ""]}, shards=2) as driver:
        orders = orders_of(driver)
        assert [(order.stage, order.number, order.count) for order in orders] == [
            ("spread", number, PARTS) for number in range(1, PARTS + 1)
        ]
        for order in reversed(orders):
            outcome = run_order(
                order, on_line=lambda engine, text: lines.append((engine, text)), on_metrics=metrics.append
            )
            assert (outcome.part, outcome.skipped, outcome.metrics["made"]) == (order.number - 1, False, 10)
        assert run_order(orders[2]).skipped
        driver.run_rounds(1)
        assert digests(driver.run) == expected
    assert ("shard-0", "next line") in lines and len(metrics) == PARTS


def test_an_order_of_an_older_attempt_is_refused_and_nothing_is_committed(tmp_path):
    with make_driver(tmp_path, shards=2) as driver:
        order = orders_of(driver)[0]
        older = dataclasses.replace(order, job=dataclasses.replace(order.job, token=order.job.token - 1))
        with pytest.raises(StaleAttempt, match="may not write"):
            run_order(older)
        assert not driver.run.part_is_complete(1, "spread", 0)
    with pytest.raises(StaleAttempt, match="given back"):
        run_order(order)


def test_a_part_that_is_overtaken_at_its_last_step_is_not_committed(tmp_path):
    with (
        pytest.raises(StaleAttempt),  # also from leaving the driver, which has lost its lease
        make_driver(tmp_path, {"spread/0": ["overtake", ""]}, shards=2) as driver,
    ):
        order = orders_of(driver)[0]
        with pytest.raises(StaleAttempt, match="taken over"):
            run_order(order)
        assert not driver.run.part_is_complete(1, "spread", 0)
        driver.run_stage(1, "spread")


def test_a_part_whose_attempt_ends_meanwhile_is_ended_with_its_engine(tmp_path):
    marker, raised = tmp_path / "marker", []
    with make_driver(tmp_path / "runs", {"spread/0": ["sleep", str(marker)]}, shards=2) as driver:
        order = orders_of(driver)[0]

        def run():
            try:
                run_order(order)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(marker.exists, "the part sleeps")
        pid = int(marker.read_text())
    # The driver is gone; a newer attempt owns the run.
    with Lease.acquire(driver.run.path, seconds=60):
        thread.join(PATIENCE_SECONDS)
        assert [type(error) for error in raised] == [StaleAttempt]
        wait_until_gone(pid)
        assert not driver.run.part_is_complete(1, "spread", 0)


def test_an_idle_engine_goes_when_its_attempt_ends_and_a_killed_one_is_replaced(tmp_path):
    marker = tmp_path / "marker"
    with make_driver(tmp_path / "runs", {"spread/0": ["kill_once", str(marker)]}, shards=2) as driver:
        order = orders_of(driver)[0]
        with pytest.raises(EngineDied):
            run_order(order)
        run_order(order)
        before = engines()
        wait_until(lambda: all(each.released for each in detached._engines), "its models are freed")
        assert engines() == before and before
    for pid in before:
        wait_until_gone(pid)


def engines():
    """Engine processes of this process, the driver's left out by their being ended with it."""
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "crl.engine.worker" in child.cmdline()
    }
