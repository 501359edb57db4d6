"""The probe of a machine's rate stays short where a data type has no kernels."""

from __future__ import annotations

import pytest

from crl.policies import rates


class Machine:
    """A clock that only products move: each takes width³ / 2 FLOP at a rate."""

    def __init__(self, rate: float) -> None:
        self.rate, self.now = rate, 0.0
        self.widths: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def product(self, width: int, dtype: object) -> object:
        def multiply() -> None:
            self.widths.append(width)
            self.now += width**3 / 2 / self.rate

        return multiply


@pytest.mark.parametrize(("rate", "largest"), [(0.25e9, 256), (2e9, 512), (10e9, 1024), (100e9, 2048), (300e12, 2048)])
def test_the_largest_product_that_is_quick_is_measured(
    rate: float, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(rate)
    monkeypatch.setattr(rates, "time", machine)
    monkeypatch.setattr(rates, "_product", machine.product)
    assert rates._flops(None) == pytest.approx(rate)
    assert max(machine.widths) == largest
    assert machine.now < 2, "seconds on the clock of that machine"


def test_this_machine_has_rates() -> None:
    found = rates.measured(1)
    assert min(found.float32, found.bfloat16) > 0 and found.device
