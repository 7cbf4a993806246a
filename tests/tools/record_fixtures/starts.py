"""Records small folders, and what starts from them say and do: `tests/fixtures/folders/` and `starts.json`."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

import numpy as np

from psserver.storage import checkpoints
from pswire import messages as ms
from pswire import optimizers
from tests.recorded.formats import FIXTURES
from tests.recorded.server import Server
from tests.recorded.starts import copy_of, outcome
from tests.tools.record_fixtures.jobs import Moment, copy, declared

FOLDERS = FIXTURES / "folders"


def record(write):
    """Write the folders, and the cases."""
    with mock.patch.object(checkpoints, "datetime", Moment):
        for name, options in FOLDERS_OF_ONE.items():
            asyncio.run(_life(FOLDERS / name, options, **LIVES.get(name, {})))
        asyncio.run(_life(FOLDERS / "given_up", {"journal": True}, before=FOLDERS / "journal", pushes=1))
        asyncio.run(_two(FOLDERS / "two_killed", {}))
        asyncio.run(_two(FOLDERS / "two_stopped", {"journal": True}, stop=True))
        for name, confirm in (("provisional", False), ("confirmed", True)):
            asyncio.run(_on_one_shard(FOLDERS / name, FOLDERS / "two_stopped", confirm=confirm))
        _embedded(FOLDERS / "embedded")
        cases = []
        for case in CASES:
            with tempfile.TemporaryDirectory() as place:
                folder = copy_of(case, Path(place, "job"))
                cases.append(case | {"outcome": outcome(case, folder)})
    write("starts.json", data=cases)


# --- folders of one shard ---------------------------------------------------------------------------------------------

FOLDERS_OF_ONE = {
    "stopped": {},
    "killed": {},
    "journal": {"journal": True},
    "kept": {"journal": True, "keep_journal": True},
}
LIVES = {"stopped": {"stop": True}}


async def _life(destination, options, *, before=None, pushes=2, stop=False):
    """A worker pushes to `W`; there are two checkpoints, and pushes after each; or it goes on from a damaged folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        if before is not None:
            copy_of(_one("", before, [flip(VALUES)]), folder)  # it is given up, with its journal
        async with Server(folder, keep=2, **options) as server:
            name = "a" if before is None else "b"
            joined = await server.ask(
                ms.Join(worker=name, incarnation=0, process_nonce=5, job=ms.Job(0, "example"), resume=True)
            )
            sender, sequence = ms.Sender(name, joined.incarnation), 0
            if before is None:
                await server.ask(
                    ms.Register(sender=sender, declarations=(declared("W", np.zeros(2), optimizers.Momentum(0.5)),))
                )
            for _ in range(2 if before is None else 1):
                for _ in range(pushes):
                    sequence += 1
                    gradient = ms.Gradient("W", 0, np.array([-1.0, -2.0]))
                    await server.ask(ms.Push(sender=sender, sequence=sequence, gradients=(gradient,), loss=0.5))
                await server.checkpoint()
            for _ in range(pushes):
                sequence += 1
                await server.ask(
                    ms.Push(
                        sender=sender,
                        sequence=sequence,
                        gradients=(ms.Gradient("W", 0, np.array([-1.0, -2.0])),),
                        loss=0.25,
                    )
                )
            await server.settled()
            if not stop:
                copy(folder, destination)
        if stop:
            copy(folder, destination)


# --- folders of two shards --------------------------------------------------------------------------------------------


async def _two(destination, options, *, stop=False):
    """A worker pushes to `W` on shard 0 and to `V` on shard 1; there are two cuts that both have, and one more push."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(Server(folder, n, 2, identity=201 + n, keep=2, **options))
                for n in range(2)
            ]
            sender, states = ms.Sender("a", 1), (201, 202)
            joined = await servers[0].ask(
                ms.Join(worker="a", incarnation=0, shard=0, shards=2, process_nonce=5, job=ms.Job(0, "example"))
            )
            await servers[1].ask(
                ms.Join(worker="a", incarnation=1, shard=1, shards=2, process_nonce=5, states=states, job=joined.job)
            )
            for server, name in zip(servers, "WV", strict=True):
                variable = declared(name, np.zeros(2), optimizers.Adam(0.25))
                places = (ms.Place("W", 0), ms.Place("V", 1)) if name == "W" else ()
                await server.ask(ms.Register(sender=sender, declarations=(variable,), places=places, states=states))
            cut = 0
            for sequence in (1, 2, 3):
                for server, name in zip(servers, "WV", strict=True):
                    gradient = ms.Gradient(name, 0, np.array([-1.0, -2.0]))
                    await server.ask(
                        ms.Push(sender=sender, sequence=sequence, gradients=(gradient,), loss=0.5, shards=(1,), cut=cut)
                    )
                if sequence < 3:
                    cut = (await servers[0].ask(ms.Cut())).number
                    await servers[1].ask(ms.Cut(cut))
                    for server in servers:
                        await server.ask(ms.Renew(sender=sender, settled=sequence, cut=cut))
                    for server in servers:
                        await server.written(cut)
            for server in servers:
                await server.settled()
            if not stop:
                copy(folder, destination)
        if stop:
            copy(folder, destination)


async def _on_one_shard(destination, before, *, confirm):
    """One shard begins from the state of two, and is killed before a worker joins, or after; what is new is kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        shutil.copytree(before, folder)
        async with Server(folder, keep=2) as server:
            if confirm:
                await server.ask(
                    ms.Join(worker="b", incarnation=0, process_nonce=6, job=ms.Job(0, "example"), resume=True)
                )
            copy(folder, destination)
    for path in [one for one in destination.rglob("*") if one.is_file()]:
        same = before / path.relative_to(destination)
        if same.exists() and same.read_bytes() == path.read_bytes():
            path.unlink()
    for path in sorted([one for one in destination.rglob("*") if one.is_dir()], reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()


# --- an embedded shard ------------------------------------------------------------------------------------------------

PROGRAM = """
import secrets
secrets.token_bytes, secrets.randbits = bytes, lambda _: 4
import numpy as np
import psworker as ps
from psserver.storage import checkpoints
from tests.tools.record_fixtures.jobs import Moment
checkpoints.datetime = Moment
W = ps.Variable(np.zeros(2), name="W")
data = {"x": np.arange(24.0).reshape(12, 2)}
with ps.session(checkpoint_dir=FOLDER, checkpoint_every="3steps") as session:
    for number, batch in enumerate(session.batches(data, batch_size=2, epochs=2)):
        ps.GradientDescent(0.5).apply_gradients([(batch.x.mean(axis=0), W)])
        if number == 7:
            import os
            os._exit(0)
"""


def _embedded(destination):
    """A program with an embedded shard that was killed after its eighth batch."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        program = PROGRAM.replace("FOLDER", repr(str(folder)))
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=FIXTURES.parents[1])
        copy(folder, destination)


# --- cases ------------------------------------------------------------------------------------------------------------

NEWEST, OLDER = "step-000000004/shard-0-of-1", "step-000000002/shard-0-of-1"
VALUES, SEGMENT = f"{NEWEST}/variables.safetensors", "journal-0-of-1/segment-000000004.log"
JOURNAL, KEPT = {"journal": True}, {"journal": True, "keep_journal": True}


def _one(case, folder=None, changes=(), options=JOURNAL, shards=1, **more):
    """A case of a start: the folder, changes of files as pairs, options of the server."""
    found = {"case": case, "folders": str(folder).split() if folder else []}
    found["changes"] = [{"what": what, "file": file} | of for what, file, of in changes]
    return found | {"shards": shards, "options": options} | more


def remove(file):
    return "remove", file, {}


def flip(file, at=-1):
    return "flip", file, {"at": at}


CASES = [
    _one("a new job"),
    _one("a server that was stopped", "folders/stopped", options={}),
    _one("a server that was stopped, with a journal from now on", "folders/stopped"),
    _one("a server that was killed without a journal", "folders/killed", options={}),
    _one(
        "a server that was killed without a journal, and may not go back",
        "folders/killed",
        options={"on_lost_state": "fail"},
    ),
    _one("a checkpoint and its journal", "folders/journal"),
    _one("a checkpoint and its journal, without a journal from now on", "folders/journal", options={}),
    _one("all segments of a journal", "folders/kept", options=KEPT),
    _one("a torn tail", "folders/journal", [("cut", SEGMENT, {"bytes": 7})]),
    _one("a tail that is no record", "folders/journal", [("append", SEGMENT, {"hex": "f27073726563726400"})]),
    _one("no run file", "folders/journal", [remove("shard-0-of-1.json")]),
    _one("no run file of a server that was stopped", "folders/stopped", [remove("shard-0-of-1.json")], {}),
    _one("a damaged run file", "folders/journal", [flip("shard-0-of-1.json", 40)]),
    _one("a damaged checkpoint, with an older one", "folders/journal", [flip(VALUES)]),
    _one("a damaged checkpoint, with an older one and all segments", "folders/kept", [flip(VALUES)], KEPT),
    _one("a damaged manifest, with an older one", "folders/killed", [flip(f"{NEWEST}/manifest.json", 200)], {}),
    _one("a damaged final checkpoint", "folders/stopped", [flip("step-000000005/shard-0-of-1/slots.safetensors")], {}),
    _one("no checkpoint left", "folders/journal", [remove("step-000000004"), remove("step-000000002")]),
    _one("a damaged record in the middle", "folders/journal", [flip(SEGMENT, 130)]),
    _one(
        "a segment that is missing",
        "folders/kept",
        [flip(VALUES), remove("journal-0-of-1/segment-000000002.log")],
        KEPT,
    ),
    _one("a job that has given something up before", "folders/given_up"),
    _one("what was given up, with the damaged file repaired", "folders/given_up/given-up-2", [flip(VALUES)]),
    _one("an embedded shard", "folders/embedded", options={}),
    _one("an embedded shard goes on", "folders/embedded", embedded=True),
    _one("an embedded shard goes on after a server", "folders/stopped", embedded=True),
    _one("an embedded shard after two servers", "folders/two_stopped", embedded=True),
    _one("two shards that were killed go back", "folders/two_killed", options={}, shards=2, **{"go back": True}),
    _one(
        "two shards that were killed, of which one has lost a checkpoint, go back",
        "folders/two_killed",
        [remove("step-000000002/shard-1-of-2")],
        {},
        shards=2,
        **{"go back": True},
    ),
    _one(
        "two shards go back to a cut with late changes",
        "jobs/two_shards",
        [remove("journal-0-of-2"), remove("journal-1-of-2")],
        {"consistency": "bounded:3", "staleness": "drop:5"},
        shards=2,
        **{"go back": True},
    ),
    _one("two shards that were stopped", "folders/two_stopped", shards=2),
    _one("one shard after two that were stopped", "folders/two_stopped"),
    _one("one shard after two that were killed without journals", "folders/two_killed"),
    _one(
        "one shard after two with journals, whose rows are joined",
        "jobs/two_shards",
        options={"consistency": "bounded:3", "staleness": "drop:5"},
    ),
    _one(
        "two shards after one with queues and minimizations",
        "jobs/every_kind",
        options={"staleness": "delay-compensated", "max_gradient_norm": "8:clip"},
        shards=2,
    ),
    _one("two shards after one", "folders/journal", shards=2),
    _one("three shards after two", "folders/two_stopped", shards=3),
    _one(
        "a shard of three whose other shards are elsewhere",
        "folders/two_stopped",
        [remove(f"step-{n:09d}/shard-0-of-2") for n in (1, 2, 3)],
        shards=3,
        of=[1],
    ),
    _one("a provisional run goes on", "folders/two_stopped folders/provisional"),
    _one("two shards after a provisional run of one", "folders/two_stopped folders/provisional", shards=2),
    _one("two shards after a run of one that has begun", "folders/two_stopped folders/confirmed", shards=2),
]
