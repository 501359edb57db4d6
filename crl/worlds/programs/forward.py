"""In a sandbox without a network: leads a port of its own loopback to a Unix socket, and runs a program beside that.

`python forward.py PORT SOCKET PROGRAM [ARGUMENT …]`. It imports nothing of the project, which is not there.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading


def _lead(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def _serve(listening: socket.socket, path: str) -> None:
    while True:
        client, _ = listening.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(path)
        except OSError:
            client.close()
            continue
        for pair in ((client, server), (server, client)):
            threading.Thread(target=_lead, args=pair, daemon=True).start()


if __name__ == "__main__":
    gate = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=_serve, args=(gate, sys.argv[2]), daemon=True).start()
    code = subprocess.call(sys.argv[3:])
    os._exit(128 - code if code < 0 else code)
