"""The process group that DeepSpeed needs: of this one process, of ranks on this machine, or on several.

Ranks meet in a store. That of a single rank is in memory, so that any number of runs on one machine stay clear of each
other. On one machine it is a file in a folder that only this user may enter. On several it is a server of rank 0, which
unpickles what it is sent: it listens on one address, that of the endpoint. torch's own would listen on all of them.
"""

from __future__ import annotations

import errno
import os
import socket
import warnings
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, TCPStore

from crl.errors import BadInput, NotDeepSpeed
from crl.run.guardian import STORE_VARIABLE, on_loopback

_BACKLOG = 1024


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of the engine."""

    rank: int
    size: int
    device: torch.device


def import_deepspeed() -> Any:
    """DeepSpeed on the accelerator that is there; it logs, to stdout, from the level $DEEPSPEED_LOG_LEVEL (error)."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    # torch renamed collectives that DeepSpeed still calls by their old names, once per call.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import deepspeed
    from deepspeed.utils.logging import set_log_level_from_string

    set_log_level_from_string(os.environ["DEEPSPEED_LOG_LEVEL"])
    # DeepSpeed would compile its shared-memory collectives the first time a group is joined: 45 s with a compiler, of
    # no use to a single rank, and their buffers are named by user and port, so runs side by side could share them.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def join() -> Ranks:
    """Join the other ranks (RANK, WORLD_SIZE and where they meet), or make a group of this process alone.

    May be called again: a process has one group. Raises NotDeepSpeed where the environment names several ranks but not
    where they meet, BadInput where rank 0 has no address that the others reach.
    """
    deepspeed = import_deepspeed()
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    if not dist.is_initialized():
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", **on_loopback())
        rank = int(os.environ["RANK"])
        dist.init_process_group(backend, store=_store(rank, size), rank=rank, world_size=size)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def _store(rank: int, size: int) -> Any:
    """Where the ranks meet."""
    if size == 1:
        return HashStore()
    if (file := os.environ.get(STORE_VARIABLE)) is not None:
        return FileStore(file, size)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise NotDeepSpeed(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set",
            expected=f"{STORE_VARIABLE} for ranks on one machine, or an endpoint for several",
            next_step="start the ranks as an engine does (crl/engine/launch.py)",
        )
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    alone = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    own: dict[str, Any] = {} if rank else {"master_listen_fd": listen(address, port, alone=alone).detach()}
    return TCPStore(address, port, size, is_master=rank == 0, timeout=dist.constants.default_pg_timeout, **own)


def listen(address: str, port: int, *, alone: bool = False) -> socket.socket:
    """A listening socket at the endpoint's address; where that is not one of this machine's, at that of the interface
    of the ranks ($GLOO_SOCKET_IFNAME). Loopback is an address only where this machine is `alone`.

    Raises BadInput where there is neither, OSError for a taken port.
    """
    found = socket.gethostbyname(address)
    places = [] if found.startswith("127.") and not alone else [found]
    named = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), ())
    places += [each.address for each in named if each.family == socket.AF_INET]
    for place in places:
        try:
            return socket.create_server((place, port), backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    raise BadInput(
        f"the endpoint {address}:{port} ({found}) is no address of the first machine that others reach",
        expected="one of its addresses, or the name of a network interface",
        where="runtime.nodes.endpoint",
        next_step="give it as an IP address, or name the interface: runtime.nodes.interface",
    )
