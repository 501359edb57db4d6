"""The launcher of ranks, `python -m crl.engine.ranks`: torch's, and it ends with the supervisor that started it.

It takes the arguments of `torchrun`. Each rank is a worker, which ends with the launcher in the same way.
"""

from __future__ import annotations

import os
import runpy

from crl.run.guardian import PARENT, end_with_parent


def main() -> None:
    """Start the ranks and wait for them."""
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
