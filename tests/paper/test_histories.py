"""Episodes of Qwen3's shape whose histories are cut, against transformers alone: its template, its forward pass, and
its gradients over each sequence apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import RoleConfig, SamplingConfig
from crl.config.roles import HistoryConfig, SummaryAt, SummaryHistory, WindowHistory
from crl.credit.samples import grpo_sample, weighed
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.rounds.demonstrations import ScriptedRole, play_script
from tests.paper.test_sequences import TEMPERATURE, updated
from tests.unit.policies.families import ids_of, rendered, template_of, tokenizer_with
from tests.unit.rollout import fakes
from tests.unit.rollout.fakes import Corridor
from tests.unit.rollout.test_history import method

TURNS, NEW = 5, 24


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3 that likes to think and to end: these are rows of its head that are larger than others."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "qwen3"
    tokenizer = tokenizer_with(template_of("qwen3"))
    torch.manual_seed(5)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False,
            initializer_range=0.3, eos_token_id=tokenizer.eos_token_id, pad_token_id=None, bos_token_id=None,
        )
    )  # fmt: skip
    for token, factor in (("<think>", 4), ("</think>", 7), ("<|im_end|>", 1.5)):
        model.lm_head.weight.data[tokenizer.convert_tokens_to_ids(token)] *= factor
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def played_by(qwen: Path, history: HistoryConfig, context: int = 4096) -> tuple[list[PlayedEpisode], Any]:
    """Six episodes, and the policy that played them."""
    from crl.policies.language_model import load_policy

    role = RoleConfig(model="qwen3", history=history, context=context)
    policy = load_policy(role, qwen, None, threads=1)
    assert policy.way == "packed"
    return play_wave(
        policy, Corridor(TURNS), [EpisodeSlot(fakes.task(member, 50, group=member)) for member in range(6)],
        method=method(history, context=context), sampling=SamplingConfig(max_new_tokens=NEW, temperature=TEMPERATURE),
        weights_digest="0" * 64, seed_of=lambda name: np.random.SeedSequence(list(name.encode())), stage="collect",
    ), policy  # fmt: skip


def network_of(qwen: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float64).eval()


def logprobs_of(network: Any, token_ids: list[int]) -> Any:
    """log π of every token but the first, by a pass over these alone."""
    import torch

    ids = torch.tensor([token_ids])
    scaled = torch.log_softmax(network(ids).logits[0, :-1] / TEMPERATURE, -1)
    return scaled.gather(1, ids[0, 1:, None])[:, 0]


def said(tokenizer: Any, ids: list[int]) -> str:
    """What a message says whose end was sampled or not, its thoughts stripped."""
    text = str(tokenizer.decode([each for each in ids if each != tokenizer.eos_token_id]))
    answer = text.split("</think>")[-1] if "</think>" in text else text
    return "" if "<think>" in answer else answer.lstrip("\n") if answer != text else answer


def messages_before(tokenizer: Any, played: PlayedEpisode, turn: int, opening: list[dict[str, str]]) -> Any:
    """The chat before a turn, stripped, from what was sampled and what was replied."""
    records = {record.generation_id: record for record in played.generations}
    chat = list(opening)
    for each, after in zip(played.turns[:turn], played.turns[1:], strict=False):
        wrote = records[each.generation_id].token_ids[each.first_token : each.last_token]
        feedback = f"{each.feedback}\n" if each.feedback else ""
        chat.append({"role": "assistant", "content": said(tokenizer, wrote)})
        chat.append({"role": "user", "content": f"{feedback}{after.observation}\nMove?"})
    return chat


def opening_of(played: PlayedEpisode) -> list[dict[str, str]]:
    from crl.rollout.prompts import actor_messages

    return actor_messages(
        fakes.actor_prompt(), goal=played.episode.goal, observation=played.turns[0].observation,
        actions=Corridor.actions, experience=None, placement="user",
    )  # fmt: skip


def test_prompts_are_the_templates_rendering_of_the_stripped_history(qwen: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen)
    episodes, policy = played_by(qwen, "strip_thoughts")
    assert policy.chat.written == template_of("qwen3"), "a checkpoint strips as it was trained"
    network, kinds, gaps = network_of(qwen), set(), []
    for played in episodes:
        records = {record.generation_id: record for record in played.generations}
        for turn in played.turns:
            record = records[turn.generation_id]
            prompt = record.token_ids[: turn.first_token]
            expected = rendered(tokenizer, messages_before(tokenizer, played, turn.turn, opening_of(played)))
            assert tokenizer.decode(prompt) == expected
            kinds.add((turn.output.count("<think>") > 0, turn.output.count("</think>") > 0, turn.stop_reason))
            at = 0  # what is left of each earlier turn is its last ids
            for earlier in played.turns[: turn.turn]:
                wrote = records[earlier.generation_id].token_ids[earlier.first_token : earlier.last_token]
                left = next(n for n in range(len(wrote) + 1) if wrote[n:] == kept_of(policy, wrote))
                places = [n for n in range(at, len(prompt)) if prompt[n : n + len(wrote) - left] == wrote[left:]]
                at = places[0] + len(wrote) - left
        for record in played.generations:
            exact, mask = logprobs_of(network, record.token_ids).detach().numpy(), np.array(record.loss_mask[1:])
            gaps.append(np.abs(exact - record.logprobs[1:])[mask == 1].max(initial=0))
    assert max(gaps) < 1e-4
    assert max(len(played.generations) for played in episodes) == TURNS
    assert len(kinds) >= 4, f"thoughts that end, that do not, and none: {kinds}"


def kept_of(policy: Any, wrote: list[int]) -> list[int]:
    kept: list[int] = policy.chat.without_thoughts([], wrote)[1]
    return kept


def test_ids_are_those_of_the_rendering_where_answers_are_the_tokenizers_own(qwen: Path) -> None:
    from transformers import AutoTokenizer

    from crl.policies.chat import ChatFormat

    tokenizer = AutoTokenizer.from_pretrained(qwen)
    chat = ChatFormat.of(RoleConfig(history="strip_thoughts"), tokenizer, "qwen3", rows=len(tokenizer))
    moves = [f"<think>\nIs it {n} more?\n</think>\n\n{'right' if n % 2 else 'Well: right'}" for n in range(TURNS)]
    said = iter(moves)
    [played] = play_script(
        method("strip_thoughts"), ScriptedRole(chat, 4096), Corridor(TURNS), [EpisodeSlot(fakes.task(0, 50))],
        lambda row: next(said), stage="warm",
    )  # fmt: skip
    assert len(played.generations) == TURNS
    for turn, record in zip(played.turns, played.generations, strict=True):
        assert turn.first_token and len(record.token_ids) == turn.last_token
        chat_before = messages_before(tokenizer, played, turn.turn, opening_of(played))
        assert record.token_ids[: turn.first_token] == ids_of(tokenizer, chat_before)
        with_thoughts = [
            {**each, "content": moves[number // 2]} if each["role"] == "assistant" else each
            for number, each in enumerate(chat_before[len(opening_of(played)) :])
        ]
        assert record.token_ids[: turn.first_token] == ids_of(tokenizer, opening_of(played) + with_thoughts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("history", "context"),
    [
        ("strip_thoughts", 4096),
        (WindowHistory(window=1), 284),
        (SummaryHistory(summarize=SummaryAt(at=244)), 348),
    ],
    ids=["strip_thoughts", "window", "summarize"],
)
def test_gradients_are_those_of_the_sequences_apart(qwen: Path, history: HistoryConfig, context: int) -> None:
    """One episode, packed as the tree that its sequences are; every output with the advantage of the episode."""
    import torch

    from crl.config import ActorObjective
    from crl.learn.terms import objectives

    episodes, _ = played_by(qwen, history, context)
    played = max(episodes, key=lambda each: len(each.generations))
    assert len(played.generations) >= (TURNS if history == "strip_thoughts" else 3)
    advantage, config = 0.7, ActorObjective()
    rng = np.random.default_rng(3)
    records = [
        dataclasses.replace(
            record,
            logprobs=[min(value + 0.2 * rng.normal(), 0.0) if own else 0.0
                      for value, own in zip(record.logprobs, record.loss_mask, strict=True)],
        )
        for record in played.generations
    ]  # fmt: skip
    samples = [
        grpo_sample(record, "actor", 1.0, advantage, weight, round=1)
        for record, weight in weighed([(records, 1.0)], config)[0]
    ]
    network, loss, count = network_of(qwen), torch.zeros((), dtype=torch.float64), played.episode.tokens_sampled
    for record in records:
        now, mask = logprobs_of(network, record.token_ids), torch.tensor(record.loss_mask[1:])
        rho = torch.exp(now - torch.tensor(record.logprobs[1:], dtype=torch.float64))
        terms = torch.minimum(rho * advantage, rho.clamp(0.8, 1.2) * advantage)
        loss = loss - (terms * mask).sum() / count
    loss.backward()
    metrics, gradients = updated(qwen, samples, objectives(config))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    expected = {name: value.grad for name, value in network.named_parameters()}
    assert expected.keys() == gradients.keys()
    one = torch.cat([gradients[name].double().flatten() for name in expected])
    other = torch.cat([value.flatten() for value in expected.values()])
    assert float(torch.nn.functional.cosine_similarity(one, other, dim=0)) > 1 - 1e-6
    assert float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other)) < 1e-3
