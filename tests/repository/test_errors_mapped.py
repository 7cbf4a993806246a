"""Every error has a gRPC status, every gRPC status maps to an error, and errors survive the round trip."""

import grpc
import pytest

from pswire.channel import error_from, status_of
from pswire.errors import FAMILY

STATUSES = {code.name for code in grpc.StatusCode}


class Failed(grpc.RpcError):
    def __init__(self, code, details, metadata=()):
        super().__init__(details)
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: metadata


@pytest.mark.parametrize("kind", FAMILY.values(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_a_fault_and_a_docstring(kind):
    assert kind.status in STATUSES - {"OK"}
    assert kind.fault in ("sender", "receiver", "network", "user")
    assert kind.retry == (kind.fault == "network")
    assert kind.__doc__


@pytest.mark.parametrize("kind", FAMILY.values(), ids=lambda kind: kind.__name__)
def test_every_error_survives_the_round_trip(kind):
    error = error_from(Failed(*status_of(kind("variable 'W': what happened, and what to do"))), "host:9")
    assert type(error) is kind
    assert str(error) == "variable 'W': what happened, and what to do"


@pytest.mark.parametrize("code", grpc.StatusCode, ids=lambda code: code.name)
def test_every_other_status_is_an_error_that_names_the_address(code):
    error = error_from(Failed(code, "details"), "host:9")
    assert type(error) in FAMILY.values()
    assert "host:9" in str(error)


def test_only_broken_connections_and_deadlines_are_retried():
    retried = {code.name for code in grpc.StatusCode if error_from(Failed(code, "details"), "host:9").retry}
    assert retried == {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"}
