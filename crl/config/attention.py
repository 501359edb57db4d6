"""What a role asks of the attention of its model, when it samples and when it is trained: to see the whole context, and
to be plain scaled dot product attention.
"""

from __future__ import annotations

from typing import Any

from crl.errors import BadInput


def check_attention(model_config: Any, name: str, context: int, role: str | None = None) -> None:
    """Raise BadInput where a model (its transformers config) does not attend to all of a role's context, or limits its
    scores; it names the role. What a config does not tell (sinks) is refused when it is first computed.

    Not only sampling needs that: an update computes attention over paths of a tree, which knows no window, and a
    server of its own would follow the window that the update leaves out.
    """
    config = model_config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise BadInput(
            f"The role's context of {context} tokens is longer than the model {name!r} allows.",
            expected=f"at most {longest}",
            where=_place(role, "context"),
            next_step="Lower the context.",
        )
    if (original := _longrope(config)) is not None and context > original:
        raise BadInput(
            f"The model {name!r} has positions of type longrope, which all rows of a pass change together once one is "
            f"longer than {original} tokens: log-probabilities would depend on the rows beside.",
            expected=f"a context of at most {original}",
            where=_place(role, "context"),
            next_step="Lower the context, or use another model.",
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and "layer_types" not in config:
        kinds.add("sliding_attention")
    if window is None or window >= context:
        kinds.discard("sliding_attention")
    if not kinds <= {"full_attention"}:
        raise BadInput(
            f"The model {name!r} has layers that do not see the whole context: {sorted(kinds - {'full_attention'})}.",
            expected=f"full attention over the role's context of {context} tokens",
            where=_place(role, "model"),
            next_step=f"Use another model{f', or a context of at most {window}' if window else ''}.",
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise not_plain("limited scores (softcap)", f"The model {name!r}", _place(role, "model"))


def not_plain(what: str, whose: str, where: str) -> BadInput:
    """The error of a model whose attention needs more than sampling and the check of a server's weights compute."""
    return BadInput(
        f"{whose} has attention with {what}, which sampling does not compute: it would sample from another model than "
        "the update trains.",
        expected="plain scaled dot product attention",
        where=where,
        next_step="Use another model.",
    )


def _place(role: str | None, key: str) -> str:
    return f"the `{key}` of a role" if role is None else f"method.roles.{role}.{key}"


def _longrope(config: Any) -> int | None:
    """Tokens up to which a model with rotary positions of type `longrope` uses its short factors; None for others."""
    told = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [told, *(each for each in told.values() if isinstance(each, dict))]  # of all layers, or by kind of layer
    found = [each for each in kinds if "longrope" in (each.get("rope_type"), each.get("type"))]
    own = getattr(config, "original_max_position_embeddings", None) or getattr(config, "max_position_embeddings", None)
    return min((int(each.get("original_max_position_embeddings") or own or 0) for each in found), default=None)
