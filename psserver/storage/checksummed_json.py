"""JSON with a checksum, for people and programs: `{"crc32c": "...", "manifest": {...}}`.

One text is valid for given data, so every other byte in the file is damage.
"""

import json
from typing import Any

from crc32c import crc32c


def dumps(data: dict[str, Any]) -> bytes:
    """The text of this data."""
    body = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)
    return f'{{"crc32c": "{crc32c(body.encode()):08x}", "manifest": {body}}}\n'.encode()


def loads(text: bytes) -> dict[str, Any] | None:
    """The data of a text, an object; None: it is damaged."""
    try:
        data: dict[str, Any] = json.loads(text)["manifest"]
        return data if isinstance(data, dict) and dumps(data) == text else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
