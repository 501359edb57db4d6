"""Models and embedders of the Hugging Face Hub: their ids, and their snapshots in its cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from crl.errors import BadInput, HubUnreachable

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?")
"""Id of a model on the Hub, and its revision: a branch, a tag or a commit."""
DESCRIPTION = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
"""Files that say what a model is: a few megabytes."""
_TWICE = ["original/*", "consolidated*"]
"""The same weights once more, in the form of their makers' own code."""


def snapshot(
    name: str,
    check: Callable[[Path, str], None],
    offline: str,
    where: str,
    *,
    patterns: Sequence[str] = ("*.safetensors", *DESCRIPTION),
    cached_only: bool = False,
) -> Path:
    """The cached snapshot of a Hugging Face id, else a download. The cache wins: a model must not change by itself.

    `check` refuses a directory that is not whole; `offline` names what needs no network, `where` the setting.
    """
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    found = HUB_ID.fullmatch(name)
    assert found is not None
    repository, revision = found.groups()

    def fetched(*, local: bool) -> Path:
        path = Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=_TWICE,
                local_files_only=local,
            )
        )
        check(path, name)
        return path

    kind: type[BadInput] = BadInput
    login = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        return fetched(local=True)
    except (LocalEntryNotFoundError, BadInput) as error:
        problem = f"is not cached here and could not be downloaded: {type(error).__name__}"
        next_step = "Check the id and the network, or name a model that works offline."
        if cached_only:
            raise BadInput(f"The model {name!r} {problem}.", where=where, next_step=next_step) from error
    try:
        return fetched(local=False)
    except GatedRepoError as error:
        cause: Exception = error
        problem = "is gated: its owners let only those download it who have accepted their terms"
        next_step = f"Accept the terms at {huggingface_hub.constants.ENDPOINT}/{repository}, then {login}."
    except RevisionNotFoundError as error:
        cause, problem = error, f"has no revision {revision!r}"
        next_step = "Name a branch, a tag or a commit of it after the @, or leave the @ out."
    except RepositoryNotFoundError as error:
        cause, problem = error, "is not on the Hub, or it is private"
        next_step = f"Check the id. For a private model {login}."
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        cause, problem = error, f"is not cached here and could not be downloaded: {type(error).__name__}"
        kind = HubUnreachable
    raise kind(
        f"The model {name!r} {problem}.",
        expected=f"network, or what needs none: {offline}, or a directory",
        where=where,
        next_step=next_step,
    ) from cause
