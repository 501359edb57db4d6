"""The same loop over a vLLM server, started for it: the CPU build where there is no GPU (`make vllm`)."""

from __future__ import annotations

from games import Asked, report

from crl.config import RoleConfig
from crl.policies import load_policy, resolve_model


def main() -> None:
    """Start the server, play once for warming up, play and report. What the server reads is not counted."""
    asked = Asked.read()
    role = RoleConfig.model_validate(asked.method().role("actor").model_dump() | {"engine": "vllm", "lora": None})
    policy = load_policy(role, resolve_model(asked.model).path, None, threads=2, weights="base")
    try:
        asked.warm_up(policy)
        report(asked.played(policy))
    finally:
        policy.close()


if __name__ == "__main__":
    main()
