"""Warm starts: miniatures (or any model) taught the form of their work before reinforcement begins.

:func:`crl.lab.warm.make.make` reads a file such as `conf/warm/realms.yaml` and leaves a checkpoint per role, with the
record of every demonstration, under the models directory. Nothing here knows an experiment, a run or a bank.
"""
