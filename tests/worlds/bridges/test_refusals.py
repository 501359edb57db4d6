"""What the bridges refuse before work starts, and how they read a game, on stand-ins for the packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from crl.config import FamilyConfig
from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import FreeText, StopReason
from crl.worlds.bridges.reasoning_gym import ReasoningGymConfig
from crl.worlds.bridges.textarena import TextArenaConfig
from crl.worlds.bridges.textworld import TextWorldConfig
from tests.worlds.bridges import standins

SINGLE = "class Game:\n    state = SinglePlayerState\n"


def refused(config) -> str:
    with pytest.raises(BadInput) as caught:
        config.make()
    assert caught.value.expected and caught.value.where and caught.value.next_step
    return str(caught.value)


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("Duel", "no single-player game"),
        ("Asks", "a language model that is asked over the network"),
        ("Words", "needs NLTK's 'words', which is not on this machine"),
        ("Tags", "python -m nltk.downloader averaged_perceptron_tagger_eng"),
        ("Broken", "cannot be started: SyntaxError: Broken is broken"),
        ("Wordz", "unknown TextArena id 'Wordz'\nExpected: one of Words"),
    ],
)
def test_textarena_games_that_cannot_be_played_offline(game, words, tmp_path, monkeypatch):
    def find(place: str) -> str:
        if place != "corpora/words.zip" or game != "Tags":
            raise LookupError(place)
        return place

    sources = {
        "Duel": "TwoPlayerState",
        "Asks": SINGLE + "master = OpenRouterAgent()",
        "Words": SINGLE + "from nltk.corpus import words\nraise AssertionError('is imported')",
        "Tags": SINGLE + "from nltk.corpus import words\nfrom nltk import pos_tag",
        "Broken": SINGLE,
    }
    standins.textarena(monkeypatch, tmp_path / "textarena", sources)
    standins.module(monkeypatch, "nltk", data=SimpleNamespace(find=find))
    assert words in refused(TextArenaConfig(id=game))


def test_levels_that_nobody_knows_are_not_held_out():
    with pytest.raises(ValidationError, match="does not say which level"):
        TextArenaConfig(held_out_from=1000)


@pytest.mark.parametrize("beside", [{"workers": 2}, {"step_time_limit_seconds": 5.0}])
def test_slots_that_wait_for_each_others_random_numbers_have_no_time_limit(beside):
    """A slow one would use up the time of all others, and one that hangs would hold them all."""
    family = {"name": "words", "environment": {"kind": "textarena", "held_out_from": None}}
    FamilyConfig.model_validate(family)
    FamilyConfig.model_validate({**family, **beside, "isolate": True})
    with pytest.raises(ValidationError, match="need isolate: true"):
        FamilyConfig.model_validate({**family, **beside})
    own = {"kind": "gymnasium", "id": "CliffWalking-v1"}
    FamilyConfig.model_validate({**family, **beside, "environment": own})
    with pytest.raises(ValidationError, match="need isolate: true"):
        FamilyConfig.model_validate({**family, **beside, "environment": {**own, "global_random": True}})


def test_reasoning_gym_reads_an_answer_and_pays_what_the_scorer_says(monkeypatch):
    standins.reasoning_gym(monkeypatch)
    check_environment(ReasoningGymConfig(dataset="sums"))
    wave = ReasoningGymConfig(dataset="sums").make()
    starts = wave.reset_many([1, 2, 3, 4, 5])
    right = [wave.oracle(slot) for slot in range(5)]
    assert right[0] == str(int(starts[0].observation.split()[0]) + 1) and starts[0].goal == "Answer the question."
    said = {0: right[0], 1: f"I think <answer>7</answer> no <answer> {right[1]} </answer>.", 2: "no", 3: "?", 4: None}
    steps = wave.step_many(said)
    assert [step.reward for step in steps.values()] == [1.0, 1.0, 0.01, 0.0, 0.0]
    assert [step.success for step in steps.values()] == [True, True, False, False, False]
    assert [step.legal for step in steps.values()] == [True, True, True, False, False]
    assert all(step.done and step.error is None for step in steps.values())
    assert steps[2].stop_reason is StopReason.failure and steps[4].stop_reason is StopReason.turn_limit


def test_reasoning_gym_holds_questions_out_by_their_content(monkeypatch):
    standins.reasoning_gym(monkeypatch)
    wave = ReasoningGymConfig(dataset="sums", parameters={"highest": 60}).make()

    def contents(first: int) -> set[str]:
        starts = wave.reset_many(range(first, first + 12))
        assert [wave.content(slot) for slot in range(12)] == [start.observation for start in starts]
        return {start.observation for start in starts}

    training, held_out = contents(0), contents(1_000_000)
    assert training and held_out and not training & held_out


def test_reasoning_gym_refuses(monkeypatch):
    standins.reasoning_gym(monkeypatch)
    assert "unknown reasoning-gym dataset 'sum'\nExpected: one of sums" in refused(ReasoningGymConfig(dataset="sum"))
    assert "differs between processes" in refused(ReasoningGymConfig(dataset="ransom_note"))
    assert "family of its own" in refused(ReasoningGymConfig(dataset="composite"))
    assert "parameters hold seed" in refused(ReasoningGymConfig(dataset="sums", parameters={"seed": 1}))
    assert "unexpected keyword" in refused(ReasoningGymConfig(dataset="sums", parameters={"depth": 1}))
    assert "must be positive" in refused(ReasoningGymConfig(dataset="sums", parameters={"highest": 0}))
    with pytest.raises(BadInput, match="finds no level"):
        check_environment(ReasoningGymConfig(dataset="sums", parameters={"highest": 1}))


@pytest.fixture
def games(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty games with their json."""
    standins.textworld(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for number in range(20):
        for end in ("z8", "json"):
            (tmp_path / f"{number:02}.{end}").write_text(f"game {number}")
    return tmp_path


def test_textworld_shows_the_story_and_lists_commands(games):
    config = TextWorldConfig(games=f"{games}/*.z8")
    check_environment(config)
    wave = config.make()
    held_out = config.held_out_levels
    assert held_out is not None and 1 <= held_out < 20
    wave.reset_many(range(1_000_000, 1_000_000 + held_out))
    assert len({wave.content(slot) for slot in range(held_out)}) == held_out
    assert TextWorldConfig(games=f"{games}/*.z8", held_out_from=None).held_out_levels is None
    start, other = wave.reset_many([0, 1])
    assert (start.goal, start.observation) == ("Go east.", "-= Hall =-\nA hall.")
    assert start.actions == ("go east", "look") and wave.oracle(0) == "go east"
    assert wave.content(0) != wave.content(1) and other.goal == start.goal
    assert not wave.step_many({1: "xyzzy"})[1].legal and wave.step_many({1: "look"})[1].observation == "A hall."
    step = wave.step_many({0: "go east"})[0]
    assert step.success and step.observation == "You win.\n*** The End ***\nThe goal is reached."
    wave.close()


def test_textworld_reads_free_text(games):
    wave = TextWorldConfig(games=f"{games}/*", commands="free", reward="score").make()
    (start,) = wave.reset_many([0])
    assert isinstance(start.actions, FreeText)
    assert not wave.step_many({0: "xyzzy"})[0].legal
    assert wave.step_many({0: "go   east"})[0].reward == 1.0
    wave.reset_many([0])
    assert wave.step_many({0: "crash"})[0].error == "environment_OSError"


def test_textworld_holds_out_files(games):
    wave = TextWorldConfig(games=f"{games}/*.z8").make()
    sides = []
    for first in (0, 1_000_000):
        wave.reset_many(range(first, first + 20))
        sides.append({wave.content(slot) for slot in range(20)})
    assert len(sides[0]) + len(sides[1]) == 20 and not sides[0] & sides[1]
    (games / "test").mkdir()
    for end in ("z8", "json"):
        (games / "test" / f"new.{end}").write_text("a new game")
    wave = TextWorldConfig(games=f"{games}/*.z8", held_out_games=f"{games}/test/*").make()
    wave.reset_many([*range(20), 1_000_000, 1_000_001])
    assert len({wave.content(slot) for slot in range(20)}) == 20 and wave.content(20) == wave.content(21)
    (games / "test" / "new.json").write_text("game 3")
    assert "is the same game as" in refused(TextWorldConfig(games=f"{games}/*.z8", held_out_games=f"{games}/test/*.z8"))


@pytest.mark.parametrize("pattern", ["*.json", "*"])
def test_textworld_has_the_same_game_on_the_same_side_whenever_it_was_compiled(games, pattern):
    sides = []
    for _ in range(2):
        wave = TextWorldConfig(games=f"{games}/{pattern}").make()
        wave.reset_many([*range(20), *range(1_000_000, 1_000_020)])
        sides.append([wave.content(slot) for slot in range(40)])
        wave.close()
        for path in games.glob("*.z8"):  # compiled again, or gone: then of the .json
            path.unlink()
    assert sides[0] == sides[1] and len(set(sides[0])) == 20


def test_textworld_compiles_a_json_without_its_game_once(games, monkeypatch):
    (games / "00.z8").unlink()
    compiled = []
    generator = sys.modules["textworld"].generator
    compile_game = generator.compile_game
    monkeypatch.setattr(generator, "compile_game", lambda *given: (compiled.append(given), compile_game(*given)))
    for _ in range(2):  # as two slots make it, each an instance of its own
        wave = TextWorldConfig(games=f"{games}/00.json", held_out_from=None).make()
        assert wave.reset_many([5])[0].actions == ("go east", "look")
        wave.close()
    assert len(compiled) == 1
    [place] = (Path.home() / ".cache/crl/textworld").iterdir()
    assert sorted(path.name for path in place.iterdir()) == ["game.json", "game.z8"], "and nothing half made"


def test_textworld_takes_a_game_that_another_process_compiled_meanwhile(games, monkeypatch):
    (games / "00.z8").unlink()
    generator = sys.modules["textworld"].generator
    compile_game = generator.compile_game

    def slowly(game, options):
        monkeypatch.setattr(generator, "compile_game", compile_game)
        TextWorldConfig(games=f"{games}/00.json", held_out_from=None).make().close()
        compile_game(game, options)

    monkeypatch.setattr(generator, "compile_game", slowly)
    wave = TextWorldConfig(games=f"{games}/00.json", held_out_from=None).make()
    assert wave.reset_many([5])[0].actions == ("go east", "look")
    wave.close()
    (games / "00.json").write_text("damaged")
    assert "cannot be compiled" in refused(TextWorldConfig(games=f"{games}/00.json", held_out_from=None))


def test_textworld_refuses(games):
    def of(pattern: str) -> str:
        return refused(TextWorldConfig(games=f"{games}/{pattern}", held_out_from=None))

    (games / "old.ulx").write_text("glulx")
    (games / "alone.z5").write_text("a game of 1982")
    (games / "bad.z8").write_text("damaged")
    assert "is a Glulx game that TextWorld 1.7.0 plays" not in of("*.none") and "no game is at" in of("*.none")
    assert "a Glulx game" in of("old.ulx") and ".json" in of("old.ulx")
    assert "nothing says when" in of("alone.z5") and "cannot be started" in of("bad.z8")
    assert "leave none for" in refused(TextWorldConfig(games=f"{games}/00.z8"))
    with pytest.raises(ValidationError, match="needs held_out_from"):
        TextWorldConfig(games="a", held_out_games="b", held_out_from=None)
