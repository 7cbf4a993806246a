"""Hyperparameters found by Optuna: the rate, the size and the optimizer of a small network on MNIST.

Each trial is a training of its own in this process: new variables in `ps.collection()`, and a session without servers.
After each epoch it reports the accuracy on the validation images; trials that are worse than the median of the others
after as many epochs are pruned. A grid of values, with a cluster for each run, needs no package: `psworker sweep`.

python examples/optuna_mnist.py                                         # in one process; needs optuna
python examples/optuna_mnist.py --trials 50 --storage sqlite:///trials.db   # several processes share the trials
"""

import argparse
import sys

import psworker as ps
from psworker import datasets, nn, ops

try:
    import optuna
except ImportError:
    sys.exit("this example needs optuna: pip install 'paramserver[examples]'")

parser = argparse.ArgumentParser(description="Hyperparameters found by Optuna.")
parser.add_argument("--trials", type=int, default=20)
parser.add_argument("--epochs", type=int, default=5, help="of each trial")
parser.add_argument("--images", type=int, default=5000, help="training images; 55,000 at most")
parser.add_argument("--seed", type=int, default=0, help="seed of the trials, the initial weights and the order")
parser.add_argument("--storage", help="a database of trials, which other processes use too")
options = parser.parse_args()

mnist = datasets.mnist()
train, validation = mnist.train[: options.images], mnist.validation[:2000]


def objective(trial):
    """The validation accuracy of a network with the hyperparameters of a trial."""
    rate = trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)
    units = trial.suggest_int("units", 8, 128, log=True)
    optimizer = {"sgd": ps.GradientDescent, "adam": ps.Adam}[trial.suggest_categorical("optimizer", ["sgd", "adam"])]
    with ps.collection():  # variables of this trial alone
        ps.set_random_seed(options.seed)
        model = nn.Sequential(nn.Dense(784, units, activation=ops.relu), nn.Dense(units, 10))
        with ps.session(progress="off") as session:

            def report(epoch):
                accuracy = session.evaluate(lambda batch: ops.accuracy(model(batch.image), batch.label), validation)
                trial.report(accuracy, epoch.epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned  # leaves the session

            for batch in session.batches(train, 100, options.epochs, options.seed, on_epoch=report):
                optimizer(rate).minimize(ops.softmax_cross_entropy(model(batch.image), batch.label))
            return session.evaluate(lambda batch: ops.accuracy(model(batch.image), batch.label), validation)


def show(study, trial):
    """A line for a trial that has ended."""
    values = ", ".join(f"{name} {value:.4g}" if name != "optimizer" else value for name, value in trial.params.items())
    accuracy = "-" if trial.value is None else f"{trial.value:.4f}"  # of one that has diverged
    print(f"trial {trial.number:2}: {trial.state.name.lower():8} {accuracy:6}  {values}", flush=True)


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    study_name="mnist",
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=options.seed),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    storage=options.storage,
    load_if_exists=True,
)
study.optimize(objective, n_trials=options.trials, callbacks=[show], catch=ps.errors.NotFinite)
print(f"best: {study.best_value:.4f} with {study.best_params}")
