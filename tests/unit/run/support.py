"""A small experiment, and stages written without any model: what the tests of the record build on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from crl.config import Experiment
from crl.records import BankText, Metric, Row, Weights, table_of
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.lease import Lease
from crl.run.manifest import Manifest

ORDER = ("plan", "collect", "update_actor")


def stages_of(round_number: int) -> tuple[str, ...]:
    """The stages of any round."""
    return ORDER


SHA = "0" * 64


def experiment(name: str = "small", **method: Any) -> Experiment:
    prompt = {"system": "s", "first": "{goal}"}
    content = {
        "families": [{"name": "lake", "environment": {"kind": "frozenlake"}}],
        "roles": {"actor": {"model": "tiny"}, "extractor": {"model": "tiny"}},
        "prompts": {"actor": prompt, "distill": prompt, "merge": prompt},
        **method,
    }
    return Experiment.model_validate({"name": name, "method": content})


def rows(row_type: type[Row], round_number: int, stage: str) -> list[Any]:
    if row_type is Metric:
        return [
            Metric(round=round_number, stage=stage, name=f"metric {i}", value=i / 7 + round_number, alarm=None)
            for i in range(50)
        ]
    if row_type is BankText:
        text = f"text of round {round_number}"
        return [BankText(content_digest=hashlib.sha256(text.encode()).hexdigest(), text=text)]
    raise AssertionError(row_type)


def write_stage(
    run: RunDirectory, round_number: int, stage: str, inputs: list[tuple[int, str]], token: int
) -> Manifest:
    """One of three kinds of stage: plain rows; rows and a shared bank file; a checkpoint with its weights row."""
    with run.begin(round_number, stage, token=token) as writer:
        writer.write(Metric, table_of(Metric, rows(Metric, round_number, stage)))
        if stage == "collect":
            content = f"bank of round {round_number}".encode() * 20
            writer.share(f"bank/segments/{hashlib.sha256(content).hexdigest()}.parquet", content)
        if stage.startswith("update"):
            checkpoint = writer.directory / "checkpoint"
            (checkpoint / "optimizer").mkdir(parents=True)
            (checkpoint / "model.bin").write_bytes(bytes([round_number % 256]) * 5000)
            (checkpoint / "optimizer" / "state.bin").write_bytes(bytes([round_number % 251]) * 3000)
            place = f"rounds/{round_number:04d}/{stage}/checkpoint"
            writer.write(Weights, table_of(Weights, [weights_row(round_number, place)]))
        return writer.commit(
            inputs=inputs, method_digest=run.method_digest, seed=[0, round_number], provenance={"command": "test"}
        )


def weights_row(round_number: int, checkpoint: str) -> Weights:
    return Weights(
        role="actor", round=round_number, updates=round_number, source="tiny", base_digest=SHA,
        checkpoint=checkpoint, weights_digest=SHA,
    )  # fmt: skip


def inputs_of(round_number: int, stage: str) -> list[tuple[int, str]]:
    before = [(round_number - 1, "update_actor")] if round_number > 1 else []
    return {
        "plan": before,
        "collect": [(round_number, "plan"), *before],
        "update_actor": [(round_number, "collect"), *before],
    }[stage]


def resume(run: RunDirectory, rounds: int, token: int) -> list[str]:
    """Make whatever stages of `rounds` rounds are missing, told in the journal as a driver does; returns their keys."""
    made = []
    journal = Journal(run.path)
    for number in range(1, rounds + 1):
        for stage in ORDER:
            if not run.is_complete(number, stage):
                journal.record("stage_started", token=token, round_number=number, stage=stage)
                done = write_stage(run, number, stage, inputs_of(number, stage), token)
                journal.record("stage_committed", token=token, round_number=number, stage=stage, digest=done.digest)
                made.append(f"{number:04d}/{stage}")
    return made


def finished_run(root: Path, rounds: int = 2, name: str = "small") -> RunDirectory:
    """A complete run whose lease was given back."""
    run = RunDirectory.create_or_open(experiment(name), root)
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, rounds, lease.token)
    return run


def digests(run: RunDirectory) -> dict[str, str]:
    return {
        f"{number:04d}/{stage}": run.manifest(number, stage).digest
        for number in run.rounds()
        for stage in run.complete_stages(number)
    }


def leftovers(run: RunDirectory) -> list[Path]:
    """Anything temporary."""
    return [path for path in run.path.rglob(".*") if path.name.startswith((".tmp-", ".parts-"))]
