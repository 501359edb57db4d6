"""A server that speaks OpenEnv's protocol, without openenv: `python standin.py KIND PORT [CAPACITY]`, or `served`.

GET /schema, /metadata and /health; at /ws a session per connection, each an environment of its own, until the server is
full. What its environments do is one class per KIND.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

INTEGER = {"type": "integer", "title": "Guess"}


class Guess:
    """A number from 0 to 9 is looked for; the answer says whether it is higher. 0.1 for each hint, 1 at the end."""

    about = "Find the number from 0 to 9."
    action: ClassVar[dict[str, Any]] = {
        "title": "GuessAction", "type": "object", "required": ["guess"],
        "properties": {"metadata": {"type": "object"}, "guess": INTEGER},
    }  # fmt: skip

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        self.number = random.Random(seed).randrange(10)
        self.options = options
        return {"text": f"A number was drawn, it is {'odd' if self.number % 2 else 'even'}."}

    def step(self, guess: int) -> tuple[dict[str, Any], float | None, bool]:
        if guess == self.number:
            return {"text": "Yes."}, 1.0, True
        return {"text": "It is higher." if self.number > guess else "It is lower."}, 0.1, False


class Unseeded(Guess):
    """It ignores its seed; the start shows it."""

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        super().reset(random.SystemRandom().randrange(2**60))
        return {"text": f"Ticket {random.SystemRandom().randrange(2**60)}."}


class Hidden(Guess):
    """It ignores its seed; only what follows the first actions shows it."""

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        self.number = random.SystemRandom().randrange(2**60)
        return {"text": "A number was drawn."}

    def step(self, guess: int) -> tuple[dict[str, Any], float | None, bool]:
        return {"text": f"{self.number - guess} too low."}, None, False


class Moves(Guess):
    """Named actions: walk to the end of a corridor."""

    about = "Walk to the east end."
    action: ClassVar[dict[str, Any]] = {
        "title": "MoveAction", "type": "object", "required": ["direction"],
        "properties": {"direction": {"$ref": "#/$defs/Direction"}, "kind": {"const": "move", "default": "move"}},
        "$defs": {"Direction": {"enum": ["west", "east"], "type": "string"}},
    }  # fmt: skip

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        self.at = random.Random(seed).randrange(3)
        return {"at": self.at, "of": 4, "remark": None}

    def step(self, direction: str, kind: str) -> tuple[dict[str, Any], float | None, bool]:
        assert kind == "move"
        self.at = max(0, self.at + (1 if direction == "east" else -1))
        return {"at": self.at, "of": 4, "remark": None}, -0.25, self.at >= 4


class Dies(Moves):
    """It kills its server in the 100th step of training, once: a file that STANDIN_DIED names says that it did."""

    steps = 0

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        self.trains = seed is not None and 1 < seed < 1_000_000
        return super().reset(seed)

    def step(self, direction: str, kind: str) -> tuple[dict[str, Any], float | None, bool]:
        Dies.steps += self.trains
        if Dies.steps == 100 and not Path(died := os.environ["STANDIN_DIED"]).exists():
            Path(died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(direction, kind)


class Listed(Moves):
    """The observation lists what is legal now."""

    action: ClassVar[dict[str, Any]] = {"title": "M", "properties": {"direction": {"type": "string"}}, "type": "object"}

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        return {**super().reset(seed), "legal": ["east"]}

    def step(self, direction: str, kind: str = "move") -> tuple[dict[str, Any], float | None, bool]:
        shown, reward, done = super().step(direction, kind)
        return {**shown, "legal": ["west", "east"]}, reward, done


class Several(Guess):
    """An action of two fields: a tool call."""

    action: ClassVar[dict[str, Any]] = {
        "title": "GuessAction", "type": "object", "required": ["guess"],
        "properties": {"guess": INTEGER, "why": {"type": "string", "default": ""}},
    }  # fmt: skip

    def step(self, guess: int, why: str = "") -> tuple[dict[str, Any], float | None, bool]:
        return super().step(guess)


class Tools(Guess):
    """Its actions call tools of its own."""

    action: ClassVar[dict[str, Any]] = {
        "title": "CallToolAction", "type": "object", "required": ["tool_name"],
        "properties": {
            "type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"},
        },
    }  # fmt: skip

    def step(self, **action: Any) -> tuple[dict[str, Any], float | None, bool]:
        if action["type"] == "list_tools":
            schema = {"type": "object", "properties": {"guess": INTEGER}, "required": ["guess"]}
            tool = {"name": "guess", "description": "Guess the number.", "input_schema": schema}
            return {"tools": [tool]}, None, False
        assert action["tool_name"] == "guess"
        return super().step(action["arguments"].get("guess", -1))


class Unnamed(Tools):
    """Its list of tools has none of their fields."""

    def step(self, **action: Any) -> tuple[dict[str, Any], float | None, bool]:
        return {"tools": [{"tool": "guess"}]}, None, False


class Untyped(Guess):
    """Its action has no JSON schema."""

    action: ClassVar[dict[str, Any]] = {"title": "GuessAction", "properties": {"guess": 5}}


class Toolless(Tools):
    """It does not know how to list its tools."""

    def step(self, **action: Any) -> tuple[dict[str, Any], float | None, bool]:
        raise ValueError("no such action")


class Shared(Guess):
    """It draws from one stream of all sessions, which every reset seeds."""

    stream: ClassVar[random.Random] = random.Random()

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        self.stream.seed(seed)
        return {"text": "A number was drawn."}

    def step(self, guess: int) -> tuple[dict[str, Any], float | None, bool]:
        return {"text": f"{self.stream.randrange(2**60)} too low."}, None, False


ODD: dict[int, Any] = {
    18: {"reward": float("nan")},
    19: {"reward": "much"},
    20: {"observation": {"text": "You see a room.", "picture": "iVBORw0KGgo" + "A" * 400}},
    21: {"observation": {"text": "x" * 300_000}},
    22: b"\xff\xfe{",
    23: {"observation": "no fields"},
    24: {"observation": {"other": "field"}},
    25: {"observation": {"text": "x" * (65 * 2**20)}},
}
"""Answers to guesses of :class:`Odd`, with what is wrong in them."""


class Odd(Guess):
    """13 raises, 14 hangs, 15 ends the server, 16 is nonsense, 17 closes the connection; others: `ODD`."""

    def step(self, guess: int) -> tuple[dict[str, Any], float | None, bool]:
        if guess == 13:
            raise ValueError("unlucky")
        if guess == 15:
            print("the server gives up", flush=True)
            os._exit(7)
        return super().step(guess)


class Slow(Guess):
    """A step is answered once sixteen of them wait."""

    waiting = 0


KINDS: dict[str, type[Guess]] = {
    each.__name__.lower(): each
    for each in (
        Guess,
        Unseeded,
        Hidden,
        Shared,
        Moves,
        Dies,
        Listed,
        Several,
        Tools,
        Odd,
        Slow,
        Unnamed,
        Untyped,
        Toolless,
    )
}


def valid(environment: Guess, data: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with an action, as pydantic says it."""
    known, errors = environment.action["properties"], []
    for name in environment.action.get("required", ()):
        if name not in data:
            errors.append({"loc": [name], "msg": "Field required"})
    for name, value in data.items():
        if name not in known:
            errors.append({"loc": [name], "msg": "Extra inputs are not permitted"})
        elif known[name].get("type") == "integer" and not isinstance(value, int):
            errors.append({"loc": [name], "msg": "Input should be a valid integer"})
    return errors


async def answer(environment: Guess, message: dict[str, Any], connection: ServerConnection) -> Any:
    data = message.get("data", {})
    if message["type"] == "reset":
        return {"observation": {**environment.reset(**data), "metadata": {}}, "reward": 0.0, "done": False}
    if message["type"] != "step":
        return {"code": "UNKNOWN_TYPE", "message": message["type"]}
    if data.get("type") != "list_tools" and (errors := valid(environment, data)):
        return {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors}
    if isinstance(environment, Slow):
        Slow.waiting += 1
        while Slow.waiting < 16:
            await asyncio.sleep(0.001)
    if isinstance(environment, Odd) and data["guess"] in (14, 16, 17):
        if data["guess"] == 14:
            await connection.wait_closed()
        if data["guess"] == 17:
            await connection.close()
        return "nonsense"
    if isinstance(environment, Odd) and data["guess"] in ODD:
        fault = ODD[data["guess"]]
        return fault if isinstance(fault, bytes) else {"observation": {"text": "Odd."}, "done": False} | fault
    try:
        shown, reward, done = environment.step(**data)
    except Exception as error:
        return {"code": "EXECUTION_ERROR", "message": str(error)}
    return {"observation": {**shown, "metadata": {}}, "reward": reward, "done": done}


@asynccontextmanager
async def served(name: str, port: int = 0, capacity: int = 64) -> AsyncIterator[str]:
    """A server that runs in this event loop: its address."""
    kind, sessions = KINDS[name], 0

    async def session(connection: ServerConnection) -> None:
        nonlocal sessions
        if sessions >= capacity:
            full = {"code": "CAPACITY_REACHED", "message": "full", "max_sessions": capacity}
            await connection.send(json.dumps({"type": "error", "data": full}))
            return
        sessions, environment = sessions + 1, kind()
        try:
            async for text in connection:
                data = await answer(environment, json.loads(text), connection)
                if isinstance(data, dict):
                    data = json.dumps({"type": "observation" if "observation" in data else "error", "data": data})
                await connection.send(data)
        finally:
            sessions -= 1

    def get(connection: ServerConnection, request: Request) -> Response | None:
        pages: dict[str, Callable[[], Any]] = {
            "/schema": lambda: {"action": kind.action, "observation": {}},
            "/metadata": lambda: {"name": kind.__name__, "description": kind.about},
        }
        if request.path not in pages:
            return None
        body = json.dumps(pages[request.path]()).encode()
        return Response(200, "OK", Headers({"Content-Length": str(len(body)), "Connection": "close"}), body)

    async with serve(session, "127.0.0.1", port, process_request=get, close_timeout=0.1) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def main(name: str, port: str, capacity: str = "64") -> None:
    async with served(name, int(port), int(capacity)) as address:
        print(address, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
