"""Answers restricted to a few texts: what is sampled is one of them, from the model's distribution renormalized."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.config import SamplingConfig
from crl.protocols import StopReason
from crl.rollout.actions import AnswerTrees
from tests.scored import sequence_logprobs

END = 4
"""An id that ends an answer here; the trees may use any."""


def tree_of(answers):
    root = {}
    for answer in answers:
        node = root
        for index in answer:
            node = node.setdefault(index, {})
    return root


def scored(policy, ids, positions, temperature):
    """Log-probability of each id by teacher forcing, renormalized over the choices at its position."""
    return sequence_logprobs(policy.model, [ids], temperature, batch=1, choices=[positions])[0]


ANSWERS = st.lists(
    st.lists(st.integers(10, 16), min_size=1, max_size=4).map(lambda ids: (*ids, END)), min_size=1, max_size=6
).map(lambda answers: list(dict.fromkeys(answers)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answers=st.lists(ANSWERS, min_size=3, max_size=3),
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.6, 1.4]),
)
def test_a_turn_is_one_of_its_answers_with_the_log_probabilities_of_teacher_forcing(policy, answers, seed, temperature):
    """Rows with different answers share a pass; prefixes, single answers and long ones are among them."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(20, 500, int(rng.integers(3, 20))).tolist() for _ in answers]
    session = policy.open(prompts, [seed, seed + 1, seed + 2])
    ids = [list(prompt) for prompt in prompts]
    stored, positions = [{} for _ in prompts], [{} for _ in prompts]
    for _ in range(3):
        trees = {row: tree_of(answers[row]) for row in range(3)}
        sampling = SamplingConfig(temperature=temperature, max_new_tokens=5)
        for row, turn in session.sample(range(3), sampling, trees).items():
            assert tuple(turn.token_ids) in answers[row]
            assert turn.stop_reason is StopReason.end_of_turn
            choices = iter(turn.choices)
            for place, drawn in enumerate(turn.drawn):
                node = trees[row]
                for index in turn.token_ids[:place]:
                    node = node[index]
                assert drawn == (len(node) > 1), "drawn exactly where there was a choice"
                if drawn:
                    positions[row][len(ids[row]) + place] = next(choices)
                    assert positions[row][len(ids[row]) + place] == sorted(node)
                    stored[row][len(ids[row]) + place] = turn.logprobs[place]
                else:
                    assert turn.logprobs[place] == 0.0
            assert next(choices, None) is None
            ids[row] += turn.token_ids
        session.extend({row: [30, 31, 32 + row] for row in range(3)})
        for row in range(3):
            ids[row] += [30, 31, 32 + row]
            assert session.length(row) == len(ids[row])
    for row in range(3):
        exact = scored(policy, ids[row], positions[row], temperature)
        assert all(abs(exact[place] - value) < 1e-4 for place, value in stored[row].items())


def test_answers_come_as_often_as_the_renormalized_distribution_says(policy):
    answers = [(10, END), (10, 11, END), (12, 13, 14, END), (15, END)]
    tree, prompt, rows, sampling = tree_of(answers), [21, 22, 23], 4000, SamplingConfig(max_new_tokens=5)
    exact = {}
    for answer in answers:
        node, positions, ids = tree, {}, [*prompt, *answer]
        for place, index in enumerate(answer):
            positions[len(prompt) + place] = sorted(node)
            node = node[index]
        exact[answer] = float(np.exp(sum(scored(policy, ids, positions, 1.0)[place] for place in positions)))
    assert sum(exact.values()) == pytest.approx(1.0, abs=1e-5), "a distribution over the answers"
    counts = dict.fromkeys(answers, 0)
    for start in range(0, rows, 500):
        session = policy.open([prompt] * 500, range(start, start + 500))
        found = session.sample(range(500), sampling, dict.fromkeys(range(500), tree))
        for turn in found.values():
            counts[tuple(turn.token_ids)] += 1
    for answer, probability in exact.items():
        spread = (probability * (1 - probability) / rows) ** 0.5
        assert abs(counts[answer] / rows - probability) < 5 * spread, (answer, counts, exact)


def test_ids_without_a_choice_cost_no_pass(policy):
    passes = []
    hook = policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    try:
        session = policy.open([[21, 22], [23, 24]], [0, 1])
        passes.clear()
        trees = {0: tree_of([(10, 11, 12, END)]), 1: tree_of([(10, 11, END), (12, 13, END)])}
        found = session.sample([0, 1], SamplingConfig(max_new_tokens=4), trees)
    finally:
        hook.remove()
    assert len(passes) == 1, "one decision in all: one pass, over the row that decides"
    assert found[0].token_ids == [10, 11, 12, END] and found[0].drawn == [0, 0, 0, 0] and found[0].choices == []
    assert found[1].drawn == [1, 0, 0]
    assert session.length(0) == 6 and session.length(1) == 5


def test_top_k_and_top_p_see_the_choices_alone(policy):
    answers = [(10, END), (11, END), (12, END)]
    trees = dict.fromkeys(range(64), tree_of(answers))
    greedy = SamplingConfig(max_new_tokens=2, top_k=1)
    found = policy.open([[21, 22, 23]] * 64, range(64)).sample(range(64), greedy, trees)
    assert len({tuple(turn.token_ids) for turn in found.values()}) == 1, "top-k 1 is the best of the answers"
    assert all(turn.logprobs[0] < 0 for turn in found.values()), "stored before top-k: not certain"


def test_trees_are_made_of_the_words_a_chat_format_writes(policy):
    trees = AnswerTrees(policy.chat, longest=6)
    tree = trees.of(("north", "northeast", "pick up"))
    paths = []

    def walk(node, path):
        if not node:
            paths.append(path)
        for index, below in node.items():
            walk(below, [*path, index])

    walk(tree, [])
    assert sorted(policy.chat.decode(path) for path in paths) == ["north", "northeast", "pick up"]
    assert all(path[-1] == policy.chat.end_ids[0] for path in paths)
    assert trees.of(("north", "northeast", "pick up")) is tree, "made once"


@pytest.mark.parametrize(
    ("actions", "longest", "said"), [((), 6, "no legal action"), (("a long walk north",), 2, "tokens")]
)
def test_answers_that_cannot_be_given_are_refused(policy, actions, longest, said):
    from crl.errors import BadInput

    with pytest.raises(BadInput, match=said):
        AnswerTrees(policy.chat, longest=longest).of(actions)


def test_rows_without_answers_write_free_text_beside_those_that_have_some(policy):
    sampling = SamplingConfig(max_new_tokens=6)
    session = policy.open([[20, 21], [22, 23]], [1, 2])
    found = session.sample([0, 1], sampling, {0: {10: {END: {}}, 11: {END: {}}}})
    assert found[0].token_ids in ([10, END], [11, END]) and found[0].choices == [[10, 11]]
    assert found[1].choices == [] and found[1].drawn is None
    alone = policy.open([[22, 23]], [2]).sample([0], sampling)
    assert found[1].token_ids == alone[0].token_ids
