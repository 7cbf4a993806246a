"""A program that gives its variables another optimizer, in processes that are killed and started again."""

import signal

import pytest

from tests.support.commands import free_address, wait_until

pytestmark = pytest.mark.slow

#: Each push has a gradient of -1, of 12 pushes in the first loop and 24 in the second, in which worker-1 kills itself
#: once, when the test has killed a server and started it again.
PROGRAM = """
    import os, signal, time
    import numpy as np
    import psworker as ps
    from psworker import ops

    data = ps.Dataset({"x": np.arange(48)})
    variables = [ps.Variable(np.zeros(3), name=name) for name in "vw"]
    descent, momentum = ps.GradientDescent(0.25), ps.Momentum(1.0, 0.5)

    def step(optimizer):
        optimizer.minimize(-sum(ops.sum(one) for one in variables))

    with ps.session() as session:
        for batch in session.batches(data, 4):
            step(descent)
        if not os.path.exists("killed"):
            session.barrier()
        for number, batch in enumerate(session.batches(data, 4, epochs=2)):
            if session.worker == "worker-1" and number == 2 and not os.path.exists("killed"):
                step(momentum)
                open("killed", "x").close()
                while not os.path.exists("restarted"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            step(momentum)
        session.pull()
        print(*{element for one in variables for element in one.value.tolist()}, flush=True)
"""


def test_a_changed_optimizer_outlives_killed_servers_and_workers_with_its_slots(commands):
    script, addresses = commands.script(PROGRAM), [free_address() for _ in range(2)]

    def serve(shard):
        options = "--shard", f"{shard}/2", "--checkpoint-dir", "kept", "--journal", "--lease", "3"
        return commands.serve("--bind", addresses[shard], *options)

    def work(name):
        return commands.start("psworker", "run", "--servers", ",".join(addresses), "--name", name, script)

    servers = [serve(shard) for shard in range(2)]
    workers = [work("worker-0"), work("worker-1")]
    wait_until((commands.folder / "killed").exists, lambda: [one.err for one in workers])
    assert servers[1].end(signal.SIGKILL)[0] == -signal.SIGKILL
    servers[1] = serve(1)
    (commands.folder / "restarted").touch()
    assert workers[1].wait() == -signal.SIGKILL
    workers[1] = work("worker-1")
    value, velocity = 0.25 * 12, 0.0
    for _ in range(24):
        velocity = 0.5 * velocity + 1
        value += velocity
    for worker in workers:
        assert worker.wait() == 0, worker.err
        assert worker.out == [str(value)], worker.err
    assert [server.end()[0] for server in servers] == [0, 0]
    for shard in range(2):
        code, out, err = commands.run("psserver", "replay", "kept", "--shard", f"{shard}/2", "--verify")
        assert code == 0, (out, err)
