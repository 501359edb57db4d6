"""Sessions: what is sampled is what teacher forcing scores, whatever the batch, and every token is read once."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.config import SamplingConfig
from crl.errors import PromptTooLong
from crl.policies import session as session_module
from crl.policies.scoring import sequence_logprobs
from crl.protocols import StopReason

VOCABULARY = 512


def _prompts(rng, groups, members, common=20, shared=8, own=12):
    """Prompts of several groups: common to all, then to the group, then a row's own ids of random number."""
    base = rng.integers(5, VOCABULARY, common).tolist()
    prompts, names = [], []
    for group in range(groups):
        of_group = base + rng.integers(5, VOCABULARY, int(rng.integers(0, shared + 1))).tolist()
        for _ in range(members):
            prompts.append(of_group + rng.integers(5, VOCABULARY, int(rng.integers(1, own + 1))).tolist())
            names.append(group)
    return prompts, names


def _play(policy, prompts, groups, *, turns, sampling, rng, leave=0.0, keys=None):
    """Play turns with ragged observations; rows leave at random. Returns ids, and logprobs (NaN: not sampled)."""
    keys = list(range(len(prompts))) if keys is None else keys
    session = policy.open(prompts, groups, [100 + key for key in keys])
    ids = [list(prompt) for prompt in prompts]
    logprobs = [[np.nan] * len(prompt) for prompt in prompts]
    alive = list(range(len(prompts)))
    for _ in range(turns):
        sampled = session.sample(alive, sampling)
        assert set(sampled) == set(alive)
        for row, turn in sampled.items():
            ids[row] += turn.token_ids
            logprobs[row] += turn.logprobs
        gone = [row for row in alive if rng.random() < leave]
        session.drop(gone)
        alive = [row for row in alive if row not in gone]
        if not alive:
            break
        pieces = {row: rng.integers(5, VOCABULARY, int(rng.integers(1, 30))).tolist() for row in alive}
        session.extend(pieces)
        for row, piece in pieces.items():
            ids[row] += piece
            logprobs[row] += [np.nan] * len(piece)
            assert session.length(row) == len(ids[row])
    return ids, logprobs


def _largest_difference(policy, ids, logprobs, temperature):
    scored = sequence_logprobs(policy.model, ids, temperature, batch=4)
    stored = [np.array(row) for row in logprobs]
    differences = [np.abs(a - b)[~np.isnan(a)] for a, b in zip(stored, scored, strict=True)]
    return np.concatenate(differences).max()


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(1, 3),
    members=st.integers(1, 4),
    common=st.sampled_from([0, 1, 20]),
    temperature=st.sampled_from([0.7, 1.0, 1.5]),
    padding=st.sampled_from([0, 64]),
)
def test_stored_logprobs_are_those_of_teacher_forcing(policy, seed, groups, members, common, temperature, padding):
    rng = np.random.default_rng(seed)
    prompts, names = _prompts(rng, groups, members, common=common)
    sampling = SamplingConfig(temperature=temperature, max_new_tokens=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(session_module._PADDING, "cpu", padding)
        ids, logprobs = _play(policy, prompts, names, turns=4, sampling=sampling, rng=rng, leave=0.25)
    assert _largest_difference(policy, ids, logprobs, temperature) < 1e-4


def test_long_and_very_ragged_prompts_are_read_in_pieces(policy, monkeypatch):
    monkeypatch.setattr(session_module, "_WIDTH", 16)
    monkeypatch.setattr(session_module, "_TOKENS", 64)
    monkeypatch.setitem(session_module._PADDING, "cpu", 4)
    rng = np.random.default_rng(3)
    base = rng.integers(5, VOCABULARY, 70).tolist()
    prompts = [base + rng.integers(5, VOCABULARY, number).tolist() for number in (1, 150, 3, 90, 33, 17, 16, 200)]
    widths = []
    hook = policy.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: widths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sampling = SamplingConfig(max_new_tokens=4)
    try:
        ids, logprobs = _play(policy, prompts, [0, 0, 1, 1, 2, 2, 3, 3], turns=3, sampling=sampling, rng=rng)
    finally:
        hook.remove()
    assert max(width for _, width in widths) <= 16
    assert max(rows * width for rows, width in widths) <= 64
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4


def test_rows_can_be_sampled_apart(policy):
    """Only some rows act in a turn; the others keep what waits for them."""
    rng = np.random.default_rng(5)
    prompts, names = _prompts(rng, 2, 3)
    session = policy.open(prompts, names, range(6))
    ids, logprobs = [list(p) for p in prompts], [[np.nan] * len(p) for p in prompts]
    for rows in ([4, 1], [0, 1, 2, 3, 4, 5], [5], [3, 0], [2, 1, 5]):
        for row, turn in session.sample(rows, SamplingConfig(max_new_tokens=3)).items():
            ids[row] += turn.token_ids
            logprobs[row] += turn.logprobs
        for piece in ([7, 8], [9]):  # two appends before the next reading
            session.extend(dict.fromkeys(rows, piece))
            for row in rows:
                ids[row] += piece
                logprobs[row] += [np.nan] * len(piece)
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4


def test_a_row_draws_the_same_whatever_else_is_in_the_batch(policy):
    rng = np.random.default_rng(11)
    prompts, names = _prompts(rng, 3, 3)
    sampling = SamplingConfig(max_new_tokens=8, top_k=100, top_p=0.95)
    together = policy.open(prompts, names, range(9)).sample(range(9), sampling)
    for row in (0, 4, 8):
        alone = policy.open([prompts[row]], [0], [row]).sample([0], sampling)[0]
        assert alone.token_ids == together[row].token_ids
        assert np.allclose(alone.logprobs, together[row].logprobs, atol=1e-5)


def test_a_rerun_has_the_same_bits_and_another_stream_does_not(policy):
    prompts, names = _prompts(np.random.default_rng(2), 2, 4)
    sampling = SamplingConfig(max_new_tokens=6)
    runs = [
        _play(policy, prompts, names, turns=3, sampling=sampling, rng=np.random.default_rng(9), leave=0.2, keys=keys)
        for keys in (None, None, range(50, 58))
    ]
    assert runs[0][0] == runs[1][0]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(runs[0][1], runs[1][1], strict=True))
    assert runs[0][0] != runs[2][0]


def test_what_is_shared_is_read_once(policy):
    """50 ids common to all, 20 a group, 5 a row: 50 + 2·20 + 8·5 ids are read, not 8·75."""
    rng = np.random.default_rng(1)
    base = rng.integers(5, VOCABULARY, 50).tolist()
    prompts, names = [], []
    for group in range(2):
        of_group = [*base, 100 + group, *rng.integers(5, VOCABULARY, 19).tolist()]
        for member in range(4):
            prompts.append([*of_group, 200 + member, *rng.integers(5, VOCABULARY, 4).tolist()])
            names.append(group)
    read = []
    hook = policy.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        session = policy.open(prompts, names, range(8))
        session.sample(range(8), SamplingConfig(max_new_tokens=1))
        assert read == [50, 40, 40]
        session.extend(dict.fromkeys(range(8), [5] * 9))
        session.sample(range(8), SamplingConfig(max_new_tokens=1))
        assert read[3:] == [8 * 10]  # the observation, and the id sampled before it
    finally:
        hook.remove()


def test_equal_prompts_still_have_something_to_read(policy):
    out = policy.open([[9, 10, 11]] * 3, [0, 0, 1], [7, 7, 7]).sample(range(3), SamplingConfig(max_new_tokens=4))
    assert out[0].token_ids == out[1].token_ids == out[2].token_ids


def test_rows_that_share_nothing(policy):
    rng = np.random.default_rng(8)
    prompts = [[6, 7], [8], [9, 10, 11, 12]]
    ids, logprobs = _play(policy, prompts, [0, 0, 1], turns=3, sampling=SamplingConfig(max_new_tokens=3), rng=rng)
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4


def test_a_turn_ends_with_the_end_token_or_at_its_length(policy):
    prompts, names = _prompts(np.random.default_rng(4), 1, 6)
    session = policy.open(prompts, names, range(6))
    end = policy.chat.end_ids[0]
    sampling = SamplingConfig(max_new_tokens=400)
    reasons = set()
    for turn in session.sample(range(6), sampling).values():
        reasons.add(turn.stop_reason)
        assert end not in turn.token_ids[:-1]
        assert len(turn.logprobs) == len(turn.token_ids) <= 400
        assert (turn.token_ids[-1] == end) == (turn.stop_reason is StopReason.end_of_turn)
        assert turn.stop_reason is StopReason.end_of_turn or len(turn.token_ids) == 400
    assert StopReason.end_of_turn in reasons


def test_the_context_bounds_a_row(policy, monkeypatch):
    monkeypatch.setattr(policy, "context", 12)
    monkeypatch.setattr(policy, "end_ids", frozenset())
    session = policy.open([[5] * 8, [6] * 3], [0, 1], [0, 1])
    out = session.sample([0, 1], SamplingConfig(max_new_tokens=6))
    assert [len(out[row].token_ids) for row in (0, 1)] == [4, 6]
    assert out[0].stop_reason is StopReason.length
    with pytest.raises(PromptTooLong, match="no room"):
        session.sample([0], SamplingConfig(max_new_tokens=1))
    with pytest.raises(PromptTooLong, match="12 tokens"):
        policy.open([[5] * 12], [0], [0])


def test_dropping_frees_memory_and_ends_a_row(policy):
    prompts, names = _prompts(np.random.default_rng(6), 2, 4)
    session = policy.open(prompts, names, range(8))
    session.sample(range(8), SamplingConfig(max_new_tokens=2))
    before = session.cache_bytes
    session.drop([0, 3, 4, 5, 6, 7])
    assert session.cache_bytes == before // 4
    with pytest.raises(KeyError):
        session.length(3)
    assert set(session.sample([1, 2], SamplingConfig(max_new_tokens=2))) == {1, 2}
    session.drop([1, 2])
    assert session.cache_bytes == 0


def test_the_behaviour_distribution_is_scaled_and_not_cut(policy):
    """Logprobs are of softmax(logits / T) over the whole vocabulary, though top-k and top-p cut what is drawn."""
    prompt = np.random.default_rng(0).integers(5, VOCABULARY, 30).tolist()
    with torch.inference_mode():
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    expected = torch.log_softmax(logits / 0.5, 0)
    allowed = set(logits.topk(3).indices.tolist())
    seen = set()
    for seed in range(40):
        sampling = SamplingConfig(temperature=0.5, top_k=3, top_p=0.999, max_new_tokens=1)
        turn = policy.open([prompt], [0], [seed]).sample([0], sampling)[0]
        seen.add(turn.token_ids[0])
        assert turn.logprobs[0] == pytest.approx(expected[turn.token_ids[0]].item(), abs=1e-4)
    assert seen <= allowed
    assert len(seen) > 1
