"""Makes a warm start: base model, demonstrations, a supervised update, and the record of all of it.

    $CRL_MODELS/warm/<name>/
      actor/ extractor/          ordinary transformers checkpoints: models `warm:<name>/actor`, `warm:<name>/extractor`;
                                 one supervised update teaches both, so they begin equal
      record/*.parquet           every demonstration: tasks, episodes, generations, distillations, operations
      warm_start.json            settings and their digest, digests of the models, figures, versions

It is written beside its place and renamed once; made again from the same file it has the same weights.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
from crl.errors import BadInput
from crl.lab.warm.config import (
    ANSWER_SEEDS,
    EXPERIENCE_SEEDS,
    EXTRACTOR_SEEDS,
    REFLECTION_SEEDS,
    VERDICT_SEEDS,
    WarmStartFile,
    load_warm_start,
)
from crl.lab.warm.rows import WAVE
from crl.lab.warm.words import parts_of, words_of
from crl.policies.machine import computed, replaced, settle_torch
from crl.policies.sources import check_model, directory_digest, name_accelerator, resolve_model, warm_directory
from crl.preflight.numbers import check_ranks, check_threads
from crl.preflight.probe import check_computed
from crl.recipes.complementary.config import ComplementaryConfig
from crl.recipes.complementary.demonstrations import sample_of
from crl.recipes.complementary.ready import check_placeholders
from crl.records import Generation, Row, table_of
from crl.run.seeds import seed_for

if TYPE_CHECKING:
    from crl.protocols import Policy

RECORD = "warm_start.json"
_PACKAGES = ("torch", "transformers", "tokenizers", "trl", "numpy")
_NEW_TOKENS = 24
_WARMUP_STEPS = 100
_BETAS = (0.9, 0.98)
Say = Callable[[str], None]


def make(path: str | Path, *, say: Say = lambda line: None, again: bool = False) -> Path:
    """The directory of the warm start that a file describes, made now if it is not there yet.

    `say` is called with each line of progress. With `again` one that is there is
    replaced. Raises BadInput for a bad file, and where one of other settings is in its place.
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
    from crl.lab.warm.measure import actor_figures, extractor_figures

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
        generations = _actor_record(policy, method, settings, record)
        generations += _extractor_record(policy, method, settings, record)
        generations += _experience_record(policy, method, settings, record)
        say(f"learning from {len(generations)} demonstrations")
        figures: dict[str, Any] = {
            "training": _train(settings, method.role("actor"), base, generations, directory / "actor", say)
        }
    # Both roles begin with the same weights and have their own from the first update on.
    shutil.copytree(directory / "actor", directory / "extractor")
    model = _loaded(method.role("actor"), directory / "actor", settings)
    figures["actor"] = actor_figures(model, method, settings.seed, instructed=settings.actor.instructed > 0)
    figures["extractor"] = extractor_figures(model, model, method, settings.seed)
    for name, told in figures.items():
        say(f"{name}: {_shown(told)}")
    _write_record(settings, directory, figures)


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


def _actor_record(policy: Policy, method: Method, settings: WarmStartFile, record: Path) -> list[Generation]:
    from crl.lab.warm.actor import actor_demonstrations
    from crl.lab.warm.advice import verdict_demonstrations

    waves = actor_demonstrations(policy.chat, method, settings.actor, settings.seed, first_seed=0)
    shown = [each for wave in waves for each in wave]
    _write_rows(record / "actor_tasks.parquet", [each.task for each in shown])
    _write_rows(record / "actor_episodes.parquet", [each.episode for each in shown])
    generations = [each.generation for each in shown]
    if settings.actor.judging:
        generations += verdict_demonstrations(
            policy.chat, method, settings.actor.judging, settings.seed, first_seed=VERDICT_SEEDS
        )
    _write_rows(record / "actor_generations.parquet", generations)
    return generations


def _extractor_record(base: Policy, method: Method, settings: WarmStartFile, record: Path) -> list[Generation]:
    from crl.lab.warm.advice import answer_demonstrations
    from crl.lab.warm.extractor import extractor_demonstrations, merge_demonstrations
    from crl.lab.warm.reflector import reflection_demonstrations

    waves = extractor_demonstrations(base.chat, method, settings.extractor, settings.seed, first_seed=EXTRACTOR_SEEDS)
    results = [each for wave in waves for each in wave]
    generations = [each.generation for each in results]
    generations += merge_demonstrations(
        base.chat, method, settings.extractor, settings.environment.symbols, settings.seed
    )
    if settings.extractor.answers:
        generations += answer_demonstrations(
            base.chat, method, settings.extractor.answers, settings.seed, first_seed=ANSWER_SEEDS
        )
    if settings.extractor.reflections:
        generations += reflection_demonstrations(
            base.chat, method, settings.extractor.reflections, settings.seed, first_seed=REFLECTION_SEEDS
        )
    _write_rows(record / "extractor_distillations.parquet", [each.distillation for each in results])
    _write_rows(record / "extractor_generations.parquet", generations)
    return generations


def _experience_record(base: Policy, method: Method, settings: WarmStartFile, record: Path) -> list[Generation]:
    from crl.lab.warm.experience import experience_demonstrations

    if settings.experience is None:
        return []
    generations = experience_demonstrations(
        base.chat, method, settings.experience, settings.seed, first_seed=EXPERIENCE_SEEDS
    )
    _write_rows(record / "experience_generations.parquet", generations)
    return generations


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table_of(type(rows[0]), rows), path, compression="zstd")


def _train(
    settings: WarmStartFile, role: RoleConfig, base: Path, generations: Iterable[Generation], directory: Path, say: Say
) -> dict[str, float]:
    from crl.learn.warm_start import run_warm_start

    training = settings.training
    deepspeed = role.deepspeed.model_copy(update={"micro_batch": training.batch})
    figures = run_warm_start(
        computed(role.model_copy(update={"deepspeed": deepspeed})),
        base,
        [sample_of(row) for row in generations],
        WarmStartConfig(
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            schedule="cosine",
            warmup_steps=_WARMUP_STEPS,
        ),
        seed=int(seed_for(settings.seed, "training").generate_state(1)[0]),
        threads=settings.threads,
        output_dir=directory,
        on_step=said_in_tenths(say),
    )
    for file in (*base.glob("tokenizer*"), *base.glob("*.jinja"), *base.glob("special_tokens_map.json")):
        shutil.copyfile(file, directory / file.name)
    return figures


def said_in_tenths(say: Say) -> Callable[[int, int, float], None]:
    """Says the step and its loss whenever another tenth of the steps is done: a warm start learns for minutes."""

    def on_step(step: int, steps: int, loss: float) -> None:
        if step * 10 // steps > (step - 1) * 10 // steps:
            say(f"step {step} of {steps}, loss {loss:.3f}")

    return on_step


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


def _write_record(settings: WarmStartFile, directory: Path, figures: dict[str, Any]) -> None:
    content = {
        "settings_digest": settings.digest(),
        "settings": settings.model_dump(mode="json"),
        "models": {role: directory_digest(directory / role) for role in ("actor", "extractor")},
        "figures": figures,
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    (directory / RECORD).write_text(json.dumps(cast(Any, content), indent=2) + "\n", encoding="utf-8")
