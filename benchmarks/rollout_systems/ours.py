"""This project's own way, here or at an older commit; tokens that its passes read are counted, padding too."""

from __future__ import annotations

import inspect

from games import Asked, report

from crl.policies import load_policy, resolve_model
from crl.policies.session import BatchSession

try:
    from crl.policies.packed_rows import PackedRows
except ImportError:  # an older commit: sessions make passes themselves
    PackedRows = None


def tokens_of_passes(policy):
    """The list that the number of tokens of each pass is appended to."""
    owner = PackedRows or BatchSession
    read, forward = [], getattr(owner, "_forward", None)
    if forward is None:  # passes are made elsewhere by now: nothing is counted
        return read

    def counted(session, readings):
        read.append(sum(len(reading.ids) for reading in readings))
        return forward(session, readings)

    def count(_model, _positional, named):
        read.append(named["input_ids"].numel())

    if "readings" in inspect.signature(forward).parameters:
        owner._forward = counted  # not at the model: on a GPU a pass may be a replay, which calls no module
    else:
        policy.model.register_forward_pre_hook(count, with_kwargs=True)
    return read


def main() -> None:
    """Load, play once for warming up, play and report."""
    asked = Asked.read()
    policy = load_policy(asked.method().role("actor"), resolve_model(asked.model).path, None, threads=2)
    asked.warm_up(policy)
    read = tokens_of_passes(policy)
    metrics = asked.played(policy)
    report(metrics | ({"read": sum(read), "passes": len(read)} if read else {}))


if __name__ == "__main__":
    main()
