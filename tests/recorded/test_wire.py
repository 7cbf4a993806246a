"""Recorded messages mean what they meant, and have the same bytes again (`tests/fixtures/wire/`)."""

from tests.recorded import formats
from tests.recorded.descriptions import as_json, describe
from tests.support.combinations import together

NAMES = sorted(path.stem for path in (formats.FIXTURES / "wire").glob("*.json"))


def cases(name):
    return formats.read_json("wire", f"{name}.json")["cases"]


def test_every_request_and_answer_is_recorded_those_of_a_transfer_also_in_frames_and_those_of_a_journal_as_records():
    assert set(NAMES) == formats.messages() | {"Tick"}
    forms = {name: {form for case in cases(name) for form in case} - {"case", "fields"} for name in NAMES}
    assert {name for name in NAMES if "bytes" in forms[name]} == formats.messages()
    assert {name for name in NAMES if {"frame", "chunks"} <= forms[name]} == formats.transferred()
    assert {name for name in NAMES if "record" in forms[name]} == formats.journaled()


@together("name", NAMES)
def test_a_recorded_message_has_the_recorded_fields_and_again_the_same_bytes(name):
    for case in cases(name):
        read = {}
        if "bytes" in case:
            data = formats.from_text(case["bytes"])
            read["bytes"] = message = formats.decode(name, data)
            assert formats.encode(message) == formats.canonical(name, data)
        for form in {"frame", "chunks"} & case.keys():
            frames = list(map(formats.from_text, case[form]))
            read[form] = formats.from_frames(frames)
            again = formats.to_frames(read[form], chunks=form == "chunks")
            assert [formats.canonical_frame(one) for one in again] == [formats.canonical_frame(one) for one in frames]
        if "record" in case:
            data = formats.from_text(case["record"])
            read["record"] = formats.from_record(data)
            assert formats.canonical_record(formats.to_record(read["record"])) == formats.canonical_record(data)
        assert read
        for form, message in read.items():
            assert as_json(describe(message)) == case["fields"], f"{case['case']}, {form}"
