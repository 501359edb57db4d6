"""Writes a trained agent to a folder that others open: transformers or peft, vLLM, and this project.

    config.json, model.safetensors, …       the weights, or an adapter that names its base; tokenizer and chat template
    bank/                                    the bank as a dataset folder (`crl bank export --format huggingface`)
    prompts/all.yaml, prompts/FAMILY.yaml    the prompts, as an experiment file names them
    experience.json                          what it is, how it retrieves and how a prompt is put together (`folder.py`)
    evaluations.parquet                      the held-out episodes of the round (`held_out.py`)
    README.md                                the model card (`card.py`)

The folder appears whole or not at all. It holds no times: the same round gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from crl.config import RECIPES, Method, RecipeConfig
from crl.config.environments import ENVIRONMENTS
from crl.config.models import is_adapter
from crl.engine.evaluation import evaluated_round
from crl.errors import BadInput
from crl.policies.companions import add_companions
from crl.policies.sources import BUILT_IN, named_base, portable_name, write_model
from crl.recipes.complementary.mechanisms.suppression import masked
from crl.recipes.complementary.plan import counters, retrieval_of
from crl.records import RECORD_FORMAT, Weights, rows_of
from crl.rounds.fork import check_round
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file, whole_folder
from crl.run.find import beside
from crl.serve.card import model_card
from crl.serve.folder import BANK, CARD, DESCRIPTION, EPISODES, FORMAT, PROMPTS
from crl.serve.held_out import write_episodes
from crl.serve.source import OfRun, TrainedAgent
from crl.transfer.folder import write_folder
from crl.transfer.gather import gather

_HOW = {
    "query": "{goal}\n{observation}: the task and what is seen first",
    "experience": "the entry with the largest cosine to the query, of those that the task may be guided by",
    "prompt": "the placeholder {experience} of `prompts.actor.experience` takes its text (several are numbered); that "
    "stands at {experience} of `prompts.actor.first` (placement user), or at the end of the system text (system)",
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    description: Mapping[str, Any]
    """`experience.json`."""
    entries: int | None
    """Of the bank; None where there is none."""


def export_agent(
    run_path: Path,
    target: Path,
    round: int | None = None,
    *,
    best: bool = False,
    role: str = "actor",
    merge: bool = False,
) -> Exported:
    """Write the agent of a round to a folder: the newest finished round, unless another or the best evaluated is asked.

    `merge`: an adapter is merged into its base, so that the folder is a model of its own.

    Raises BadInput where the target exists, for a round that is not finished or has no weights any more, for a role
    that is not there, and where there is nothing to merge; DiskFull.
    """
    run = RunDirectory.open(run_path)
    recipe = recipe_in(run)
    number = _finished(run, recipe, round, best=best)
    origin = OfRun(run, recipe, number)
    with TrainedAgent(origin, role) as agent, whole_folder(target) as scratch, beside(run.path):
        kind = _write_weights(agent, scratch, merge=merge)
        bank = gather(run.path, number) if recipe.has_bank else None
        if bank is not None:
            write_folder(bank, scratch / BANK, "huggingface")
        _write_prompts(agent.method, scratch / PROMPTS)
        description = _description(agent, origin, kind)
        if agent.method.owner(role) == agent.method.owner("actor"):
            description["evaluation"] = write_episodes(run, number, scratch / EPISODES)
        (scratch / CARD).write_text(model_card(run, agent, kind, description, best=best), encoding="utf-8")
        files = {
            path.relative_to(scratch).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(scratch.rglob("*"))
            if path.is_file() and path.name != CARD  # people edit cards
        }
        description["files"] = files
        text = json.dumps(description, indent=1, sort_keys=True, ensure_ascii=False)
        (scratch / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
    return Exported(target, description, None if bank is None else bank.provenance["entries"])


def _finished(run: RunDirectory, recipe: Recipe, asked: int | None, *, best: bool) -> int:
    """A round of which all is there: what comes later changes nothing of it."""
    if asked is None and not best:
        number = evaluated_round(run, recipe, None)
        stages = (stage.name for stage in recipe.stages_of(run.method, number))
        asked = number if all(run.is_complete(number, stage) for stage in stages) else max(number - 1, 0)
    number = evaluated_round(run, recipe, asked, best=best)
    check_round(run, recipe, number)
    return number


def _write_weights(agent: TrainedAgent, folder: Path, *, merge: bool) -> str:
    """Write the model; which kind it is."""
    if agent.config.engine.REMOTE:
        raise BadInput(
            f"the model of the {agent.role} is behind an endpoint: its weights are not here",
            expected="a role whose model is on this machine",
            next_step="`crl bank export` writes the bank alone",
        )
    weights, base = agent.weights, agent.base
    checkpoint = agent.checkpoint
    adapter = checkpoint is not None and is_adapter(checkpoint)
    if merge and not adapter:
        raise BadInput(
            f"the {agent.role} of round {agent.round} has no adapter to merge",
            expected="a role with `lora` that was updated",
            next_step="leave --merge out: its weights are whole",
        )
    if checkpoint is None:  # the base model as it is
        write_model(base, folder)
        add_companions(folder, base, weights.base_digest, agent.config)
        return "base"
    write_model(checkpoint, folder, base if merge else None)
    if adapter and not merge and weights.source in BUILT_IN:
        for file in folder.glob("tokenizer*"):  # the base's own, and larger than a small adapter
            file.unlink()
    return "merged" if merge else "adapter" if adapter else "full"


def _write_prompts(method: Method, folder: Path) -> None:
    folder.mkdir()
    own = {family.name: family.prompts for family in method.families if family.prompts is not None}
    for name, prompts in {"all": method.prompts, **own}.items():
        plain = {each: prompt.model_dump(mode="json", exclude_defaults=True) for each, prompt in prompts.items()}
        text = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True, width=120)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def _description(agent: TrainedAgent, origin: OfRun, kind: str) -> dict[str, Any]:
    weights, use = agent.weights, agent.method.recipe.embedder()
    base, revision = named_base(weights.source, agent.base, weights.base_digest)
    description: dict[str, Any] = {
        "format": FORMAT,
        "format_version": RECORD_FORMAT,
        "experiment": agent.name,
        "round": agent.round,
        "digest": agent.digest,
        "role": agent.role,
        "kind": kind,
        "source": base if revision is None or revision.startswith("sha256:") else f"{base}@{revision}",
        "base_digest": weights.base_digest,
        "weights_digest": weights.weights_digest,
        "updates": weights.updates,
        "embedder": None,
        "method": _portable(agent.method),
    }
    if use is not None and origin.guides:
        of_run = rows_of(Weights, origin.run.read(0, "initialize", Weights))
        digest = next(row.base_digest for row in of_run if row.role == "embedder")
        counts = counters(origin.context, "plan")
        description |= {
            "embedder": {"name": portable_name(use.name), "digest": digest},
            "counts": [(row.entry_id, row.count, row.last_round) for row in counts],
            "suppressed": sorted(
                (family, text) for family, texts in masked(origin.context, training=False).items() for text in texts
            ),
            "how": {**_HOW, "placement": agent.method.rollout.placement},
            "retrieval": retrieval_of(agent.method, training=False).model_dump(mode="json", exclude={"embedder"}),
        }
    return description


def _portable(method: Method) -> dict[str, Any]:
    """The method without what is of this machine, or only of training: paths, servers, recorded games, lists of tasks.

    Of an environment that is not the library's own its name is told: nobody else could make it from here.
    """
    plain = method.model_dump(mode="json")
    for role in plain["roles"].values():
        role.pop("engine", None)
        role["model"] = portable_name(role["model"])
    recipe = plain["recipe"] = _known(method.recipe)
    if recipe.get("warm_start") is not None:
        recipe["warm_start"] = None
    if isinstance(retrieval := recipe.get("retrieval"), dict):
        retrieval["embedder"] = portable_name(retrieval["embedder"])
    for family in plain["families"]:
        settings = family["environment"]
        if settings["kind"] not in ENVIRONMENTS.built_in():
            family["environment"] = {name: settings.get(name) for name in ("kind", "held_out_from")}
        family.pop("train_tasks", None)
    return plain


def _known(recipe: RecipeConfig) -> dict[str, Any]:
    """A recipe as one that others have: a class of this machine as the registered one that is nearest to it."""
    plain, kinds = recipe.model_dump(mode="json"), {kind: RECIPES.load(kind) for kind in RECIPES.names()}
    for ancestor in takewhile(lambda each: each is not RecipeConfig, type(recipe).__mro__):
        for kind, known in kinds.items():
            if issubclass(known, ancestor):
                own = {name: value for name, value in plain.items() if name in known.model_fields}
                return own | {"kind": recipe.kind if recipe.kind in kinds else kind}
    return plain
