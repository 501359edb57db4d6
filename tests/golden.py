"""Golden runs: what a large move of code must leave equal. Rows, prompts, metrics and weights of small runs.

Record all of them at the first commit, and all or some at every later one; then compare:

    cd FIRST_TREE && PYTHONPATH=$PWD .venv/bin/python OF/golden.py record /tmp/first
    cd OTHER_TREE && PYTHONPATH=$PWD .venv/bin/python OF/golden.py record /tmp/now tiny trial
    .venv/bin/python OF/golden.py compare /tmp/first /tmp/now tiny trial

`record` runs the tree that is first on PYTHONPATH by its command line, and reads nothing but files. This script imports
nothing of `crl`: one copy of it records any commit. Each run is in FOLDER/NAME; one that is there already, of the same
settings, is kept, so a folder is for one commit. Forks need the run they come from, which is recorded with them. All
take 10 minutes on two quiet cores; GOLDEN_SIDE_BY_SIDE is how many are made at one time (2).

`compare` takes the rows of a round together by table, whatever stage wrote them, and counts duplicates. Order, names of
files and clock times are no part of it. Prompts, outputs and token ids are columns of `generations` and `turns`. What
is on one side only is a difference, be it a row, a column or, where no names are given, a run. The exit code is then 1.
What has been renamed since the first commit stands in the four tables below.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TREE = Path(os.environ.get("PYTHONPATH", "").split(os.pathsep)[0] or Path(__file__).parents[1]).resolve()
SIDE_BY_SIDE = int(os.environ.get("GOLDEN_SIDE_BY_SIDE", "2"))
SHOWN = 5
"""Differences of a table that are printed."""

NOT_COMPARED = {
    "metrics": {"stage"},  # a mechanism's metrics may move to a stage of its own
    "weights": {"checkpoint"},  # paths
    "bank": {"segment", "embedding_file"},
    "bank_changes": {"segment", "embedding_file"},
    "bank_texts": {"segment", "embedding_file"},
}
"""Columns by table."""
RENAMED_SETTINGS = {
    "'ratio': 'sequence'": "'importance_sampling_level': 'sequence_product'",
    "'normalize': 'mean'": "'scale_rewards': 'none'",
    "'aggregation': 'token_mean'": "'loss_type': 'grpo'", "'aggregation': 'token_sum'": "'loss_type': 'token_sum'",
    "'correction': {'kind': 'mask'}": "'importance_sampling_correction': {'mode': 'token_mask', 'clip_min': 0.5}",
    "objective.correction': {'kind': 'truncate'}":
        "objective.importance_sampling_correction': {'mode': 'token_truncate'}",
    "objective.kl'": "objective.beta'", "warm_start.epochs'": "warm_start.num_train_epochs'",
    "'notes': 6, 'holds': 1": "'max_experiences': 6, 'reuse_rounds': 1",
    "'uses': 2, 'sureness': 0.0, 'below'": "'min_uses': 2, 'standard_errors': 0.0, 'max_effect'",
    "'longest_output'": "'max_output_characters'", "'tell_missing'": "'show_missing'",
}  # fmt: skip
"""Parts of settings' names and values, older to newer: a run that was recorded by the older is the same run."""
RENAMED_TABLES: dict[str, str] = {"judgments": "critiques"}
"""Older to newer names."""


def _listed(row: dict[str, Any]) -> None:
    """What guided an episode and what it was sampled in are lists; the first of a list has no column."""
    for column in ("entry_id", "content_digest", "experience"):
        row.pop(column, None)
    if "generation_id" in row:
        row["generation_ids"] = [row.pop("generation_id")]


def _critique(row: dict[str, Any]) -> None:
    """Stage `judge` is `critique`; ids of its generations, and the seeds of its verdicts, derive from the name."""
    row["generation_id"] = re.sub("-judge$", "-critique", row["generation_id"])
    if row.get("stage") == "judge":
        row["stage"] = "critique"


def _experience(note: re.Match[str]) -> str:
    return note.group().replace("note", "experience")


def _metric(row: dict[str, Any]) -> None:
    row["name"] = {"sequences": "rollouts"}.get(row["name"], row["name"])
    row["name"] = re.sub(r"(?<=_)note(?=$)|(?<=_)notes(?=$)|notes(?=_)", _experience, row["name"])
    if row["alarm"] is not None:
        row["alarm"] = row["alarm"].replace("are shown unjudged", "are shown as they are")
        row["alarm"] = row["alarm"].replace("below the floor of", "below the minimum of")
        row["alarm"] = re.sub(r"\bnotes?\b", _experience, row["alarm"])


def _condition(row: dict[str, Any]) -> None:
    _listed(row)
    if "arm" in row:
        row["condition"] = row.pop("arm")


BROUGHT_UP: dict[str, Callable[[dict[str, Any]], None]] = {
    "episodes": _listed, "evaluations": _condition, "evaluations/evaluations": _condition, "again": _condition,
    "metrics": _metric,
    "critiques": _critique, "generations": _critique,
}  # fmt: skip
"""By table (its newer name), what makes a newer row of an older one, in place; it leaves newer rows as they are."""
RENAMED_OR_GONE: dict[tuple[str, str], str] = {
    ("turns", "generation_id"): "a turn names the sequence that it is in; an episode had one",
    ("tasks", "task_digest"): "what a level holds: added",
    ("episodes", "task_digest"): "what a level holds: added",
}
"""(table, column), or (table, "") for all of it: the reason why it is on one side only. Known to be so, and counted as
equal."""

PATIENT = {"runtime.keep_every": 1, "runtime.retry_delay_seconds": 0.1, "runtime.validate_every": 0}
TINY = "conf/tiny.yaml"
SHORT = {
    "method.recipe.warm_start.actor_episodes": 32,
    "method.recipe.warm_start.extractor_episodes": 24,
    "method.recipe.warm_start.learning_rate": 5.0e-3,
    "method.families.0.evaluation_seeds.count": 2,
}
"""A preparation of seconds after which the tiny model writes notes."""
ALL_NOTES = {"method.recipe.retrieval.threshold": -1.0}
RECIPE, BUFFERED = "method.recipe.", "method.recipe.extractor_objective."
PLAYED = ("tasks", "episodes", "turns", "generations", "samples", "metrics", "evaluations", "weights")
BANKED = (*PLAYED, "distillations", "operations", "bank_events", "retrievals", "credits")
NOTED = (*BANKED, "buffer")


@dataclass(frozen=True)
class Golden:
    """A run: an experiment file, or a fork of another run."""

    tables: Sequence[str]
    """Must have rows, so that it is not about nothing."""
    settings: dict[str, Any] = field(default_factory=dict)
    config: str = TINY
    rounds: int = 2
    fork_of: str | None = None
    fork_round: int = 0
    fork_options: Sequence[str] = ()
    before: Callable[[Runner], None] | None = None
    """What is done before it is trained."""
    after: Callable[[Runner], None] | None = None
    codes: Sequence[int] = (0,)
    """Exit codes of training that are right."""
    needs: Sequence[str] = ()
    """Runs that must be there, besides the one it is forked from."""
    prefect: bool = False

    def what_it_is(self) -> str:
        """Told by what decides its rows: one that was recorded by other settings is recorded again."""
        return repr((self.config, self.rounds, self.settings, self.fork_of, self.fork_round, self.fork_options))


class Runner:
    """Commands of one golden run, in its folder."""

    def __init__(self, root: Path, name: str, golden: Golden) -> None:
        self.root, self.name, self.golden, self.folder = root, name, golden, root / name
        self.run = self.folder / "runs" / name

    def crl(self, *words: object, codes: Sequence[int] = (0,), typed: str | None = None) -> str:
        """Run `crl …`; what it says is kept in the folder."""
        line = [sys.executable, "-m", "crl", *map(str, words)]
        done = subprocess.run(
            line, cwd=TREE, env=self.environment(), input=typed, capture_output=True, text=True, check=False
        )
        said = f"$ {shlex.join(line)}\n{done.stdout}{done.stderr}"
        with (self.folder / "said.txt").open("a", encoding="utf-8") as file:
            file.write(said)
        if done.returncode not in codes:
            raise RuntimeError(f"exit code {done.returncode}, expected {codes}: {said[-3000:]}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        """One thread, no network, nothing that a user has set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CRL_", "PREFECT_"))}
        return {
            **kept, "PYTHONPATH": str(TREE), "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false",
            "CRL_RUNS": str(self.folder / "runs"), "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }  # fmt: skip

    def settings(self) -> list[str]:
        """As `--set` options."""
        pairs = {"name": self.name, **PATIENT, **self.golden.settings}
        if self.golden.fork_of is not None:
            pairs = self.golden.settings
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs.items()}
        texts = {key: text.replace("FOLDER", str(self.folder)) for key, text in texts.items()}
        return [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]

    def record(self) -> None:
        """Make it, and see that it is about something."""
        golden = self.golden
        done, what_it_is = self.folder / "done", golden.what_it_is()
        if done.exists() and done.read_text(encoding="utf-8") == what_it_is:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "runs").mkdir(parents=True)
        if golden.fork_of is not None:
            shutil.copytree(self.root / golden.fork_of / "runs" / golden.fork_of, self.run.parent / golden.fork_of)
        if golden.before is not None:
            golden.before(self)
        if golden.fork_of is None:
            what = ["train", golden.config, "--prefect" if golden.prefect else "--no-prefect", *self.settings()]
        else:
            where = ["--round", golden.fork_round, "--name", self.name]
            self.crl("fork", golden.fork_of, *where, *golden.fork_options, *self.settings())
            shutil.rmtree(self.run.parent / golden.fork_of)
            what = ["resume", self.name]
        self.crl(*what, "--rounds", golden.rounds, codes=golden.codes)
        if golden.after is not None:
            golden.after(self)
        filled = {table for (_, table), rows in rows_of(self.folder).items() if rows}
        missing = [table for table in golden.tables if table not in filled]
        if missing:
            raise RuntimeError(f"no rows of {', '.join(missing)}; rows of {', '.join(sorted(filled))}")
        done.write_text(what_it_is, encoding="utf-8")


# -- what some runs do besides --------------------------------------------------------------------------------------


def _approve(runner: Runner) -> None:
    """A person refuses the first operation of every round that is waiting."""
    for number in range(1, runner.golden.rounds + 1):
        shown = re.findall(r"\b\S+-o\d+\b", runner.crl("approve", runner.name, "--show"))
        runner.crl("approve", runner.name, "--reject", min(shown), "--person", "golden", "--reason", "wrong")
        runner.crl("resume", runner.name, codes=(6,) if number < runner.golden.rounds else (0,))


def _export_and_import(runner: Runner) -> None:
    """Begin with the bank of `tiny`, by way of an export."""
    folder = runner.folder / "exported"
    runner.crl("bank", "export", runner.root / "tiny/runs/tiny", "--to", folder, "--round", 2)
    runner.crl("bank", "import", TINY, folder, *runner.settings())


def _evaluate_again(runner: Runner) -> None:
    """Other seeds, an older round, a table of its own."""
    more = ("--seeds", "2000000:3", "--out", runner.folder / "again.parquet")
    runner.crl("evaluate", runner.name, "--round", 1, *more)
    runner.crl("evaluate", runner.name, "--conditions", "with")


def _play(*said: str) -> Callable[[Runner], None]:
    """Games whose answers are moves, and questions to whom may ask, or verdicts where the actor is a critic."""

    def play(runner: Runner) -> None:
        typed = "".join(f"{said[(number // 3) % len(said)]}\n" for number in range(96))
        options = [word for key, value in LAKE.items() if key != "kind" for word in ("--set", f"{key}={value}")]
        runner.crl("env", "play", "frozenlake", *options, "--record", runner.folder / "games.jsonl", typed=typed)

    return play


def _repositories(runner: Runner) -> None:
    """Four repositories of one file that adds instead of subtracting, with a fix and its test, in SWE-Bench's form."""
    rows = []
    # Commits are named by their times, too.
    when = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}
    whose = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "init.defaultBranch=main")
    told: dict[str, Any] = {"env": {**os.environ, **when}, "check": True, "capture_output": True, "text": True}
    for number in range(4):
        place = runner.folder / f"someone/less{number}"
        place.mkdir(parents=True)

        def git(*words: str, place: Path = place) -> str:
            return str(subprocess.run(["git", *whose, *words], cwd=place, **told).stdout)

        (place / "less.py").write_text(f"def less(a, b):\n    return a + b  # {number}\n", encoding="utf-8")
        (place / "test_less.py").write_text("def test_old():\n    assert True\n", encoding="utf-8")
        for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=first")):
            git(*words)
        row = {"instance_id": f"less-{number}", "repo": f"someone/less{number}", "version": "1.0"}
        row |= {"base_commit": git("rev-parse", "HEAD").strip(), "problem_statement": f"less(2, 1) is 3 ({number})."}
        row |= {"FAIL_TO_PASS": '["test_less.py::test_new"]', "PASS_TO_PASS": '["test_less.py::test_old"]'}
        (place / "less.py").write_text(f"def less(a, b):\n    return a - b  # {number}\n", encoding="utf-8")
        row["patch"] = git("diff")
        git("checkout", "--quiet", ".")
        new = "from less import less\n\n\ndef test_old():\n    assert True\n\n\n"
        new += "def test_new():\n    assert less(2, 1) == 1\n"
        (place / "test_less.py").write_text(new, encoding="utf-8")
        row["test_patch"] = git("diff")
        git("checkout", "--quiet", ".")
        rows.append(json.dumps(row) + "\n")
    (runner.folder / "rows.jsonl").write_text("".join(rows), encoding="utf-8")


# -- the runs -------------------------------------------------------------------------------------------------------

LAKE = {"kind": "frozenlake", "size_min": 3, "size_max": 3, "frozen_probability": 0.8, "max_turns": 6}
SMALL_PROMPTS = {
    "actor": {
        "system": "Answer with one action.", "first": "{goal}\n{experience}{observation}\n",
        "following": "{feedback}{observation}\n", "experience": "Advice: {experience}\n",
    },
    "distill": {
        "system": "Answer with ADD: text, UPDATE: text or RETURN.",
        "first": "{goal}\nAdvice: {experience}\n{trajectory}\n{outcome}\n",
    },
    "merge": {"system": "Answer with KEEP n, MERGE n,m: text or DROP n.", "first": "{entries}\n"},
    "ask": {
        "system": "Answer.", "first": "{goal}\n{experience}\n{observation}\n{question}\n", "offer": "You may ask.\n",
    },
    "critic": {
        "system": "Answer with one action.", "first": "{goal}\nAdvice: {experience}\n{observation} {success_rate}\n",
    },
}  # fmt: skip

PLAYED_BY_HAND = {
    **SHORT, "method.families.0.environment": LAKE, "method.prompts": SMALL_PROMPTS,
    "method.rollout.placement": "system", "method.roles.actor.sampling.max_new_tokens": 14,
    RECIPE + "warm_start.demonstrations": "recorded", RECIPE + "warm_start.recorded": "FOLDER/games.jsonl",
    RECIPE + "warm_start.num_train_epochs": 20,
}  # fmt: skip
"""A warm start from games that were recorded."""


def fork(*tables: str, **more: Any) -> Golden:
    """A fork of `tiny` after its preparation, with other mechanisms."""
    return Golden((*NOTED, *tables), **{"fork_of": "tiny", **more})


def world(*tables: str, before: Callable[[Runner], None] | None = None, **environments: dict[str, Any]) -> Golden:
    """The same in other task families."""
    families = [
        {
            "name": name, "environment": {key: value for key, value in environment.items() if key != "family"},
            "groups": 1, "evaluation_seeds": {"start": 1_000_000, "count": 1}, **environment.get("family", {}),
        }
        for name, environment in environments.items()
    ]  # fmt: skip
    settings = {
        "method.families": families, "method.rollout.group_size": 2, "method.rollout.mixed_waves": True,
        "method.roles.actor.sampling.max_new_tokens": 12, "method.evaluation.every": 2, RECIPE + "warm_start": None,
    }  # fmt: skip
    return fork(*tables, settings={**settings, **ALL_NOTES}, before=before)


def credit(rule: str, *tables: str, **settings: Any) -> Golden:
    """Another rule of credit; `settings` of the recipe have `__` for the dot."""
    more = {RECIPE + key.replace("__", "."): value for key, value in settings.items()}
    return fork(*tables, rounds=3, settings={BUFFERED + "credit": rule, BUFFERED + "batch": 4, **ALL_NOTES, **more})


RUNS: dict[str, Golden] = {
    "tiny": Golden(NOTED, SHORT),
    # Other recipes.
    "erl": Golden((*PLAYED, "reflections"), config="conf/erl_tiny.yaml"),
    "dreamgym": Golden((*PLAYED, "transitions", "predictions", "pool"), config="conf/dreamgym_tiny.yaml"),
    "importance_replay": Golden(
        (*PLAYED, "replay", "replay_draws", "improvements", "probe_pairs"), config="conf/importance_replay_tiny.yaml"
    ),
    "replay_uniform": Golden(
        (*PLAYED, "replay", "replay_draws"), {RECIPE + "weighting": "uniform", RECIPE + "buffer.steps": 2},
        config="conf/importance_replay_tiny.yaml", rounds=1,
    ),
    "erl_more": Golden(
        (*PLAYED, "reflections"),
        {RECIPE + "revisions": 2, RECIPE + "gate": "null", RECIPE + "memory.order": "recency",
         RECIPE + "objective.beta": 0, RECIPE + "approve_bank": True},
        config="conf/erl_tiny.yaml", codes=(6,), after=_approve,
    ),
    "dreamgym_more": Golden(
        (*PLAYED, "transitions", "predictions", "pool", "dream_tasks"),
        {RECIPE + "explore.policy": "actor", RECIPE + "store.search": "both", RECIPE + "synthetic_rounds": 1,
         RECIPE + "curriculum": {"rule": "capability", "share": 0.5}},
        config="conf/dreamgym_tiny.yaml",
    ),
    "baseline": Golden(
        PLAYED,
        {RECIPE + "self_distillation": {"episodes": "all_wins"}, RECIPE + "actor_objective.advantage": "pooled"},
        fork_of="tiny", fork_options=("--recipe", "baseline"),
    ),
    "static_online": Golden(BANKED, ALL_NOTES, fork_of="tiny", fork_options=("--recipe", "static_online")),
    "experience_only": fork(fork_options=("--recipe", "experience_only"), settings=ALL_NOTES),
    "offline_bank": Golden(
        BANKED, {RECIPE + "warm_up_rounds": 1, **ALL_NOTES}, fork_of="tiny",
        fork_options=("--recipe", "offline_bank"),
    ),
    # Mechanisms.
    "trial": fork(
        "trials", "trial_results",
        settings={RECIPE + "trial": {"layouts": 2, "threshold": 0.0, "max_experiences": 6, "reuse_rounds": 1},
                  **ALL_NOTES},
    ),
    "trial_screen": Golden(
        (*PLAYED, "trials", "trial_results"), {RECIPE + "trial": {"layouts": 3, "threshold": 0.25, "screen": 1}},
        fork_of="tiny", rounds=1,
    ),
    "suppress": fork(
        "trials", "text_effects", "suppressions", rounds=3,
        settings={RECIPE + "suppress": {"min_uses": 2, "standard_errors": 0.0, "max_effect": 1.5, "decay": 0.9},
                  RECIPE + "trial": {"layouts": 1, "threshold": -1, "reward": "uses"}, **ALL_NOTES,
                  RECIPE + "retrieval.per": "group"},
    ),
    "approve": fork(
        "approvals", "trials", "trial_results", codes=(6,), after=_approve,
        settings={RECIPE + "trial": {"layouts": 2, "threshold": -0.5, "reward": "both"},
                  RECIPE + "approve_bank": True, RECIPE + "bank": {"duplicates": "near", "similarity": 0.8},
                  **ALL_NOTES},
    ),
    "guided_minus_free": credit(
        "guided_minus_free", "use_rewards", "stripped_contexts", self_distillation={"episodes": "wins"},
    ),
    "running_usefulness": credit(
        "running_usefulness", "use_rewards", "entry_usefulness", bank={"capacity": 8, "eviction": "least_useful"},
        merge={"every": 1, "chunk": 3, "scope": "bank", "carry": "all"},
    ),
    "other_tasks": credit(
        "other_tasks", "use_rewards", extractor_objective__malformed_reward="none", extractor_objective__baseline="all",
        extractor_objective__return_reward="free_mean", bank__duplicates="keep", distill__episodes="guided",
    ),
    "trend": credit(
        "trend", "candidate_utilities", retrieval__per="group", retrieval__top_k=2, retrieval__scope="bank",
        guided_share_end=0.75, guided_share_rounds=2,
        merge={"every": 1, "candidates": "near_duplicates", "similarity": 0.3}, retrieval__diversify_evaluation=True,
    ),
    "objectives": fork(
        "stripped_contexts",
        settings={
            RECIPE + "actor_objective": {
                "importance_sampling_level": "sequence_product", "loss_type": "token_sum", "scale_rewards": "none",
                "importance_sampling_correction": {"mode": "token_mask", "clip_min": 0.5},
            },
            RECIPE + "self_distillation": {"every": 2, "episodes": "beats_free", "weight": 0.5},
            BUFFERED + "return_reward": 0.5, BUFFERED + "alpha": 1.0, BUFFERED + "delta": 0, BUFFERED + "batch": 4,
            BUFFERED + "importance_sampling_correction": {"mode": "token_truncate"}, **ALL_NOTES,
        },
    ),
    "overlap": fork(rounds=3, settings={"method.overlap": True, **ALL_NOTES}),
    "recorded": Golden(
        PLAYED, PLAYED_BY_HAND, rounds=1, before=_play("ASK: down", "REFINE: right", "ASK: left", "REFINE: up")
    ),
    "asking": fork(
        "questions", "stripped_contexts", fork_of="recorded",
        settings={RECIPE + "self_distillation": {"episodes": "wins"}, **ALL_NOTES,
                  "method.rollout.search_and_ask": {"uses": 2, "train_answers": True}},
    ),
    "judging": Golden(
        (*NOTED, "critiques", "success_rates", "use_rewards"),
        {**PLAYED_BY_HAND, RECIPE + "actor_critic": {}, BUFFERED + "batch": 4, **ALL_NOTES},
        before=_play("REFINE: right", "REFINE: up", "REFINE: left"), rounds=3,
    ),
    "shared": Golden(
        NOTED,
        {**SHORT, RECIPE + "warm_start.actor_episodes": 0, BUFFERED + "batch": 4, BUFFERED + "baseline": "all",
         "method.roles.extractor": {"weights": "actor", "context": 2048, "sampling": {"max_new_tokens": 48}},
         **ALL_NOTES},
    ),
    "quickstart": Golden(
        NOTED,
        {"method.roles.actor.model": "tiny", "method.roles.extractor.model": "tiny", "method.threads": 1,
         "method.roles.actor.sampling.max_new_tokens": 12, "method.roles.extractor.sampling.max_new_tokens": 96,
         "method.roles.extractor.lora": None, "method.families.0.repeat": 2, "method.families.0.groups": 2,
         "method.families.0.evaluation_seeds.count": 1, BUFFERED + "batch": 4, **ALL_NOTES, RECIPE + "warm_start": {
             "demonstrations": "practice", "actor_episodes": 32, "extractor_episodes": 64, "extractor_merges": 8,
             "num_train_epochs": 8, "learning_rate": 5.0e-3}},
        config="conf/quickstart.yaml", rounds=3,
    ),
    # Ways to begin.
    "fork_kept": fork(
        "use_rewards", fork_round=1, rounds=1, fork_options=("--keep-rollouts",), after=_evaluate_again,
        settings={BUFFERED + "credit": "guided_minus_free", RECIPE + "bank.duplicates": "near"},
    ),
    "import": Golden(
        (*NOTED, "imported_entries"),
        {**SHORT, **ALL_NOTES, RECIPE + "warm_start.demonstrations": "random", "runtime.shards": 2},
        rounds=1, before=_export_and_import, needs=("tiny",), prefect=True,
    ),
    # Worlds.
    "worlds": world(
        "raw_rewards",
        boxes={"kind": "sokoban", "boxes": 1, "solution_max": 3, "max_turns": 3},
        masked={"kind": "frozenlake", "size_min": 2, "size_max": 3, "masked": True, "max_turns": 3,
                "family": {"reward": {"success": 1, "failure": -1}, "bank": {"partition": "shared"}}},
        realm={"kind": "realms", "longest_path": 2, "max_turns": 2, "held_out_moves": 1, "family": {
            "changes": [{"round": 2, "environment": {"version": 1}}], "sampling": {"constrain": "actions"}}},
        shrine={"kind": "shrines", "steps": 2, "max_turns": 2,
                "family": {"reward": {"scale": 2, "shift": -1}, "bank": {"partition": "shared", "capacity": 4}}},
        lake={"kind": "masked_lake", "max_turns": 3, "family": {"group_size": 4, "sampling": {"temperature": 0.5}}},
    ),
    "guests": world(
        shop={"kind": "webshop", "view": "short", "show_missing": True, "max_turns": 2},
        questions={"kind": "hotpotqa", "results": 1, "max_turns": 2, "paragraph_characters": 40},
        room={"kind": "minihack", "id": "MiniHack-Room-Random-5x5-v0", "max_turns": 3},
        repairs={"kind": "swe", "calls": "text", "sandbox": "none", "rows": "FOLDER/rows.jsonl", "max_turns": 2,
                 "max_output_characters": 300, "cache": "FOLDER/cache"},
        before=_repositories,
    ),
    "smollm2": Golden(
        PLAYED,
        {"method.families.0.repeat": 1, "method.families.0.groups": 1, "method.families.0.evaluation_seeds.count": 1,
         "method.rollout.group_size": 2, "method.threads": 1, BUFFERED + "batch": 2, RECIPE + "warm_start": {
             "demonstrations": "practice", "actor_episodes": 4, "extractor_episodes": 4, "extractor_merges": 4}},
        config="conf/quickstart.yaml", rounds=1,
    ),
}  # fmt: skip


# -- reading and comparing ------------------------------------------------------------------------------------------

Rows = dict[tuple[str, str], list[dict[str, Any]]]
"""Rows by round ("-": of the whole run) and table."""


def rows_of(folder: Path) -> Rows:
    """All rows that a golden run left, and the digests of its weights."""
    found: Rows = defaultdict(list)
    files = [path for path in sorted(folder.rglob("*")) if not {"cache", "prefect"} & set(path.parts[:-1])]
    for path in (path for path in files if path.suffix == ".parquet"):
        number, _, names = _place(folder, path)
        found[number, "/".join(names)] += pq.ParquetFile(path).read().to_pylist()
    for path in (path for path in files if path.suffix == ".safetensors"):
        number, stage, _ = _place(folder, path)
        table = stage / "weights.parquet"
        role = ",".join(pq.read_table(table)["role"].to_pylist()) if table.exists() else None
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found[number, "safetensors"].append({"role": role, "file": path.name, "sha256": digest})
    return found


def _place(folder: Path, path: Path) -> tuple[str, Path, list[str]]:
    """Round, folder of the stage, and the names that tell the table: names that are digests tell nothing."""
    parts = path.relative_to(folder).parts
    inside = parts[2:] if parts[0] == "runs" else parts
    if inside[0] == "rounds":
        return inside[1], folder.joinpath(*parts[:5]), [path.stem]
    return "-", folder, [Path(part).stem for part in inside if not re.search("[0-9a-f]{12}", part)]


def _newer_settings(text: str) -> str:
    for old, new in RENAMED_SETTINGS.items():
        text = text.replace(old, new)
    return text


def _newer(rows: Rows) -> Rows:
    """Tables and rows as they are called now."""
    found: Rows = defaultdict(list)
    for (number, table), some in rows.items():
        table = RENAMED_TABLES.get(table, table)
        for row in some:
            BROUGHT_UP.get(table, lambda row: None)(row)
        found[number, table] += some
    return found


def compare(first: Path, second: Path, names: Sequence[str]) -> int:
    """Print what differs; the exit code."""
    recorded = [{path.parent.name for path in folder.glob("*/done")} for folder in (first, second)]
    good = bool(recorded[0])
    for name in names or sorted(recorded[0] | recorded[1]):
        missing = [folder for folder, have in zip((first, second), recorded, strict=True) if name not in have]
        if missing:
            print(f"{name}: not recorded in {', '.join(map(str, missing))}")
            good = False
            continue
        if (
            len({_newer_settings((folder / name / "done").read_text(encoding="utf-8")) for folder in (first, second)})
            > 1
        ):
            print(f"{name}: recorded with other settings: record it again in the folder of the older script")
            good = False
            continue
        sides = [_newer(rows_of(folder / name)) for folder in (first, second)]
        found = 0
        for number, table in sorted({*sides[0], *sides[1]}):
            if (table, "") in RENAMED_OR_GONE:
                continue
            told = list(differences(table, *(side.get((number, table)) for side in sides)))
            found += len(told)
            more = [f"{len(told) - SHOWN} further differences"] if len(told) > SHOWN else []
            for each in (*told[:SHOWN], *more):
                print(f"{name}, round {number}, {table}: {each}")
        good = good and not found
        numbers, tables = (len({place[part] for place in sides[0]} - {"-"}) for part in (0, 1))
        size = f"{numbers} rounds, {tables} tables, {sum(map(len, sides[0].values()))} rows"
        print(f"{name:20} {size}: {f'{found} differences' if found else 'equal'}")
    return int(not good)


def differences(table: str, *sides: list[dict[str, Any]] | None) -> Iterator[str]:
    """Every difference of a table's rows in a round: key, column, both values."""
    if None in sides:
        yield f"only in the {('second', 'first')[sides[0] is not None]}, with {len(sides[0] or sides[1] or [])} rows"
        return
    left_out = NOT_COMPARED.get(table, set()) | {column for of, column in RENAMED_OR_GONE if of == table}
    plain = [[{key: row[key] for key in row if key not in left_out} for row in side or []] for side in sides]
    counted = [Counter(json.dumps(row, sort_keys=True, default=repr) for row in side) for side in plain]
    columns = list(plain[0][0]) if plain[0] else []
    odd = [[json.loads(text) for text in (mine - other).elements()] for mine, other in (counted, counted[::-1])]
    key = _telling(columns, odd)
    ours, theirs = ({f"{_text(row, key)}{number}": row for row, number in _numbered(rows, key)} for rows in odd)
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            yield f"{name}: only in the {'first' if name in ours else 'second'}"
            continue
        for column in sorted({*ours[name], *theirs[name]}):
            pair = (ours[name], theirs[name])
            values = [json.dumps(row[column]) if column in row else "no such column" for row in pair]
            if values[0] != values[1]:
                same = next((i for i, two in enumerate(zip(*values, strict=False)) if two[0] != two[1]), 0)
                start = max(0, same - 20)
                yield f"{name}: {column}: {' | '.join(value[start : start + 80] for value in values)}"


def _telling(columns: Sequence[str], sides: Sequence[Sequence[dict[str, Any]]]) -> Sequence[str]:
    """The fewest first columns that tell the rows of each side apart."""
    for count in range(1, len(columns)):
        texts = [[json.dumps([row.get(name) for name in columns[:count]]) for row in side] for side in sides]
        if all(len(set(each)) == len(each) for each in texts):
            return columns[:count]
    return columns


def _text(row: dict[str, Any], key: Sequence[str]) -> str:
    return ", ".join(f"{column}={str(row.get(column))[:80]}" for column in key)


def _numbered(rows: Sequence[dict[str, Any]], key: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows with what tells those of one key apart."""
    seen = Counter[str]()
    for row in rows:
        seen[_text(row, key)] += 1
        yield row, "" if seen[_text(row, key)] == 1 else f" ({seen[_text(row, key)]})"


def record(folder: Path, names: Sequence[str]) -> int:
    """Make the runs that are named, or all, some at a time; the exit code."""
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        sys.exit(f"no golden run is called {unknown[0]}; there are {', '.join(RUNS)}")
    print(f"recording {TREE} into {folder}", flush=True)
    began, made = time.monotonic(), dict[str, Future[bool]]()

    def one(name: str, first: Sequence[Future[bool]]) -> bool:
        start, good, counts = time.monotonic(), all(each.result() for each in first), Counter[str]()
        try:
            if not good:
                raise RuntimeError("a run that it needs failed")
            Runner(folder, name, RUNS[name]).record()
            for (_, table), rows in rows_of(folder / name).items():
                counts[table] += len(rows)
            told = ", ".join(f"{table} {count}" for table, count in sorted(counts.items()))
        except Exception as error:  # the others go on
            good, told = False, f"FAILED: {error}"
        print(f"{name} ({time.monotonic() - start:.0f} s): {told}", flush=True)
        return good

    def submit(pool: ThreadPoolExecutor, name: str) -> Future[bool]:
        if name not in made:
            run = RUNS[name]
            first = [submit(pool, other) for other in (*filter(None, [run.fork_of]), *run.needs)]
            made[name] = pool.submit(one, name, first)
        return made[name]

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        good = [each.result() for each in [submit(pool, name) for name in names or RUNS]]
    print(f"{sum(good)} of {len(good)} runs, {time.monotonic() - began:.0f} s")
    return int(not all(good))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", folder, *names]:
            sys.exit(record(Path(folder).resolve(), names))
        case ["compare", first, second, *names]:
            sys.exit(compare(Path(first), Path(second), names))
        case _:
            sys.exit(__doc__)
