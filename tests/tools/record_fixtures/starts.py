"""Records small folders, and what starts from them say and do: `tests/fixtures/folders/` and `starts.json`.

The cases are those of `starts.json`, of which the outcomes are recorded again. A new case is written there by hand:
the folders, changes of files, the number of shards and the options of the server.
"""

import asyncio
import contextlib
import json
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
from tests.tools.record_fixtures.jobs import Moment, copy, declared, join_both, joining

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
        for case in json.loads((FIXTURES / "starts.json").read_text()):
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
        if before is not None:  # its checkpoint is given up, with the journal
            values = "step-000000004/shard-0-of-1/variables.safetensors"
            copy_of({"folders": [before], "changes": [{"what": "flip", "file": values, "at": -1}]}, folder)
        async with Server(folder, keep=2, **options) as server:
            name = "a" if before is None else "b"
            joined = await server.ask(joining(name, 5, job=ms.Job(0, "example"), resume=True))
            sender, sequence = ms.Sender(name, joined.incarnation), 0
            if before is None:
                await server.ask(
                    ms.Register(sender=sender, declarations=(declared("W", np.zeros(2), optimizers.Momentum(0.5)),))
                )
            losses = [0.5, 0.5, 0.25] if before is None else [0.5, 0.25]
            for number, loss in enumerate(losses, 1):
                for _ in range(pushes):
                    sequence += 1
                    gradient = ms.Gradient("W", 0, np.array([-1.0, -2.0]))
                    await server.ask(ms.Push(sender=sender, sequence=sequence, gradients=(gradient,), loss=loss))
                if number < len(losses):
                    await server.checkpoint()
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
            await join_both(servers, "a", 5, ms.Job(0, "example"), states)
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
                await server.ask(joining("b", 6, job=ms.Job(0, "example"), resume=True))
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
