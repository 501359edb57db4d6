"""The model card of an exported agent, from the record of its run: what was done, how it went, how it is used.

Nothing in it comes from a model or from a later round: the same round has the same card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from crl.config import FamilyConfig
from crl.errors import RecordDamaged
from crl.policies.hub import HUB_ID
from crl.policies.sources import BUILT_IN, portable_name
from crl.records import Evaluation, Weights, rows_of
from crl.report.markdown import as_text, code
from crl.report.success import averages, condition_results
from crl.rounds.evaluate import recorded_evaluations
from crl.run.directory import RunDirectory
from crl.serve.source import TrainedAgent

_KINDS = {
    "full": "Whole weights, fine-tuned.",
    "adapter": "A LoRA adapter (peft) of its base model.",
    "merged": "A LoRA adapter, merged into its base model.",
    "base": "The base model as it is: this role was not updated.",
}
_RELATIONS = {"full": "finetune", "adapter": "adapter", "merged": "finetune"}
_ROWS = 40
"""Evaluated rounds in the table at most, besides the one that is exported."""


def model_card(run: RunDirectory, agent: TrainedAgent, kind: str, description: Mapping[str, Any], *, best: bool) -> str:
    """`README.md` of an exported agent; `best`: its round was chosen as the best evaluated one."""
    evaluations = {
        number: rows
        for number, rows in recorded_evaluations(run, [each for each in run.rounds() if each <= agent.round]).items()
        if not isinstance(rows, RecordDamaged)
    }
    base, _, revision = str(description["source"]).partition("@")
    front: dict[str, Any] = {
        "library_name": "peft" if kind == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["complementary-rl", "reinforcement-learning", "agent"],
    }
    if HUB_ID.fullmatch(base):
        front |= {"base_model": base}
        front |= {"base_model_relation": _RELATIONS[kind]} if kind in _RELATIONS else {}
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n",
        f"# {as_text(agent.name)}: {agent.role} after round {agent.round}\n\n",
        f"{_KINDS[kind]} It plays text environments{', guided by experiences of its bank' if agent.entries else ''}.\n",
        "\n## Use\n\n", *_use(agent, kind, base, revision),
        "\n## Results on held-out games\n\n", *_results(agent, evaluations),
        "\n## Method\n\n", *_method(agent),
        "\n## Data\n\n", *map(_data, agent.method.families),
        "\n## Models\n\n", *_models(run),
        "\n## Record\n\n",
        f"- digest of the round: `{agent.digest}` (`crl verify RUN --head` compares it with the run)\n",
        f"- digest of the method: `{run.method_digest}`\n",
        f"- weights: `{agent.weights.weights_digest}`, updates: {agent.weights.updates}\n",
        *_episodes(description),
        "\n## Limits\n\n", *_limits(agent, best),
    ]  # fmt: skip
    return "".join(parts)


def _use(agent: TrainedAgent, kind: str, base: str, revision: str) -> Iterator[str]:
    yield "In this project `model: FOLDER` of an experiment goes on with its weights. "
    if agent.entries:
        yield "`crl bank import conf/NAME.yaml FOLDER` begins an experiment with its bank. "
    yield "`experience.json` says how a prompt is put together, `prompts/` has its texts.\n\n```python\n"
    if kind == "adapter" and base in BUILT_IN:
        yield "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        yield "from crl.policies.sources import resolve_model  # the base model comes with this project\n\n"
        yield f'folder = resolve_model("{base}").path\n'
        yield 'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), "FOLDER")\n'
        yield "tokenizer = AutoTokenizer.from_pretrained(folder)\n```\n"
        return
    if kind == "adapter":
        at = f', revision="{revision}"' if revision else ""
        yield "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        yield f'base = AutoModelForCausalLM.from_pretrained("{base}"{at})\n'
        yield 'model = PeftModel.from_pretrained(base, "FOLDER")\n'
    else:
        yield "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        yield 'model = AutoModelForCausalLM.from_pretrained("FOLDER")\n'
    yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```\n'


def _episodes(description: Mapping[str, Any]) -> Iterator[str]:
    if (told := description.get("evaluation")) is not None:
        yield f"- held-out episodes of the round: {told['episodes']}, digest `{told['digest']}`, in "
        yield "`evaluations.parquet`; `crl evaluate FOLDER` plays these games again and compares\n"


def _results(agent: TrainedAgent, evaluations: Mapping[int, Sequence[Evaluation]]) -> Iterator[str]:
    if not evaluations:
        yield "No round was evaluated.\n"
        return
    yield "Share of held-out games won, with its 95 % interval"
    yield ", the mean over the tasks" if len(agent.families) > 1 else ""
    yield f"; sampled at temperature {agent.method.evaluation.temperature:g}.\n\n"
    yield "| round | condition | games | success | interval |\n|---|---|---|---|---|\n"
    shown = set(sorted(evaluations)[:1]) | set(sorted(evaluations)[-_ROWS:])
    for number in sorted(shown):
        for each in averages(condition_results(evaluations[number])):
            yield f"| {number} | {each.condition_words} | {each.episodes} | {each.success.percent} | "
            yield f"{each.success.span} % |\n"
    if len(agent.families) > 1 and agent.round in evaluations:
        yield f"\nBy task, in round {agent.round}:\n\n| task | condition | games | success | interval |\n"
        yield "|---|---|---|---|---|\n"
        for each in condition_results(evaluations[agent.round]):
            yield f"| {as_text(each.task)} | {each.condition_words} | {each.episodes} | {each.success.percent} | "
            yield f"{each.success.span} % |\n"


def _method(agent: TrainedAgent) -> Iterator[str]:
    method, config = agent.method, agent.config
    yield f"- recipe: {code(method.recipe.kind)}, seed {method.seed}, rounds: {agent.round}\n"
    groups = sum(family.groups for family in method.families)
    yield f"- a round: {groups} groups of {method.rollout.group_size} games\n"
    optimizer = config.optimizer
    yield f"- optimizer of the {agent.role}: {optimizer.kind}, learning rate {optimizer.learning_rate:g}\n"
    if config.lora is not None:
        yield f"- LoRA: r {config.lora.r}, alpha {config.lora.lora_alpha:g}\n"
    yield f"- context {config.context} tokens, history {code(str(config.history))}\n"
    if agent.entries:
        use = method.recipe.embedder()
        found = "" if use is None else code(portable_name(use.name))
        yield f"- bank: {len(agent.entries)} experiences, searched by the embedder {found}: the dataset `bank/`\n"
    yield "- the whole method is in `experience.json`\n"


def _data(family: FamilyConfig) -> str:
    held, train = family.evaluation_seeds, family.train_seeds
    digests = "".join(f"; {as_text(key)} `{digest}`" for key, digest in sorted((family.data_digests or {}).items()))
    return (
        f"- {as_text(family.name)}: environment {code(family.environment.kind)}, training seeds {train.start} to "
        f"{train.start + train.count - 1}, held-out seeds {held.start} to {held.start + held.count - 1}{digests}\n"
    )


def _models(run: RunDirectory) -> Iterator[str]:
    for row in rows_of(Weights, run.read(0, "initialize", Weights)):
        yield f"- {as_text(row.role)}: {code(portable_name(row.source))}, SHA-256 `{row.base_digest}`\n"


def _limits(agent: TrainedAgent, best: bool) -> Iterator[str]:
    yield "- The results are of one run, on the held-out seeds above. Nothing was measured elsewhere.\n"
    if best:
        yield "- The round was chosen on these same games as the best evaluated one: its result is optimistic.\n"
    if agent.entries:
        yield "- Experiences are texts of a model. Nobody has checked that they are true.\n"
    if getattr(agent.method.recipe, "actor_critic", None) is not None:
        yield "- In the evaluation the actor judges an experience before it plays. The folder retrieves it unjudged.\n"
    if agent.method.rollout.search_and_ask is not None:
        yield "- In the evaluation the actor may ask the extractor while it plays. The folder does not answer.\n"
    yield "- The license of the base model holds for these weights.\n"
