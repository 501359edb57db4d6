"""Sessions: what is sampled is what teacher forcing scores, whatever the batch, and every token is read once."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crl.config import SamplingConfig
from crl.errors import PromptTooLong
from crl.policies import packed_rows, pass_graph
from crl.policies import session as session_module
from crl.policies.packed_rows import PackedRows
from crl.policies.pass_graph import PaddedPass, PassGraphs, grouped
from crl.protocols import StopReason
from tests.scored import sequence_logprobs

VOCABULARY = 512


def _prompts(rng, groups, members, common=20, shared=8, own=12):
    """Prompts of several groups: common to all, then to the group, then a row's own ids of random number."""
    base = rng.integers(5, VOCABULARY, common).tolist()
    prompts = []
    for _ in range(groups):
        of_group = base + rng.integers(5, VOCABULARY, int(rng.integers(0, shared + 1))).tolist()
        for _ in range(members):
            prompts.append(of_group + rng.integers(5, VOCABULARY, int(rng.integers(1, own + 1))).tolist())
    return prompts


class _AsAGraph(PassGraphs):
    """All of a graph but its being recorded, on a CPU."""

    replays = 0

    def _record(self, width, span):
        logits_RV = self.computed(width, span)

        def replay():
            self.replays += 1
            logits_RV.copy_(self.computed(width, span))

        self._graphs[width, span] = SimpleNamespace(replay=replay), logits_RV
        return True


@pytest.fixture(params=["as on a CPU", "as on a GPU"])
def way(request, monkeypatch):
    """Sessions as on the CPU, and with what they do on a GPU in its place; what replayed."""
    made = []
    if request.param == "as on a GPU":

        class OnAGpu(PackedRows):
            def __init__(self, model, *rest):
                super().__init__(model, *rest)
                self._graphs, self._pass = _AsAGraph(model, self._cache), PaddedPass
                made.append(self._graphs)

        monkeypatch.setattr(session_module, "PackedRows", OnAGpu)
    return made


def _play(policy, prompts, *, turns, sampling, seed=0, leave=0.0, keys=None, limit=None, cut=0.0):
    """Play turns with ragged observations, each row at its own pace; rows leave at random, or go on with a part of
    their ids cut out.

    Returns ids, and logprobs (NaN: not sampled); behind those of the rows, what they were before they were cut.
    """
    keys = list(range(len(prompts))) if keys is None else keys
    session = policy.open(prompts, [100 + key for key in keys], limit)
    ids = [list(prompt) for prompt in prompts]
    logprobs = [[np.nan] * len(prompt) for prompt in prompts]
    worlds = [np.random.default_rng([seed, row]) for row in range(len(prompts))]
    left = dict.fromkeys(range(len(prompts)), turns)
    earlier = []
    session.begin(list(left), sampling)
    while sampled := session.advance():
        going_on = []
        for row, turn in sampled.items():
            ids[row] += turn.token_ids
            logprobs[row] += turn.logprobs
            left[row] -= 1
            if not left[row] or worlds[row].random() < leave:
                session.drop([row])
                del left[row]
                continue
            piece = worlds[row].integers(5, VOCABULARY, int(worlds[row].integers(1, 30))).tolist()
            if worlds[row].random() < cut:
                earlier.append((ids[row], logprobs[row]))
                first, last = np.sort(worlds[row].integers(0, len(ids[row]) + 1, 2))
                ids[row] = ids[row][:first] + ids[row][last:] + piece
                session.replace(row, ids[row])
                logprobs[row] = [np.nan] * len(ids[row])
            else:
                session.extend({row: piece})
                ids[row] = ids[row] + piece
                logprobs[row] = logprobs[row] + [np.nan] * len(piece)
            assert session.length(row) == len(ids[row])
            going_on.append(row)
        session.begin(going_on, sampling)
    assert not left and session.cache_bytes == 0
    return ids + [old for old, _ in earlier], logprobs + [old for _, old in earlier]


@contextmanager
def _tokens_read(policy):
    """A list that takes the number of tokens of each pass."""
    read = []
    hook = policy.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield read
    finally:
        hook.remove()


def _largest_difference(policy, ids, logprobs, temperature):
    scored = sequence_logprobs(policy.model, ids, temperature, batch=4)
    stored = [np.array(row) for row in logprobs]
    differences = [np.abs(a - b)[~np.isnan(a)] for a, b in zip(stored, scored, strict=True)]
    return np.concatenate(differences).max()


@example(seed=2644387, groups=1, members=3, common=1, temperature=0.7, tokens=7, limit=None, cut=0.0)
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(1, 3),
    members=st.integers(1, 4),
    common=st.sampled_from([0, 1, 20]),
    temperature=st.sampled_from([0.7, 1.0, 1.5]),
    tokens=st.sampled_from([7, 4096]),
    limit=st.sampled_from([None, 1, 3]),
    cut=st.sampled_from([0.0, 0.5]),
)
def test_stored_logprobs_are_those_of_teacher_forcing(
    way, policy, seed, groups, members, common, temperature, tokens, limit, cut
):
    prompts = _prompts(np.random.default_rng(seed), groups, members, common=common)
    sampling = SamplingConfig(temperature=temperature, max_new_tokens=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "PASS_TOKENS", tokens)
        ids, logprobs = _play(policy, prompts, turns=4, sampling=sampling, seed=seed, leave=0.25, limit=limit, cut=cut)
    assert _largest_difference(policy, ids, logprobs, temperature) < 1e-4


def test_a_replaced_row_reads_from_the_first_id_that_differs(policy):
    rng, sampling = np.random.default_rng(5), SamplingConfig(max_new_tokens=3)
    prompts = [rng.integers(5, VOCABULARY, 60).tolist() for _ in range(2)]
    session = policy.open(prompts, [1, 2])
    other = [*prompts[0][:50], *rng.integers(5, VOCABULARY, 12).tolist()]
    session.sample([0], sampling)
    for ids, new in ((other, 12), (other[:40], 1), ([*other[:40], 7, 8], 2)):
        session.replace(0, ids)
        assert session.length(0) == len(ids)
        with _tokens_read(policy) as read:
            turn = session.sample([0], sampling)[0]
        assert read == [new] + [1] * (len(turn.token_ids) - 1)
        differs = _largest_difference(
            policy, [[*ids, *turn.token_ids]], [[np.nan] * len(ids) + turn.logprobs], sampling.temperature
        )
        assert differs < 1e-4
    session.replace(1, other)  # it was not read yet, and begins as the other does
    with _tokens_read(policy) as read:
        session.sample([1], sampling)
    assert read[0] == 12 + 10, "keys of the other row are taken over as far as both begin alike"
    drawn = []
    for _ in range(2):
        session.replace(0, other, 9)
        drawn.append(session.sample([0], sampling)[0].token_ids)
    fresh = policy.open([other], [9])
    assert drawn == [fresh.sample([0], sampling)[0].token_ids] * 2, "with a seed a stream begins anew"
    with pytest.raises(ValueError, match="between two turns"):
        session.replace(0, [])
    session.begin([0], sampling)
    with pytest.raises(ValueError, match="between two turns"):
        session.replace(0, other)


def test_long_and_very_ragged_prompts_are_read_in_pieces(way, policy, monkeypatch):
    for module in (packed_rows, pass_graph):
        monkeypatch.setattr(module, "PASS_TOKENS", 64)
    rng = np.random.default_rng(3)
    base = rng.integers(5, VOCABULARY, 70).tolist()
    prompts = [base + rng.integers(5, VOCABULARY, number).tolist() for number in (1, 150, 3, 90, 33, 17, 16, 200)]
    with _tokens_read(policy) as read:
        ids, logprobs = _play(policy, prompts, turns=3, sampling=SamplingConfig(max_new_tokens=4))
    assert max(read) == 64
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4


def test_the_limit_of_a_batch_changes_no_token(way, policy):
    """Equal seeds, equal tokens, whether 1, 7 or all 64 rows are sampled at one time."""
    prompts = _prompts(np.random.default_rng(12), 8, 8)
    sampling = SamplingConfig(max_new_tokens=4)
    played = [_play(policy, prompts, turns=2, sampling=sampling, limit=limit)[0] for limit in (1, 7, 64)]
    assert played[0] == played[1] == played[2]
    assert not way or any(graphs.replays for graphs in way)


def test_rows_with_few_new_tokens_attend_together_and_those_with_many_alone():
    assert grouped({0: 1, 1: 1, 2: 1}) == [[0, 1, 2]]
    assert grouped({0: 3000, 1: 20, 2: 1, 3: 15}) == [[2, 3, 1], [0]]
    assert grouped({4: 900, 2: 1000}) == [[4, 2]]
    assert grouped({7: 5}) == [[7]]
    many = {row: 140 if row < 28 else 1 for row in range(64)}
    assert grouped(many) == [[*range(28, 64)], *([row] for row in range(28))], "masks of 8,960 queries would be larger"


def _read_under(policy, prompts, limit):
    """Ids, log-probabilities, and how many tokens were read: rows come as places become free, play and leave."""
    session = policy.open(prompts, range(len(prompts)), limit)
    session.begin(range(len(prompts)), SamplingConfig(max_new_tokens=4))
    ids, logprobs = [[*prompt] for prompt in prompts], [[np.nan] * len(prompt) for prompt in prompts]
    with _tokens_read(policy) as read:
        while found := session.advance():
            for row, sampled in found.items():
                ids[row] += sampled.token_ids
                logprobs[row] += sampled.logprobs
            session.drop(list(found))
    return ids, logprobs, sum(read)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_what_rows_share_is_read_once_also_where_they_come_one_after_the_other(policy, limit):
    rng = np.random.default_rng(15)
    rules, tasks = rng.integers(5, VOCABULARY, 60).tolist(), [rng.integers(5, VOCABULARY, 40).tolist() for _ in "ab"]
    prompts = [rules + tasks[row // 4] + [9] * (row % 3) + [10 + row] for row in range(8)]
    whole, _, once = _read_under(policy, prompts, None)
    ids, logprobs, read = _read_under(policy, prompts, limit)
    assert ids == whole
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4
    drawn = sum(len(row) for row in ids) - sum(map(len, prompts))
    assert once <= len(rules) + 2 * len(tasks[0]) + drawn + 8 * 3
    assert read <= once + 8 * 16, "what is too short to be worth a copy is read again"


def test_a_stop_string_ends_a_turn_with_the_id_that_completes_it(policy):
    """The same draws as without it, up to there; log-probabilities are those of what was kept."""
    prompts = _prompts(np.random.default_rng(16), 3, 3)
    rows, decode = range(9), policy.chat.decode
    free = policy.open(prompts, rows).sample(rows, SamplingConfig(max_new_tokens=24))
    ids = free[0].token_ids
    # Text of two ids in the middle of row 0 that begins inside the first and ends inside the second.
    string = next(
        text[1:-1]
        for at in range(8, len(ids) - 1)
        if len(text := decode(ids[at : at + 2])) > 3 and "\ufffd" not in text and text in decode(ids)
    )
    sampling = SamplingConfig(max_new_tokens=24, stop_strings=["never written", string])
    session = policy.open(prompts, rows)
    stopped = session.sample(rows, sampling)
    for row in rows:
        kept, before = stopped[row].token_ids, decode(stopped[row].token_ids[:-1])
        assert kept == free[row].token_ids[: len(kept)]
        assert (string in decode(kept)) == (stopped[row].stop_reason is StopReason.stop_string)
        assert string not in before
        ended = stopped[row].stop_reason
        assert ended is StopReason.stop_string or (kept, ended) == (free[row].token_ids, free[row].stop_reason)
        # Rows that stop leave smaller passes, which may add in another order: equal tokens, the last digits are not.
        assert np.allclose(stopped[row].logprobs, free[row].logprobs[: len(kept)], atol=1e-5)
    assert stopped[0].stop_reason is StopReason.stop_string and len(stopped[0].token_ids) < len(ids)
    session.extend({0: [9, 10, 11]})
    again = session.sample([0], sampling)[0]
    row = [*prompts[0], *stopped[0].token_ids, 9, 10, 11, *again.token_ids]
    unsampled = [np.nan] * len(prompts[0]), [np.nan] * 3
    logprobs = [*unsampled[0], *stopped[0].logprobs, *unsampled[1], *again.logprobs]
    assert _largest_difference(policy, [row], [logprobs], 1.0) < 1e-4


def test_rows_without_a_turn_keep_their_place(policy):
    """A row whose environment steps holds its place: those that wait for it are sampled once it is dropped."""
    session = policy.open([[9, 10, 11], [9, 10, 12]], range(2), 1)
    session.begin([0, 1], SamplingConfig(max_new_tokens=2))
    assert set(session.advance()) == {0}
    assert session.advance() == {}
    session.drop([0])
    assert set(session.advance()) == {1}


def test_a_row_that_ends_makes_room_for_the_next(policy):
    """Rows wait in their order; never are more in the batch than its limit, nor fewer while one waits."""
    prompts = _prompts(np.random.default_rng(14), 3, 3)
    session = policy.open(prompts, range(9), 4)
    session.begin(range(9), SamplingConfig(max_new_tokens=5))
    ended, sizes, waiting = [], [], []
    hook = policy.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: sizes.append(len(kwargs["logits_to_keep"])), with_kwargs=True
    )
    try:
        while found := session.advance():
            assert max(found) < 4 + len(ended)
            ended += found
            session.drop(list(found))
            waiting += [9 - len(ended) >= 4] * (len(sizes) - len(waiting))
    finally:
        hook.remove()
    assert sorted(ended) == list(range(9))
    assert max(sizes) == 4 and {size for size, some in zip(sizes, waiting, strict=False) if some} == {4}


def test_rows_can_be_sampled_apart(policy):
    """Only some rows act in a turn; the others keep what waits for them."""
    rng = np.random.default_rng(5)
    prompts = _prompts(rng, 2, 3)
    session = policy.open(prompts, range(6))
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
    prompts = _prompts(rng, 3, 3)
    sampling = SamplingConfig(max_new_tokens=8, top_k=100, top_p=0.95)
    together = policy.open(prompts, range(9)).sample(range(9), sampling)
    for row in (0, 4, 8):
        alone = policy.open([prompts[row]], [row]).sample([0], sampling)[0]
        assert alone.token_ids == together[row].token_ids
        assert np.allclose(alone.logprobs, together[row].logprobs, atol=1e-5)


def test_rows_with_settings_of_their_own_draw_as_they_would_alone(policy):
    prompts = _prompts(np.random.default_rng(3), 1, 4)
    settings = [
        SamplingConfig(max_new_tokens=6), SamplingConfig(max_new_tokens=9, temperature=0.3),
        SamplingConfig(max_new_tokens=6, top_k=3), SamplingConfig(max_new_tokens=4, top_p=0.5),
    ]  # fmt: skip
    alone = [
        policy.open([prompt], [row]).sample([0], sampling)[0].token_ids
        for row, (prompt, sampling) in enumerate(zip(prompts, settings, strict=True))
    ]
    session = policy.open(prompts, range(4))
    session.begin([0], settings[0])
    assert session.step() and session.written(0) == alone[0][:1]
    for row in (1, 2, 3):
        session.begin([row], settings[row])
    found = {}
    while ended := session.advance():
        found |= {row: sampled.token_ids for row, sampled in ended.items()}
    assert [found[row] for row in range(4)] == alone


def test_a_turn_that_is_given_up_leaves_a_row_that_can_be_replaced(policy):
    session = policy.open([[7, 8, 9], [7, 8, 10]], [0, 1])
    session.begin([0, 1], SamplingConfig(max_new_tokens=3))
    session.step()
    session.give_up(0)
    session.replace(0, [7, 8, 11, 12], seed=4)
    session.begin([0], SamplingConfig(max_new_tokens=3))
    found = {}
    while ended := session.advance():
        found |= ended
    assert (
        found[0].token_ids
        == policy.open([[7, 8, 11, 12]], [4]).sample([0], SamplingConfig(max_new_tokens=3))[0].token_ids
    )
    assert len(found[1].token_ids) == 3 and not session.step()


def test_a_rerun_has_the_same_bits_and_another_stream_does_not(policy):
    prompts = _prompts(np.random.default_rng(2), 2, 4)
    sampling = SamplingConfig(max_new_tokens=6)
    runs = [
        _play(policy, prompts, turns=3, sampling=sampling, leave=0.2, keys=keys) for keys in (None, None, range(50, 58))
    ]
    assert runs[0][0] == runs[1][0]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(runs[0][1], runs[1][1], strict=True))
    assert runs[0][0] != runs[2][0]


def test_what_is_shared_is_read_once(policy):
    """50 ids common to all, 20 a group, 5 a row: 50 + 2·20 + 8·5 ids are read, not 8·75."""
    rng = np.random.default_rng(1)
    base = rng.integers(5, VOCABULARY, 50).tolist()
    prompts = []
    for group in range(2):
        of_group = [*base, 100 + group, *rng.integers(5, VOCABULARY, 19).tolist()]
        for member in range(4):
            prompts.append([*of_group, 200 + member, *rng.integers(5, VOCABULARY, 4).tolist()])
    with _tokens_read(policy) as read:
        session = policy.open(prompts, range(8))
        session.sample(range(8), SamplingConfig(max_new_tokens=1))
        assert read == [50 + 2 * 20 + 8 * 5]
        session.extend(dict.fromkeys(range(8), [5] * 9))
        session.sample(range(8), SamplingConfig(max_new_tokens=1))
        assert read[1:] == [8 * 10]  # the observation, and the id sampled before it


def test_equal_prompts_still_have_something_to_read(policy):
    out = policy.open([[9, 10, 11]] * 3, [7, 7, 7]).sample(range(3), SamplingConfig(max_new_tokens=4))
    assert out[0].token_ids == out[1].token_ids == out[2].token_ids


def test_rows_that_share_nothing(policy):
    prompts = [[6, 7], [8], [9, 10, 11, 12]]
    ids, logprobs = _play(policy, prompts, turns=3, sampling=SamplingConfig(max_new_tokens=3))
    assert _largest_difference(policy, ids, logprobs, 1.0) < 1e-4


def test_a_turn_ends_with_the_end_token_or_at_its_length(policy):
    prompts = _prompts(np.random.default_rng(4), 1, 6)
    session = policy.open(prompts, range(6))
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
    session = policy.open([[5] * 8, [6] * 3], [0, 1])
    out = session.sample([0, 1], SamplingConfig(max_new_tokens=6))
    assert [len(out[row].token_ids) for row in (0, 1)] == [4, 6]
    assert out[0].stop_reason is StopReason.length
    with pytest.raises(PromptTooLong, match="no room"):
        session.sample([0], SamplingConfig(max_new_tokens=1))
    with pytest.raises(PromptTooLong, match="12 tokens"):
        policy.open([[5] * 12], [0])


def test_dropping_ends_a_row_and_the_last_frees_memory(policy):
    prompts = _prompts(np.random.default_rng(6), 2, 4)
    session = policy.open(prompts, range(8))
    session.sample(range(8), SamplingConfig(max_new_tokens=2))
    assert session.cache_bytes
    session.drop([0, 3, 4, 5, 6, 7])
    with pytest.raises(KeyError):
        session.length(3)
    assert set(session.sample([1, 2], SamplingConfig(max_new_tokens=2))) == {1, 2}
    session.drop([1, 2])
    assert session.cache_bytes == 0


def test_the_behavior_distribution_is_scaled_and_not_cut(policy):
    """Logprobs are of softmax(logits / T) over the whole vocabulary, though top-k and top-p cut what is drawn."""
    prompt = np.random.default_rng(0).integers(5, VOCABULARY, 30).tolist()
    with torch.inference_mode():
        logits = policy.model(input_ids=torch.tensor([prompt], device=policy.model.device)).logits[0, -1].double().cpu()
    expected = torch.log_softmax(logits / 0.5, 0)
    allowed = set(logits.topk(3).indices.tolist())
    seen = set()
    for seed in range(40):
        sampling = SamplingConfig(temperature=0.5, top_k=3, top_p=0.999, max_new_tokens=1)
        turn = policy.open([prompt], [seed]).sample([0], sampling)[0]
        seen.add(turn.token_ids[0])
        assert turn.logprobs[0] == pytest.approx(expected[turn.token_ids[0]].item(), abs=1e-4)
    assert seen <= allowed
    assert len(seen) > 1
