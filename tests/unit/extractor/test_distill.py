"""Distillation over a scripted policy: rows, families, batches, prompts that do not fit."""

import dataclasses
import re

import pytest

from crl.config.mechanisms import SelectShare
from crl.errors import BadInput, PromptTooLong
from crl.extractor.distill import DistillItem, distill_wave, items_of, selected
from crl.extractor.prompts import check_prompts, check_room, distill_messages, merge_messages
from crl.protocols import StopReason
from crl.records import Distillation, Generation, Operation, table_of


def wave(kit, policy, items, method, **options):
    options = {"seed_of": kit.seed_of, "weights_digest": "w", "round": 4} | options
    return distill_wave(policy, items, **kit.distilling(method), **options)


def item(kit, number, turns=2, **options):
    episode = kit.episode(number, **options)
    return DistillItem(episode, tuple(kit.turn(episode, n, f"view {n}") for n in range(turns)))


def test_rows_of_a_guided_episode(kit):
    policy = kit.policy(lambda prompt, generator: "UPDATE: look first\nADD: go north")
    ((distillation, operations, generation),) = wave(kit, policy, [item(kit, 3, guide="x9")], kit.method())
    assert distillation == Distillation(
        distillation_id="d-r1-room-g3-m0",
        round=4,
        kind="distill",
        family="room",
        episode_id="r1-room-g3-m0",
        guiding_entry_id="x9",
        source_entry_ids=[],
        generation_id="g-d-r1-room-g3-m0",
        format="lines",
        reason_code="ok",
        verdict="mixed",
        operations=2,
        turns=2,
        turns_shown=2,
    )
    assert [(row.kind, row.entry_id, row.text, row.index) for row in operations] == [
        ("update", "x9", "look first", 0),
        ("add", "x-d-r1-room-g3-m0-o1", "go north", 1),
    ]
    assert {row.family for row in operations} == {"room"}
    assert [row.episode_ids for row in operations] == [["r1-room-g3-m0"]] * 2
    assert generation.prompt.endswith("reach the stairs|text of x9|success|Turn 1: view 0\nAction: north\n"
                                      "Turn 2: view 1\nAction: north\nEnd: the end")  # fmt: skip


def test_the_token_record_is_prompt_and_sampled_ids(kit):
    policy = kit.policy(lambda prompt, generator: "RETURN")
    results = wave(kit, policy, [item(kit, n) for n in range(3)], kit.method())
    prompts = policy.sessions[0].prompts
    for row, (_, _, generation) in enumerate(results):
        assert generation.token_ids == [*prompts[row], row]
        assert generation.loss_mask == [0] * len(prompts[row]) + [1]
        assert generation.logprobs[:-1] == [0.0] * len(prompts[row]) and generation.logprobs[-1] < 0
        assert (generation.output, generation.stop_reason, generation.temperature) == ("RETURN", "end_of_turn", 1.0)
        assert (generation.role, generation.kind, generation.stage) == ("extractor", "distill", "distill")


def test_batches_are_bounded_in_order_and_freed(kit):
    policy = kit.policy(lambda prompt, generator: f"ADD: {generator.integers(10**9)}")
    items = [item(kit, n) for n in range(37)]
    results = wave(kit, policy, items, kit.method())
    assert [(len(session.prompts), session.limit) for session in policy.sessions] == [(37, 16)]
    assert policy.sessions[0].dropped == list(range(37))
    assert [result.distillation.episode_id for result in results] == [one.episode.episode_id for one in items]
    # A random stream belongs to its episode, not to its place in a batch.
    alone = wave(kit, kit.policy(policy._answer), items[20:21], kit.method())
    assert alone[0].operations == results[20].operations


def test_malformed_asks_for_nothing(kit):
    answers = iter(["chatter", ("ADD: cut o", StopReason.length), "UPDATE: no guide", ""])
    results = wave(kit, kit.policy(lambda *_: next(answers)), [item(kit, n) for n in range(4)], kit.method())
    assert [(row.reason_code, row.verdict, row.operations) for row, _, _ in results] == [
        ("not_an_operation", "malformed", 0),
        ("truncated", "malformed", 0),
        ("update_without_guide", "malformed", 0),
        ("empty", "malformed", 0),
    ]
    assert all(result.operations == [] for result in results)


def test_a_long_trajectory_is_shortened_to_the_room_there_is(kit):
    policy = kit.policy(lambda *_: "RETURN", context=600)
    long, short = item(kit, 0, turns=60), item(kit, 1, turns=2)
    results = wave(kit, policy, [long, short], kit.method())
    assert [result.distillation.verdict for result in results] == ["return", "return"]
    lengths = [len(prompt) for prompt in policy.sessions[0].prompts]
    assert lengths[1] < 550 <= lengths[0] <= 590  # 600 less ten new tokens, nearly all of it used
    assert "turns left out" in results[0].generation.prompt
    assert "Turn 60: view 59" in results[0].generation.prompt
    shown = re.findall(r"Turn (\d+): view (\d+)\nAction: north\n", results[0].generation.prompt)
    assert 2 < len(shown) < 60 and all(int(turn) == int(view) + 1 for turn, view in shown)
    assert [(row.turns, row.turns_shown) for row, _, _ in results] == [(60, len(shown)), (2, 2)]


def test_a_prompt_that_cannot_fit_is_a_row_and_not_a_sample(kit):
    policy = kit.policy(lambda *_: "RETURN", context=400)
    results = wave(kit, policy, [item(kit, 0, goal="g" * 900), item(kit, 1)], kit.method())
    row, operations, generation = results[0]
    assert (row.reason_code, row.verdict, operations) == ("prompt_too_long", "malformed", [])
    assert (generation.token_ids, generation.loss_mask, generation.output) == ([], [], "")
    assert generation.stop_reason == "context_limit"
    assert [(result.distillation.turns, result.distillation.turns_shown) for result in results] == [(2, 0), (2, 2)]
    assert results[1].distillation.verdict == "return"
    assert [len(session.prompts) for session in policy.sessions] == [1]


def test_rows_fit_their_tables(kit):
    answers = iter(["ADD: naïve 🙂 \ud800", "RETURN"])
    results = wave(kit, kit.policy(lambda *_: next(answers)), [item(kit, 0), item(kit, 1)], kit.method())
    assert table_of(Distillation, [row for row, _, _ in results]).num_rows == 2
    assert table_of(Operation, [row for _, rows, _ in results for row in rows]).num_rows == 2
    assert table_of(Generation, [row for _, _, row in results]).num_rows == 2


def test_which_episodes_are_distilled(kit):
    episodes = [kit.episode(0), kit.episode(1, guide="x1"), kit.episode(2, guide="x1", error="broke")]
    turns = [kit.turn(episode, number) for number in (1, 0) for episode in episodes]
    both = items_of(episodes, turns, kit.method(episodes="all").recipe.distill)
    assert [one.episode.group for one in both] == [0, 1]
    assert [turn.turn for turn in both[0].turns] == [0, 1]
    guided = items_of(episodes, turns, kit.method(episodes="guided").recipe.distill)
    assert [one.episode.group for one in guided] == [1]
    first_round = items_of(episodes[:1], turns, kit.method(episodes="guided").recipe.distill)
    assert [one.episode.group for one in first_round] == [0], "an empty bank guides nobody and must be filled somehow"


def played(kit, outcomes):
    """Episodes of one family: of each group the outcomes of its members."""
    return [
        dataclasses.replace(kit.episode(group), member=member, episode_id=f"g{group}-m{member}", success=won == "w")
        for group, members in enumerate(outcomes)
        for member, won in enumerate(members)
    ]


def chosen(kit, episodes, select):
    items = [DistillItem(episode, ()) for episode in episodes]
    return [one.episode.episode_id for one in selected(items, select, kit.seed_of)]


def test_a_selection_takes_what_groups_can_teach(kit):
    episodes = played(kit, ["wwll", "wwww", "ll", "lw", "w"])
    assert chosen(kit, episodes, "all") == [each.episode_id for each in episodes]
    assert chosen(kit, episodes, "mixed") == [f"g0-m{n}" for n in range(4)] + ["g3-m0", "g3-m1"]
    contrast = chosen(kit, episodes, "contrast")
    of_first = [name for name in contrast if name.startswith("g0")]
    assert len(of_first) == 2 and of_first[0] in ("g0-m0", "g0-m1") and of_first[1] in ("g0-m2", "g0-m3")
    assert contrast == [*of_first, "g3-m0", "g3-m1"] == chosen(kit, episodes, "contrast"), "the seed decides"
    assert chosen(kit, played(kit, ["wwww", "ll"]), "contrast") == [], "nothing is won and lost"
    assert chosen(kit, [], "contrast") == chosen(kit, [], SelectShare(share=0.5)) == []


def test_either_member_of_a_group_may_be_selected_and_shares_are_rounded_up(kit):
    first = {chosen(kit, played(kit, ["l"] * n + ["w" * 8 + "l" * 8]), "contrast")[0] for n in range(40)}
    assert len({name.partition("-")[2] for name in first}) > 4, "not always the first that was won"
    episodes = played(kit, ["wwlll"] * 3)
    for share, count in ((0.01, 1), (0.5, 8), (0.99, 15)):
        found = chosen(kit, episodes, SelectShare(share=share))
        assert len(found) == count and found == sorted(found) and len({*found}) == count


def test_texts_with_braces_are_shown_as_they_are(kit):
    method = kit.method()
    episode = kit.episode(0, guide="{goal}", goal="{trajectory}")
    messages = distill_messages(
        method.prompts["distill"], episode, [kit.turn(episode, 0, "{outcome}")], method.recipe.distill
    )
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[1]["content"] == "an example {goal}"
    assert messages[-1]["content"] == (
        "{trajectory}|text of {goal}|success|Turn 1: {outcome}\nAction: north\nEnd: the end"
    )
    merge = merge_messages(method.prompts["merge"], "room", ["{family}", "b"], method.recipe.distill)
    assert merge[-1]["content"] == "room:\n1. {family}\n2. b"


def test_a_free_episode_shows_no_experience(kit):
    method = kit.method()
    messages = distill_messages(method.prompts["distill"], kit.episode(0, success=False), [], method.recipe.distill)
    assert messages[-1]["content"] == "reach the stairs|none|failure (turn limit)|End: the end"


def test_prompts_are_refused_before_work_starts(kit):
    method = kit.method()
    check_prompts(method.prompts)
    wrong = method.prompts["distill"].model_copy(update={"first": "{gaol}"})
    with pytest.raises(BadInput, match="gaol") as caught:
        check_prompts({**method.prompts, "distill": wrong})
    assert "distill.first" in str(caught.value)
    chat = kit.policy(None).chat
    role = method.role("extractor")
    check_room(chat, role.model_copy(update={"context": 1000}), method.prompts)
    with pytest.raises(PromptTooLong, match="the distill prompt takes"):
        check_room(chat, role.model_copy(update={"context": 40}), method.prompts)
