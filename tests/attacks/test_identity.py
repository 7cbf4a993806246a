"""Messages in the name of another worker, and made-up reports of other shards: refused, and the worker trains on."""

import os
import re
import stat
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.gaps import MAX_GAP
from psserver.rpc.identity import Identity
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode
from pswire.specs.consistency import Synchronous
from pswire.tensors.stream import StreamSender
from pswire.tensors.transport import InlineSender
from tests.support.combinations import few_fast
from tests.support.servers import NAME_KEY, Client, frames_of, join_all
from tests.unit.pswire.codec.test_codec import FULL

W = np.zeros(3, np.float32)
QUEUE = ms.QueueSpec(name="train", size=8, block=4, epochs=1)


@pytest.fixture
def clients():
    """A function that starts a server for each configuration of a job; a client of each."""
    with ExitStack() as stack:

        def start(shards=1, **options):
            found = []
            for shard in range(shards):
                config = ServerConfig(shard=shard, shards=shards, lease=60.0, **options)
                server = stack.enter_context(ServerThread(config))
                found.append(Client(server.address))
                stack.callback(found[-1].channel.close)
            return found

        yield start


@pytest.fixture
def victim(clients):
    """A worker in training, the client of its server, and a client of the attacker."""
    (client,) = clients()
    sender = client.join("victim")
    client.register(sender, w=W)
    attacker = Client(client.address)
    with closing(attacker.channel):
        yield client, sender, attacker


def push(sender, sequence, **fields):
    return ms.Push(sender=sender, sequence=sequence, gradients=(ms.Gradient("w", 0, W + 1),), **fields)


def in_the_name_of(sender):
    """A message of each kind that a worker sends (`CALLS`), as a stranger would make it from what a status shows."""
    kinds = [call.request for call in ms.CALLS if call.role == "worker"]
    every = {type(one).__name__: one for one in FULL if type(one) in kinds and hasattr(one, "sender")}
    return {name: replace(one, sender=sender) for name, one in every.items()} | {
        "a cut that it holds": ms.Cut(holder=sender),
        "a join as its incarnation": ms.Join(worker=sender.worker, incarnation=sender.incarnation),
        "a join as the next incarnation": ms.Join(worker=sender.worker, incarnation=sender.incarnation + 1),
        "a join that locks the name": ms.Join(worker=sender.worker, incarnation=MAX_GAP),
    }


@pytest.mark.parametrize("kind", in_the_name_of(ms.Sender("victim", 1)))
@pytest.mark.parametrize("who", few_fast(["another member", "a stranger"]))
def test_nobody_acts_in_the_name_of_another_worker(victim, kind, who):
    client, sender, attacker = victim
    if who == "another member":
        attacker.join("attacker")
    message = in_the_name_of(sender)[kind]
    with pytest.raises(errors.Unauthenticated, match="'victim'"):
        attacker.send(type(message).__name__, encode(message, InlineSender()))
    assert client.transfer(push(sender, 1)).outcome is ms.Outcome.APPLIED
    (block, report) = client.unary(ms.Take(sender=sender, queue=QUEUE)).block, client.status()
    assert (block.start, report.workers[0].state, report.stopped) == (0, "live", "")


def test_a_stream_carries_the_messages_of_the_member_that_opened_it_and_is_for_nobody_else(victim):
    client, sender, attacker = victim
    frames = frames_of(push(sender, 1))
    with pytest.raises(errors.Unauthenticated, match="a Transfer is for members"):
        list(attacker.send_frames(frames))
    attacker.join("attacker")
    with pytest.raises(errors.Unauthenticated, match="'victim', incarnation 1, with the token of 'attacker'"):
        list(attacker.send_frames(frames))
    token = client.token(sender)
    for forged in (token[:-1], token + b"\0", bytes([token[0] ^ 1]) + token[1:], b"", b"x" * 5000):
        with pytest.raises(errors.Unauthenticated):
            attacker.send("Renew", encode(ms.Renew(sender=sender), InlineSender()), forged)
    assert client.transfer(push(sender, 1)).outcome is ms.Outcome.APPLIED


def test_a_token_is_in_no_answer_but_that_of_its_join(clients):
    shards = clients(2, consistency=Synchronous(2))
    workers = [join_all(shards, name) for name in ("a", "b")]
    tokens = {shards[0].token(worker) for worker in workers}
    for client in shards:
        client.register(workers[0], w=W)
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda one: shards[0].transfer(push(one, 1, shards=(1,))), workers))
    answers += [client.status() for client in shards]
    assert len(tokens) == 2
    assert {one.outcome for one in answers[:2]} == {ms.Outcome.APPLIED}
    assert not [
        token for token in tokens for answer in answers if token in encode(answer, StreamSender()).SerializeToString()
    ]


def test_a_name_that_is_live_is_for_the_same_worker_or_free_when_its_lease_has_ended(victim):
    client, sender, attacker = victim
    for key in (b"", b"fedcba9876543210"):
        with pytest.raises(errors.Unavailable, match="a worker 'victim' is live: another process has this name"):
            attacker.unary(ms.Join(worker="victim", name_key=key))
    assert client.transfer(push(sender, 1)).outcome is ms.Outcome.APPLIED
    assert client.unary(ms.Join(worker="victim", name_key=NAME_KEY)).incarnation == 2
    client.unary(ms.Leave(ms.Sender("victim", 2)))
    assert attacker.unary(ms.Join(worker="victim", name_key=b"fedcba9876543210")).incarnation == 3


@pytest.mark.parametrize("job", [ms.Job(2**40, "mine"), ms.Job(2, "")])
def test_a_job_is_begun_by_the_servers_and_not_by_its_number(victim, job):
    client, sender, attacker = victim
    with pytest.raises(errors.InvalidMessage, match="it joins shard 0 first, which gives it one, and its job"):
        attacker.unary(ms.Join(worker="new", job=job))
    assert client.transfer(push(sender, 1)).outcome is ms.Outcome.APPLIED


def test_numbers_that_no_member_can_have_reached_are_refused(victim):
    client, sender, _ = victim
    for message in (
        push(sender, MAX_GAP + 1),
        ms.Renew(sender=sender, settled=2 * MAX_GAP),
        push(sender, 1, cut=2**62 - 1),
    ):
        with pytest.raises(errors.InvalidMessage, match="without such gaps"):
            client.unary(message)
    assert client.transfer(push(sender, 1)).outcome is ms.Outcome.APPLIED


def written_checkpoint(client, sender):
    """Waits until a checkpoint is written."""
    number = client.unary(ms.Cut()).number
    while not client.unary(ms.Cut(number)).written:
        client.unary(ms.Renew(sender=sender))


def stored_nonce(folder):
    """The random number of the process of the only worker, as the newest manifest has it."""
    manifest = max(folder.rglob("manifest.json")).read_text()
    return int(re.search(r'"process_nonce": *"?(\d+)', manifest)[1])


def test_a_live_worker_s_token_is_not_given_for_what_its_checkpoint_says_of_its_process(clients, tmp_path):
    (client,) = clients(checkpoint_dir=tmp_path, journal=True)
    joined = client.unary(ms.Join(worker="w0", process_nonce=12345, name_key=NAME_KEY))
    sender = ms.Sender("w0", joined.incarnation)
    client.register(sender, w=W)
    written_checkpoint(client, sender)
    attacker = Client(client.address)
    with closing(attacker.channel):
        for nonce in (stored_nonce(tmp_path), 0):
            with pytest.raises(errors.Unavailable, match="another process has this name"):
                attacker.unary(ms.Join(worker="w0", process_nonce=nonce))
    again = client.unary(ms.Join(worker="w0", process_nonce=12345))
    assert (again.incarnation, again.token) == (joined.incarnation, joined.token), "its answer was lost"


def test_a_checkpoint_with_the_number_itself_is_restored_and_gives_no_token_either(tmp_path, monkeypatch):
    config = ServerConfig(lease=60.0, checkpoint_dir=tmp_path, journal=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(Identity, "hashed", lambda self, message: message)
        with ServerThread(config) as server:
            client = Client(server.address)
            joined = client.unary(ms.Join(worker="w0", process_nonce=12345, name_key=NAME_KEY))
            client.register(ms.Sender("w0", joined.incarnation), w=W)
            client.channel.close()
    assert stored_nonce(tmp_path) == 12345
    with ServerThread(config) as server:
        client = Client(server.address)
        with closing(client.channel):
            with pytest.raises(errors.Unavailable, match="another process has this name"):
                client.unary(ms.Join(worker="w0", process_nonce=12345))
            assert client.status().variables[0].spec.name == "w"


def test_the_files_of_a_server_are_in_folders_that_others_cannot_look_into(clients, tmp_path):
    before = os.umask(0o022)
    try:
        (client,) = clients(checkpoint_dir=tmp_path / "new" / "checkpoints", journal=True)
        sender = client.join("w0")
        client.register(sender, w=W)
        written_checkpoint(client, sender)
    finally:
        os.umask(before)
    folders = [one for one in tmp_path.rglob("*") if one.is_dir()]
    assert len(folders) >= 5, "with those of the journal, a checkpoint, and its shard"
    assert {f"{stat.S_IMODE(one.stat().st_mode):o}" for one in folders} == {"700"}


def test_the_journal_and_checkpoints_have_neither_tokens_nor_the_key_of_a_name(clients, tmp_path):
    (client,) = clients(checkpoint_dir=tmp_path, journal=True)
    sender = client.join("w0")
    client.register(sender, w=W)
    written_checkpoint(client, sender)
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    secrets = {NAME_KEY, client.token(sender)}
    assert any(b"w0" in data for data in written)
    found = [secret for secret in secrets for data in written if secret in data or b64encode(secret) in data]
    assert not found


# --- several shards ---------------------------------------------------------------------------------------------------


def test_servers_with_different_keys_say_so(clients):
    (first,) = clients()
    token = first.token(first.join("w0"))
    with ServerThread(ServerConfig(default_key=b"another key")) as server:
        other = Client(server.address)
        with closing(other.channel), pytest.raises(errors.Unauthenticated, match="all servers of a job need the same"):
            other.send("Renew", encode(ms.Renew(sender=ms.Sender("w0", 1)), InlineSender()), token)
