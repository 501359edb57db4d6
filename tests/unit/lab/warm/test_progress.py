"""What a warm start says while it learns."""

from __future__ import annotations

import pytest

from crl.lab.warm.make import printed_in_tenths


@pytest.mark.parametrize(("steps", "told"), [(2574, 10), (37, 10), (10, 10), (4, 4), (1, 1)])
def test_every_tenth_of_the_steps_is_said_once_and_the_last_one_too(steps, told):
    said: list[str] = []
    on_step = printed_in_tenths(said.append)
    for step in range(1, steps + 1):
        on_step(step, steps, 1 / step)
    assert len(said) == told
    assert said[-1] == f"step {steps} of {steps}, loss {1 / steps:.3f}"
