"""Requests to a server that samples, many at a time, and what is said where it does not answer.

A key is sent in a header and named nowhere else. A redirect is not followed: it would take the key to another host.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx

from crl.config.engines import ServerConfig
from crl.errors import BadInput, EngineDied, RequestRefused
from crl.paths import quoted

T = TypeVar("T")
R = TypeVar("R")

_LONGEST_WAIT = 60.0
"""Seconds that are waited at most because a busy server asks for it."""
_BUSY = frozenset({408, 409, 425, 429, *range(500, 600)}) - {501, 505}
"""Answers after which the same request may succeed. Networks in front of endpoints have codes of their own, 520 to 529;
501 and 505 say that the server cannot do it at all."""
_NOT_THERE = frozenset({401, 403, 404})
"""Answers that say that the address, the model's name or the key is wrong."""
_REQUESTS = 4096
"""As many as a batch has rows; what vLLM has no room for waits in its own queue."""
_SHOWN = 500
"""Characters of an answer that a message shows."""


def key_of(server: ServerConfig) -> str | None:
    """The key in the variable that a server names, without space around it (a file's last line break); None: no key.

    Raises BadInput, with no part of the key in it, where no header could hold it: what then complains shows all of it.
    """
    if server.key_variable is None:
        return None
    key = os.environ.get(server.key_variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            f"the key in the variable {server.key_variable} cannot be sent: it has a line break or another control "
            "character in it, or one that is not ASCII",
            expected="one line of printable ASCII",
            where=f"the variable {server.key_variable}",
            next_step=f"export {quoted(server.key_variable)}=… with the key alone",
        )
    return key or None


class Client:
    """The connection to one server.

    Args:
        name: what people call the server, for messages.
        server: its limits, and the name of the variable that holds the key.
        address: its URL.
        socket: path of a Unix socket that is connected to in place of the address's host.
        tries: how often a request is sent to a server that is busy, or does not answer.
        requests: how many are under way at the same time, where its limits do not say.

    Raises:
        BadInput: the key cannot be sent.
    """

    def __init__(
        self,
        name: str,
        server: ServerConfig,
        address: str,
        *,
        socket: str | None = None,
        tries: int = 1,
        requests: int = _REQUESTS,
    ) -> None:
        self.name, self.address = name, address.rstrip("/")
        self._server, self._tries = server, tries
        self._key = key_of(server)
        # A thread is made when no other is free: there are as many as requests were ever under way at once.
        self._pool = ThreadPoolExecutor(server.requests or requests, thread_name_prefix="requests")
        self._given_up = WeakKeyDictionary[Future[Any], threading.Event]()
        self._thread = threading.local()
        # vLLM's server closes a connection that was idle for 5 seconds, which is as long as httpx keeps one: a
        # request that is sent on it at that moment is lost, and a server that is well would be taken for dead.
        limits = httpx.Limits(max_connections=server.requests or requests, keepalive_expiry=1.0)
        self._http = httpx.Client(
            transport=None if socket is None else httpx.HTTPTransport(uds=socket, limits=limits),
            limits=limits,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(server.answer_seconds, connect=min(server.answer_seconds, 30.0)),
        )

    def close(self) -> None:
        """Close its connections. What waits is not begun; what is under way may last until its time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def get(self, path: str, **options: Any) -> Any:
        """The JSON that a path answers. Raises as :meth:`post`."""
        return self._send("GET", path, options)

    def post(self, path: str, body: Any, **options: Any) -> Any:
        """The JSON that a path answers to a body.

        Raises EngineDied where the server is gone, hangs or stays busy; RequestRefused where it refuses the request,
        and another BadInput where it would refuse any.
        """
        return self._send("POST", path, {"json": body, **options})

    @contextmanager
    def reading(self, what: str, expected: str | None = None) -> Iterator[None]:
        """Inside, an answer that has another form than the one that is read raises EngineDied: it is `what`."""
        try:
            yield
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise EngineDied(
                f"{self.name} gave {what} ({type(error).__name__}: {error})", expected=expected, where=self.address
            ) from None

    def healthy(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            return self._http.get(f"{self.address}/health", timeout=5.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Begin `work`, or let it wait where as much is under way as the server takes."""
        given_up = threading.Event()

        def done() -> R:
            self._thread.given_up = given_up
            return work()

        begun = self._pool.submit(done)
        self._given_up[begun] = given_up
        return begun

    def give_up(self, begun: Iterable[Future[Any]]) -> None:
        """Returns when nothing of this is under way any more; what waits is not begun, and nothing is sent again."""
        under_way = [each for each in begun if not each.cancel()]
        for each in under_way:
            self._given_up[each].set()
        wait(under_way)

    def all(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`work` of every item, as many at a time as the server takes; results in their order.

        Raises what the first item raised that failed; what has not begun by then is not begun.
        """
        waiting = [self.begin(functools.partial(work, item)) for item in items]
        try:
            return [each.result() for each in waiting]
        except BaseException:
            self.give_up(waiting)
            raise

    def _send(self, method: str, path: str, options: dict[str, Any]) -> Any:
        for left in reversed(range(self._tries)):
            asked = 0.0
            try:
                response = self._http.request(method, f"{self.address}{path}", **options)
            except httpx.TimeoutException as error:
                problem = f"did not answer {path} in time ({type(error).__name__})"
            except httpx.HTTPError as error:
                problem = f"cannot be reached ({type(error).__name__}: {self._shown(str(error))})"
            else:
                if response.is_success:
                    return self._content(response)
                problem = f"answered {path} with {response.status_code}: {self._shown(response.text)}"
                if response.status_code not in _BUSY:
                    refused = BadInput if _refuses_all(response) else RequestRefused
                    raise refused(
                        f"{self.name} {problem}",
                        expected="an answer to the request",
                        where=self.address,
                        next_step=_advice(response),
                    )
                asked = _asked_to_wait(response)
            if left and self._pause(max(2.0 ** (self._tries - left - 1), asked)):
                break
        raise EngineDied(
            f"{self.name} {problem}",
            where=self.address,
            next_step="look after it; runtime.servers has the time limits",
        )

    def _pause(self, seconds: float) -> bool:
        """Wait before a request is sent again; whether it was given up meanwhile, or before."""
        given_up: threading.Event = getattr(self._thread, "given_up", None) or threading.Event()
        return given_up.wait(seconds)

    def _content(self, response: httpx.Response) -> Any:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise EngineDied(
                f"{self.name} answered with no JSON: {self._shown(response.text)}", where=self.address
            ) from None

    def _shown(self, text: str) -> str:
        """The beginning of what somebody else wrote, without the key."""
        return (text.replace(self._key, "(the key)") if self._key else text)[:_SHOWN]


def _refuses_all(response: httpx.Response) -> bool:
    """Whether no request would fare better. A redirect is not followed: the address that it names may be right."""
    return response.is_redirect or response.status_code in _NOT_THERE


def _advice(response: httpx.Response) -> str:
    """What to do about a refusal."""
    if _refuses_all(response):
        return "check its address, the model's name and the key (runtime.servers)"
    return "its answer above says what it does not take: change that setting of the role, or of the server"


def _asked_to_wait(response: httpx.Response) -> float:
    """Seconds that a busy server asks for (`Retry-After`), at most :data:`_LONGEST_WAIT`; a date counts as none."""
    try:
        return min(max(float(response.headers.get("Retry-After", 0)), 0.0), _LONGEST_WAIT)
    except ValueError:
        return 0.0
