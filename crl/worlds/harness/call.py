"""Calls a function of the user's as a program: `python call.py module:function` with the task in $CRL_TASK."""

import asyncio
import importlib
import inspect
import os
import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    module, _, name = sys.argv[1].partition(":")
    returned = getattr(importlib.import_module(module), name)(os.environ["CRL_TASK"])
    if inspect.iscoroutine(returned):
        asyncio.run(returned)
