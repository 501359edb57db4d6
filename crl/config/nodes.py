"""The machines of a run: their GPUs; several for the ranks of an update, and how a command is started on each."""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from crl.config.base import Model
from crl.errors import BadInput

_LINE = re.compile(r"([A-Za-z0-9][\w.-]*)\s+slots=([1-9][0-9]{0,3})")
_WHERE = "runtime.nodes.hostfile"


@dataclass(frozen=True, slots=True)
class Host:
    """A machine."""

    name: str
    slots: int
    """Ranks it has room for: its GPUs."""


class GpusConfig(Model):
    """What a run expects of each machine."""

    count: int = Field(1, ge=1, le=1024, description="GPUs of a machine.")
    gigabytes: float = Field(gt=0, le=100_000, description="Memory of each, as its maker counts: 24, 80.")

    @property
    def device_bytes(self) -> int:
        """Memory of one."""
        return int(self.gigabytes * 1e9)

    def __str__(self) -> str:
        return f"{self.count} GPU{'' if self.count == 1 else 's'} of {self.gigabytes:g} GB"


class NodesConfig(Model):
    """Machines that see the same files, this environment included, at the same paths."""

    hostfile: Path = Field(description="DeepSpeed's hostfile: one line `name slots=4` per machine.")
    endpoint: str = Field(
        pattern=r"^[\w.-]+:[0-9]{1,5}$", description="address:port on the first machine where ranks meet."
    )
    shell: str = Field(
        "ssh -o BatchMode=yes -o ServerAliveInterval=10 {host}",
        pattern=r"\{host\}",
        description="How to run a command on a machine; {host} is its name in the hostfile.",
    )
    interface: str | None = Field(
        None, max_length=15, description="Network interface of the ranks (gloo, NCCL); null: they choose."
    )

    def hosts(self) -> list[Host]:
        """The machines of the hostfile. Raises BadInput where it cannot be read or has another form."""
        try:
            text = self.hostfile.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, RuntimeError) as error:  # RuntimeError: the home directory of nobody
            raise BadInput(
                f"the hostfile cannot be read: {error}",
                expected="a line `name slots=4` per machine",
                where=_WHERE,
                next_step="correct the path",
            ) from error
        lines = [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]
        found = [_LINE.fullmatch(line) for line in lines]
        for line, match in zip(lines, found, strict=True):
            if match is None:
                raise BadInput(
                    f"the hostfile has a line {line!r}",
                    expected="`name slots=4`: a name and how many ranks fit",
                    where=_WHERE,
                    next_step=f"correct {self.hostfile}",
                )
        return [Host(match[1], int(match[2])) for match in found if match is not None]

    def hosts_of(self, ranks: int) -> list[Host]:
        """How many ranks run on which machine. Raises BadInput where there is no room for all of them."""
        left, placed = ranks, []
        hosts = self.hosts()
        for host in hosts:
            if count := min(host.slots, left):
                placed.append(Host(host.name, count))
                left -= count
        if left:
            raise BadInput(
                f"the machines of the hostfile have {sum(host.slots for host in hosts)} slots",
                expected=f"at least {ranks}, the role's deepspeed.ranks",
                where=_WHERE,
                next_step=f"add machines to {self.hostfile}",
            )
        return placed

    def address_here(self) -> str:
        """The address of this machine that the others reach it at: the one it would itself reach the endpoint from.

        Raises BadInput where there is no way to the endpoint, or several machines and a way that stays on this one.
        """
        where = "runtime.nodes.endpoint"
        host, _, port = self.endpoint.partition(":")
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.connect((host, int(port)))  # of a datagram socket: nothing is sent
                found = str(asking.getsockname()[0])
        except (OSError, OverflowError, UnicodeError) as error:  # a port, a name that cannot be
            raise BadInput(
                f"there is no way from here to {self.endpoint}: {error}",
                expected="address:port on the first machine",
                where=where,
                next_step="correct it, or give it as an IP address",
            ) from None
        # Ranks elsewhere would look for their supervisor on their own machine, and it would wait for them.
        if found.startswith("127.") and len(self.hosts()) > 1:
            raise BadInput(
                f"the way from here to {self.endpoint} stays on this machine ({found})",
                expected="an address that every machine of the hostfile reaches",
                where=where,
                next_step=f"give the endpoint as an IP address of the machines' network, such as 10.0.0.1:{port}: in "
                "/etc/hosts a machine's own name often stands for 127.0.1.1",
            )
        return found

    def shell_for(self, host: Host) -> list[str]:
        """The words before a command that is to run there."""
        return [word.replace("{host}", host.name) for word in shlex.split(self.shell)]
