"""Short forms of the examples as jobs of real processes, on real data, as a user runs them."""

import re
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def local(commands, example, *options, flags=()):
    """Lines of stdout and stderr of a job of two workers, which must end well."""
    code, out, err = commands.run("psworker", "local", "--workers", "2", *flags, str(EXAMPLES / example), *options)
    assert code == 0, err
    return out, err


def alone(commands, example, *options):
    """Lines of stdout of the example in one process, which must end well."""
    command = commands.python(str(EXAMPLES / example), *options, OPENBLAS_NUM_THREADS="1")
    assert command.wait() == 0, command.err
    return command.out


def search(pattern, lines):
    """The groups of the pattern in each line that has it, without the commas of numbers."""
    found = [re.search(pattern, line) for line in lines]
    return [tuple(re.sub(r"(?<=\d),(?=\d)", "", text) for text in match.groups()) for match in found if match]


KNOWN = [1.1843, 0.6654, 0.5529, 0.4987, 0.4656, 0.4426, 0.4255, 0.4122, 0.4014, 0.3924]


def costs_of(lines):
    """The costs of the epochs 1, 2, ..., each of which must have been printed once, in order."""
    found = search(r"epoch +(\d+): mean cost ([0-9.]+) over 55,000 examples", lines)
    assert [int(epoch) for epoch, _ in found] == list(range(1, len(found) + 1))
    return [float(cost) for _, cost in found]


@pytest.mark.exhaustive
def test_two_workers_and_a_server_reach_the_known_cost_and_accuracy(commands):
    out, err = local(commands, "softmax_mnist.py")
    costs = costs_of(out)
    assert costs == pytest.approx(KNOWN, abs=0.02)
    assert costs[-1] == pytest.approx(KNOWN[-1], abs=0.01)
    [accuracies] = search(r"test accuracy: ([0-9.]+) on the first 3,000, ([0-9.]+) on all", out)
    assert [float(accuracy) for accuracy in accuracies] == pytest.approx([0.873, 0.904], abs=0.005)
    assert re.search(r"^5,500 steps in .* 2 workers$", err[-1])


def test_the_chief_of_two_workers_saves_the_model_of_the_servers_and_another_program_uses_it(commands):
    flags = "--shards", "2", "--progress", "off"
    out, _ = local(commands, "softmax_mnist.py", "--epochs", "1", "--save", "softmax.safetensors", flags=flags)
    trained = search(r"test accuracy: .* ([0-9.]+) on all", out)  # a worker that joins after the end is chief too
    [loaded] = search(
        r"^test accuracy: ([0-9.]+) on 10,000 images$", alone(commands, "predict_mnist.py", "softmax.safetensors")
    )
    assert {loaded} == set(trained)
    assert sorted(commands.folder.iterdir()) == [commands.folder / "softmax.safetensors"]


@pytest.mark.exhaustive
def test_a_hundredth_of_the_gradients_in_16_bits_is_late_by_an_epoch_and_then_reaches_the_known_costs(commands):
    flags = "--encoding", "bfloat16", "--compress", "topk:0.01", "--progress", "off"
    out, _ = local(commands, "softmax_mnist.py", "--epochs", "2", flags=flags)
    first, second = costs_of(out)
    assert 0.01 < first - KNOWN[0] < 0.06, "small gradients stay in the residual at first"
    assert abs(second - KNOWN[1]) <= 0.01


def test_two_servers_and_two_workers_started_by_hand_share_the_job(commands):
    servers = [commands.serve("--shard", f"{shard}/2") for shard in (0, 1)]
    addresses, program = ",".join(server.address for server in servers), str(EXAMPLES / "softmax_mnist.py")
    run = "psworker", "run", "--servers", addresses, "--threads", "1", program, "--epochs", "1"
    workers = [commands.start(*run) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    other, chief = sorted([costs_of(worker.out) for worker in workers], key=len)
    assert other in ([], chief), "a worker that joins after the end of the other is chief"
    assert abs(chief[0] - KNOWN[0]) <= 0.02
    for server in servers:
        code, _, log = server.end()
        assert (code, "global step 550" in log[-1]) == (0, True)


@pytest.mark.exhaustive
def test_two_workers_train_both_networks_and_one_of_them_saves_grids(commands):
    out, err = local(commands, "gan_mnist.py", "--steps", "40", "--every", "20", "--output", "grids")
    line = r"^(worker-\d) +\| step +(\d+): loss of discriminator [\d.]+, generator [\d.]+, (.*\.png)$"
    workers, steps, paths = zip(*search(line, out), strict=True)
    assert len(out) == 2
    assert len(set(workers)) == 1
    assert [int(step) >= least for step, least in zip(steps, (20, 40), strict=True)] == [True, True]
    assert sorted((commands.folder / "grids").iterdir()) == [commands.folder / path for path in paths]
    for path in paths:
        with Image.open(commands.folder / path) as image:
            assert (image.format, image.size) == ("PNG", (224, 224))
    [(pushes,)] = search(r"^(\d+) steps in .* 2 workers$", err[-1:])
    assert int(pushes) % 2 == 0, "each worker pushes to both networks as often"
    assert int(pushes) >= 80


def last_lines(out):
    """Of each worker: outcome, steps, updates by all, mean return and episodes."""
    line = r"\| ((?:not )?solved) after ([\d,]+) steps of this worker and ([\d,]+) updates by all: "
    found = search(line + r"mean return ([\d.]+) over (\d+) episodes", out)
    return [(outcome, *map(float, numbers)) for outcome, *numbers in found]


def test_two_workers_play_environments_of_their_own_and_all_of_their_updates_count(commands):
    """Their weights stay as they are, so that they would play the same if they drew the same numbers."""
    out, err = local(commands, "dqn_cartpole.py", "--max-steps", "600", "--learning-rate", "0")
    one, other = last_lines(out)
    assert one[:2] == other[:2] == ("not solved", 600)
    updates = 2 * len(range(500, 601, 4))
    assert max(one[2], other[2]) == updates
    assert re.search(rf"^{updates} steps in .* 2 workers$", err[-1])
    assert one[3:] != other[3:]


def test_optuna_finds_hyperparameters_and_prunes_trials_that_are_worse_than_others_were_by_then(commands):
    out = alone(commands, "optuna_mnist.py", "--trials", "6", "--epochs", "2", "--images", "2000")
    trials = search(r"^trial +\d+: (complete|pruned) +([0-9.]+)  learning_rate ", out)
    assert len(trials) == 6
    accuracies = {state: [float(value) for one, value in trials if one == state] for state in ("complete", "pruned")}
    assert len(accuracies["complete"]) >= 3, "no trial is pruned before there are three to compare with"
    assert accuracies["pruned"], "with this seed"
    [(best,)] = search(r"^best: ([0-9.]+) with ", out)
    assert float(best) == max(accuracies["complete"]) > 0.8
    assert max(accuracies["pruned"]) < float(best)


@pytest.mark.exhaustive
def test_a_worker_that_reaches_the_goal_ends_the_job_for_all(commands):
    one, other = last_lines(local(commands, "dqn_cartpole.py", "--goal", "9")[0])
    assert one[0] == other[0] == "solved"
    assert max(one[1], other[1]) < 20_000
    assert max(one[4], other[4]) == 100


@pytest.mark.exhaustive
def test_the_convolutional_network_learns_digits_within_40_steps(commands):
    out = alone(commands, "deep_mnist.py", "--steps", "40", "--report", "20", "--test-images", "300")
    [(half, _), (steps, accuracy)] = search(r"step +([0-9,]+): loss [0-9.]+, test accuracy ([0-9.]+), [0-9.]+ min", out)
    assert (half, steps) == ("20", "40")
    assert float(accuracy) > 0.5  # 0.1 by chance


def test_each_step_of_the_quadratic_is_the_one_worked_out_by_hand(commands):
    """x = 10, b = 1, gradients times 0.1: the distance from 1 shrinks by a tenth at each step."""
    out = alone(commands, "quadratic.py", "--steps", "20")
    rows = search(r"^ *\d+" + r" +(-?[0-9.]+)" * 4 + r"(.*)$", out)
    for number, (before, gradient, expected, after, remark) in enumerate(rows):
        assert (expected, remark) == (after, "")
        distances = [float(before) - 1, float(gradient) / 0.1, (float(after) - 1) / 0.9]
        assert distances == pytest.approx([9 * 0.9**number] * 3, abs=3e-6)
    assert len(rows) == 20


def test_descent_by_hand_is_that_of_the_optimizer_to_the_bit(commands):
    out = alone(commands, "manual_descent.py")
    assert out[0] == "largest difference between the two: 0"
    by_hand, by_optimizer = re.findall(r"0\.\d{4}", out[1])
    assert by_hand == by_optimizer
    assert float(by_hand) > 0.89


#: Words of one kind with the key, to a reader who knows the world; 50 at most of the 3,642 of the vocabulary.
KINDS = {
    "coffee": "bananas barley beans beets cassava citrus cocoa coconuts corn cotton flowers fruit fruits grains grapes "
    "mangoes millet nuts oilseed olives onions palm peanuts pineapples potatoes pulses rice rubber sesame sorghum "
    "soybeans spices sugar sugarcane sunflower tea tobacco tomatoes vanilla vegetables wheat yams",
    "malaria": "bacterial dengue diarrhea disease diseases encephalitis fever hepatitis leptospirosis meningitis "
    "meningococcal protozoal rabies schistosomiasis typhoid yellow",
}


@pytest.mark.exhaustive
def test_two_workers_move_rows_of_tables_on_two_shards_and_words_of_one_kind_are_near(commands):
    form = "--epochs 1 --batch-size 2000 --width 32 --window 2 --negatives 2 --report 100 --words coffee malaria"
    flags = "--shards", "2", "--threads", "1", "--progress", "plain"
    out, _ = local(commands, "skipgram.py", *form.split(), flags=flags)
    neighbours = dict(search(rf"\| *({'|'.join(KINDS)}): (.*)$", out))
    assert neighbours.keys() == KINDS.keys()
    for word, text in neighbours.items():
        nearest = re.findall(r"([a-z]+) -?[01]\.\d\d", text)
        assert len(nearest) == 7
        assert len(set(nearest) & set(KINDS[word].split())) >= 3, (word, nearest)  # 6 or 7 are usual, by chance 0


def test_two_workers_fit_a_csv_file_as_well_as_least_squares(commands):
    out, _ = local(commands, "csv_regression.py", flags=("--threads", "1", "--progress", "off"))
    for error, baseline in search(r"test error: (\d+) g over 67 birds; of the mean mass: (\d+) g$", out):
        assert (float(error), baseline) == (pytest.approx(316, abs=10), "778")
    costs = [
        float(cost) for epoch, cost in search(r"epoch +(\d+): error (\d+) g over 266 birds$", out) if epoch == "100"
    ]
    assert costs[-1] == pytest.approx(277, abs=10)


@pytest.mark.exhaustive
def test_two_workers_and_two_shards_find_the_minimum_that_one_process_finds_by_batch_optimization(commands):
    options = "--examples", "2000", "--l2", "0.1", "--gradient", "1e-4"
    out, _ = local(commands, "softmax_lbfgs.py", *options, flags=("--shards", "2", "--progress", "off"))
    found = [
        search(r"loss ([0-9.]+), test accuracy ([0-9.]+)$", lines)
        for lines in (out, alone(commands, "softmax_lbfgs.py", *options))
    ]
    (loss, accuracy), (expected, _) = [map(float, one) for [one] in found]
    assert loss == pytest.approx(expected, rel=1e-7)
    assert 0.8 < accuracy < 0.9
    assert search(r"(\d+) evaluations, no element of the gradient is above 0.0001$", out)


@pytest.mark.exhaustive
def test_three_methods_are_compared_over_time_in_a_table_and_a_picture(commands, tmp_path):
    options = "--seconds", "2", "--workers", "2", "--examples", "2000", "--hidden", "16", "--accuracy", "0.6"
    lines = alone(commands, "downpour_or_sandblaster.py", *options, "--plot", str(tmp_path / "plot.png"))
    rows = search(r"^(SGD|Downpour|Sandblaster).* +([12]) +(\d+) +([0-9.]+) +([0-9.]+) +([0-9.]+)$", lines)
    assert [row[:2] for row in rows] == [("SGD", "1"), ("Downpour", "2"), ("Sandblaster", "2")]
    for _, _, moments, cost, accuracy, seconds in rows:
        assert int(moments) > 2
        assert float(cost) < 1.5, "of 2.3 at the start"
        assert float(accuracy) > 0.6
        assert float(seconds) < 30
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.size == (1300, 450)


@pytest.mark.exhaustive
def test_two_workers_predict_votes_far_better_than_the_means_do_and_senators_are_near_those_who_vote_alike(commands):
    flags = "--shards", "2", "--threads", "1", "--progress", "off"
    out, _ = local(commands, "recommender.py", "--epochs", "4", flags=flags)
    [means] = search(r"by the mean of all ([0-9.]+)% are wrong, by that of the roll call ([0-9.]+)%$", out)
    assert [float(mean) for mean in means] == pytest.approx([36.5, 30.4], abs=0.1)
    errors = search(r"epoch (\d): mean loss [0-9.]+, held-out votes that are wrong ([0-9.]+)%$", out)
    assert [int(epoch) for epoch, _ in errors] == [1, 2, 3, 4]
    assert float(errors[-1][1]) < 10
    near = dict(search(r"\| (COLLINS|CLINTON|SESSIONS) [RD]-\w\w: votes like (.*)$", out))
    assert "SNOWE R-ME" in near["COLLINS"]
    parties = {name: re.findall(r"([RDI])-\w\w", text) for name, text in near.items()}
    assert (parties["CLINTON"], parties["SESSIONS"]) == (["D"] * 5, ["R"] * 5)


@pytest.mark.exhaustive
def test_the_gru_needs_fewer_bits_with_each_report_and_goes_on_with_the_text_given(commands):
    form = ["--steps", "120", "--report", "40", "--units", "64", "--length", "30", "--write", "200", "--start"]
    first, *reports, last, text = "\n".join(alone(commands, "char_gru.py", *form, "Bananas ")).split("\n", 5)
    assert first == "2,599,019 characters, 80 different ones: 4.74 bits by frequency"
    steps, bits = zip(*search(r"step +(\d+): ([0-9.]+) bits per held-out character", reports), strict=True)
    assert steps == ("40", "80", "120")
    assert 4.74 > float(bits[0]) > float(bits[1]) > float(bits[2])
    assert 1 < float(bits[2]) < 3.9
    assert last == f"{bits[2]} bits at the end; the model writes:"
    assert (text[:8], len(text)) == ("Bananas ", 208)
