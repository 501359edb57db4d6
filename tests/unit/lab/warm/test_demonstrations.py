"""Demonstrations: exact token records, a loss only on what is to be learned, rules that no world has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.config import Method
from crl.envs.realms import RealmsConfig, RealmsEnvironment, experience_text, layouts
from crl.errors import BadInput
from crl.extractor.parse import parse_output
from crl.lab.warm.actor import Demonstration, actor_demonstrations
from crl.lab.warm.advice import answer_demonstrations, verdict_demonstrations
from crl.lab.warm.config import ActorDemonstrations, ExtractorDemonstrations, WarmStartFile, load_warm_start
from crl.lab.warm.extractor import extractor_demonstrations, merge_demonstrations
from crl.protocols import Chat
from crl.rollout.critic import parse_verdict

ROOT = Path(__file__).parents[4]
FILE = ROOT / "conf/warm/realms.yaml"


@pytest.fixture(scope="module")
def settings() -> WarmStartFile:
    return load_warm_start(FILE)


def shown(chat: Chat, method: Method, **changes: object) -> list[Demonstration]:
    config = ActorDemonstrations.model_validate({"episodes": 200, "slips": 0.3, **changes})
    return [each for wave in actor_demonstrations(chat, method, config, 5, first_seed=0) for each in wave]


def test_every_demonstration_is_won_with_a_true_plan(chat: Chat, method: Method) -> None:
    for each in shown(chat, method, slips=0.0):
        layout = layouts(method.families[0].environment).of(each.task.environment_seed)  # type: ignore[arg-type]
        key, goal = layout.key, layout.goal
        plan = f"{key} {key}@{layout.cells[key]} {goal} {goal}@{layout.cells[goal]} "
        assert each.episode.success and each.generations[0].output.startswith(plan)


@pytest.mark.slow
def test_hints_are_true_or_half_or_absent_in_the_shares_asked_for(chat: Chat, method: Method) -> None:
    seen = {"full": 0, "partial": 0, "none": 0}
    for each in shown(chat, method, episodes=600, full=0.5, partial=0.25):
        layout = layouts(method.families[0].environment).of(each.task.environment_seed)  # type: ignore[arg-type]
        kinds = {experience_text(layout.key, layout.goal): "full", f"take {layout.key}": "partial", None: "none"}
        seen[kinds[each.episode.experience]] += 1
    assert all(
        abs(seen[kind] / 600 - share) < 0.08 for kind, share in (("full", 0.5), ("partial", 0.25), ("none", 0.25))
    )


@pytest.mark.slow
def test_a_slip_is_played_and_not_learned(chat: Chat, method: Method) -> None:
    without = shown(chat, method, slips=0.0)
    slipping = shown(chat, method, slips=0.5)
    assert all(sum(each.generations[0].loss_mask) >= 6 for each in slipping)  # the first turn always is
    longer = [len(each.generations[0].token_ids) for each in slipping]
    assert sum(longer) > sum(len(each.generations[0].token_ids) for each in without)
    masked = sum(each.episode.turns * 2 + 4 - sum(each.generations[0].loss_mask) for each in slipping)
    assert masked > 0
    assert all(each.episode.turns * 2 + 4 == sum(each.generations[0].loss_mask) for each in without)


@pytest.mark.slow
def test_no_word_is_unknown_to_the_miniature(chat: Chat, method: Method) -> None:
    unknown = chat.opening([{"role": "user", "content": "surely-not-a-word"}])[0]
    records = [each.generations[0] for each in shown(chat, method, asking=0.5)]
    records += verdict_demonstrations(chat, method, 100, 5, first_seed=1000)
    records += answer_demonstrations(chat, method, 100, 5, first_seed=2000)
    records += merge_demonstrations(chat, method, ExtractorDemonstrations(merges=100), 8, 5)
    assert all(unknown not in row.token_ids for row in records)


def test_an_actor_that_may_ask_asks_first_and_plays_by_the_answer(chat: Chat, method: Method) -> None:
    demonstrations = shown(chat, method, episodes=100, asking=0.5, slips=0.0)
    asking = [each for each in demonstrations if each.generations[0].output.startswith("ASK:")]
    assert len(demonstrations) == 150 and len(asking) == 50
    assert all(each.episode.success and "ask?" in each.generations[0].prompt for each in asking)
    assert all("ask?" not in each.generations[0].prompt for each in demonstrations if each not in asking)


def test_answers_verdicts_and_merges_are_in_form(chat: Chat, method: Method) -> None:
    for row in answer_demonstrations(chat, method, 50, 5, first_seed=0):
        assert re.fullmatch("take [A-H] then [A-H]", row.output)
    verdicts = [parse_verdict(row.output, "lines", max_characters=80) for row in
                verdict_demonstrations(chat, method, 200, 5, first_seed=0)]  # fmt: skip
    assert {verdict.kind for verdict in verdicts} == {"accept", "refine", "reject"}
    for row in merge_demonstrations(chat, method, ExtractorDemonstrations(merges=50), 8, 5):
        count = row.prompt.count(".")
        parsed = parse_output(
            row.output, format="lines", max_operations=1, max_characters=80, kind="merge", source_count=count
        )
        assert parsed.verdict == "merge"


def test_notes_are_about_their_own_episodes_true_after_wins_and_never_the_plan_after_losses(
    chat: Chat, method: Method
) -> None:
    environment: RealmsConfig = method.families[0].environment  # type: ignore[assignment]
    config = ExtractorDemonstrations(episodes=700, noise=0.0, returns_won=0.0, returns_lost=0.0)
    for wave in extractor_demonstrations(chat, method, config, 5, first_seed=0):
        won = 0
        for each in wave:
            text = each.operations[0].text
            words = each.generation.prompt.split("Action: ")[1].split()
            layout = layouts(environment).of(int((each.distillation.episode_id or "").split("-")[1]))
            success = "success" in each.generation.prompt
            won += success
            assert (
                text == experience_text(layout.key, layout.goal)
                if success
                else text != experience_text(words[0], words[2])
            )
            assert text is not None and all(f"{symbol}@" in each.generation.prompt for symbol in text.split()[1::2])
        assert 0.4 < won / len(wave) < 0.7


@pytest.mark.slow
def test_equal_settings_are_equal_demonstrations(chat: Chat, method: Method) -> None:
    assert shown(chat, method) == shown(chat, method)


def test_practice_is_required_and_bad_files_are_refused_by_key(tmp_path: Path) -> None:
    text = FILE.read_text(encoding="utf-8")
    (tmp_path / "prompts").symlink_to(ROOT / "conf/prompts")
    for old, new, expected in (
        ("practice: true", "practice: false", "may not see the rules of a world"),
        ("asking:", "askin:", "did you mean 'asking'"),
        ("episodes: 40000", "episodes: 0", "actor.episodes"),
    ):
        bad = tmp_path / "bad.yaml"
        bad.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(BadInput, match=expected):
            load_warm_start(bad)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("actor", {"episodes": 600_000, "asking": 0.7}),
        ("extractor", {"episodes": 600_001}),
        ("actor", {"verdicts": 400_001}),
        ("extractor", {"answers": 300_001}),
        ("environment", {"held_out_from": 410_000}),
    ],
)
def test_no_demonstration_reaches_the_held_out_seeds(
    settings: WarmStartFile, part: str, changes: dict[str, object]
) -> None:
    data = settings.model_dump()
    with pytest.raises(ValueError, match=r"environment\.held_out_from is"):
        WarmStartFile.model_validate({**data, part: {**data[part], **changes}})


def test_the_name_is_no_part_of_what_a_warm_start_is(settings: WarmStartFile) -> None:
    assert settings.model_copy(update={"name": "other"}).digest() == settings.digest()
    assert settings.model_copy(update={"seed": 2}).digest() != settings.digest()


def test_layouts_of_practice_are_those_of_its_seeds(method: Method) -> None:
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    assert environment.reset_many([3])[0] == environment.reset_many([3, 4])[0]
    assert environment.truth("take A then B") is None, "practice has no rule to compare with"
