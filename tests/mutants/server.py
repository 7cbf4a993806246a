"""Mutants of who may call, of limits of memory and time, and of the clock and the order of array tasks."""

import hmac
from dataclasses import replace
from unittest.mock import patch

from psserver.core.variables.array_tasks import run
from psserver.rpc.identity import Claims
from psserver.runtime.task_order import MAX_INLINE_BYTES
from pswire import messages as ms
from tests.tools.mutant_plugin import mutant, scenario

IDENTITY, ACCESS = "psserver.rpc.identity:Identity", "psserver.rpc.access"
ADMISSION = "psserver.rpc.admission:Admission"
MEMBERS, CALLERS = "tests/attacks/test_identity.py", "tests/attacks/test_callers.py"
PROOFS = "tests/unit/psserver/rpc/test_proofs.py"
CREDENTIALS = "tests/unit/pswire/security/test_credentials.py"
TRANSFERS = "tests/unit/psserver/rpc/test_transfers.py"
CLOCK = "tests/unit/psserver/runtime/test_clock.py"


@mutant("A message without a token is taken", f"{IDENTITY}.check_sender", MEMBERS)
def _(original, self, sender, caller):
    if caller is not None:
        original(self, sender, caller)


@mutant("A member may send in the name of another", f"{IDENTITY}.check_sender", MEMBERS)
def _(original, self, sender, caller):
    original(self, sender, caller and replace(caller, sender=sender))


@mutant("An invented token is believed", f"{IDENTITY}._checked_claims", MEMBERS)
def _(original, self, token):
    with patch.object(hmac, "compare_digest", return_value=True):
        return original(self, token)


@mutant("Whoever knows an incarnation joins as it", f"{IDENTITY}._check_join", MEMBERS)
def _(original, self, message, caller):
    sender = ms.Sender(message.worker, message.incarnation)
    original(self, message, caller or Claims(sender, message.process_nonce, message.job))


@mutant(
    "The state of a shard is believed whoever reports it",
    f"{IDENTITY}._check_states",
    f"{MEMBERS}::test_a_state_that_a_shard_has_not_said_is_not_believed_and_the_job_goes_on",
)
def _(original, self, message):
    pass


@mutant(
    "The proof of one shard's state serves for another shard",
    f"{IDENTITY}._mac",
    f"{MEMBERS}::test_a_state_that_a_shard_has_not_said_is_not_believed_and_the_job_goes_on",
)
def _(original, self, *parts):
    return original(self, *(parts[::2] if parts[0] == "state" else parts))


@mutant(
    "An update is believed whoever reports it",
    f"{IDENTITY}._check_proof",
    f"{MEMBERS}::test_an_update_that_shard_0_has_not_decided_holds_nobody_up",
)
def _(original, self, shard, proof, *parts):
    pass


@mutant("A proof is valid in other jobs and timelines", f"{IDENTITY}._proof", PROOFS)
def _(original, self, shard, *parts):
    return self._mac(*parts)


@mutant(
    "The journal has the key of a name",
    f"{IDENTITY}.hashed",
    f"{MEMBERS}::test_the_journal_and_checkpoints_have_neither_tokens_nor_the_key_of_a_name",
)
def _(original, self, message):
    hashed = original(self, message)
    return replace(hashed, name_key=message.name_key) if isinstance(message, ms.Join) else hashed


@mutant("Any role may call any method", f"{ACCESS}:Caller.check", CALLERS)
def _(original, self, method):
    pass


@mutant(
    "A removed token stays valid, since it is known",
    f"{ACCESS}:Access.look",
    f"{CALLERS}::test_a_token_that_was_added_is_taken_and_one_that_was_removed_is_refused_without_a_restart",
)
def _(original, self):
    known = dict(self._known)
    original(self)
    self._known.update(known)


@mutant("A token travels without encryption", "pswire.security.credentials:Credentials.check_encrypted", CREDENTIALS)
def _(original, self, address, what):
    pass


@mutant("A host name that begins as a loopback address is one", "pswire.addresses:is_local", CREDENTIALS)
def _(original, address):
    return address.startswith("127.") or original(address)


@mutant(
    "A file of secrets may be read by every user",
    "pswire.security.private_files:_TOO_OPEN",
    "tests/unit/pswire/security/test_token_files.py",
)
def _(original):
    return 0o022


# --- limits -----------------------------------------------------------------------------------------------------------


@mutant("Traffic that has ended goes on counting", f"{ADMISSION}.release", TRANSFERS)
def _(original, self, member, nbytes):
    original(self, member, 0)


@mutant("A call that is held may take any memory", f"{ADMISSION}.hold", TRANSFERS)
def _(original, self, member, nbytes):
    self.count(member, nbytes)


@mutant(
    "One worker gets the shared memory of all",
    "psserver.rpc.transfer_memory:SharedMemory.reserve",
    "tests/unit/psserver/rpc/test_segment_socket.py",
)
def _(original, self, worker, nbytes, replaced=()):
    with patch.object(self, "_limit", 2 * self._limit):
        original(self, worker, nbytes, replaced)


@mutant(
    "A message is decoded whoever sends it",
    "psserver.rpc.service:Service._check_sender",
    "tests/attacks/test_message_limits.py",
)
def _(original, self, proto, caller):
    pass


@mutant(
    "A message may raise a counter to any number",
    "psserver.core.shard:Shard.check_counters",
    scenario("incarnations"),
)
def _(original, self, message, member=None):
    pass


# --- runtime ----------------------------------------------------------------------------------------------------------


@mutant("The time in which a server was stopped counts", "psserver.runtime.clock:Clock.__call__", CLOCK)
def _(original, self):
    self._tick = float("inf")
    return original(self)


@mutant(
    "A small task does not wait for a large one of the same variable",
    "psserver.runtime.task_order:TaskOrder.add",
    "tests/unit/psserver/runtime/test_executor.py",
)
def _(original, self, tasks):
    if sum([task.nbytes for task in tasks]) > MAX_INLINE_BYTES:
        return original(self, tasks)
    run(tasks)
    return None
