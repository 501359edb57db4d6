"""TensorBoard files in the run, one per round: `<run>/tensorboard/events.out.tfevents.<round>`.

A file is written beside its place and renamed, so it is there whole or not at all, and a round that is written again
replaces its file. Look at them with `tensorboard --logdir RUN/tensorboard`, or at many runs with `--logdir runs`.
"""

from __future__ import annotations

import io
import textwrap
import time
from typing import Any, ClassVar

import numpy as np

from crl.run.files import write_atomically
from crl.text.unicode import escaped
from crl.trackers.base import RoundMetrics, TrackedRun, record_of

FOLDER = "tensorboard"


class TensorBoard:
    """Event files through the package `tensorboard` alone: no torch, no TensorFlow, no server."""

    requires: ClassVar[str | None] = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._folder = run.path / FOLDER
        self.id = FOLDER

    def write(self, round_metrics: RoundMetrics) -> None:
        """Write the round's file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(exist_ok=True)
        target = self._folder / f"events.out.tfevents.{round_metrics.round:010d}"
        summaries = [
            Summary(value=[Summary.Value(tag=name, simple_value=value)])
            for name, value in sorted(round_metrics.values.items())
        ]
        summaries.append(
            text_pb("rounds", f"{record_of(self._run.path, round_metrics.head)}\n\n{round_metrics.tables}")
        )
        if round_metrics.round == 0:
            # Indented, which is code in Markdown: also where a value has several lines.
            told = "\n".join(f"{name}: {value}" for name, value in self._run.method.items())
            method = textwrap.indent(escaped(told), "    ", lambda line: True)
            summaries += [_layout(), text_pb("method", f"digest `{self._run.method_digest}`\n\n{method}")]
        now, content = time.time(), io.BytesIO()
        writer = RecordWriter(content)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for summary in summaries:
            writer.write(Event(wall_time=now, step=round_metrics.round, summary=summary).SerializeToString())
        write_atomically(target, content.getvalue())

    def close(self) -> None:
        """Nothing is open between rounds."""


def _layout() -> Any:
    """The charts of the tab `Custom scalars`: success by condition in one picture."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    charts = [
        layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=[tag]))
        for title, tag in (
            ("held-out success by condition", r"held_out/.*"),
            ("training success by condition", r"success/.*"),
        )
    ]
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="success", chart=charts)])
    return Summary(
        value=[
            Summary.Value(
                tag=metadata.CONFIG_SUMMARY_TAG,
                metadata=metadata.create_summary_metadata(),
                tensor=make_tensor_proto(layout.SerializeToString(), dtype=np.object_),
            )
        ]
    )
