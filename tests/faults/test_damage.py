"""Corrupt, truncate or delete any one file of a real run: it is named with what mends it, and training refuses."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from crl.audit.audit import problems_of
from crl.audit.remarks import remarks
from crl.audit.verify import Problem, Severity, record_of, require_intact, verify
from crl.audit.without import lacked, leave_out, why_needed
from crl.errors import RecordDamaged
from crl.records import Turn
from crl.report.page import REPORT
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.manifest import Manifest
from crl.trackers.subscriber import LEDGER
from crl.trackers.tensorboard import FOLDER
from tests.recipe_runs import OTHERS
from tests.tiny_run import ROUNDS, crl, crl_here, digests, experiment, leftovers, train

Damage = Callable[[Path], None]
HOUSEKEEPING = {"lease.json", "lease.lock"}
BESIDE = {"journal.jsonl", "pruned.jsonl"}
"""In no digest; each of them alone names what was pruned."""
FROM_ROWS = {
    "complementary": {"initialize", "plan", "consolidate", "credit", "health"},
    "erl": {"initialize", "plan", "distill", "consolidate", "credit", "health"},
    "dreamgym": {"initialize", "gather", "credit", "health"},
    "importance_replay": {"initialize", "plan", "measure", "credit", "health"},
}
"""Stages of a recipe that no model has a part in: what follows from rows is made again."""


def _corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _delete(path: Path) -> None:
    path.unlink()


def _all_files(run_path: Path) -> list[str]:
    """All but the report page and what trackers write, which are pictures of the record and no part of it."""
    files = (path.relative_to(run_path).as_posix() for path in run_path.rglob("*") if path.is_file())
    return sorted(name for name in files if name not in (REPORT, LEDGER) and not name.startswith(f"{FOLDER}/"))


each_damage = pytest.mark.parametrize("damage", [_corrupt, _truncate, _delete], ids=["corrupt", "truncate", "delete"])


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, run_of: Callable[[str], Path]) -> Callable[[str], Path]:
    """Finished runs by recipe. To be read only."""
    return lambda recipe: request.getfixturevalue("finished") if recipe == "complementary" else run_of(recipe)


@pytest.fixture(scope="module")
def copy_of(undisturbed: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copies of runs by recipe for this module; every test leaves them as they were."""
    made: dict[str, Path] = {}

    def copy(recipe: str) -> Path:
        if recipe not in made:
            source = undisturbed(recipe)
            made[recipe] = tmp_path_factory.mktemp("damage") / source.name
            shutil.copytree(source, made[recipe])
        return made[recipe]

    return copy


@pytest.mark.slow
def test_there_is_one_of_everything(copy_of: Callable[[str], Path]) -> None:
    victim = copy_of("complementary")
    files = _all_files(victim)
    for suffix in (
        "experiment.yaml", "catalog.duckdb", "journal.jsonl", "lease.json", "lease.lock", "pruned.jsonl",
        "update_actor/checkpoint/model.safetensors", "update_extractor/checkpoint/model.safetensors",
        "update_actor/checkpoint/deepspeed/optimizer-rank00000.safetensors", "update_actor/checkpoint/config.json",
        "warm_start_extractor/checkpoint/model.safetensors", "collect/turns.parquet", "collect/manifest.json",
        "credit/credits.parquet", "merge/distillations.parquet", "codes.arrow", "centroids.npy",
    ):  # fmt: skip
        assert any(name.endswith(suffix) for name in files), suffix
    assert any(name.startswith("bank/segments/") for name in files)
    assert any(name.startswith("bank/embeddings/") for name in files)
    assert not (victim / "rounds/0000/warm_start_actor/checkpoint").exists(), "one was pruned"
    assert verify(victim) == []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["complementary", *OTHERS])
@each_damage
def test_any_one_file_is_named_with_digests_and_the_mending_command(
    copy_of: Callable[[str], Path], damage: Damage, recipe: str
) -> None:
    victim = copy_of(recipe)
    run = RunDirectory.open(victim)
    from_rows = partial(recipe_of(run.method).from_rows, run.method)
    for number, name in enumerate(_all_files(victim)):
        path = victim / name
        before = path.read_bytes()
        if damage is _truncate and not before:
            continue
        damage(path)
        after = path.read_bytes() if path.exists() else None
        try:
            problems = verify(victim, from_rows=from_rows)
            noted = name.startswith("ways/")
            assert [problem.file for problem in problems] == ([] if noted or name in BESIDE else [name])
            assert not noted or any(remark.startswith(name) for remark in remarks(record_of(victim)))
            if not problems:
                continue
            _check(run, recipe, problems[0], before, after)
            if problems[0].severity is Severity.damaged and number % 7 == 0:
                with pytest.raises(RecordDamaged) as raised:
                    require_intact(victim, from_rows=from_rows)
                assert (raised.value.exit_code, raised.value.next_step) == (4, problems[0].mend)
        finally:
            path.write_bytes(before)
    assert verify(victim) == []


def _check(run: RunDirectory, recipe: str, problem: Problem, before: bytes, after: bytes | None) -> None:
    """Severity, expected, found and mending command are those of the kind of file."""
    place, *inside = problem.file.split("/")
    digest = hashlib.sha256(before).hexdigest()
    found = "no such file" if after is None else hashlib.sha256(after).hexdigest()
    words = shlex.split(problem.mend)
    assert words[0] == "crl"
    if place == "rounds":
        number, stage, *name = inside
        # What follows from rows is made again; what a model wrote is taken back.
        derivable = stage in FROM_ROWS[recipe]
        redo = ["redo", str(run.path), "--from", f"{number}/{stage}"]
        assert words[1:] == (["mend", str(run.path)] if derivable else redo)
        assert shlex.split(problem.redo)[1:] == redo
        assert (problem.round, problem.stage, problem.severity) == (int(number), stage, Severity.damaged)
        if name == ["manifest.json"]:
            assert problem.expected and (after is not None or problem.found == found)
            assert problem.found != problem.expected
        else:
            recorded = run.manifest(int(number), stage).digested.files["/".join(name)].sha256
            assert problem.expected == recorded == digest
            assert problem.found.split()[0] == found.split()[0]
    elif place == "bank":
        assert words[1:] == ["mend", str(run.path)] and problem.redo.endswith("/consolidate")
        assert (problem.expected, problem.found, problem.severity) == (digest, found, Severity.damaged)
    elif place == "experiment.yaml":
        assert words[1] == "train" and problem.severity is Severity.damaged
        assert problem.expected and problem.found
    elif place in HOUSEKEEPING:
        assert words[1:] == ["resume", str(run.path)] and problem.severity is Severity.housekeeping
    else:
        assert place in ("cache", "catalog.duckdb")
        assert words[1:] == ["catalog", str(run.path)] and problem.severity is Severity.derived
        if problem.file.endswith((".arrow", ".npy", ".duckdb")):
            assert (problem.expected, problem.found) == (digest, found)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["complementary", *OTHERS])
def test_any_stage_that_is_gone_is_named_and_no_other_one(copy_of: Callable[[str], Path], recipe: str) -> None:
    victim = copy_of(recipe)
    run = RunDirectory.open(victim)
    keys = list(digests(victim))
    assert len(keys) >= 2 * len(FROM_ROWS[recipe])
    for key in keys:
        shutil.move(victim / "rounds" / key, victim.parent / "gone")
        assert [problem.file for problem in problems_of(run, recipe_of(run.method))] == [f"rounds/{key}"]
        shutil.move(victim.parent / "gone", victim / "rounds" / key)
    assert verify(victim) == []


@pytest.mark.parametrize("prefect", ["--no-prefect", pytest.param("--prefect", marks=pytest.mark.slow)])
def test_training_refuses_to_build_on_damage(copied: Path, prefect: str) -> None:
    name = "rounds/0002/update_actor/checkpoint/deepspeed/optimizer-rank00000.safetensors"
    recorded = Manifest.load(copied / "rounds/0002/update_actor").digested.files[name.split("/", 3)[3]].sha256
    _corrupt(copied / name)
    found = hashlib.sha256((copied / name).read_bytes()).hexdigest()
    mend = f"crl redo {copied} --from 0002/update_actor"
    before = digests(copied)
    told = crl_here(copied.parent, "verify", "tiny", code=4)
    assert all(word in told.stdout for word in (name, recorded, found, mend)), told.stdout
    for command in (["resume", "tiny", "--rounds", "1"], train(1, prefect)):
        # With Prefect a flow runs, which is no business of this process.
        run = crl_here if prefect == "--no-prefect" else crl
        said = run(copied.parent, *command, code=4).stderr
        assert all(word in said for word in (name, recorded, found, f"What to do: {mend}")), said
        assert "Traceback" not in said
    assert digests(copied) == before and leftovers(copied) == []


def _mend(run_path: Path) -> list[str]:
    """Run the command that verification names, as a user would copy it; returns what it set aside."""
    problems = [problem for problem in verify(run_path) if problem.severity is Severity.damaged]
    assert len(problems) == 1
    words = shlex.split(problems[0].mend)
    assert words.pop(0) == "crl"
    done = crl_here(run_path.parent, *words, "--yes")
    return [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("set aside")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "name", "damage", "first"),
    [
        ("complementary", "rounds/0002/credit/credits.parquet", _truncate, "0002/credit"),
        ("complementary", "rounds/0002/collect/manifest.json", _corrupt, "0002/collect"),
        ("complementary", "rounds/0002/update_actor/checkpoint/model.safetensors", _delete, "0002/update_actor"),
        ("complementary", "bank/segments", _corrupt, "0002/consolidate"),
        ("complementary", "bank/embeddings", _delete, "0002/consolidate"),
        # Making this again needs the checkpoint of the warm start, which retention deleted: it goes too.
        ("complementary", "rounds/0001/collect/episodes.parquet", _corrupt, "0000/warm_start_actor"),
        ("erl", "rounds/0001/reflect/reflections.parquet", _corrupt, "0001/reflect"),
        ("erl", "rounds/0002/update_actor/checkpoint/model.safetensors", _delete, "0002/update_actor"),
        ("erl", "bank/segments", _truncate, "0002/consolidate"),
        ("dreamgym", "rounds/0001/explore/transitions.parquet", _truncate, "0001/explore"),
        ("dreamgym", "rounds/0002/update_experience/checkpoint/model.safetensors", _delete, "0002/update_experience"),
        ("dreamgym", "rounds/0002/collect/manifest.json", _corrupt, "0002/collect"),
        ("importance_replay", "rounds/0001/update_actor/checkpoint/model.safetensors", _delete, "0001/update_actor"),
        ("importance_replay", "rounds/0002/probe_after/episodes.parquet", _corrupt, "0002/probe_after"),
        ("importance_replay", "rounds/0002/measure/extractor_tensors.parquet", _truncate, "0002/measure"),
    ],
)
@pytest.mark.usefixtures("plain_charts")
def test_the_mending_command_and_resume_bring_back_the_run(
    undisturbed: Callable[[str], Path], tmp_path: Path, recipe: str, name: str, damage: Damage, first: str
) -> None:
    whole = undisturbed(recipe)
    copied = Path(shutil.copytree(whole, tmp_path / "runs" / whole.name))
    place = copied / name
    if place.is_dir():
        earlier, later = (Manifest.load(copied / f"rounds/000{n}/consolidate").digested.shared for n in (1, 2))
        place = copied / next(each for each in later if each.startswith(f"{name}/") and each not in earlier)
    damage(place)
    # What is derived is damaged as well: whoever uses it must notice and build it anew.
    for index in copied.glob("cache/*/*.arrow"):
        _corrupt(index)
    moved = _mend(copied)
    assert moved[0] == first and set(moved) <= set(digests(whole))
    crl_here(copied.parent, "resume", copied.name)
    assert digests(copied) == digests(whole)
    crl_here(copied.parent, "catalog", copied.name)
    assert verify(copied) == []
    kept = {path.parent.relative_to(copied / "damaged/1/rounds").as_posix()
            for path in copied.glob("damaged/1/rounds/*/*/*.parquet")}  # fmt: skip
    assert kept == set(moved), "nothing was deleted"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["complementary", *OTHERS])
def test_what_follows_from_rows_is_put_back_in_every_stage_at_once(
    undisturbed: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    whole = undisturbed(recipe)
    copied = Path(shutil.copytree(whole, tmp_path / "runs" / whole.name))
    keys = [key for key in digests(whole) if key.partition("/")[2] in FROM_ROWS[recipe]]
    before = {}
    for key, damage in zip(keys, cycle([_corrupt, _truncate, _delete])):
        table = min((copied / "rounds" / key).glob("*.parquet"))
        before[table] = table.read_bytes()
        damage(table)
    assert len(before) >= 2 * ROUNDS
    said = crl_here(copied.parent, "verify", copied.name, code=4).stdout
    assert f"crl mend {copied}" in said and "crl redo" not in said
    crl_here(copied.parent, "mend", copied.name, "--yes")
    assert {table: table.read_bytes() for table in before} == before
    assert digests(copied) == digests(whole)
    assert "intact" in crl_here(copied.parent, "verify", copied.name).stdout


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["complementary", *OTHERS])
@pytest.mark.usefixtures("plain_charts")
def test_what_a_run_may_go_on_without_no_later_round_reads(
    undisturbed: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    """All of it is left out at once, and two more rounds are what they would have been."""
    whole = undisturbed(recipe)
    runs = [Path(shutil.copytree(whole, tmp_path / place / whole.name)) for place in ("runs", "lacking")]
    lacking = RunDirectory.open(runs[1])
    made_by = recipe_of(lacking.method)
    tables = [
        f"rounds/{key}/{name}"
        for key in digests(whole)
        for name in Manifest.load(whole / "rounds" / key).digested.files
        if (whole / "rounds" / key / name).is_file() and why_needed(lacking, made_by, f"rounds/{key}/{name}") is None
    ]
    spared = [name for name in tables if "/checkpoint/" not in name]
    assert any(name.endswith("evaluations.parquet") for name in spared), spared
    with Lease.acquire(lacking.path, seconds=60) as lease:
        for number, name in enumerate(tables):
            if not (lacking.path / name).exists():  # with its checkpoint
                continue
            (_corrupt if number % 2 else _delete)(lacking.path / name)
            leave_out(lacking, lacked(lacking, made_by, name), token=lease.token)
    assert [each.file for each in problems_of(lacking, made_by)] == []
    said = crl_here(lacking.path.parent, "verify", whole.name).stdout
    assert all(f"goes on without {name}," in said for name in spared)
    for run in runs:
        crl_here(run.parent, "resume", whole.name, "--rounds", "2")
    assert digests(runs[0]) == digests(runs[1])
    for command in (["status"], ["report"], ["verify"]):
        crl_here(lacking.path.parent, *command, whole.name)


def test_a_needed_file_is_not_left_out_and_an_old_one_is_after_a_yes(copied: Path) -> None:
    runs, first = copied.parent, copied / "rounds/0001/collect/turns.parquet"
    before = first.read_bytes()
    assert "nothing to leave out" in crl_here(runs, "mend", "tiny", "--without", _name(first, copied), code=2).stderr
    first.write_bytes(b"lost")
    for needed, why in (
        ("rounds/0001/collect/episodes.parquet", "any later round may read"),
        (f"rounds/000{ROUNDS}/update_actor/weights.parquet", "the next rounds read it"),
        (f"rounds/000{ROUNDS}/update_actor/checkpoint/model.safetensors", "later rounds begin with this checkpoint"),
        ("rounds/0001/credit/credits.parquet", "crl mend"),
    ):
        (copied / needed).rename(copied / "kept")
        refused = crl_here(runs, "mend", "tiny", "--without", needed, code=2).stderr
        assert why in refused and "SHA-256" in refused, refused
        (copied / "kept").rename(copied / needed)
    asked = crl_here(runs, "mend", "tiny", "--without", _name(first, copied), code=2)
    assert "No later round reads it" in asked.stdout and "--yes" in asked.stderr and first.read_bytes() == b"lost"
    said = crl_here(runs, "redo", "tiny", "--from", "0001/collect", code=2).stdout
    assert said.index("--without rounds/0001/collect/turns.parquet") > said.index(hashlib.sha256(before).hexdigest())

    crl_here(runs, "mend", "tiny", "--without", _name(first, copied), "--yes")
    assert verify(copied) == [] and not first.exists()
    with pytest.raises(RecordDamaged, match="goes on without rounds/0001/collect/turns"):
        RunDirectory.open(copied).read(1, "collect", Turn)
    crl_here(runs, "fork", "tiny", "--round", str(ROUNDS), "--name", "child")
    assert "goes on without rounds/0001/collect/turns.parquet" in crl_here(runs, "verify", "child").stdout
    first.write_bytes(before)
    assert "goes on without" not in crl_here(runs, "verify", "tiny").stdout


def test_what_is_refused_or_not_agreed_to_changes_no_file(copied: Path) -> None:
    """Not even lease and journal; and what stays damaged is said before."""
    _corrupt(copied / "rounds/0001/credit/credits.parquet")
    _corrupt(copied / f"rounds/000{ROUNDS}/collect/turns.parquet")
    before = _state(copied)
    for code, *words in (
        (2, "mend", "tiny"), (2, "mend", "tiny", "--without", "rounds/0001/credit/credits.parquet"),
        (2, "redo", "tiny", "--from", "9/collect"), (2, "redo", "tiny", "--from", "1/nothing"),
    ):  # fmt: skip
        crl_here(copied.parent, *words, code=code)
        assert _state(copied) == before, words
    said = crl_here(copied.parent, "redo", "tiny", "--from", f"{ROUNDS}/collect", code=2).stdout
    stays = said.partition("This damage stays")[2]
    assert (
        f"rounds/0001/credit/credits.parquet   mend: crl mend {copied}" in stays and "turns.parquet   mend" not in stays
    )
    assert "crl fork" not in said, "no round before the damage elsewhere is whole enough"
    assert "This damage stays" not in crl_here(copied.parent, "redo", "tiny", "--from", "1/credit", code=2).stdout
    assert _state(copied) == before
    crl_here(copied.parent, "mend", "tiny", "--yes", code=4)  # turns cannot be made again
    mended = _state(copied)
    crl_here(copied.parent, "mend", "tiny", "--yes", code=4)
    assert _state(copied) == mended


@pytest.mark.slow
def test_a_pipe_in_the_place_of_a_stage_moves_away(copied: Path) -> None:
    shutil.rmtree(copied / "rounds/0002/plan")
    os.mkfifo(copied / "rounds/0002/plan")
    crl_here(copied.parent, "mend", "tiny", "--yes")
    assert verify(copied) == [] and (copied / "damaged/1/rounds/0002/plan").is_fifo()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rounds/0001/credit", "rounds/0001/credit/credits.parquet", "bank/segments"])
def test_what_a_link_leads_to_is_not_mended(copied: Path, tmp_path: Path, name: str) -> None:
    """The link in the place of a stage moves away; another one is named with the command that copies."""
    elsewhere = (copied / name).rename(tmp_path / "elsewhere")
    (copied / name).symlink_to(elsewhere)
    if name == "bank/segments":
        _corrupt(sorted(elsewhere.iterdir())[0])
    before = _state(elsewhere) or elsewhere.read_bytes()
    is_stage = name == "rounds/0001/credit"
    said = crl_here(copied.parent, "mend", "tiny", "--yes", code=0 if is_stage else 4).stdout
    assert (_state(elsewhere) or elsewhere.read_bytes()) == before
    if is_stage:
        assert verify(copied) == [] and not (copied / name).is_symlink()
    else:
        assert f"cp -rL {copied / name} " in said and (copied / name).is_symlink()


def _state(run: Path) -> dict[str, tuple[int, bytes]]:
    return {_name(path, run): (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}


def test_a_damaged_run_is_forked_at_a_round_before_the_damage(copied: Path) -> None:
    _corrupt(copied / f"rounds/000{ROUNDS}/collect/episodes.parquet")
    crl_here(copied.parent, "fork", "tiny", "--round", str(ROUNDS), "--name", "late", code=4)
    said = crl_here(copied.parent, "redo", "tiny", "--from", f"{ROUNDS}/collect", code=2).stdout
    fork = next(line.split()[1:] for line in said.splitlines() if line.strip().startswith("crl fork"))
    assert fork[3] == str(ROUNDS - 1)
    crl_here(copied.parent, *fork)
    assert verify(copied.parent / "tiny-again") == []


def _name(path: Path, run: Path) -> str:
    return path.relative_to(run).as_posix()


@pytest.mark.parametrize("damage", [_corrupt, _truncate, _delete], ids=["corrupt", "truncate", "delete"])
def test_a_damaged_experiment_file_stops_and_the_same_config_writes_it_again(copied: Path, damage: Damage) -> None:
    before = (copied / "experiment.yaml").read_bytes()
    damage(copied / "experiment.yaml")
    with pytest.raises(RecordDamaged):
        require_intact(copied)
    (problem,) = verify(copied)
    assert problem.mend.startswith("crl train conf/tiny.yaml")
    RunDirectory.create_or_open(experiment(), copied.parent)
    assert (copied / "experiment.yaml").read_bytes() == before
    assert verify(copied) == []


@pytest.mark.slow
@each_damage
def test_what_is_derived_is_rebuilt(copied: Path, damage: Damage, capsys: pytest.CaptureFixture[str]) -> None:
    from crl.cli import main

    derived = [name for name in _all_files(copied) if name.startswith(("cache/", "catalog"))]
    assert len(derived) >= 6
    for name in derived:
        if not (copied / name).exists():  # `crl catalog` discards an index of which a file was damaged
            continue
        damage(copied / name)
        require_intact(copied)  # training goes on
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(copied)])
        assert ended.value.code == 4 and f"{name} (derived)" in capsys.readouterr().out
        with pytest.raises(SystemExit) as ended:
            main(["catalog", str(copied)])
        assert not ended.value.code
        assert verify(copied) == []
    with pytest.raises(SystemExit):
        main(["sql", str(copied), "SELECT count(*) AS n FROM episodes WHERE stage = 'collect'", "--format", "csv"])
    assert capsys.readouterr().out.split()[-2:] == ["n", str(16 * ROUNDS)]


def test_the_next_attempt_mends_housekeeping(copied: Path) -> None:
    for name in sorted(HOUSEKEEPING):
        _corrupt(copied / name)
    assert {problem.file for problem in verify(copied)} == HOUSEKEEPING
    require_intact(copied)
    crl_here(copied.parent, "resume", "tiny")
    assert verify(copied) == []


@pytest.mark.parametrize("name", sorted(BESIDE))
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_corrupt, id="corrupt", marks=pytest.mark.slow),
        pytest.param(_truncate, id="truncate", marks=pytest.mark.slow),
        pytest.param(_delete, id="delete"),
    ],
)
def test_a_run_goes_on_after_damage_beside_the_record(
    copied: Path, damage: Damage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a journal nobody knows that the run is not to be validated, which would take half a minute.
    monkeypatch.setattr("crl.validation.subscriber.Validations._lacking", lambda self, last: [])
    damage(copied / name)
    assert verify(copied) == []
    crl_here(copied.parent, "resume", "tiny")
    assert verify(copied) == []
