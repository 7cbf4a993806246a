"""A process that writes a journal is killed at random moments: every record that it called written is there, once."""

import random
import signal
import subprocess
import sys

import pytest

from psserver.storage.segments import read_segments
from pswire.specs.checkpoints import JournalSync
from tests.support.combinations import few_fast

IDENTITY = 9

#: Appends numbered records from four tasks and prints each number that is written. Continues where the journal ends.
WRITER = """
import asyncio, sys
from pathlib import Path
from psserver.storage.journal import Journal
from pswire.specs.checkpoints import JournalSync
from psserver.storage.segments import list_segments, read_segments
from tests.support.files import all_written

async def main(folder, sync):
    folder.mkdir(exist_ok=True)
    numbers = [int(record.payload[:8]) for record in read_segments(folder, 9, truncate=True)]
    segment, following = max(list_segments(folder), default=0), len(numbers)
    journal = Journal(folder, 9, sync)
    journal.begin_segment(segment)
    print("ready", flush=True)

    async def appender(task):
        nonlocal following, segment
        while True:
            number, following = following, following + 1
            if number % 50 == 49:
                segment += 1
                journal.begin_segment(segment)
            journal.append([b"%08d" % number, bytes([number % 256]) * (number * 7919 % 60_000)])
            await all_written(journal)
            print(number, flush=True)

    await asyncio.gather(*map(appender, range(4)))

asyncio.run(main(Path(sys.argv[1]), JournalSync(sys.argv[2])))
"""


def write_and_kill(folder, sync, lines):
    """Start the writer, kill it after so many lines, and return the numbers that it printed."""
    command = [sys.executable, "-c", WRITER, str(folder), sync]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            printed = [writer.stdout.readline() for _ in range(lines + 1)]
            writer.kill()
            printed += writer.stdout.readlines()
        finally:
            writer.kill()
    assert writer.returncode == -signal.SIGKILL
    assert printed[0] == "ready\n"
    return [int(line) for line in printed[1:] if line.endswith("\n")]


def check(folder, printed, about=""):
    """All printed numbers are in the journal, which has each number once, in order, with its bytes."""
    records = list(read_segments(folder, IDENTITY))
    assert [int(record.payload[:8]) for record in records] == list(range(len(records))), about
    for number, record in enumerate(records):
        assert record.payload[8:] == bytes([number % 256]) * (number * 7919 % 60_000), about
    assert max(printed, default=-1) < len(records), about


@pytest.mark.slow
def test_every_acknowledged_record_is_there_after_a_kill(tmp_path):
    check(tmp_path, write_and_kill(tmp_path, "every", 60))


@pytest.mark.parametrize("sync", few_fast([sync.value for sync in JournalSync], fast=0))
def test_every_acknowledged_record_is_there_once_after_ten_kills_and_restarts(tmp_path, sync):
    rng = random.Random(seed := random.randrange(2**32))
    printed = []
    for _ in range(10):
        printed += write_and_kill(tmp_path, sync, rng.randrange(200))
        assert len(set(printed)) == len(printed), f"a number was acknowledged twice (seed {seed})"
        check(tmp_path, printed, f"seed {seed}")
