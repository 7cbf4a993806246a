"""Event files of TensorBoard: each function makes the bytes of one record.

The messages are those of the package `tensorboard`, an extra, which reads and shows them; TensorFlow is not imported.
Records are framed here: the writer of that package has a queue that blocks, imports TensorFlow if it is installed, and
computes checksums in Python, 300 times slower than `crc32c`.
"""

import io
import struct
from collections.abc import Iterable, Mapping

import numpy as np
from crc32c import crc32c
from PIL import Image
from tensorboard.compat.proto import event_pb2, types_pb2
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.versions_pb2 import VersionDef
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.metadata import NULL_TENSOR, SESSION_END_INFO_TAG
from tensorboard.plugins.hparams.metadata import create_summary_metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image.metadata import create_summary_metadata as image_metadata
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from pswire.tensors.values import Array
from psworker.summaries.graph import GraphNode

#: Buckets of a histogram, as of `tf.summary.histogram`.
BUCKETS = 30

_DTYPES = {"float16": types_pb2.DT_HALF, "float32": types_pb2.DT_FLOAT, "float64": types_pb2.DT_DOUBLE}


def begin(seconds: float, step: int) -> bytes:
    """The first records of a file: its version, and that a life of the process begins at this global step.

    TensorBoard then forgets what an earlier life had written of later steps, which the job has given up.
    """
    version = event_pb2.Event(wall_time=seconds, file_version="brain.Event:2")
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return _record(version) + _record(event_pb2.Event(wall_time=seconds, step=step, session_log=start))


def scalars(seconds: float, step: int, values: Mapping[str, float | None]) -> bytes:
    """Scalars by tag, as float32; those that are None are left out."""
    given = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]
    return _summary(seconds, step, given)


def histogram(seconds: float, step: int, tag: str, values: Array) -> bytes:
    """A histogram of finite values: `BUCKETS` of equal width from the least to the largest; none of no values."""
    buckets = np.zeros((0, 3))
    if values.size:
        counts, edges = np.histogram(values.astype(np.float64), BUCKETS)
        buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return _tensor(seconds, step, tag, histogram_metadata(None, None), make_tensor_proto(buckets))


def image(seconds: float, step: int, tag: str, pixels: Array) -> bytes:
    """A picture as PNG: uint8, (height, width) or (height, width, 3 or 4)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    height, width = pixels.shape[:2]
    strings = [str(width).encode(), str(height).encode(), file.getvalue()]
    return _tensor(seconds, step, tag, image_metadata(None, None), _strings(strings))


def text(seconds: float, step: int, tag: str, markdown: str) -> bytes:
    """A text, which TensorBoard shows as Markdown."""
    return _tensor(seconds, step, tag, text_metadata(None, None), _strings([markdown.encode()]))


def graph(seconds: float, nodes: Iterable[GraphNode]) -> bytes:
    """A graph, whose variables have the device `/shard:0` and so on."""
    definition = GraphDef(node=map(_node, nodes), versions=VersionDef(producer=22))
    return _record(event_pb2.Event(wall_time=seconds, graph_def=definition.SerializeToString()))


def hyperparameters(seconds: float, values: Mapping[str, bool | int | float | str]) -> bytes:
    """The hyperparameters of the run, with which its metrics are listed."""
    return _summary(seconds, 0, hparams_pb(dict(values), trial_id="", start_time_secs=seconds).value)


def end(seconds: float, *, failed: bool) -> bytes:
    """The end of a run with hyperparameters."""
    info = SessionEndInfo(status=api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS, end_time_secs=seconds)
    metadata = hparams_metadata(HParamsPluginData(session_end_info=info))
    return _tensor(seconds, 0, SESSION_END_INFO_TAG, metadata, NULL_TENSOR)


def _node(node: GraphNode) -> NodeDef:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in node.shape])
    attributes = {
        "_output_shapes": AttrValue(list=AttrValue.ListValue(shape=[shape])),
        "dtype": AttrValue(type=_DTYPES.get(node.dtype, types_pb2.DT_INVALID)),
    }
    device = "" if node.shard is None else f"/shard:{node.shard}"
    return NodeDef(name=node.name, op=node.op, input=node.inputs, device=device, attr=attributes)


def _strings(strings: list[bytes]) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(strings))])
    return TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=strings)


def _tensor(seconds: float, step: int, tag: str, metadata: SummaryMetadata, tensor: TensorProto) -> bytes:
    return _summary(seconds, step, [Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def _summary(seconds: float, step: int, values: Iterable[Summary.Value]) -> bytes:
    return _record(event_pb2.Event(wall_time=seconds, step=step, summary=Summary(value=values)))


def _record(event: event_pb2.Event) -> bytes:
    """The event as a TFRecord: its length, that one's checksum, the bytes, and their checksum."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """The CRC-32C, rotated and offset, since one of bytes that have one inside says little."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
