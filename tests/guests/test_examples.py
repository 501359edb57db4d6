"""Every command of the manual's pages runs: here on real runs, in a test of its page, or it needs what is not here.

Pages of whose examples another file is the test are in `TESTED`; `docs/environments.md` is one. Commands that nothing
can run here (hours of a study, GPUs, clusters, other programs) are in `NOT_HERE`, each with what it needs. What is left
is typed here as it stands: on a run of twelve small rounds that is called as the page calls it, on the small run that
the page itself begins with, and `crl train` of a larger experiment as one round of it with small models.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.cli.shared import parse_overrides
from crl.config import FamilyConfig
from crl.config.load import load_experiment, parse_experiment
from crl.envs import check_environment, make_environment
from crl.rollout.environments import Readable, step_or_error
from crl.run.directory import RunDirectory
from tests.docs.test_commands import BLOCK, PAGES, ROOT
from tests.guests.test_paper_rounds import cut
from tests.learning.harness import train
from tests.recipe_runs import HERE, tiny_name, train_tiny
from tests.tiny_run import SETTINGS, crl_here
from tests.worlds.alfworld import world as alfworld_files
from tests.worlds.hotpotqa import hotpotqa_files
from tests.worlds.swe import world as swe_files

TESTED = {
    "README.md": "tests/record/test_readme_commands.py",
    "bank_from_chats.md": "tests/recipes/bank_from_chats/test_bank_build.py",
    "chat.md": "tests/record/test_bank_page.py",
    "checks.md": "tests/docs/test_checks_page.py",
    "dataset.md": "tests/worlds/dataset/test_dataset_rounds.py",
    "environment_class.md": "tests/guests/test_environments_page.py",
    "environments.md": "tests/guests/test_environments_page.py",
    "evaluation.md": "tests/docs/test_evaluation_page.py",
    "extending.md": "tests/docs/test_extending.py",
    "harbor.md": "tests/worlds/harbor/test_harbor_page.py",
    "install.md": "tests/outside/test_wheel.py",
    "judge.md": "tests/worlds/dataset/test_judged_rounds.py",
    "mcp.md": "tests/worlds/openenv/test_openenv_rounds.py",
    "notebook.md": "tests/docs/test_notebook_page.py",
    "bank_mcp.md": "tests/learning/test_serving.py",
    "serve.md": "tests/learning/test_serving.py",
    "openenv.md": "tests/worlds/openenv/test_openenv_rounds.py",
    "sql.md": "tests/docs/test_sql_page.py",
    "tutorial_environment.md": "tests/guests/test_environments_page.py",
    "verifiers.md": "tests/worlds/verifiers/test_verifiers_page.py",
}
"""Pages whose examples another file runs."""
NOT_HERE = {
    r"^crl compare conf/study/": "hours: tests/study runs studies of that form",
    r"^python benchmarks/|^for of in |^ +--": "minutes to hours, for metrics: tests/unit/benchmarks",
    r"^make |^AUTH=|^source |^pip |^createdb |^export ": "a machine",
    r"^hadolint |^check-jsonschema |^kubernetes-validate |^bash -n ": "another program",
    r"^sbatch |^sky ": "a cluster: tests/faults/test_slurm.py, tests/unit/test_deploy_lint.py",
    r"^docker |^kubectl |^dask |^CUDA_VISIBLE|^VLLM_|^prefect |^python -m flows": "a cluster, a server or a GPU",
    r"^crl (train|doctor) conf/(paper|gpu)/": "GPUs: tests/guests/test_paper_rounds.py runs conf/paper, small",
    r"pytest ": "a test, or a browser",
    r"^\.venv/bin/python tests/golden\.py ": "runs before and after a change of the code: tests/golden.py",
    r"^python -m pdb ": "a terminal",
    r"^python -m data\.swe\.mutations": "minutes: tests/worlds/swe/test_mutations.py",
    r"^crl train conf/dreamgym\.yaml": "a model that learns: tests/recipes/dreamgym/test_dreamgym_smollm2.py",
    r"^crl doctor (my\.yaml|.*/models/)": "a file or a model of the reader's: tests/docs/test_your_model.py",
    r"^crl export .*--push ": "the Hub: tests/unit/serve/test_export.py",
    r"^crl env play ": "a person: tests/unit/cli/test_env.py",
    r"^crl approve ": "a person's decision: tests/faults/test_operation_approval.py",
    r"task_runner=dask": "a cluster: tests/flows/test_task_runners.py",
    r"^crl (env|train).*swe": "minutes in a sandbox: tests/worlds/swe/test_swe_rounds.py, tests/unit/cli/test_env.py",
}
OF_RECIPES = ("dreamgym", "erl", "importance_replay")
"""Pages of recipes; each begins with a small experiment."""
ROUNDS = 12
FAMILIES = [
    {
        "name": name,
        "environment": {"kind": "frozenlake", "size_min": 3, "size_max": 4, "max_turns": 4},
        "groups": 2,
        "evaluation_seeds": {"start": 1_000_000, "count": 2},
    }
    for name in ("shrine0", "shrine1")
]
LESS = {
    **{key: value for key, value in SETTINGS.items() if "families" not in key and "kind" not in key},
    "method.families": json.dumps(FAMILIES),
    "method.evaluation.every": 4,
    "runtime.keep_every": 1,
}


def lines(page: Path) -> list[str]:
    """The commands of a page's shell blocks."""
    text = page.read_text(encoding="utf-8")
    return [line for block in BLOCK.finditer(text) if block["kind"] == "sh" for line in block["body"].splitlines()]


def reason(line: str) -> str | None:
    """Why a command is not typed here; None where it is."""
    return next((why for pattern, why in NOT_HERE.items() if re.search(pattern, line)), None)


TYPED = {
    page.stem: typed
    for page in PAGES
    if page.name not in TESTED and (typed := [line for line in lines(page) if line.strip() and reason(line) is None])
}
SQL = [
    (page.stem, block["body"])
    for page in PAGES
    if page.name not in {*TESTED, "queries.md"}  # by test_queries
    for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
    if block["kind"] == "sql"
]


def test_every_command_is_run_somewhere_or_needs_what_is_not_here() -> None:
    assert all((ROOT / path).is_file() for path in TESTED.values())
    assert {line.split()[0] for typed in TYPED.values() for line in typed} == {"crl"}
    named = " ".join(NOT_HERE.values())
    assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/]+(?:\.py)?", named))
    everything = [line for page in PAGES if page.name not in TESTED for line in lines(page)]
    unused = [pattern for pattern in NOT_HERE if not any(re.search(pattern, line) for line in everything)]
    assert not unused, f"of no command any more: {unused}"
    assert sum(map(len, TYPED.values())) > 60


def options(settings: Mapping[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve rounds of small lakes, under the name that the pages give theirs."""
    runs = tmp_path_factory.mktemp("finished")
    settings = options({**LESS, "name": "quickstart"})
    crl_here(runs, "train", "conf/tiny.yaml", "--rounds", str(ROUNDS), "--no-prefect", *settings)
    return runs


@pytest.fixture(scope="module")
def of_recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Four rounds of the small experiment of a recipe, made when it is asked for."""

    @cache
    def made(recipe: str) -> Path:
        runs = tmp_path_factory.mktemp(recipe)
        crl_here(runs, *train_tiny(recipe, rounds=4))
        return runs

    return made


def run_of(page: str, finished: Path, of_recipe: Callable[[str], Path]) -> Path:
    """The run that a page speaks of."""
    if page not in OF_RECIPES:
        return finished / "quickstart"
    if page not in HERE:
        pytest.skip(f"not here: {page}")
    return of_recipe(page) / tiny_name(page)


def entry_of(run: Path, round_number: int) -> str:
    """An entry of the newest bank, one that was there after a round where there is such."""
    shown = [
        crl_here(run.parent, *words, "--format", "json").stdout.splitlines()
        for words in (("bank", "show", run.name, "--round", str(round_number)), ("bank", "show", run.name))
    ]
    banks = [[json.loads(line)["entry_id"] for line in lines_of] for lines_of in shown]
    return next((name for name in banks[0] if name in banks[1]), banks[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(TYPED))
def test_what_a_page_says_to_type_runs(
    page: str, finished: Path, of_recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    shown = run_of(page, finished, of_recipe)
    runs = tmp_path / "runs"
    shutil.copytree(shown.parent, runs)
    for at, line in enumerate(TYPED[page]):
        words = [shown.name if word == "RUN" else word for word in shlex.split(line, comments=True)[1:]]
        if words[:2] == ["train", "conf/tiny.yaml"]:
            crl_here(runs, *words, "--no-prefect", *options(LESS))
        elif words[0] == "train":
            train_small(words[1:], tmp_path / f"trained {at}")
        else:
            crl_here(runs, *(filled(words, runs, tmp_path)))


def filled(words: Sequence[str], runs: Path, folder: Path) -> list[str]:
    """A command with a real entry for `ID`, and with folders of this test's for those of the reader's."""
    places = {name: str(folder / name) for name in ("shared_bank", "other_bank", "page.html", "agent")}
    places |= {"/tmp/made": str(folder / "made"), "runs/quickstart": str(runs / "quickstart")}
    if words[:2] == ["bank", "import"]:
        places[words[2]] = str(written(folder, words[2]))
    run = next((runs / word for word in words if (runs / word / "experiment.yaml").is_file()), None)
    if run is not None and {"ID", "ENTRY"} & {*words}:
        number = int(words[words.index("--round") + 1]) if "--round" in words else RunDirectory.open(run).rounds()[-1]
        places |= dict.fromkeys(("ID", "ENTRY"), entry_of(run, number))
    found = [places.get(word, word) for word in words]
    if words[0] == "export":
        found[words.index("--to") + 1] = str(folder / words[words.index("--to") + 1])
    return [*found, "--yes"] if words[0] in ("mend", "redo") else found  # nobody is there to ask


def written(folder: Path, named: str) -> Path:
    """An experiment of the reader's that a bank is imported into."""
    data = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    data |= {"name": Path(named).stem}
    family = data["method"]["families"][0]
    data["method"]["families"] = [{**family, "name": name} for name in ("shrine0", "shrine1", "blue")]
    (folder / "prompts").exists() or (folder / "prompts").symlink_to(ROOT / "conf/prompts")
    path = folder / Path(named).name
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def train_small(words: Sequence[str], folder: Path) -> None:
    """One round of an experiment, with what a command sets, and small."""
    path = ROOT / words[0]
    pairs = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    given = {key: value for key, value in parse_overrides(pairs).items() if "/models/" not in str(value)}
    folder.mkdir(exist_ok=True)
    whole = load_experiment(path, given)
    small = cut(whole.method, {}, folder)
    for index, family in enumerate(whole.method.families):
        if family.environment.kind == "realms":  # its levels are made for so many turns
            del small[f"method.families.{index}.environment.max_turns"]
    data = whole.model_dump(mode="json")
    run = train(parse_experiment(data, small, base=path.parent, where=str(path)), folder / "runs", 1)
    assert run.rounds() == [0, 1]
    shutil.rmtree(folder / "runs")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "query"), SQL)
def test_what_a_page_asks_a_run_is_answered(
    page: str, query: str, finished: Path, of_recipe: Callable[[str], Path]
) -> None:
    run = run_of(page, finished, of_recipe)
    for statement in filter(str.strip, query.split(";")):
        crl_here(run.parent, "sql", run.name, statement)


def families_of(page: str) -> list[dict[str, Any]]:
    """The task families, and environments alone, that a page shows."""
    found: list[dict[str, Any]] = []
    for block in BLOCK_OF_YAML.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        data = yaml.safe_load(block["body"])
        shown = data.get("families") or [data]
        found += [{"name": "shown", **each} for each in shown if "environment" in each]
    return found


BLOCK_OF_YAML = re.compile(r"^```yaml[^\n]*\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = [
    (page, family)
    for page in ("bridges.md", "hotpotqa.md", "mixtures.md", "swe.md")
    for family in families_of(page)
    if family["environment"].get("kind")
]
NEEDED = {"minigrid": "minigrid", "textarena": "textarena", "reasoning_gym": "reasoning_gym", "textworld": "textworld"}
"""Packages that not every machine has."""


def test_families_are_shown() -> None:
    kinds = [family["environment"]["kind"] for _, family in SHOWN]
    assert kinds.count("swe") == 3 and {"hotpotqa", "alfworld", "minihack", *NEEDED} <= set(kinds)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's home, with files where the pages say that they are."""
    for folder in ("data/hotpotqa", "bugs", "data", "clones"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name in ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json"):
        hotpotqa_files.write(tmp_path / "data/hotpotqa" / name, [hotpotqa_files.record(each) for each in range(3)])
    simplified = [hotpotqa_files.plain(hotpotqa_files.record(each)) for each in range(10, 13)]
    hotpotqa_files.write(tmp_path / "data/hotpotqa/hotpot_dev_v1_simplified.json", simplified)
    for rows, clones in (("bugs/rows.jsonl", "bugs"), ("data/verified.jsonl", "clones")):
        records = [swe_files.make_row(tmp_path / clones, f"t-{each}", split=side) for each, side in enumerate(SIDES)]
        (tmp_path / rows).write_text("".join(json.dumps(record) + "\n" for record in records))
    alfworld_files.make_data(tmp_path / "alfworld")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "alfworld"))
    monkeypatch.setenv("CRL_SWE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SIDES = ("train", "test")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "shown"), SHOWN, ids=[f"{page}-{at}" for at, (page, _) in enumerate(SHOWN)])
def test_a_family_that_a_page_shows_is_played(page: str, shown: dict[str, Any], home: Path) -> None:
    kind = shown["environment"]["kind"]
    pytest.importorskip(NEEDED.get(kind, kind if kind == "minihack" else "crl"), reason=f"{kind} is not installed")
    if isinstance(shown.get("prompts"), str):
        shown = {key: value for key, value in shown.items() if key != "prompts"}
    if "interpreter" in shown["environment"]:  # the sandbox's user cannot enter this test's folder
        shown["environment"] = {**shown["environment"], "interpreter": sys.executable}
    family = FamilyConfig.model_validate(shown)
    check_environment(family.environment, isolate=family.isolate)
    with closing(make_environment(family)) as environment:
        readable = Readable(environment)
        starts = readable.reset_many([family.train_seeds.start, family.evaluation_seeds.start])
        assert [start.error for start in starts] == [None, None], [start.details for start in starts]
        live = {0, 1}
        for _ in range(family.turn_limit or 20):
            steps = step_or_error(readable, {slot: readable.oracle(slot) for slot in live})
            assert not [step.details for step in steps.values() if step.error]
            live -= {slot for slot, step in steps.items() if step.done}
            if not live:
                break
        assert not live


@pytest.mark.slow
def test_a_change_that_the_page_shows_is_one_of_a_realm() -> None:
    page = (ROOT / "docs/mixtures.md").read_text(encoding="utf-8")
    (changes,) = re.findall(r"^changes: .*$", page, re.MULTILINE)
    shown = {"name": "realm", "environment": {"kind": "realms"}, **yaml.safe_load(changes)}
    family = FamilyConfig.model_validate(shown)
    assert family.in_round(31).environment != family.in_round(30).environment
    make_environment(family.in_round(31)).close()


@pytest.mark.slow
def test_the_checkpoint_that_a_page_opens_is_there(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/your_model.md").read_text(encoding="utf-8")
    (opening,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(finished.parent)
    made: dict[str, Any] = {}
    exec(opening.replace("runs/", f"{finished.name}/"), made)
    assert made["model"].num_parameters() > 0 and made["tokenizer"]("a").input_ids
