"""`ps.Trainer` and its callbacks: the bits of a plain loop, and what happens after each epoch, in one process."""

import csv
import json

import numpy as np
import pytest

import psworker as ps
from psworker import nn, ops

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(60, 4)).astype(np.float32)
DATA = ps.Dataset({"x": X, "y": (X @ RANDOM.normal(size=(4, 3))).argmax(axis=1)})
ONES = {"x": np.ones((8, 1), np.float32), "y": np.zeros(8)}


def classifier():
    """A trainer of a small network with dropout and moving averages."""
    ps.set_random_seed(3)
    model = nn.Sequential(nn.Dense(4, 8), nn.BatchNorm(8), ops.relu, nn.Dropout(0.3), nn.Dense(8, 3))
    return ps.Trainer(model, ops.softmax_cross_entropy, ps.Adam(0.01), metrics=ps.metrics.accuracy)


def counter():
    """A trainer whose variable counts its steps; after epochs of four |count - 10| is 6, 2, 2, 6, zigzag 5, 6, 4, 5."""
    count = ps.Variable(np.zeros((1, 1), np.float32), name="count")
    metrics = {
        "distance": lambda output, _: ps.metrics.mean(np.abs(count.value - 10)),
        "closeness": lambda output, _: -float(abs(count.value.item() - 10)),
        "zigzag": lambda output, _: {8: 6.0, 12: 4.0}.get(count.value.item(), 5.0),
    }
    return count, ps.Trainer(
        lambda x: ops.matmul(x, count), lambda output, _: -ops.mean(output), ps.GradientDescent(1.0), metrics
    )


class Calls(ps.callbacks.Callback):
    """Notes the calls, with the number of the epoch."""

    def __init__(self):
        self.calls = []

    def on_train_begin(self, session):
        self.calls.append("begin")

    def on_batch_end(self, session, batch, loss):
        self.calls.append(("batch", batch.epoch, loss))

    def on_validation_end(self, session, record):
        self.calls.append(("validated", record["epoch"]))

    def on_epoch_end(self, session, record):
        self.calls.append(("epoch", record["epoch"]))

    def on_train_end(self, session, history):
        self.calls.append(("end", len(history)))


def test_fit_gives_the_same_bits_as_the_plain_loop_whatever_its_validation_and_callbacks(tmp_path):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path):
        trainer = classifier()
        saved = ps.callbacks.BestModel("val_accuracy", maximize=True)
        history = trainer.fit(DATA[:50], 2, 8, validation=DATA[50:], callbacks=[saved], seed=7)
        of_fit = [variable.value.copy() for variable in trainer.model.variables]

    reports, measured = [], []

    def report(epoch):
        reports.append({"epoch": epoch.epoch, "cost": epoch.cost})
        measured.append(session.evaluate(accuracy, DATA[50:]))

    def accuracy(batch):
        return ops.accuracy(model(batch.x, training=False), batch.y)

    with ps.session() as session:
        trainer = classifier()
        model, optimizer = trainer.model, trainer.optimizer
        for batch in session.batches(DATA[:50], 8, epochs=2, seed=7, on_epoch=report):
            optimizer.minimize(ops.softmax_cross_entropy(model(batch.x, training=True), batch.y))

    assert len(of_fit) == len(model.variables) == 8
    for one, variable in zip(of_fit, model.variables, strict=True):
        assert one.tobytes() == variable.value.tobytes(), variable.name
    assert [{name: record[name] for name in ("epoch", "cost")} for record in history] == reports
    assert [record["val_accuracy"] for record in history] == measured
    assert [record.keys() - {"val_loss"} for record in history] == [{"epoch", "cost", "val_accuracy"}] * 2


def test_methods_of_callbacks_are_called_in_order_and_a_later_one_sees_what_is_known_of_the_epoch():
    calls, (_, trainer) = Calls(), counter()
    with ps.session():
        trainer.fit(ONES, 2, 4, validation=ONES, callbacks=[calls])
    assert calls.calls == [
        "begin",
        *(("batch", 1, 0.0), ("batch", 1, -1.0), ("validated", 1), ("epoch", 1)),
        *(("batch", 2, -2.0), ("batch", 2, -3.0), ("validated", 2), ("epoch", 2)),
        ("end", 2),
    ]


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"patience": 2}, 4),
        ({"patience": 1}, 3),
        ({"patience": 2, "min_delta": 5}, 3),
        ({"monitor": "val_closeness", "patience": 2, "maximize": True}, 4),
        ({"monitor": "val_closeness", "patience": 1}, 2),
        ({"monitor": "val_zigzag", "patience": 2}, 5),
        ({"monitor": "cost", "patience": 1}, 6),
    ],
)
def test_early_stopping_stops_the_job_after_epochs_of_patience_and_the_best_model_is_restored(
    options, epochs, tmp_path, caplog
):
    count, trainer = counter()
    stop = ps.callbacks.EarlyStopping(**{"monitor": "val_distance"} | options)
    best = ps.callbacks.BestModel("val_distance", restore=True)
    with ps.session(checkpoint_dir=tmp_path) as session:
        history = trainer.fit(ONES, 6, 2, validation=ONES, callbacks=[stop, best])
        assert [record["val_distance"] for record in history] == [6, 2, 2, 6, 10, 14][:epochs]
        assert bool(session.stopped) == (epochs < 6)
        assert session.stopped.endswith(f" for {options['patience']} epochs") or epochs == 6
        assert count.value.item() == (8 if epochs > 1 else 4), "the first of the two best"
        assert bool(trainer.fit(ONES, 1, 8)) == (epochs == 6), "a stopped job stays stopped"
        assert ("nothing is trained: the job was stopped before (worker-0: val_" in caplog.text) == (epochs < 6)
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 2


def test_a_callback_that_raises_ends_fit_with_its_error_and_a_note_of_its_name():
    class Fails(ps.callbacks.Callback):
        def on_epoch_end(self, session, record):
            raise OSError(f"no space left in epoch {record['epoch']}")

    calls, (_, trainer) = Calls(), counter()
    with pytest.raises(OSError, match="no space left in epoch 1") as raised:
        trainer.fit(ONES, 2, callbacks=[calls, Fails()])
    assert raised.value.__notes__ == ["(raised in on_epoch_end of the callback Fails)"]
    assert calls.calls[-1] == ("epoch", 1)
    with ps.session():  # the one of `fit` was left
        trainer.fit(ONES, 1)


def test_measured_values_are_held_for_callbacks_that_save_and_if_they_are_lost_the_epoch_is_validated_again(caplog):
    class Loses(Calls):
        def on_validation_end(self, session, record):
            super().on_validation_end(session, record)
            with pytest.raises(ps.errors.ConfigurationError, match="variables have the values of one moment"):
                session.assign(count, count.value + 1)
            if len(self.calls) == 3:
                raise ps.errors.GenerationLost("a server was started again")

    calls, (count, trainer) = Loses(), counter()
    trainer.fit(ONES, 1, 8, validation=ONES, callbacks=[calls])
    assert calls.calls[2:] == [("validated", 1), ("validated", 1), ("epoch", 1), ("end", 1)]
    assert "epoch 1 is validated again: a server was started again" in caplog.text


def test_epochs_from_before_this_worker_have_their_cost_and_only_the_last_one_is_measured(open_session):
    def life(name, epochs):
        calls = Calls()
        with ps.collection(), open_session(name):
            _, trainer = counter()
            history = trainer.fit(ONES, epochs, 2, validation=ONES, callbacks=[calls])
            return history, [number for kind, number, *_ in calls.calls[1:] if kind == "epoch"]

    history, called = life("w0", 3)
    assert ([record["val_distance"] for record in history], called) == ([6, 2, 2], [1, 2, 3])
    history, called = life("w1", 3)  # as after a resume: all is trained
    assert [record.get("val_distance") for record in history] == [None, None, 2]
    assert ([record["cost"] for record in history], called) == ([-1.5, -5.5, -9.5], [3])
    assert life("w2", 4)[1] == [3, 4]


def test_a_csv_file_has_a_line_for_each_epoch_and_is_continued_by_a_job_that_is_resumed(tmp_path):
    def train(epochs, folder="a", **options):
        with ps.collection(), ps.session(checkpoint_dir=tmp_path / folder, resume=True):
            file = ps.callbacks.CSVLogger(tmp_path / "history.csv")
            counter()[1].fit(ONES, epochs, 2, callbacks=[file], **options)
        with (tmp_path / "history.csv").open(newline="") as lines:
            return list(csv.DictReader(lines))

    train(2, validation=ONES)
    rows = train(4, validation=ONES)
    assert [(row["epoch"], float(row["val_distance"])) for row in rows] == [("1", 6), ("2", 2), ("3", 2), ("4", 6)]
    assert train(1, "b") == [{"epoch": "1", "cost": "-1.5"}], "a new job begins it anew"
    (tmp_path / "history.csv").write_text("name,price\nfish,3\n")
    with pytest.raises(ps.errors.ConfigurationError, match=r"history.csv was not written by CSVLogger"):
        train(2, "c")


def test_loggers_get_the_numbers_of_each_epoch_by_the_method_that_they_have(capsys):
    class Logger:
        def __init__(self, method):
            self.logged = []
            setattr(self, method, lambda values, step: self.logged.append((step, values)))

    mlflow, run = Logger("log_metrics"), Logger("log")
    _, trainer = counter()
    trainer.metrics["matrix"] = lambda output, labels: ps.metrics.Metric(np.ones(2), list)
    callbacks = [ps.callbacks.MetricsLogger(mlflow), ps.callbacks.MetricsLogger(run), ps.callbacks.EpochPrinter()]
    history = trainer.fit(ONES, 2, 2, validation=ONES, callbacks=callbacks)
    assert [record["val_matrix"] for record in history] == [[1, 1], [1, 1]], "no number"
    numbers = {"cost": -1.5, "val_loss": -4.0, "val_distance": 6.0, "val_closeness": -6.0, "val_zigzag": 5.0}
    assert mlflow.logged[0] == (1, numbers)
    assert mlflow.logged == run.logged
    assert [step for step, _ in run.logged] == [1, 2]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "epoch 1: cost -1.5, val_loss -4, val_distance 6, val_closeness -6, val_zigzag 5"
    assert second.startswith("epoch 2: cost -5.5, ")


def test_a_session_with_summaries_has_the_numbers_of_each_epoch(tmp_path):
    _, trainer = counter()
    with ps.session(summary_dir=tmp_path, name="w"):
        trainer.fit(ONES, 3, 2, validation=ONES)
    points = [json.loads(line)["scalars"] for line in (tmp_path / "scalars/w.jsonl").read_text().splitlines()[1:]]
    last = {name: value for point in points for name, value in point.items()}
    assert last == {
        "epoch/cost": -9.5,
        "epoch/val_loss": -12,
        "epoch/val_distance": 2,
        "epoch/val_closeness": -2,
        "epoch/val_zigzag": 4,
    }


def test_a_callback_may_change_hyperparameters_between_epochs():
    class Halve(ps.callbacks.Callback):
        def on_epoch_end(self, session, record):
            session.set_hyperparameters(trainer.optimizer, learning_rate=0.5 ** record["epoch"])

    count, trainer = counter()
    trainer.fit(ONES, 3, 4, validation=ONES, callbacks=Halve())
    assert count.value.item() == 2 * (1 + 0.5 + 0.25)


def test_without_a_session_each_call_has_its_own_and_predictions_are_those_of_the_model():
    trainer = classifier()
    trainer.fit(DATA, 2)
    outside, predicted = trainer.evaluate(DATA, 7), trainer.predict(DATA.x, batch_size=7)
    assert predicted.shape == (60, 3)
    np.testing.assert_allclose(predicted, trainer.model(DATA.x, training=False).value, rtol=1e-5, atol=1e-6)
    assert outside.keys() == {"loss", "accuracy"}
    assert outside["accuracy"] == np.mean(predicted.argmax(axis=1) == DATA.y)
    logarithms = predicted - np.log(np.exp(predicted).sum(axis=1, keepdims=True))
    assert outside["loss"] == pytest.approx(-logarithms[np.arange(60), DATA.y].mean(), rel=1e-5)
    with ps.session():
        assert trainer.evaluate(DATA, 7) == outside
        assert np.array_equal(trainer.predict(DATA.x, batch_size=7), predicted)


def test_the_model_gets_the_columns_that_are_named_or_all_but_the_labels():
    data = {"users": np.float32([[1], [2]]), "target": np.float32([[3], [3]]), "items": np.float32([[5], [7]])}
    w = ps.Variable(np.float32(1), name="w")

    def given(**columns):
        seen = []

        def model(*arrays):
            seen.append([array[:, 0].tolist() for array in arrays])
            return arrays[0] * w

        ps.Trainer(model, ops.mean_squared_error, ps.GradientDescent(0.0), **columns).fit(data, 1, 2, shuffle=False)
        return seen

    assert given() == [[[1, 2], [3, 3]]]
    assert given(labels="target") == [[[1, 2], [5, 7]]]
    assert given(inputs=["items", "users"], labels="target") == [[[5, 7], [1, 2]]]
    assert given(inputs="items", labels="items") == [[[5, 7]]]


def test_columns_of_numbers_are_put_side_by_side_for_a_model_of_one_input():
    data = {"rooms": np.array([1, 2]), "price": np.array([3.0, 3.0]), "area": np.float32([5, 7])}
    layer = nn.Dense(2, 1)
    seen = []

    def model(x):
        seen.append(x)
        return layer(x)[:, 0]

    trainer = ps.Trainer(model, ops.mean_squared_error, ps.GradientDescent(0.0), labels="price")
    trainer.fit(data, 1, 2, shuffle=False)
    predicted = trainer.predict(data["rooms"], data["area"])
    for given in seen:
        np.testing.assert_array_equal(given, [[1.0, 5.0], [2.0, 7.0]], strict=True)
    np.testing.assert_array_equal(predicted, model(np.array([[1.0, 5.0], [2.0, 7.0]])).value)
    np.testing.assert_array_equal(
        ps.Trainer(lambda x, training: x, LOSS, ADAM).predict([1, 2], [3, 4]), [[1, 3], [2, 4]]
    )


MODEL, LOSS, ADAM = (lambda x: x), (lambda output, labels: output), ps.Adam()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ps.Trainer(nn.Dense, LOSS, ADAM),
            TypeError,
            "model must be a layer, or a function of the inputs, got",
        ),
        (lambda: ps.Trainer(MODEL, "mse", ADAM), TypeError, "loss must be a function of output and labels, such as"),
        (lambda: ps.Trainer(MODEL, LOSS, "adam"), TypeError, r"such as ps.Adam\(0.001\), got 'adam'"),
        (lambda: ps.Trainer(MODEL, LOSS, ADAM, ["accuracy"]), TypeError, "such as ps.metrics.accuracy, got 'accuracy'"),
        (
            lambda: ps.Trainer(MODEL, LOSS, ADAM, {"loss": LOSS}),
            ValueError,
            "the name 'loss' is taken: give metrics by",
        ),
        (lambda: ps.Trainer(MODEL, LOSS, ADAM, [LOSS, MODEL]), ValueError, "the name '<lambda>' is taken"),
        (
            lambda: counter()[1].fit(ONES, callbacks=[print]),
            TypeError,
            "of a class of ps.callbacks.Callback, got <built",
        ),
        (lambda: counter()[1].fit((X, X)), ps.errors.DatasetError, "tuple is not a dataset; name the columns, as in"),
        (lambda: counter()[1].fit(ONES, validation=(X, X)), ps.errors.DatasetError, "tuple is not a dataset; name the"),
        (lambda: counter()[1].fit(iter([ONES])), ValueError, "on_epoch is for datasets"),
        (lambda: counter()[1].fit({"x": X}), ps.errors.ConfigurationError, r"inputs='x', labels='x'\)"),
        (
            lambda: counter()[1].predict(ps.Dataset(ONES)),
            TypeError,
            r"columns of a dataset: trainer\.predict\(data\.x\)",
        ),
        (
            lambda: counter()[1].fit({"a": X, "word": np.array(["b"] * 60), "c": X[:, 0], "y": X[:, 0]}),
            ps.errors.ConfigurationError,
            "3 columns for it: a, word, c; such .* not so of a, word: choose by .* or make the model a function of 3",
        ),
        (lambda: counter()[1].predict(X, batch_size=0), ValueError, "batch_size must be 1 or more, got 0"),
        (lambda: ps.callbacks.EarlyStopping(patience=0), ValueError, "patience must be 1 epoch or more, got 0"),
        (lambda: ps.callbacks.EarlyStopping(min_delta=-1), ValueError, "min_delta must be 0 or more, got -1"),
        (lambda: ps.callbacks.MetricsLogger(print), TypeError, r"takes an object with log_metrics\(values, step=\) or"),
        (
            lambda: counter()[1].fit(ONES, validation=ONES, callbacks=[ps.callbacks.EarlyStopping("accuracy")]),
            ps.errors.ConfigurationError,
            "EarlyStopping monitors 'accuracy', but the numbers of an epoch are cost, val_loss, val_distance, val_",
        ),
        (
            lambda: counter()[1].fit(ONES, callbacks=[ps.callbacks.EarlyStopping()]),
            ps.errors.ConfigurationError,
            "numbers of an epoch are cost: choose one of these, or give fit a validation=dataset",
        ),
        (
            lambda: counter()[1].fit(ONES, callbacks=[ps.callbacks.BestModel()]),
            ps.errors.ConfigurationError,
            r"save_best needs a folder: use psworker.session\(checkpoint_dir=...\)",
        ),
    ],
)
def test_bad_arguments_are_refused_with_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_best_model_needs_a_validation(tmp_path):
    with (
        ps.session(checkpoint_dir=tmp_path),
        pytest.raises(ps.errors.ConfigurationError, match="give fit a validation"),
    ):
        counter()[1].fit(ONES, callbacks=[ps.callbacks.BestModel()])
