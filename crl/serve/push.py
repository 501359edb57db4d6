"""Uploads an exported folder to the Hugging Face Hub. The folder stays as it is, whatever comes of it."""

from __future__ import annotations

import warnings
from pathlib import Path

from crl.errors import BadInput
from crl.paths import quoted


def push_folder(folder: Path, name: str) -> str:
    """Upload a folder as one commit of the repository `name`; a new repository is private. Returns the address.

    Raises BadInput where the Hub cannot be reached or refuses it.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        repository = api.create_repo(name, private=True, exist_ok=True)
        with warnings.catch_warnings():  # tables in a model's repository: the bank is one
            warnings.simplefilter("ignore", UserWarning)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a trained agent")
    except Exception as error:  # of the Hub, of its client, and of the HTTP library that this one has
        told = str(error).strip().splitlines()
        raise BadInput(
            f"{name} could not be uploaded: {told[0] if told else type(error).__name__}",
            expected=f"a repository that you may write to at {huggingface_hub.constants.ENDPOINT}",
            where=str(folder),
            next_step="the folder is whole: log in with `hf auth login`, or set HF_TOKEN; then "
            f"hf upload {quoted(name)} {quoted(folder)}",
        ) from error
    return str(repository)
