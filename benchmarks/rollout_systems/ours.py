"""This project's own way; tokens that its passes read are counted at the model."""

from __future__ import annotations

from games import MODEL, arguments, method_of, played, report, slots_of

from crl.policies import load_policy, resolve_model


def main() -> None:
    """Load, play once for warming up, play and report."""
    groups, members, turns, dtype = arguments()
    method = method_of(turns, dtype, wave_groups=groups, group_size=members)
    policy = load_policy(method.role("actor"), resolve_model(MODEL).path, None, threads=2)
    played(policy, method_of(3), slots_of(method, 1, 2))
    read = []
    policy.model.register_forward_pre_hook(
        lambda _module, _positional, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    figures = played(policy, method, slots_of(method, groups, members))
    report(figures | {"read": sum(read), "passes": len(read)})


if __name__ == "__main__":
    main()
