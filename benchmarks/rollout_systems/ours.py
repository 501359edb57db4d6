"""This project's own way; tokens that its passes read are counted."""

from __future__ import annotations

from games import MODEL, arguments, method_of, played, report, slots_of

from crl.policies import load_policy, resolve_model
from crl.policies.session import BatchSession


def main() -> None:
    """Load, play once for warming up, play and report."""
    groups, members, turns, dtype = arguments()
    method = method_of(turns, dtype, wave_groups=groups, group_size=members)
    policy = load_policy(method.role("actor"), resolve_model(MODEL).path, None, threads=2)
    played(policy, method_of(3), slots_of(method, 1, 2))
    read = []
    forward = BatchSession._forward

    def counted(session, readings):
        # Not at the model: on a GPU a pass may be a replay, which calls no module.
        read.append(sum(len(reading.ids) for reading in readings))
        return forward(session, readings)

    BatchSession._forward = counted
    figures = played(policy, method, slots_of(method, groups, members))
    report(figures | {"read": sum(read), "passes": len(read)})


if __name__ == "__main__":
    main()
