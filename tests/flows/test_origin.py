"""Who is answered by the servers of `make ui`: their own pages and programs."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from crl.errors import BadInput
from flows.origin import VARIABLE, OwnOrigin, Password
from flows.server import close_to_others

HERE = "127.0.0.1:4200"


def answer(app: Any, headers: list[tuple[str, str]], kind: str = "http", path: str = "/api/x") -> Any:
    """The status of an answer; of a WebSocket whether it was let through."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "headers": [(key.encode(), value.encode()) for key, value in headers]}
    asyncio.run(app(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


async def open_to_all(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200} if scope["type"] == "http" else {"type": "opened"})


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HERE, None),
        ("127.0.0.1", None),
        ("LocalHost:9", None),
        ("[::1]:4200", None),
        ("[0:0::1]:4200", None),
        (HERE, "http://127.0.0.1:4200"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost:443"),
        ("LOCALHOST:4200", "http://localhost:4200"),
        ("[::1]:4200", "http://[::1]:4200"),
        ("team.example", None),
        ("team.example", "https://team.example"),
        ("team.example:8443", "https://team.example:8443"),
        ("10.0.0.7:4200", "http://10.0.0.7:4200"),
        ("server:4200", "https://proxied.example"),
        (HERE, "https://proxied.example:443"),
    ],
)
def test_own_pages_and_programs_are_answered(host: str, origin: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "team.example, 10.0.0.7,server,https://Proxied.example,")
    headers = [("Host", host), *([("Origin", origin)] if origin else [])]
    assert answer(OwnOrigin(open_to_all), headers) == 200
    assert answer(OwnOrigin(open_to_all), headers, "websocket") == "opened"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Host", "")],
        [("Host", "evil.test")],
        [("Host", "evil.test:4200"), ("Origin", "http://evil.test:4200")],
        [("Host", "127.0.0.1.evil.test:4200")],
        [("Host", "evil.test@127.0.0.1:4200")],
        [("Host", "127.0.0.1:4200@evil.test")],
        [("Host", "[::2]:4200")],
        [("Host", "[1.2.3]:4200")],
        [("Host", "0.0.0.0:4200")],
        [("Host", "team.example")],
        [("Host", HERE), ("Host", "evil.test")],
        [("Host", "evil.test"), ("Host", HERE)],
        [("Host", HERE), ("Origin", "null")],
        [("Host", HERE), ("Origin", "http://evil.test")],
        [("Host", HERE), ("Origin", "http://evil.test:4200")],
        [("Host", HERE), ("Origin", "http://127.0.0.1:4201")],
        [("Host", HERE), ("Origin", "http://127.0.0.1")],
        [("Host", HERE), ("Origin", "http://localhost:4200")],
        [("Host", HERE), ("Origin", "file://")],
        [("Host", HERE), ("Origin", "chrome-extension://127.0.0.1:4200")],
        [("Host", HERE), ("Origin", "http://127.0.0.1:4200/")],
        [("Host", HERE), ("Origin", "http://evil.test, http://127.0.0.1:4200")],
        [("Host", HERE), ("Origin", "http://127.0.0.1:4200"), ("Origin", "http://evil.test")],
        [("Host", HERE), ("Origin", ""), ("Origin", "http://evil.test")],
        [("Host", HERE), ("Origin", "http://127.0.0.1:99999")],
    ],
)
def test_nobody_else_is(headers: list[tuple[str, str]]) -> None:
    assert answer(OwnOrigin(open_to_all), headers) == 403
    assert answer(OwnOrigin(open_to_all), headers, "websocket") == "websocket.close"


@pytest.mark.parametrize("wrong", ["http://", "a b", "ftp://x.example", "https://x.example/path", "*"])
def test_a_further_host_that_is_none_is_refused_in_words(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"team.example,{wrong}")
    with pytest.raises(BadInput, match=r"prefect\.example\.org"):
        OwnOrigin(open_to_all)


def test_a_password_is_asked_for() -> None:
    app = Password(open_to_all, "Ada:a:b ü", open=("/notification",))
    given = "Basic QWRhOmE6YiDDvA=="
    assert answer(app, [("authorization", given)]) == 200
    for wrong in ("", "Basic", given[:-2], given.replace("Basic", "basic2"), "Bearer x"):
        assert answer(app, [("authorization", wrong)]) == 401
    assert answer(app, [], path="/notification") == 200 and answer(app, [], path="/notification/") == 401


def test_a_folder_is_closed_to_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, home, shared = (tmp_path / name for name in ("old", "new/below", "home", "shared"))
    for made in (old, home, shared):
        made.mkdir()
    for made, mode in ((old, 0o755), (home, 0o755), (shared, 0o1777)):
        made.chmod(mode)
    monkeypatch.setenv("HOME", str(home))
    for folder in (old, new, home, shared):
        close_to_others(folder)
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (old, new, home, shared)]
    assert [oct(mode) for mode in modes] == ["0o700", "0o700", "0o755", "0o1777"]
