"""What stands beside the weights of a checkpoint: whoever has its folder opens it with transformers and peft.

Tokenizer, the chat template that wrote the prompts, and a generation config with the role's sampling: then
`AutoModelForCausalLM` or `PeftModel`, and `AutoTokenizer`, read the folder. An adapter names its base by its id on the
Hub and the commit, else by its name and its digest, never by a path of this machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from crl.config.models import ADAPTER_CONFIG, pretrained
from crl.config.roles import RoleConfig
from crl.config.vocabulary import generation_config, load_tokenizer, rows_of_model
from crl.policies.chat import ChatFormat
from crl.policies.sources import named_base


def name_base(checkpoint: Path, source: str, model_path: Path, digest: str) -> None:
    """Write into an adapter's config which model it belongs to (see :func:`crl.policies.sources.named_base`)."""
    file = checkpoint / ADAPTER_CONFIG
    if file.is_file():
        config = json.loads(file.read_text(encoding="utf-8"))
        config["base_model_name_or_path"], config["revision"] = named_base(source, model_path, digest)
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def add_companions(
    checkpoint: Path, model_path: Path, digest: str, role: RoleConfig, *, others: Sequence[Path] = ()
) -> None:
    """Write what stands beside the weights.

    Args:
        checkpoint: the folder with the weights.
        model_path: the base model's folder, of this digest.
        digest: see `model_path`.
        role: that has these weights: its sampling and its chat template.
        others: checkpoints of the run. A file that one of them has in the same form is a hard link to it: the
            tokenizer of SmolLM2 is larger than a small adapter.
    """
    given, strips = json.dumps(role.chat_template_kwargs, sort_keys=True), role.history == "strip_thoughts"
    files, end_ids = _companions(model_path, digest, role.chat_template, given, strips)
    for name, content in files.items():
        _link_or_write([each / name for each in others], checkpoint / name, content)
    from transformers import AutoConfig

    config = generation_config(model_path, pretrained(AutoConfig, model_path))
    config.update(
        do_sample=True,
        temperature=role.sampling.temperature,
        top_p=role.sampling.top_p,
        top_k=role.sampling.top_k,
        min_p=role.sampling.min_p or None,
        max_new_tokens=role.sampling.max_new_tokens,
        max_length=None,
        eos_token_id=list(end_ids),
    )
    (checkpoint / "generation_config.json").write_text(config.to_json_string(), encoding="utf-8")


@lru_cache(maxsize=4)
def _companions(
    model_path: Path, digest: str, template: str | None, template_kwargs: str, strips: bool
) -> tuple[dict[str, bytes], tuple[int, ...]]:
    """The files of a tokenizer with the template that renders what was trained on, and the ids that end a turn."""
    from transformers import AutoConfig

    from crl.policies.language_model import end_ids

    config = pretrained(AutoConfig, model_path)
    tokenizer = load_tokenizer(model_path)
    given, rows = json.loads(template_kwargs), rows_of_model(config)
    chat = ChatFormat(tokenizer, model_path.name, template=template, template_kwargs=given, rows=rows, strips=strips)
    tokenizer.chat_template = chat.written
    if chat.response_template is not None:  # TRL knows it by the model's own template, which this may not be
        tokenizer.response_template = chat.response_template
    with tempfile.TemporaryDirectory(prefix="crl-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        files = {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir()) if file.is_file()}
    return files, tuple(sorted(end_ids(generation_config(model_path, config), tokenizer, chat)))


def _link_or_write(others: Sequence[Path], file: Path, content: bytes) -> None:
    """A file with this content: a hard link to the first of the others that has it, if the file system has links."""
    file.unlink(missing_ok=True)
    for other in others:
        with suppress(OSError):  # it is not there, or retention deletes it just now
            if other.stat().st_size == len(content) and other.read_bytes() == content:
                os.link(other, file)
                return
    file.write_bytes(content)
