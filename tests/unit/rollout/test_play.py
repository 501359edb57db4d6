"""Playing a wave: the token record against an independent reconstruction, stop reasons, random streams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.checks import check_tables
from crl.config import SamplingConfig
from crl.credit.uses import usable
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput, PromptTooLong, StageFailed
from crl.faults import of_run
from crl.records import Episode, Generation, Turn, rows_of, table_of
from crl.rollout.environments import MixedEnvironment
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave, waves_of
from crl.rollout.prompts import actor_messages, following_text
from tests.unit.rollout.fakes import (
    CharacterChat,
    Corridor,
    ScriptedPolicy,
    actor_prompt,
    method,
    task,
)

SAMPLING = SamplingConfig(max_new_tokens=12)


def seed_of(episode_id: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(list(episode_id.encode()))


def play(policy, environment, slots, **options):
    rollout = options.pop("rollout", {})
    return play_wave(
        policy, environment, slots, method=method(**rollout), seed_of=seed_of, sampling=SAMPLING,
        weights_digest="w", stage="collect", **options,
    )  # fmt: skip


def reconstruct(played: PlayedEpisode) -> tuple[list[int], list[int]]:
    """Ids and mask of an episode from its texts alone, by the rules of the chat."""
    chat, prompt = CharacterChat(), actor_prompt()
    episode = played.episode
    ids = chat.opening(
        actor_messages(
            prompt, goal=episode.goal, observation=played.turns[0].observation, actions=Corridor.actions,
            experience=episode.experience, placement="user",
        )
    )  # fmt: skip
    mask = [0] * len(ids)
    for turn, following in zip(played.turns, [*played.turns[1:], None], strict=True):
        ended = turn.stop_reason == "end_of_turn"
        written = [*map(ord, turn.output), *([2] if ended else [])]
        assert (turn.first_token, turn.last_token) == (len(ids), len(ids) + len(written))
        ids, mask = ids + written, mask + [1] * len(written)
        if following is not None:
            text = following_text(
                prompt, goal=episode.goal, observation=following.observation, actions=Corridor.actions,
                feedback=turn.feedback or "",
            )  # fmt: skip
            reply = chat.reply(text, ended=ended)
            ids, mask = ids + reply, mask + [0] * len(reply)
    return ids, mask


def assert_exact(policy: ScriptedPolicy, played: list[PlayedEpisode]) -> None:
    assert policy.session is not None
    for row, each in enumerate(played):
        generation = each.generations[0]
        assert generation.token_ids == policy.session.ids[row]
        ids, mask = reconstruct(each)
        assert (generation.token_ids, generation.loss_mask) == (ids, mask)
        sampled = [p for first, last in policy.session.sampled_at[row] for p in range(first, last)]
        assert [p for p, value in enumerate(generation.loss_mask) if value] == sampled
        assert [p for p, value in enumerate(generation.logprobs) if value != 0.0] == sampled
        expected = np.random.default_rng(seed_of(each.episode.episode_id)).random(len(sampled))
        assert [generation.logprobs[p] for p in sampled] == pytest.approx([-value for value in expected])
        assert row in policy.session.dropped


OUTPUTS = st.sampled_from(["right", "left", "go right now", "hm", "", "Right {goal}", "LEFT"])


@settings(deadline=None, max_examples=60)
@given(
    seeds=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    outputs=st.lists(st.tuples(OUTPUTS, st.booleans()), min_size=1, max_size=12),
    guided=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_record_is_what_went_through_the_session(seeds, outputs, guided):
    policy = ScriptedPolicy(lambda row, turn: outputs[(row * 3 + turn) % len(outputs)])
    slots = [
        EpisodeSlot(task(member, seed), (Guide("e1", "d1", "use {observation} & go"),)) if guided[member]
        else EpisodeSlot(task(member, seed))
        for member, seed in enumerate(seeds)
    ]  # fmt: skip
    played = play(policy, Corridor(), slots)
    assert_exact(policy, played)
    for slot, each in zip(slots, played, strict=True):
        assert each.episode.guided == bool(slot.guides)
        assert each.episode.entry_ids == [guide.entry_id for guide in slot.guides]
        assert each.episode.turns == len(each.turns) <= 6
        assert each.episode.invalid_actions == sum(not turn.valid for turn in each.turns)
        assert each.generations[0].output == "\n".join(turn.output for turn in each.turns)
        for turn in each.turns:
            assert turn.valid == (turn.action is not None) == (turn.feedback is None)
    for row_type, rows in (
        (Episode, [each.episode for each in played]),
        (Generation, [each.generations[0] for each in played]),
        (Turn, [turn for each in played for turn in each.turns]),
    ):
        assert len(rows_of(row_type, table_of(row_type, rows))) == len(rows)


def test_several_experiences_are_one_numbered_text_and_all_of_them_are_recorded():
    guides = (Guide("e1", "d1", "go right"), Guide("e2", "d2", "not {goal}"), Guide("e3", "d3", "wait"))
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    several, one, none = play(policy, Corridor(), [
        EpisodeSlot(task(0, 2), guides),
        EpisodeSlot(task(1, 2), (Guide("e1", "d1", "go right"),)),
        EpisodeSlot(task(2, 2)),
    ])  # fmt: skip
    shown = "1. go right\n2. not {goal}\n3. wait"
    assert several.episode.experience == shown and f"Advice: {shown}\n" in several.generations[0].prompt
    assert several.episode.entry_ids == ["e1", "e2", "e3"] and several.episode.content_digests == ["d1", "d2", "d3"]
    assert several.episode.experiences == ["go right", "not {goal}", "wait"]
    assert one.episode.experience == "go right" and one.episode.entry_ids == ["e1"], "one stands without a number"
    assert none.episode.entry_ids == none.episode.experiences == [] and not none.episode.guided


def test_rows_finish_at_different_times_with_their_reason():
    scripts = [["right"], ["right", "right", "right"], ["right", "left"], ["hm"] * 6]
    policy = ScriptedPolicy(lambda row, turn: (scripts[row][turn], True))
    slots = [EpisodeSlot(task(m, s, group=m // 2)) for m, s in enumerate([1, 3, 3, 2])]
    told = []
    played = play(policy, Corridor(), slots, progress=told.append)
    found = [(e.episode.stop_reason, e.episode.success, e.episode.reward, e.episode.turns) for e in played]
    assert found == [
        ("success", True, 1.0, 1), ("success", True, 1.0, 3), ("failure", False, 0.0, 2),
        ("turn_limit", False, 0.0, 6),
    ]  # fmt: skip
    assert played[3].episode.invalid_actions == 6
    assert [each.episode.last_observation for each in played] == [f"{left} to go {{x}}" for left in (0, 0, 2, 2)]
    assert played[3].turns[0].feedback == "Say right or left."
    assert told[0] == {"done": 0, "total": 4, "turns": 0, "won": 0}
    assert told[1] == {"done": 1, "total": 4, "turns": 4, "won": 1}
    assert told[-1] == {"done": 4, "total": 4, "turns": 12, "won": 2}
    assert_exact(policy, played)


def test_context_limit_ends_before_a_reply_that_leaves_no_room():
    slot = EpisodeSlot(task(0, 5))
    free = ScriptedPolicy(lambda row, turn: ("right", True))
    whole = play(free, Corridor(), [slot])[0]
    third = whole.turns[2]
    # Room for the third turn's whole budget, and for nothing of the fourth.
    policy = ScriptedPolicy(lambda row, turn: ("right", True), context=third.first_token + SAMPLING.max_new_tokens)
    played = play(policy, Corridor(), [slot])
    assert played[0].episode.stop_reason == "context_limit"
    assert (played[0].episode.success, played[0].episode.turns) == (False, 3)
    assert played[0].episode.last_observation == "2 to go {x}", "what no prompt had room for"
    assert len(played[0].generations[0].token_ids) <= policy.context
    assert_exact(policy, played)
    shorter = ScriptedPolicy(lambda row, turn: ("right", True), context=policy.context - 1)
    assert play(shorter, Corridor(), [slot])[0].episode.turns == 2


class Wordy(Corridor):
    """Says much in the slot of one seed."""

    def reset_many(self, seeds):
        return [replace(start, observation=start.observation * (50 if seed == 4 else 1))
                for start, seed in zip(super().reset_many(seeds), seeds, strict=True)]  # fmt: skip


@pytest.mark.parametrize("long_note", [False, True])
def test_a_first_prompt_that_does_not_fit_ends_its_episode_and_no_other(long_note):
    """A round would otherwise fail, and with equal seeds every time it is resumed."""
    policy, note = ScriptedPolicy(lambda row, turn: ("right", True), context=400), "go right " * 50
    tasks = [task(0, 2), replace(task(1, 4), first_observation="4 to go {x}" * 50), task(2, 2)]
    slots = [EpisodeSlot(each) for each in tasks]
    if long_note:
        slots[1] = EpisodeSlot(task(1, 3), (Guide("e1", "d1", note),))
    played = play(policy, Wordy(), slots)
    broken = played[1]
    assert [each.episode.stop_reason for each in played] == ["success", "error", "success"]
    assert (broken.episode.error, broken.episode.reward, broken.episode.turns) == ("prompt_too_long", 0.0, 1)
    assert broken.episode.experience == (note if long_note else None)
    assert note not in broken.generations[0].prompt and "4 to go" not in broken.generations[0].prompt, (
        "what it was not shown"
    )
    assert len(broken.generations[0].token_ids) <= policy.context
    tables = {Episode: table_of(Episode, [each.episode for each in played]),
              Turn: table_of(Turn, [turn for each in played for turn in each.turns])}  # fmt: skip
    check_tables(tables, where="here")
    assert not usable(broken.episode), "it says nothing about the note"


def test_a_prompt_that_does_not_fit_by_itself_is_refused_with_both_numbers():
    policy = ScriptedPolicy(lambda row, turn: ("right", True), context=40)
    with pytest.raises(PromptTooLong, match=r"has \d+ tokens") as caught:
        play(policy, Corridor(), [EpisodeSlot(task(0, 2))])
    assert "at most 28" in str(caught.value)
    assert isinstance(caught.value, BadInput)


@pytest.mark.parametrize(("raises", "together"), [(False, False), (True, False), (True, True)])
def test_environment_error_keeps_the_row_with_its_reason(raises, together):
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    corridor = Corridor(breaks=(1, 1), whole=raises)
    corridor.steps_together = together
    played = play(policy, corridor, [EpisodeSlot(task(m, 3)) for m in range(2)])
    broken = played[1]
    assert (broken.episode.stop_reason, broken.episode.error) == ("error", "environment_KeyError")
    assert (broken.episode.success, broken.episode.reward, broken.episode.turns) == (False, 0.0, 2)
    assert broken.turns[-1].valid is False
    assert broken.episode.invalid_actions == 0
    assert broken.episode.last_observation is None
    assert played[0].episode.stop_reason == ("error" if together else "success"), "another slot ends in one call alone"
    assert_exact(policy, played)
    episodes = table_of(Episode, [each.episode for each in played])
    turns = table_of(Turn, [turn for each in played for turn in each.turns])
    check_tables({Episode: episodes, Turn: turns}, where="here")


def test_errors_of_our_own_end_their_episode_where_the_environment_raises_them_and_the_stage_else():
    class Refusing(Corridor):
        def step_many(self, actions):
            raise StageFailed("stop")

    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    [played] = play(policy, Refusing(), [EpisodeSlot(task(0, 3))])
    assert played.episode.error == "environment_StageFailed" and "stop" in played.details

    class Broken(Corridor):
        def step_many(self, actions):
            with of_run():
                raise StageFailed("stop")

    with pytest.raises(StageFailed, match="stop"):
        play(policy, Broken(), [EpisodeSlot(task(0, 3))])


def test_environment_that_starts_otherwise_than_planned_is_refused():
    policy = ScriptedPolicy(lambda row, turn: ("right", True))

    class Other(Corridor):
        def reset_many(self, seeds):
            return super().reset_many([seed + 1 for seed in seeds])

    with pytest.raises(StageFailed, match="otherwise than it was planned"):
        play(policy, Other(), [EpisodeSlot(task(0, 3))])


def test_session_that_loses_tokens_is_noticed():
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    opened = policy.open

    def lossy(prompts, seeds, limit=None):
        session = opened(prompts, seeds)
        session.extend = lambda pieces: None
        return session

    policy.open = lossy
    with pytest.raises(StageFailed, match="session holds"):
        play(policy, Corridor(), [EpisodeSlot(task(0, 3))])


def test_an_episode_samples_alike_alone_and_in_a_wave():
    def script(row, turn):
        return ("right", True)

    together = play(ScriptedPolicy(script), Corridor(), [EpisodeSlot(task(m, 3)) for m in range(3)])
    alone = play(ScriptedPolicy(script), Corridor(), [EpisodeSlot(task(2, 3))])
    assert together[2] == alone[0]
    assert together[0].generations[0].logprobs != together[1].generations[0].logprobs


def test_placement_system_keeps_the_user_message_free_of_the_experience():
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    slots = [EpisodeSlot(task(0, 1), (Guide("e", "d", "go right"),)), EpisodeSlot(task(1, 1))]
    guided, free = play(policy, Corridor(), slots, rollout={"placement": "system"})
    assert "Advice: go right\n\n[user]" in guided.generations[0].prompt
    assert guided.generations[0].prompt.replace("\nAdvice: go right", "") == free.generations[0].prompt


def test_tag_format_plays():
    policy = ScriptedPolicy(lambda row, turn: ("left? <action>left</action> <action> Right </action>", True))
    played = play(policy, Corridor(), [EpisodeSlot(task(0, 2))], rollout={"action_format": "tag"})
    assert [turn.action for turn in played[0].turns] == ["right", "right"]


def test_a_real_environment_is_won_by_its_oracle():
    environment = FrozenLakeConfig(max_turns=20).make()
    starts = environment.reset_many([3, 4])
    slots = []
    for member, (seed, start) in enumerate(zip([3, 4], starts, strict=True)):
        planned = task(member, seed)
        fields = {name: getattr(planned, name) for name in planned.__slots__}
        fields |= {"goal": start.goal, "first_observation": start.observation}
        slots.append(EpisodeSlot(type(planned)(**fields)))
    policy = ScriptedPolicy(lambda row, turn: (environment.oracle(row) or "", True))
    assert all(each.episode.success for each in play(policy, environment, slots))


def test_waves_are_whole_groups_of_one_family_in_order():
    tasks = [task(m, 1, group=g, family=f) for f, gs in (("b", (0, 1, 2)), ("a", (3, 4))) for g in gs for m in range(2)]
    waves = waves_of(tasks, 2)
    assert [[(each.family, each.group, each.member) for each in wave] for wave in waves] == [
        [("b", 0, 0), ("b", 0, 1), ("b", 1, 0), ("b", 1, 1)], [("b", 2, 0), ("b", 2, 1)],
        [("a", 3, 0), ("a", 3, 1), ("a", 4, 0), ("a", 4, 1)],
    ]  # fmt: skip
    assert waves_of([], 2) == []


def test_mixed_waves_are_the_next_groups_whatever_their_family():
    tasks = [task(m, 1, group=g, family=f) for f, gs in (("b", (0, 1, 2)), ("a", (3, 4))) for g in gs for m in range(2)]
    found = [
        [(each.family, each.group, each.member) for each in wave] for wave in waves_of(tasks, 4, {"b": "b", "a": "b"})
    ]
    assert found == [
        [("b", 0, 0), ("b", 0, 1), ("b", 1, 0), ("b", 1, 1), ("b", 2, 0), ("b", 2, 1), ("a", 3, 0), ("a", 3, 1)],
        [("a", 4, 0), ("a", 4, 1)],
    ]
    one_family = [each for each in tasks if each.family == "b"]
    assert waves_of(one_family, 2, {"b": "b"}) == waves_of(one_family, 2)
    assert waves_of(tasks, 4, {"b": "b", "a": "a"}) == waves_of(tasks, 4), "families of other sampling play apart"


def test_a_mixed_wave_plays_each_slot_in_the_environment_of_its_family():
    """Interleaved families with turn limits of their own; every episode is as it is in a wave of its family alone."""
    limits = {"short": 2, "walk": 6}
    families = ["walk", "short", "short", "walk", "short"]
    slots = [EpisodeSlot(task(m, s, group=m, family=families[m])) for m, s in enumerate([1, 1, 3, 5, 2])]
    environment = MixedEnvironment(families, lambda family: Corridor(limits[family]))
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    played = play(policy, environment, slots)
    assert_exact(policy, played)
    assert [(each.episode.family, each.episode.turns, each.episode.stop_reason) for each in played] == [
        ("walk", 1, "success"), ("short", 1, "success"), ("short", 2, "turn_limit"), ("walk", 5, "success"),
        ("short", 2, "success"),
    ]  # fmt: skip
    for family, limit in limits.items():
        own = [slot for slot in slots if slot.task.family == family]
        alone = play(ScriptedPolicy(lambda row, turn: ("right", True)), Corridor(limit), own)
        assert alone == [each for each in played if each.episode.family == family]


@pytest.mark.parametrize("together", [False, True])
def test_a_family_that_breaks_ends_its_own_slots_of_a_mixed_wave(together):
    families = ["walk", "broken", "walk", "broken"]
    broken = {"walk": Corridor(), "broken": Corridor(breaks=(1, 1), whole=True)}
    broken["broken"].steps_together = together
    slots = [EpisodeSlot(task(m, 2, group=m, family=f)) for m, f in enumerate(families)]
    played = play(
        ScriptedPolicy(lambda row, turn: ("right", True)), MixedEnvironment(families, broken.__getitem__), slots
    )
    assert [(each.episode.stop_reason, each.episode.error) for each in played] == [
        ("success", None), ("error", "environment_KeyError") if together else ("success", None), ("success", None),
        ("error", "environment_KeyError"),
    ]  # fmt: skip


def test_a_mixed_environment_asks_the_oracle_of_the_family_and_closes_nothing():
    class Closing(Corridor):
        def oracle(self, slot):
            return f"{self.left[slot]} left"

        def close(self):
            raise AssertionError("it is borrowed")

    environment = MixedEnvironment(["b", "a", "b"], lambda family: Closing())
    environment.reset_many([4, 5, 6])
    assert [environment.oracle(slot) for slot in range(3)] == ["4 left", "5 left", "6 left"]
    environment.close()
    with pytest.raises(ValueError, match="3 slots"):
        environment.reset_many([1, 2])


def test_a_wave_of_two_families_in_the_environment_of_one_is_a_mistake():
    slots = [EpisodeSlot(task(0, 1)), EpisodeSlot(task(0, 1, family="other"))]
    with pytest.raises(ValueError, match="several task families"):
        play(ScriptedPolicy(lambda row, turn: ("right", True)), Corridor(), slots)
    assert play(ScriptedPolicy(lambda row, turn: ("right", True)), Corridor(), []) == []
