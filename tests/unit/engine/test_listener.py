"""Where workers connect: who knows the key gets in, nobody else does, and nobody is waited for without end."""

from __future__ import annotations

import threading
from multiprocessing import AuthenticationError

import pytest

from crl.engine.listener import ADDRESS_VARIABLE, KEY_VARIABLE, WorkerListener, connect
from tests.processes import PATIENCE_SECONDS, wait_until


def test_workers_with_the_key_get_in_and_others_do_not() -> None:
    with WorkerListener(2) as listener:
        assert listener.accept(0.01) is None
        with pytest.raises(AuthenticationError):
            connect({**listener.environment(), KEY_VARIABLE: "00" * 32})
        for word in (b"first", b"second"):
            environment = {**listener.environment(), "OTHER": "stays"}
            with connect(environment) as worker:
                assert environment == {"OTHER": "stays"}, "children of a worker see neither address nor key"
                there = listener.accept(PATIENCE_SECONDS)
                assert there is not None
                with there:
                    worker.send_bytes(word)
                    assert there.recv_bytes() == word
        # All have come: the door is shut.
        wait_until(lambda: not listening(listener), "nobody listens any more")


def test_a_listener_whose_workers_never_came_ends() -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "worker-listener"]

    before = set(threads())  # of an earlier test, ending
    with WorkerListener(1) as listener:
        environment = listener.environment()
        (its,) = set(threads()) - before
        assert environment[ADDRESS_VARIABLE]
    wait_until(lambda: not its.is_alive(), "its thread has ended")
    with pytest.raises(OSError):
        connect(environment)


def listening(listener: WorkerListener) -> bool:
    try:
        connect(listener.environment()).close()
    except OSError:
        return False
    return True
