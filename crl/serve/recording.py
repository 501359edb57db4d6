"""What was served, kept in a file of JSON lines: what is new in a conversation with each answer, and its outcome.

A line is synced before its answer is sent: a server that is killed loses none. `crl bank build --from` puts the lines
of a conversation together again (:mod:`crl.recipes.bank_from_chats.chats`). Nobody else may read the file: it has the
words of users.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crl.errors import BadInput, CrlError
from crl.gateway.messages import ApiError
from crl.run.files import disk_errors
from crl.run.journal import JsonLines

FILE = "conversations.jsonl"
MOST_NAMES = 1 << 17
"""Conversations whose outcome can be told, the newest."""
_LONGEST_ID = 100
_ROOM = 1 << 16
"""Bytes that there must be room for at the beginning."""


class Recording:
    """The file in a folder. Lines come from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where the folder is a file, DiskFull and other errors of the disk where it takes nothing."""
        self.path = folder / FILE
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"--record {folder}: that is a file", expected="a folder, which is made where there is none")
        made = not folder.exists()
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with tempfile.TemporaryFile(dir=folder) as probe:
                    probe.write(bytes(_ROOM))
            except OSError:
                if made:
                    folder.rmdir()
                raise
            self.path.touch(mode=0o600)
        self._lines, self._lock = JsonLines(self.path), threading.Lock()
        self._names: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """What an outcome repeats of each conversation."""
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):  # a line that was torn
                    value = json.loads(line)
                    if "messages" in value:
                        self._know(value["conversation_id"], value["family"], bool(value["guided"]))

    def answered(
        self, name: str, family: str, guided: bool, start: int, messages: Sequence[Mapping[str, Any]],
        **more: Any,
    ) -> None:  # fmt: skip
        """Keep what follows the first `start` messages of a conversation. Where the disk takes nothing, standard error
        says so: the conversation goes on."""
        with self._lock:
            self._know(name, family, guided)
        line = {"family": family, "guided": guided, **more, "from": start, "messages": list(messages)}
        try:
            self._append(name, line)
        except CrlError as error:
            print(f"crl: an answer of conversation {name} is not recorded: {error.found}", file=sys.stderr, flush=True)

    def feedback(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the outcome of a conversation: `id` of it or of one of its answers, and `success` or `reward`, or both.

        Raises ApiError for anything else.
        """
        given, success, reward = value.get("id"), value.get("success"), value.get("reward")
        if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_ID:
            raise _bad("id is that of a conversation, or of one of its answers.", "id")
        if success is not None and not isinstance(success, bool):
            raise _bad("success is true or false.", "success")
        number = isinstance(reward, int | float) and not isinstance(reward, bool) and abs(reward) <= sys.float_info.max
        if reward is not None and not number:
            raise _bad("reward is a finite number.", "reward")
        if success is None and reward is None:
            raise _bad("An outcome has a success or a reward.", "success")
        name = given.removeprefix("chatcmpl-").partition("-")[0]
        with self._lock:
            known = self._names.get(name)
        if known is None:
            raise ApiError(f"No conversation {name!r} is recorded.", code="not_found", status=404, param="id")
        told = {key: each for key, each in (("success", success), ("reward", reward)) if each is not None}
        try:
            self._append(name, {**known, **told})
        except CrlError as error:
            raise ApiError(f"It was not recorded: {error.found}", code="not_recorded", status=507) from None
        return {"object": "feedback", "conversation_id": name, **told}

    def _know(self, name: str, family: str, guided: bool) -> None:
        self._names[name] = {"family": family, "guided": guided}
        self._names.move_to_end(name)
        while len(self._names) > MOST_NAMES:
            self._names.popitem(last=False)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        self._lines.append({"conversation_id": name, "time": datetime.now(UTC).isoformat(timespec="seconds"), **line})


def _bad(message: str, param: str) -> ApiError:
    return ApiError(message, code="invalid_request", param=param)
