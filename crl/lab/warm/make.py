"""Makes a warm start: base model, demonstrations, a supervised update, and the record of all of it.

    $CRL_MODELS/warm/<name>/
      actor/ extractor/          ordinary transformers checkpoints: models `warm:<name>/actor`, `warm:<name>/extractor`;
                                 one supervised update teaches both, so they begin equal
      record/*.parquet           every demonstration: tasks, episodes, generations, distillations, operations
      warm_start.json            settings and their digest, digests of the models, metrics, versions

It is written beside its place and renamed once; made again from the same file it has the same weights.

What it taught is measured on held-out practice layouts: success under hints of different worth, truth of experiences.
These are metrics for people, kept in the record of the warm start; nothing is learned from them.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from crl.config import (
    DistillConfig,
    FamilyConfig,
    MergeConfig,
    Method,
    OptimizerConfig,
    RoleConfig,
    RolloutConfig,
    SamplingConfig,
    SeedRange,
    WarmStartConfig,
)
from crl.config.load import listed_errors
from crl.envs import check_environment
from crl.envs.realms import Layout, RealmsEnvironment, experience_text
from crl.errors import BadInput
from crl.extractor.distill import DistillItem, distill_wave
from crl.lab.warm.actor import actor_demonstrations, practice_slots
from crl.lab.warm.advice import STAGE, WAVE, answer_demonstrations, any_two, verdict_demonstrations
from crl.lab.warm.config import (
    ANSWER_SEEDS,
    EXPERIENCE_SEEDS,
    EXTRACTOR_SEEDS,
    REFLECTION_SEEDS,
    VERDICT_SEEDS,
    WarmStartFile,
    load_warm_start,
)
from crl.lab.warm.extractor import extractor_demonstrations, merge_demonstrations
from crl.lab.warm.words import parts_of, words_of
from crl.policies.machine import computed, replaced, settle_torch
from crl.policies.sources import check_model, directory_digest, name_accelerator, resolve_model, warm_directory
from crl.preflight.numbers import check_ranks, check_threads
from crl.preflight.probe import check_computed
from crl.protocols import Chat, Policy
from crl.recipes.complementary.config import ComplementaryConfig, config_of
from crl.records import Generation, Row, table_of
from crl.rollout.play import PlayedEpisode, play_wave
from crl.rounds.demonstrations import sample_of
from crl.rounds.ready import check_placeholders
from crl.run.seeds import seed_for

RECORD = "warm_start.json"
_PACKAGES = ("torch", "transformers", "tokenizers", "trl", "numpy")
_NEW_TOKENS = 24
_WARMUP_STEPS = 100
_BETAS = (0.9, 0.98)
Say = Callable[[str], None]
Hint = Callable[[int, Layout], str | None]
"""From a slot and its layout to the experience that is shown."""


def make(path: str | Path, *, say: Say = lambda line: None, again: bool = False) -> Path:
    """The directory of the warm start that a file describes, made now if it is not there yet.

    `say` is called with each line of progress. With `again` one that is there is replaced. Raises BadInput for a bad
    file, and where one of other settings is in its place.
    """
    from filelock import FileLock

    settings = load_warm_start(path)
    check_warm_start(settings)
    place = warm_directory(settings.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / f".{settings.name}.lock"):
        if _is_there(place, settings, again):
            return place
        temporary = place.parent / f".{settings.name}.partial"
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process that died; the lock is ours
        try:
            temporary.mkdir()
            _make(settings, temporary, say)
            shutil.rmtree(place, ignore_errors=True)
            temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return place


def check_warm_start(settings: WarmStartFile) -> None:
    """Raise BadInput where a warm start cannot be made from these settings on this machine."""
    check_threads(settings.threads, "threads", "lower it")
    check_ranks(settings.deepspeed.ranks, "deepspeed.ranks", "leave it out: one process makes a warm start")
    if settings.model != "miniature":
        check_model(settings.model)
    check_environment(settings.environment)
    try:
        method = practice_method(settings)
    except ValidationError as error:
        raise BadInput(
            f"the warm start {settings.name!r} cannot practice:\n" + "\n".join(listed_errors(error)),
            expected="settings and prompts that fit together",
            next_step="correct what is named above",
        ) from None
    check_placeholders(method)


def _is_there(place: Path, settings: WarmStartFile, again: bool) -> bool:
    try:
        found = json.loads((place / RECORD).read_text(encoding="utf-8"))["settings_digest"]
    except (OSError, ValueError, KeyError):
        return False
    if again or not all((place / role / "config.json").is_file() for role in ("actor", "extractor")):
        return False
    if found == settings.digest():
        return True
    raise BadInput(
        f"a warm start named {settings.name!r} was made from other settings",
        expected=f"settings of digest {settings.digest()[:12]}, found {found[:12]}",
        where=str(place),
        next_step="give the file another name, or replace it: crl warm-start FILE --again",
    )


def _make(settings: WarmStartFile, directory: Path, say: Say) -> None:
    name_accelerator()
    settle_torch(settings.threads)
    record = directory / "record"
    record.mkdir()
    method = practice_method(settings)
    if (said := replaced(method)) is not None:
        say(said)
    with _base(settings) as base:
        if settings.model != "miniature":
            check_computed(base, settings.model, settings.context)
        policy = _loaded(method.role("actor"), base, settings)
        say(f"writing {settings.actor.episodes + settings.extractor.episodes} demonstrations")
        generations = _demonstrations(policy.chat, method, settings, record)
        say(f"learning from {len(generations)} demonstrations")
        metrics: dict[str, Any] = {
            "training": _train(settings, method.role("actor"), base, generations, directory / "actor", say)
        }
    # Both roles begin with the same weights and have their own from the first update on.
    shutil.copytree(directory / "actor", directory / "extractor")
    model = _loaded(method.role("actor"), directory / "actor", settings)
    metrics["actor"] = actor_metrics(model, method, settings.seed, instructed=settings.actor.instructed > 0)
    metrics["extractor"] = extractor_metrics(model, model, method, settings.seed)
    for name, told in metrics.items():
        say(f"{name}: {_shown(told)}")
    _write_record(settings, directory, metrics)


def practice_method(settings: WarmStartFile) -> Method:
    """The method that practice is played and written by: one family, the settings' prompts and sizes."""
    role = RoleConfig(
        model=settings.model,
        context=settings.context,
        sampling=SamplingConfig(max_new_tokens=_NEW_TOKENS),
        optimizer=OptimizerConfig(betas=_BETAS, weight_decay=0.01),
        deepspeed=settings.deepspeed,
    )
    family = FamilyConfig(
        name="practice",
        environment=settings.environment,
        train_seeds=SeedRange(start=0, count=settings.environment.held_out_from),
        evaluation_seeds=SeedRange(start=settings.environment.held_out_from, count=512),
    )
    return Method(
        seed=settings.seed,
        families=[family],
        roles={"actor": role, "extractor": role},
        rollout=RolloutConfig(action_format="word"),
        recipe=ComplementaryConfig(
            distill=DistillConfig(format="lines", max_operations=1, max_characters=80, batch=WAVE),
            merge=MergeConfig(every=0),
        ),
        prompts=settings.prompts,
        threads=settings.threads,
    )


def _loaded(role: RoleConfig, path: Path, settings: WarmStartFile) -> Policy:
    from crl.policies import load_policy

    return load_policy(role, path, None, threads=settings.threads)


@contextmanager
def _base(settings: WarmStartFile) -> Iterator[Path]:
    if settings.model != "miniature":
        yield resolve_model(settings.model).path
        return
    from crl.policies.miniature import write_miniature

    with tempfile.TemporaryDirectory(prefix="crl-miniature-") as directory:
        words = words_of(settings.environment, settings.prompts)
        write_miniature(
            Path(directory), words, seed=settings.seed, parts=parts_of(words), **settings.miniature.model_dump()
        )
        yield Path(directory)


def _demonstrations(chat: Chat, method: Method, settings: WarmStartFile, record: Path) -> list[Generation]:
    """Those of every kind that is asked for; the rows of each are written into the record."""
    from crl.lab.warm.experience import experience_demonstrations
    from crl.lab.warm.reflector import reflection_demonstrations

    seed, actor, extractor = settings.seed, settings.actor, settings.extractor
    played = [each for wave in actor_demonstrations(chat, method, actor, seed, first_seed=0) for each in wave]
    acting = [record for each in played for record in each.generations]
    if actor.verdicts:
        acting += verdict_demonstrations(chat, method, actor.verdicts, seed, first_seed=VERDICT_SEEDS)
    waves = extractor_demonstrations(chat, method, extractor, seed, first_seed=EXTRACTOR_SEEDS)
    distilled = [each for wave in waves for each in wave]
    extracting = [each.generation for each in distilled]
    extracting += merge_demonstrations(chat, method, extractor, settings.environment.symbols, seed)
    if extractor.answers:
        extracting += answer_demonstrations(chat, method, extractor.answers, seed, first_seed=ANSWER_SEEDS)
    if extractor.reflections:
        extracting += reflection_demonstrations(chat, method, extractor.reflections, seed, first_seed=REFLECTION_SEEDS)
    predicting = []
    if settings.experience is not None:
        predicting = experience_demonstrations(chat, method, settings.experience, seed, first_seed=EXPERIENCE_SEEDS)
    for name, rows in (
        ("actor_tasks", [each.task for each in played]),
        ("actor_episodes", [each.episode for each in played]),
        ("actor_generations", acting),
        ("extractor_distillations", [each.distillation for each in distilled]),
        ("extractor_generations", extracting),
        ("experience_generations", predicting),
    ):
        if rows:
            _write_rows(record / f"{name}.parquet", rows)
    return [*acting, *extracting, *predicting]


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table_of(type(rows[0]), rows), path, compression="zstd")


def _train(
    settings: WarmStartFile, role: RoleConfig, base: Path, generations: Iterable[Generation], directory: Path, say: Say
) -> dict[str, float]:
    from crl.learn.warm_start import run_warm_start

    training = settings.training
    deepspeed = role.deepspeed.model_copy(update={"micro_batch": training.batch})
    metrics = run_warm_start(
        computed(role.model_copy(update={"deepspeed": deepspeed})),
        base,
        [sample_of(row) for row in generations],
        WarmStartConfig(
            num_train_epochs=training.num_train_epochs,
            learning_rate=training.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=_WARMUP_STEPS,
        ),
        seed=int(seed_for(settings.seed, "training").generate_state(1)[0]),
        threads=settings.threads,
        output_dir=directory,
        on_step=printed_in_tenths(say),
    )
    for file in (*base.glob("tokenizer*"), *base.glob("*.jinja"), *base.glob("special_tokens_map.json")):
        shutil.copyfile(file, directory / file.name)
    return metrics


def printed_in_tenths(say: Say) -> Callable[[int, int, float], None]:
    """Says the step and its loss whenever another tenth of the steps is done: a warm start learns for minutes."""

    def on_step(step: int, steps: int, loss: float) -> None:
        if step * 10 // steps > (step - 1) * 10 // steps:
            say(f"step {step} of {steps}, loss {loss:.3f}")

    return on_step


def _shown(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())


def _write_record(settings: WarmStartFile, directory: Path, metrics: dict[str, Any]) -> None:
    content = {
        "settings_digest": settings.digest(),
        "settings": settings.model_dump(mode="json"),
        "models": {role: directory_digest(directory / role) for role in ("actor", "extractor")},
        "metrics": metrics,
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    (directory / RECORD).write_text(json.dumps(cast(Any, content), indent=2) + "\n", encoding="utf-8")


def actor_metrics(actor: Policy, method: Method, seed: int, *, instructed: bool) -> dict[str, float]:
    """Success with the whole hint, half of it, none, and a wrong one; where hints were `instructed`, with the whole one
    in place of the instructions."""
    random = np.random.default_rng(seed_for(seed, "wrong"))
    hints: dict[str, Hint] = {
        "full": lambda slot, layout: experience_text(layout.key, layout.goal),
        "partial": lambda slot, layout: f"take {layout.key}",
        "none": lambda slot, layout: None,
        "wrong": lambda slot, layout: experience_text(*any_two(layout.cells, random)),
    }
    played = {kind: _played(actor, method, seed, kind, hint) for kind, hint in hints.items()}
    if instructed:
        played["instructed"] = _played(actor, method, seed, "instructed", hints["full"], as_instructions=True)
    return {
        f"success_{kind}": float(np.mean([each.episode.success for each, _ in shown])) for kind, shown in played.items()
    }


def extractor_metrics(actor: Policy, extractor: Policy, method: Method, seed: int) -> dict[str, float]:
    """Share of sampled experiences that are true, about won and about lost episodes; share of outputs in form."""
    shown = _played(
        actor,
        method,
        seed,
        "notes",
        lambda slot, layout: experience_text(layout.key, layout.goal) if slot % 2 else None,
    )
    results = distill_wave(
        extractor,
        [DistillItem(each.episode, tuple(each.turns)) for each, _ in shown],
        role=method.role("extractor"),
        prompt=method.prompts["distill"],
        config=config_of(method).distill,
        seed_of=lambda distillation_id: seed_for(seed, "test", distillation_id),
        weights_digest="",
        round=0,
    )
    right: dict[bool, list[bool]] = {True: [], False: []}
    for (each, layout), result in zip(shown, results, strict=True):
        for operation in result.operations:
            if operation.text is not None:
                right[each.episode.success].append(operation.text == experience_text(layout.key, layout.goal))
    return {
        "true_about_won": float(np.mean(right[True])) if right[True] else 0.0,
        "true_about_lost": float(np.mean(right[False])) if right[False] else 0.0,
        "in_form": float(np.mean([result.distillation.reason_code == "ok" for result in results])),
    }


def _played(
    actor: Policy, method: Method, seed: int, kind: str, hint: Hint, *, as_instructions: bool = False
) -> list[tuple[PlayedEpisode, Layout]]:
    """Every held-out practice layout, played once under a hint."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    held_out = method.families[0].evaluation_seeds
    seeds = range(held_out.start, held_out.start + held_out.count)
    slots = practice_slots(environment, seeds, lambda slot: hint(slot, environment.layout(slot)), f"test-{kind}")
    played = play_wave(
        actor,
        environment,
        [dataclasses.replace(slot, as_instructions=as_instructions) for slot in slots],
        method=method,
        seed_of=lambda episode_id: seed_for(seed, "test", episode_id),
        sampling=method.role("actor").sampling,
        weights_digest="",
        stage=STAGE,
    )
    return [(each, environment.layout(slot)) for slot, each in enumerate(played)]
