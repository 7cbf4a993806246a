"""Records each message, with every field set and with none that may be absent: `tests/fixtures/wire/`."""

from pswire import messages as ms
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1 import state_pb2 as spb
from tests.recorded import formats
from tests.recorded.descriptions import describe
from tests.unit.pswire.codec.test_codec import FULL, bare

TICKS = (
    ms.Tick(
        lost=("w0", "w1"),
        overdue=(ms.Overdue(worker="w2", queue="examples"),),
        stalled=("w3",),
        takers=("w4",),
        evaluators=("w5",),
        gives_up=True,
    ),
    ms.Tick(),
)


def record(write):
    """Write a file for each message that has none, and add frames where they are missing.

    `write` takes the parts of its path and its JSON data.
    """
    full = [*FULL, TICKS[0]]
    for message, minimal in zip(full, [*map(bare, FULL), TICKS[1]], strict=True):
        name = formats.name_of(message)
        if (formats.FIXTURES / "wire" / f"{name}.json").exists():
            data = formats.read_json("wire", f"{name}.json")
            whole = data["cases"][0]
            if name in formats.transferred() and "frame" not in whole:
                whole |= _frames(formats.decode(name, formats.from_text(whole["bytes"])))
                write("wire", f"{name}.json", data=data)
            continue
        cases = {"every field": message, "no optional field": minimal}
        data = {
            "message": name,
            "cases": [{"case": case} | _case(name, one, whole=one is message) for case, one in cases.items()],
        }
        write("wire", f"{name}.json", data=data)


def _case(name, message, *, whole):
    fields, tick = describe(message), name == "Tick"
    check_names(fields, (spb if tick else pb).DESCRIPTOR.message_types_by_name[name])
    found = {"fields": fields} | ({} if tick else {"bytes": formats.in_text(formats.encode(message))})
    if not whole and not tick:
        return found
    if name in formats.transferred():
        found |= _frames(message)
    if name in formats.journaled():
        found["record"] = formats.in_text(formats.to_record(message))
    return found


def _frames(message):
    forms = ("frame", False), ("chunks", True)
    return {form: list(map(formats.in_text, formats.to_frames(message, chunks=chunks))) for form, chunks in forms}


def check_names(description, kind):
    """A description has no names but those of the protocol."""
    if kind.name in ("Tensor", "Optimizer", "RowInitializer"):
        return
    assert isinstance(description, dict), f"{kind.name}: {description}"
    for name, value in description.items():
        field = kind.fields_by_name[name]
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                check_names(one, field.message_type)
