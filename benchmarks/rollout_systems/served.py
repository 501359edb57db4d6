"""The same loop over a vLLM server, started for it: the CPU build where there is no GPU (`make vllm`)."""

from __future__ import annotations

from games import MODEL, arguments, method_of, played, report, slots_of

from crl.config import RoleConfig
from crl.policies import load_policy, resolve_model


def main() -> None:
    """Start the server, play once for warming up, play and report. What the server reads is not counted."""
    groups, members, turns, dtype = arguments()
    method = method_of(turns, dtype, wave_groups=groups, group_size=members)
    role = RoleConfig.model_validate(method.role("actor").model_dump() | {"engine": "vllm", "lora": None})
    policy = load_policy(role, resolve_model(MODEL).path, None, threads=2, weights="base")
    try:
        played(policy, method_of(3), slots_of(method, 1, 2))
        report(played(policy, method, slots_of(method, groups, members)))
    finally:
        policy.close()


if __name__ == "__main__":
    main()
