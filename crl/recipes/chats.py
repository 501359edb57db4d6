"""The chat formats of a method's roles, as they are checked before anything is computed."""

from __future__ import annotations

from crl.config import Method
from crl.policies import load_chat, resolve_model
from crl.protocols import Chat


def chat_of(method: Method, role: str) -> Chat:
    """A role's chat format. Raises BadInput where its model, or the template, is none for it or for its context."""
    config = method.role(role)
    multi_turn = method.recipe.roles()[role].multi_turn
    return load_chat(resolve_model(config.model), multi_turn=multi_turn, context=config.context, role=role)
