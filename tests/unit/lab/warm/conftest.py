"""The method and the chat of a warm start; which one, each file says by its fixture `settings`."""

from __future__ import annotations

import pytest

from crl.config import Method
from crl.lab.warm.config import WarmStartFile
from crl.lab.warm.make import practice_method
from crl.lab.warm.words import words_of
from crl.policies.chat import ChatFormat
from crl.policies.miniature import write_miniature
from crl.protocols import Chat


@pytest.fixture(scope="module")
def method(settings: WarmStartFile) -> Method:
    return practice_method(settings)


@pytest.fixture(scope="module")
def chat(settings: WarmStartFile, tmp_path_factory: pytest.TempPathFactory) -> Chat:
    from transformers import AutoTokenizer

    directory = tmp_path_factory.mktemp("miniature")
    words = words_of(settings.environment, settings.prompts)
    write_miniature(directory, words, width=16, layers=1, heads=2, positions=256, seed=1)
    return ChatFormat(AutoTokenizer.from_pretrained(directory), "miniature")
