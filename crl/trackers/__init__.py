"""Rounds in the trackers people already use: TensorBoard files by default; MLflow, W&B or Trackio on request.

They read the record and are no part of it: what they write is in no digest, and whatever goes wrong with one is a
warning. A floor above `engine` and `report`: the subscriber needs the events of one and the tables of the other.
"""
