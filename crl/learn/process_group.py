"""The process group that DeepSpeed needs, from the launcher or inside this one process.

A single rank gets a group that lives in memory: no port is opened, so any number of runs on one machine stay clear of
each other, and no launcher is needed.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from crl.errors import NotDeepSpeed


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
    """Join the launcher's process group (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or make one of this process.

    May be called again: a process has one group. Raises NotDeepSpeed where the environment names several ranks but not
    where they meet.
    """
    deepspeed = import_deepspeed()
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    if not dist.is_initialized():
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1:
            missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
            if missing:
                raise NotDeepSpeed(
                    f"WORLD_SIZE is {size} but {', '.join(missing)} is not set",
                    expected="the environment of a launcher",
                    next_step="start the ranks with `python -m torch.distributed.run` or the deepspeed launcher",
                )
            dist.init_process_group(backend)
        else:
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)
