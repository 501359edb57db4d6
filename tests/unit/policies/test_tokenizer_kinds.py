"""Tokenizers as people save and publish them: a chat is encoded whole and in one way, whatever their files switch on;
what they cannot read or write of an environment is refused before work starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from crl.config.load import load_experiment
from crl.config.vocabulary import load_tokenizer
from crl.errors import BadInput
from crl.policies.chat import ChatFormat
from crl.rounds.ready import check_actor_room, check_reads, check_writes

TINY = Path(__file__).parents[3] / "conf/tiny.yaml"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
LINES = ["You see a door to the north.", "system user assistant", "north south east west 0123456789 ,.:#@|-"]
OBSERVATION = " ".join(f"line {n}: you see a door to the north." for n in range(60)) + " THE KEY IS UNDER THE MAT."
SYSTEM = {"role": "system", "content": "Answer with one action."}


def _wrapped(backend: Tokenizer, **more: Any) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(each) for each in CONTROL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>", **more)
    tokenizer.chat_template = CHATML
    return tokenizer


def byte_level() -> Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES * 9, trainer)
    return backend


def word_pieces(*, lowercase: bool) -> Tokenizer:
    """As BERT's, with a token for each printable ASCII character."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    ascii_characters = [chr(code) for code in range(33, 127)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[UNK]"], initial_alphabet=ascii_characters, show_progress=False
    )
    backend.train_from_iterator([*LINES, "".join(ascii_characters)] * 9, trainer)
    return backend


def unigram(*, normalizer: Any = None) -> Tokenizer:
    """As T5's, with a low line for a blank."""
    backend = Tokenizer(models.Unigram())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    ascii_characters = [chr(code) for code in range(33, 127)]
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", initial_alphabet=[*ascii_characters, "\n", "▁"],
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([*LINES, "".join(ascii_characters)] * 9, trainer)
    return backend


def _truncating(**settings: Any) -> Callable[[Tokenizer], None]:
    return lambda backend: backend.enable_truncation(48, **settings)


def _padding(**settings: Any) -> Callable[[Tokenizer], None]:
    return lambda backend: backend.enable_padding(
        pad_id=backend.token_to_id("<|pad|>"), pad_token="<|pad|>", **settings
    )


def _ends_every_piece(backend: Tokenizer) -> None:
    ends = [(each, backend.token_to_id(each)) for each in ("<|im_start|>", "<|im_end|>")]
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A <|im_end|>", special_tokens=ends)


def _all_of_it(backend: Tokenizer) -> None:
    for change in (_ends_every_piece, _truncating(direction="left"), _padding(length=64)):
        change(backend)


SAVED = {
    "truncated on the right": _truncating(),
    "truncated on the left, with a stride": _truncating(direction="left", stride=8),
    "truncated, the first of a pair": _truncating(strategy="only_first"),
    "padded to a length": _padding(length=64, direction="left"),
    "padded to a multiple": _padding(pad_to_multiple_of=8),
    "begun and ended each time": _ends_every_piece,
    "all of it": _all_of_it,
}


@pytest.mark.parametrize("kind", [byte_level, lambda: word_pieces(lowercase=False), unigram], ids=["BPE", "WP", "Uni"])
@pytest.mark.parametrize("saved", SAVED)
def test_a_long_observation_is_read_whole_however_the_tokenizer_was_saved(
    kind: Callable[[], Tokenizer], saved: str, tmp_path: Path
) -> None:
    """Ids are those of the same tokenizer with nothing switched on, and those of transformers' own chat."""
    made = kind()
    plain = ChatFormat(_wrapped(Tokenizer.from_str(made.to_str())), "plain")
    tokenizer = _wrapped(made, model_max_length=64, truncation_side="left", padding_side="left")
    SAVED[saved](tokenizer.backend_tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    messages = [SYSTEM, {"role": "user", "content": OBSERVATION}]
    theirs = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    chat = ChatFormat(load_tokenizer(tmp_path), "saved")
    assert chat.opening(messages) == plain.opening(messages) == theirs
    assert len(theirs) > 500 and chat.decode(theirs).replace("\n", "").count("door to the north") == 60
    assert chat.reply(OBSERVATION, ended=True) == plain.reply(OBSERVATION, ended=True)
    assert chat.answer(OBSERVATION) == plain.answer(OBSERVATION)


def test_merges_that_are_left_out_at_random_are_not(tmp_path: Path) -> None:
    tokenizer = _wrapped(byte_level())
    plain = ChatFormat(tokenizer, "plain").reply(OBSERVATION, ended=True)
    tokenizer.backend_tokenizer.model.dropout = 0.5
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.backend_tokenizer.model.dropout == 0.5
    chat = ChatFormat(loaded, "random")
    assert chat.reply(OBSERVATION, ended=True) == chat.reply(OBSERVATION, ended=True) == plain


def test_a_chat_is_checked_beyond_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cuts a long text, and not a short one, is refused with where the two readings part."""
    from crl.policies.chat_ids import ChatIds

    whole = ChatIds._encode_text
    monkeypatch.setattr(ChatIds, "_encode_text", lambda self, text: whole(self, text)[:500])
    with pytest.raises(BadInput, match=r"other ids than .* \(.*ids?.* (in place )?of \d{4,}"):
        ChatFormat(_wrapped(byte_level()), "m")


def _method() -> Any:
    return load_experiment(TINY).method


READS = ["You see: a DOOR.", "╔══╗ ½ naïve 北京 🙂\x1b[1m", "A\tB\n\n  C", "…①ﬁ"]
LOST = {
    "no token for a character": (unigram, "##╔#", r"it loses '╔'"),
    "no token for many": (unigram, "╔══╗║░▒▓", r"it loses '╔', '═', '╗', '║', '░' and 2 more"),
    "capitals": (lambda: word_pieces(lowercase=True), "You see: a DOOR.", r"it loses 'Y', 'D', 'O', 'R'"),
    "a capital beside its small letter": (lambda: word_pieces(lowercase=True), "oO", r"'O', which becomes 'o'|'O'"),
    "accents": (lambda: unigram(normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
                "né e", r"it loses 'é'"),
    "dropped by a normalizer": (lambda: unigram(normalizer=normalizers.Replace("#", "")), "a#b", r"it loses '#'"),
    "changed by a normalizer": (lambda: unigram(normalizer=normalizers.Replace("@", "o")), "o@o", r"it loses '@'"),
    "swapped": (lambda: unigram(normalizer=normalizers.Replace("12", "21")), "A 12 3",
                r"it loses '123', which becomes '213'"),
}  # fmt: skip


@pytest.mark.parametrize("lost", LOST)
def test_what_a_tokenizer_loses_of_a_text_is_refused_by_name(lost: str) -> None:
    kind, text, said = LOST[lost]
    chat = ChatFormat(_wrapped(kind()), "m")
    check_reads(chat, _method(), "actor", "lake", ["you see a door"])
    with pytest.raises(BadInput, match=f"of the actor does not read what family lake shows: {said}") as raised:
        check_reads(chat, _method(), "actor", "lake", ["you see a door", text])
    assert raised.value.where == "method.roles.actor.model"


def test_what_is_read_whole_passes_white_space_and_forms_of_a_character_aside() -> None:
    check_reads(ChatFormat(_wrapped(byte_level()), "m"), _method(), "actor", "lake", READS)
    folded = ChatFormat(_wrapped(unigram(normalizer=normalizers.NFKC())), "m")
    check_reads(folded, _method(), "actor", "lake", [READS[0], READS[2], READS[3], "a   b"])


def test_a_thought_that_the_template_begins_is_no_part_of_what_is_compared() -> None:
    tokenizer = _wrapped(byte_level())
    tokenizer.chat_template = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
    chat = ChatFormat(tokenizer, "m")
    assert chat.opens_thought
    check_reads(chat, _method(), "actor", "lake", READS)
    check_writes(chat, _method(), "actor", "lake", {"north": "<action>north</action>"})


def test_an_action_that_cannot_be_written_is_refused_by_name() -> None:
    method = _method()
    method = method.model_copy(update={"rollout": method.rollout.model_copy(update={"action_format": "word"})})
    small = ChatFormat(_wrapped(word_pieces(lowercase=True)), "m")
    check_writes(small, method, "actor", "lake", {"North": "North", "go south": "go south"})
    swapped = ChatFormat(_wrapped(unigram(normalizer=normalizers.Replace("east", "west"))), "m")
    check_writes(swapped, method, "actor", "lake", {"north": "north"})
    with pytest.raises(BadInput, match="cannot write the action 'east' of family lake: 'east' becomes 'west'"):
        check_writes(swapped, method, "actor", "lake", {"north": "north", "east": "east", "west": "west"})


def test_the_first_prompt_of_a_family_must_be_read_by_the_actor_and_by_who_reads_its_games() -> None:
    """FrozenLake shows capitals."""
    method, whole = _method(), ChatFormat(_wrapped(byte_level()), "m")
    small = ChatFormat(_wrapped(word_pieces(lowercase=True)), "m")
    method = method.model_copy(
        update={
            "roles": {
                name: role if role.weights else role.model_copy(update={"context": 4096})
                for name, role in method.roles.items()
            }
        }
    )
    check_actor_room(whole, method, readers={"extractor": whole})
    with pytest.raises(BadInput, match="of the actor does not read what family"):
        check_actor_room(small, method)
    with pytest.raises(BadInput, match="of the extractor does not read what family"):
        check_actor_room(whole, method, readers={"extractor": small})
