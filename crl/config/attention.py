"""What a role asks of the attention of its model: to see the whole context, when it samples and when it is trained."""

from __future__ import annotations

from typing import Any

from crl.errors import BadInput


def check_attention(model_config: Any, name: str, context: int) -> None:
    """Raise BadInput where a model (its transformers config) does not attend to all of a role's context.

    Not only sampling needs that: an update computes attention over paths of a tree, which knows no window, and a
    server of its own would follow the window that the update leaves out.
    """
    config = model_config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and context > longest:
        raise BadInput(
            f"The role's context of {context} tokens is longer than the model {name!r} allows.",
            expected=f"at most {longest}",
            where="the `context` of a role",
            next_step="Lower the context.",
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
            where="the `model` of a role",
            next_step=f"Use another model{f', or a context of at most {window}' if window else ''}.",
        )
