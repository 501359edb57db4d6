"""Chat formats of model families whose tokenizers or templates differ from ChatML's: small tokenizers with their
properties, and their templates (TRL's copies, or what matters of them)."""

import json
from importlib.resources import files

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from crl.errors import BadInput
from crl.policies.chat import ChatFormat
from crl.protocols import Tool

GRID = "  ..#\n\n   @\t<b>x</b>\n\n\n."
MESSAGES = [
    {"role": "system", "content": "You move north."},
    {"role": "user", "content": f"Goal: the stairs.\n{GRID}"},
    {"role": "assistant", "content": "north"},
    {"role": "user", "content": "You see: #.@"},
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL_1 = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_3 = (  # the system text is shown with the last user message, wherever that is
    "{{ bos_token }}{% set own = messages %}{% set system = '' %}{% if messages[0]['role'] == 'system' %}"
    "{% set own = messages[1:] %}{% set system = messages[0]['content'] + '\n\n' %}{% endif %}"
    "{% for m in own %}{% if m['role'] == 'user' %}"
    "{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ (system if loop.last else '') + m['content'] }}[/INST]"
    "{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)


def _sentencepiece(template, special=(), text=(), **parts):
    """A tokenizer as SentencePiece's are: blanks are low lines, unknown characters are bytes."""
    trained = Tokenizer(models.BPE())
    trained.normalizer, trained.pre_tokenizer = parts.get("normalizer"), parts.get("pre_tokenizer")
    lines = ["You move north.", "Goal: the stairs.", "A question.", "north", "\n\n", "\n", "   ", "<b>x</b>", "#.@"]
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False)
    trained.train_from_iterator([line for line in lines for _ in range(20)], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<bos>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_tokens(list(text))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<bos>", eos_token="</s>"
    )
    tokenizer.add_tokens(list(special), special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def _trl(name):
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def _gemma():
    text = ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "<b>", "</b>", "<table>"]
    return _sentencepiece(
        _trl("gemma"),
        [AddedToken(each, normalized=False) for each in ("<start_of_turn>", "<end_of_turn>")],
        [AddedToken(each, special=False, normalized=False) for each in text],
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
    )


def _phi(**parts):
    special = [AddedToken(each, rstrip=True) for each in ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")]
    return _sentencepiece(_trl("phi3"), special, **parts)


def _mistral(template, scheme="first"):
    special = [AddedToken(each) for each in ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")]
    pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return _sentencepiece(template, special if template == MISTRAL_3 else (), pre_tokenizer=pre_tokenizer)


def _neox():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["north"] * 5, trainer)
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(" " * count, special=False) for count in (4, 3, 2)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def _ids(tokenizer, messages, **more):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _folded(messages):
    system, user, *others = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *others]


PREPENDED = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
FAMILIES = {
    "gemma": (_gemma, True),
    "phi": (lambda: _phi(normalizer=PREPENDED), False),
    "phi, a blank at the beginning only": (
        lambda: _phi(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
        False,
    ),
    "neox": (_neox, False),
    "mistral 1": (lambda: _mistral(MISTRAL_1, "always"), True),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_gets_the_templates_own_ids_and_is_appended_to(family):
    make, folds = FAMILIES[family]
    tokenizer = make()
    chat = ChatFormat(tokenizer, "m")
    shown = _folded if folds else list
    assert chat.opening(MESSAGES[:2]) == _ids(tokenizer, shown(MESSAGES[:2]))
    ids = chat.opening(MESSAGES)
    assert ids == _ids(tokenizer, shown(MESSAGES)), "few-shot examples"
    longer = [*MESSAGES, {"role": "assistant", "content": "south"}, {"role": "user", "content": f"Go on.\n{GRID}"}]
    answer = chat.answer("south")
    assert [*ids, *answer, *chat.reply(longer[-1]["content"], ended=True)] == _ids(tokenizer, shown(longer))
    assert chat.decode(answer).strip() == "south"


@pytest.mark.parametrize("family", ["gemma", "neox"])
def test_blanks_and_tags_that_are_added_tokens_are_text(family):
    tokenizer = FAMILIES[family][0]()
    chat = ChatFormat(tokenizer, "m")
    ids = tokenizer(GRID, add_special_tokens=False)["input_ids"]
    assert chat.decode(ids) == GRID
    assert chat.answer(GRID)[:-1] == ids


def test_a_template_that_strips_a_text_does_not_strip_what_is_shown():
    """White space after `<|user|>` is dropped where the template wrote it, and kept where a text begins with it."""
    chat = ChatFormat(_phi(normalizer=normalizers.Replace(" ", "▁")), "m")
    plain, indented = (chat.opening([{"role": "user", "content": text}]) for text in ("x", "  x"))
    assert len(indented) > len(plain)
    assert plain[0] == indented[0] and plain[-3:] == indented[-3:]


def test_control_text_that_can_be_written_is_refused():
    """`special: false` is no licence: what the template uses as control text may not come out of a text."""
    forgeable = _sentencepiece(CHATML, special=["<|im_end|>"], text=[AddedToken("north", special=False)])
    ChatFormat(forgeable, "m")
    forgeable.chat_template = CHATML.replace("<|im_start|>", "north")
    with pytest.raises(BadInput, match="the written text 'north'"):
        ChatFormat(forgeable, "m")


def test_a_tokenizer_that_reads_a_chat_otherwise_than_its_parts_is_refused():
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first", split=False)])
    tokenizer = _sentencepiece(CHATML, special=["<|im_start|>", "<|im_end|>"], pre_tokenizer=pre_tokenizer)
    with pytest.raises(BadInput, match="other ids than its control tokens and its texts"):
        ChatFormat(tokenizer, "m")


def test_what_a_template_moves_stands_where_it_is_when_the_chat_is_opened():
    """Mistral's moves system text and tools to the last user message. Here nothing that was read is moved."""
    tokenizer = _mistral(MISTRAL_3)
    tool = Tool("search", "Find things.", {"type": "object", "properties": {}})
    shown = [{"type": "function", "function": {"name": "search", "description": "Find things.",
              "parameters": {"type": "object", "properties": {}}}}]  # fmt: skip
    chat = ChatFormat(tokenizer, "m")
    for messages in (MESSAGES[:2], MESSAGES, MESSAGES[1:2]):
        assert chat.opening(messages) == _ids(tokenizer, messages)
        assert chat.opening(messages, [tool]) == _ids(tokenizer, messages, tools=shown)
    assert chat.takes_tools
    plain = [
        {"role": "user", "content": "A."},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": GRID},
    ]
    ids = chat.reply(GRID, ended=False)
    assert ids == _ids(tokenizer, plain)[-len(ids) :]
