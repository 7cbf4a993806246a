"""Model files: a header of JSON with its length (tag 0) and elements behind it (1), or any bytes (2)."""

import os
import tempfile

from pswire.tensors.tensor_files import TensorFile
from tests.fuzz.packets import unpack

COVERS = ["pswire.tensors.tensor_files"]


def run(data: bytes) -> None:
    content = b""
    for tag, part in unpack(data):
        content += len(part).to_bytes(8, "little") + part if tag == 0 else part
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.write(content)
        file.flush()
        with TensorFile(file.name) as opened:
            for name, tensor in opened.tensors.items():
                if tensor.read_as is not None:
                    opened.read(name)
                    if tensor.shape and tensor.shape[0] > 1:
                        opened.read(name, 1, tensor.shape[0] - 1)
