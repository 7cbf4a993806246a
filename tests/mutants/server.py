"""Mutants of who may call, of limits of memory and time, and of the clock and the order of array tasks."""

import hmac
from dataclasses import replace
from unittest.mock import patch

from psserver.rpc.identity import Claims
from pswire import messages as ms
from tests.tools.mutant_plugin import mutant, scenario, without

IDENTITY, ACCESS = "psserver.rpc.identity:Identity", "psserver.rpc.access"
ADMISSION = "psserver.rpc.admission:Admission"
MEMBERS, CALLERS = "tests/attacks/test_identity.py", "tests/attacks/test_callers.py"
CREDENTIALS = "tests/unit/pswire/security/test_credentials.py"
TRANSFERS = "tests/unit/psserver/rpc/test_transfers.py"
DIRECT, CONNECTION = "tests/attacks/test_direct_connections.py", "psserver.rpc.direct.connection:DirectConnection"
CLOCK = "tests/unit/psserver/runtime/test_clock.py"


@mutant(
    "A message without a token is taken",
    f"{IDENTITY}.check_sender",
    f"{MEMBERS}::test_nobody_acts_in_the_name_of_another_worker",
)
def _(original, self, sender, caller):
    if caller is not None:
        original(self, sender, caller)


@mutant(
    "A member may send in the name of another",
    f"{IDENTITY}.check_sender",
    f"{MEMBERS}::test_nobody_acts_in_the_name_of_another_worker",
)
def _(original, self, sender, caller):
    original(self, sender, caller and replace(caller, sender=sender))


@mutant(
    "An invented token is believed",
    f"{IDENTITY}._checked_claims",
    f"{MEMBERS}::test_a_stream_carries_the_messages_of_the_member_that_opened_it_and_is_for_nobody_else",
)
def _(original, self, token):
    with patch.object(hmac, "compare_digest", return_value=True):
        return original(self, token)


@mutant(
    "Whoever knows an incarnation joins as it",
    f"{IDENTITY}._check_join",
    f"{MEMBERS}::test_nobody_acts_in_the_name_of_another_worker",
)
def _(original, self, message, caller):
    sender = ms.Sender(message.worker, message.incarnation)
    original(self, message, caller or Claims(sender, message.process_nonce, message.job))


@mutant(
    "The journal has the key of a name",
    f"{IDENTITY}.hashed",
    f"{MEMBERS}::test_the_journal_and_checkpoints_have_neither_tokens_nor_the_key_of_a_name",
)
def _(original, self, message):
    hashed = original(self, message)
    return replace(hashed, name_key=message.name_key) if isinstance(message, ms.Join) else hashed


without(
    "Any role may call any method",
    f"{ACCESS}:Caller.check",
    f"{CALLERS}::test_each_role_may_call_its_methods_and_gets_an_error_that_names_the_role_for_the_others",
)


@mutant(
    "A removed token stays valid, since it is known",
    f"{ACCESS}:Access.look",
    f"{CALLERS}::test_a_token_that_was_added_is_taken_and_one_that_was_removed_is_refused_without_a_restart",
)
def _(original, self):
    known = dict(self._known)
    original(self)
    self._known.update(known)


without(
    "A token travels without encryption",
    "pswire.security.credentials:Credentials.check_encrypted",
    f"{CREDENTIALS}::test_a_token_goes_to_another_machine_by_tls_only",
)


@mutant(
    "A host name that begins as a loopback address is one",
    "pswire.addresses:is_local",
    f"{CREDENTIALS}::test_a_token_goes_to_another_machine_by_tls_only",
)
def _(original, address):
    return address.startswith("127.") or original(address)


@mutant(
    "A file of secrets may be read by every user",
    "pswire.security.private_files:_TOO_OPEN",
    "tests/unit/pswire/security/test_token_files.py::test_a_file_that_others_can_read_or_change_is_refused_with_what_to_do",
)
def _(original):
    return 0o022


# --- limits -----------------------------------------------------------------------------------------------------------


@mutant(
    "Traffic that has ended goes on counting",
    f"{ADMISSION}.release",
    f"{TRANSFERS}::test_transfers_go_on_while_they_fit_in_their_order_and_one_that_is_cancelled_leaves_its_place",
)
def _(original, self, member, nbytes):
    original(self, member, 0)


@mutant(
    "A call that is held may take any memory",
    f"{ADMISSION}.hold",
    f"{TRANSFERS}::test_bytes_that_have_arrived_have_room_of_their_own_and_are_refused_at_once_beyond_it",
)
def _(original, self, member, nbytes):
    self.count(member, nbytes)


@mutant(
    "One worker gets the shared memory of all",
    "psserver.rpc.transfer_memory:SharedMemory.reserve",
    "tests/unit/psserver/rpc/test_shared_segment_socket.py::test_bytes_and_segments_of_a_worker_and_of_all_are_bounded_and_free_again_when_streams_end",
)
def _(original, self, worker, nbytes, replaced=()):
    with patch.object(self, "_limit", 2 * self._limit):
        original(self, worker, nbytes, replaced)


without(
    "A message is decoded whoever sends it",
    "psserver.rpc.service:Service._check_sender",
    "tests/attacks/test_message_limits.py::test_a_request_of_nobody_who_has_joined_is_refused_before_it_is_decoded",
)


without(
    "A message may raise a counter to any number",
    "psserver.core.job.joins:check_count",
    scenario("incarnations"),
)


# --- direct connections -----------------------------------------------------------------------------------------------


without(
    "A message may have other elements than its prefix announces",
    "pswire.tensors.stream:StreamReceiver.check_data",
    f"{DIRECT}::test_a_message_whose_lengths_or_header_are_wrong_is_refused_and_applied_in_no_part",
)


@mutant(
    "A direct message gets memory before there is room for it",
    f"{CONNECTION}._rest_of",
    f"{DIRECT}::test_a_message_has_room_before_its_bytes_are_read",
)
async def _(original, self, data, hold, release):
    counted = []
    frame = await original(self, data, counted.append, release)
    hold(counted[0])
    return frame


@mutant(
    "A call goes on although its direct connection has ended",
    f"{CONNECTION}._notice",
    f"{DIRECT}::test_a_call_that_waits_for_others_ends_with_its_connection",
)
def _(original, self):
    with patch.object(self, "_task"):
        original(self)


@mutant(
    "A refusal follows a part of an answer",
    f"{CONNECTION}.refuse",
    "tests/unit/psserver/rpc/test_direct_connection.py::test_behind_a_part_of_a_message_there_is_no_refusal",
)
async def _(original, self, refusal):
    self._cut = False
    await original(self, refusal)


@mutant(
    "A refused stranger counts no longer",
    "psserver.rpc.direct.listener:DirectListener._greeted",
    f"{DIRECT}::test_refused_connections_count_as_strangers_until_they_have_gone",
)
async def _(original, self, one):
    greeted = await original(self, one)
    self._member()
    return greeted


# --- runtime ----------------------------------------------------------------------------------------------------------


@mutant(
    "The time in which a server was stopped counts",
    "psserver.runtime.clock:Clock.__call__",
    f"{CLOCK}::test_the_clock_is_the_time_and_a_gap_of_more_than_two_ticks_counts_as_two_however_often_it_comes",
)
def _(original, self):
    self._tick = float("inf")
    return original(self)
