"""In verifiers' own interpreter: lists the tasks of an environment, or plays one of them.

`python play.py SPEC`, where SPEC is JSON: `id` and `args` of the environment, `folder` to import from besides, and
either `list`, a file that the tasks are written to, or `split`, `index` and `digest` of the task to play. What a
rubric says of an episode is written to `OUTCOME` in the folder that this is started in. It imports nothing of the
project, which is not there.
"""

import asyncio
import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

OUTCOME = "crl-outcome.json"
URL, KEY = "CRL_GATEWAY_URL", "CRL_GATEWAY_KEY"
ACTORS_FAULTS = ("EmptyModelResponseError", "ToolParseError")
"""Errors of a rollout that the actor's answer made: it is scored as verifiers scores it."""
_PATIENCE = 10_000_000.0
"""Seconds. How long an answer may take is not this client's affair."""


def loaded(spec: dict[str, Any]) -> Any:
    """The environment. Data sets that are drawn without a seed are the same in each process."""
    import verifiers as vf  # type: ignore[import-not-found]

    sys.path.append(spec["folder"])
    seeded(0)
    return vf.load_environment(spec["id"], **spec["args"])


def seeded(seed: int) -> None:
    """The random generators of the process."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def rows_of(environment: Any, split: str) -> Any:
    """The rows of a split; None where it has none."""
    if split == "eval":
        return None if environment.eval_dataset_source is None else environment.get_eval_dataset()
    return None if environment.dataset_source is None else environment.get_dataset()


def text_of(row: dict[str, Any]) -> str:
    """What a person reads as the task: what users say in its prompt."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    said = [each["content"] for each in prompt if each["role"] == "user"] or [each["content"] for each in prompt]
    return "\n\n".join(each if isinstance(each, str) else json.dumps(each) for each in said)


def digest_of(row: dict[str, Any]) -> str:
    """Of all that a row holds, but its number."""
    data = {name: value for name, value in row.items() if name != "example_id"}
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def listed(spec: dict[str, Any]) -> dict[str, Any]:
    """The tasks of both splits, and what else there is to know."""
    environment, splits = loaded(spec), {}
    for split in ("train", "eval"):
        rows = rows_of(environment, split)
        splits[split] = None if rows is None else [[text_of(row), digest_of(row)] for row in rows]
    return {**splits, "solved": environment.pass_threshold, "groups": environment.requires_group_rollouts}


def played(environment: Any, row: dict[str, Any], url: str, key: str) -> tuple[dict[str, Any], str | None]:
    """What the rubric says of an episode, and the error that ended it."""
    from verifiers.types import ClientConfig  # type: ignore[import-not-found]

    os.environ[KEY] = key
    client = ClientConfig(api_key_var=KEY, api_base_url=url, timeout=_PATIENCE, connect_timeout=60.0, max_retries=0)
    sampling = dict(environment.sampling_args)
    # Asked for by name, for a part of the rubric may be called as one of these.
    columns = ["reward", "metrics", "error", "stop_condition"]
    output = asyncio.run(environment.run_rollout(row, client, "actor", sampling, state_columns=columns))
    error = output["error"]
    parts = {name: float(value) for name, value in (output["metrics"] or {}).items()}
    outcome = {"reward": float(output["reward"] or 0.0), "parts": parts, "stop": output["stop_condition"]}
    if error is None or type(error).__name__ in ACTORS_FAULTS:
        return outcome, None
    causes = []
    while error is not None:
        causes.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return outcome, "\n  by ".join(causes)


def main(spec: dict[str, Any]) -> str | None:
    """An error in words; None where there is none."""
    if "list" in spec:
        Path(spec["list"]).write_text(json.dumps(listed(spec)), encoding="utf-8")
        return None
    # What the environment asks of models of its own is none of the actor's.
    url, key = os.environ.pop("OPENAI_BASE_URL"), os.environ.pop("OPENAI_API_KEY")
    os.environ.pop("OPENAI_API_BASE", None)
    os.environ.update(json.loads(os.environ.pop("CRL_OUTSIDE", "{}")))
    environment = loaded(spec)
    row = rows_of(environment, spec["split"])[spec["index"]]
    if digest_of(row) != spec["digest"]:
        return f"row {spec['index']} of {spec['split']} is not the one that was listed: the data set is another one now"
    seeded(spec["index"])
    outcome, error = played(environment, row, url, key)
    Path(OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")
    return error


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    if said := main(json.loads(sys.argv[1])):
        sys.exit(said)
