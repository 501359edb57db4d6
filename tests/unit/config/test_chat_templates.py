"""A role's own chat template and what it is given: read with the experiment, part of the method, wrong ones refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Experiment
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies.sources import resolve_model
from crl.rounds.ready import chat_of

CONF = Path(__file__).parents[3] / "conf"
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.role }}{% if loud %}!{% endif %}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)


def experiment(folder: Path, **settings: Any) -> Experiment:
    (folder / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "tiny.yaml").write_text((CONF / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "prompts").mkdir(exist_ok=True)
    for file in (CONF / "prompts").glob("*.yaml"):
        (folder / "prompts" / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    given = {f"method.roles.actor.{name}": value for name, value in settings.items()}
    return load_experiment(folder / "tiny.yaml", given)


def test_the_text_of_the_file_is_part_of_the_method(tmp_path: Path) -> None:
    made = experiment(tmp_path, chat_template="chat.jinja", chat_template_kwargs={"loud": True})
    assert made.method.role("actor").chat_template == TEMPLATE
    plain, quiet = experiment(tmp_path), experiment(tmp_path, chat_template="chat.jinja")
    assert len({plain.method.digest, quiet.method.digest, made.method.digest}) == 3
    again = Experiment.model_validate(made.model_dump(mode="json"))
    assert again == made, "a frozen experiment needs no file"
    ids = chat_of(made.method, "actor").opening([{"role": "user", "content": "x"}])
    assert "user!" in chat_of(made.method, "actor").decode(ids)
    assert chat_of(made.method, "extractor").template == "the model's own"
    assert resolve_model("tiny").digest, "the model is as it was"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chat_template": "other.jinja"}, "'other.jinja' cannot be read"),
        ({"chat_template": "tiny.yaml"}, "holds no chat template"),
        ({"chat_template_kwargs": {"loud": [1]}}, "chat_template_kwargs"),
    ],
)
def test_what_is_no_template_is_refused_with_its_key(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        experiment(tmp_path, **settings)
    assert "method.roles.actor.chat_template" in str(refused.value)


@pytest.mark.parametrize("name", ["enable_thinking", "message", "endfor", "role"])
def test_a_name_that_the_template_does_not_read_is_refused(name: str, tmp_path: Path) -> None:
    """Words of jinja, what the template sets itself, and keys of messages among them."""
    made = experiment(tmp_path, chat_template="chat.jinja", chat_template_kwargs={name: False})
    with pytest.raises(BadInput, match=f"{name}, which is not read by it") as refused:
        chat_of(made.method, "actor")
    assert refused.value.where


@pytest.mark.parametrize("value", [{"b": 1}, ["low"], 1e12, float("nan")])
def test_an_argument_is_one_value(value: object, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="must be a text, true, false, or a number") as refused:
        experiment(tmp_path, chat_template="chat.jinja", chat_template_kwargs={"effort": value})
    assert str(refused.value).count("effort") == 1


def test_an_endpoint_renders_chats_itself(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    role = made.method.role("extractor").model_copy(update={"chat_template_kwargs": {"enable_thinking": False}})
    remote = type(role).model_validate(
        {**role.model_dump(), "model": "endpoint:m", "engine": {"kind": "openai"}, "lora": None}
    )
    found = [str(each) for each in remote.engine_problems("extractor", {})]
    assert any("chat_template_kwargs is set, and the model is behind an endpoint" in each for each in found)
