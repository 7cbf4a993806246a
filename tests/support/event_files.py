"""What TensorBoard's own reader finds in the event files of a run."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("tensorboard", reason="pip install -e '.[dev]'")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.util.tensor_util import make_ndarray

#: The number of float32 in TensorFlow.
FLOAT = 1


def events(run: Path) -> list:
    """All events of all files of a run, in the order in which TensorBoard reads them."""
    return [event for file in sorted(run.glob("*tfevents*")) for event in EventFileLoader(str(file)).Load()]


def values(run: Path) -> dict[str, list]:
    """The summaries by tag: (step, message)."""
    found: dict[str, list] = {}
    for event in events(run):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value))
    return found


def tensor(run: Path, tag: str):
    """Step, plugin and array of the only summary with this tag."""
    [(step, value)] = values(run)[tag]
    return step, value.metadata.plugin_data.plugin_name, make_ndarray(value.tensor)


def shown_scalars(run: Path) -> dict[str, list]:
    """The scalars that TensorBoard shows, by tag: (step, value)."""
    accumulator = EventAccumulator(str(run), {"scalars": 0})
    accumulator.Reload()
    return {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def graph(run: Path) -> GraphDef:
    """The last graph of a run, which is the one that is shown."""
    *_, encoded = [event.graph_def for event in events(run) if event.graph_def]
    return GraphDef.FromString(encoded)


def nodes(run: Path) -> dict[str, tuple]:
    """By name: op, inputs, shape, dtype (as numbered in TensorFlow), device."""
    return {
        node.name: (
            node.op,
            tuple(node.input),
            tuple(dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim),
            node.attr["dtype"].type,
            node.device,
        )
        for node in graph(run).node
    }


def hyperparameters(run: Path) -> dict:
    """The hyperparameters of a run, as the page HParams reads them."""
    [(_, value)] = values(run)[metadata.SESSION_START_INFO_TAG]
    info = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    return {name: getattr(one, one.WhichOneof("kind")) for name, one in info.hparams.items()}


def pixels(png: bytes) -> np.ndarray:
    """The pixels of a PNG."""
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image)


def end(run: Path) -> str:
    """How a run with hyperparameters has ended: SUCCESS or FAILURE."""
    [(_, value)] = values(run)[metadata.SESSION_END_INFO_TAG]
    info = metadata.parse_session_end_info_plugin_data(value.metadata.plugin_data.content)
    return api_pb2.Status.Name(info.status).removeprefix("STATUS_")
