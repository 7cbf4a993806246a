"""`ps.Trainer` in clusters of processes: a stop by one worker, the best model in all, and a callback that fails."""

import json

import numpy as np
import pytest

import psworker as ps

pytestmark = pytest.mark.slow

PROGRAM = """
    import sys
    import numpy as np
    import psworker as ps
    from psworker import nn, ops

    random = np.random.default_rng(0)
    x = random.normal(size=(600, 4)).astype(np.float32)
    data = ps.Dataset({"x": x, "y": (x @ random.normal(size=(4, 3))).argmax(axis=1)})
    model = nn.Dense(4, 3, name="out")
    trainer = ps.Trainer(model, ops.softmax_cross_entropy, ps.Adam(0.1))


    class Fails(ps.callbacks.Callback):
        def on_epoch_end(self, session, record):
            raise RuntimeError("the disk of results is full")


    callbacks = [ps.callbacks.CSVLogger("history.csv"), ps.callbacks.EpochPrinter()]
    if sys.argv[1] == "stops":  # the validation data are noise, which no model learns
        callbacks += [ps.callbacks.EarlyStopping(patience=3), ps.callbacks.BestModel(restore=True)]
    else:
        callbacks.append(Fails())
    noise = {"x": x, "y": random.integers(0, 3, 600)}
    with ps.session(checkpoint_dir="best") as session:
        session.barrier()
        trainer.fit(data, None, 10, validation=noise, callbacks=callbacks)
        print("stopped:", session.stopped, model.kernel.value.tolist(), flush=True)
"""


def test_early_stopping_by_the_chief_stops_all_workers_and_all_have_the_best_model(commands):
    local = "psworker", "local", "--progress", "off", "--workers", "3", "--shards", "2"
    code, out, err = commands.run(*local, commands.script(PROGRAM), "stops")
    assert code == 0, err
    lines = [line.partition(" | ") for line in out]
    ends = {worker: text for worker, _, text in lines if text.startswith("stopped: ")}
    assert sorted(ends) == ["worker-0", "worker-1", "worker-2"]
    [end] = set(ends.values())
    [chief] = {worker for worker, _, text in lines if text.startswith("epoch ")}
    assert end.startswith(f"stopped: {chief}: val_loss has not been better than "), end
    best = json.loads((commands.folder / "best" / "best.json").read_text())["value"]
    history = np.genfromtxt(commands.folder / "history.csv", delimiter=",", names=True)
    assert best == history["val_loss"].min() == history["val_loss"][-4]
    ps.Variable(np.zeros((4, 3), np.float32), name="out/kernel")
    ps.Variable(np.zeros(3, np.float32), name="out/bias")
    ps.load(commands.folder / "best" / "best.safetensors")
    assert end.endswith(f" for 3 epochs {ps.global_variables()[0].value.tolist()}")


def test_a_callback_that_raises_ends_all_workers_and_its_error_is_the_last_line(commands):
    local = "psworker", "local", "--progress", "off", "--workers", "2"
    code, out, err = commands.run(*local, commands.script(PROGRAM), "fails")
    assert (code, [line for line in out if "stopped: " in line]) == (1, [])
    assert any(line.endswith(" | (raised in on_epoch_end of the callback Fails)") for line in err), err
    assert err[-1].endswith("RuntimeError: the disk of results is full"), err
