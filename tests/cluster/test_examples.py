"""Short forms of the examples, as a user runs them, on real data; what larger ones have is in files of their own."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REPORT = re.compile(r"step +([0-9,]+): loss ([0-9.]+), test accuracy ([0-9.]+), ([0-9.]+) min")
NUMBER = r"(-?[0-9.]+)"
ROW = re.compile(rf"^ *(\d+) +{NUMBER} +{NUMBER} +{NUMBER} +{NUMBER}(.*)$")


def reports_of(lines):
    """(step, accuracy) of each look at the test images."""
    found = [match for match in map(REPORT.search, lines) if match]
    return [(int(match[1].replace(",", "")), float(match[3])) for match in found]


def rows_of(lines):
    """(before, gradient, expected, became) of each step, and the remark."""
    found = [match for match in map(ROW.match, lines) if match]
    return [([float(match[column]) for column in range(2, 6)], match[6]) for match in found]


# Deep MNIST.


def test_the_convolutional_network_learns_digits_within_40_steps(commands):
    form = "--steps", "40", "--report", "20", "--test-images", "300"
    alone = commands.python(str(EXAMPLES / "deep_mnist.py"), *form, OPENBLAS_NUM_THREADS="1")
    assert alone.wait() == 0, alone.err
    [(half, _), (steps, accuracy)] = reports_of(alone.out)
    assert (half, steps) == (20, 40)
    assert accuracy > 0.5  # 0.1 by chance


def test_two_workers_train_the_convolutional_network_together(commands):
    code, out, err = commands.run(
        *("psworker", "local", "--workers", "2", "--threads", "1", "--progress", "plain"),
        *(str(EXAMPLES / "deep_mnist.py"), "--steps", "20", "--report", "20", "--test-images", "300"),
    )
    assert code == 0, err
    [(steps, accuracy)] = reports_of(out)
    assert 20 <= steps <= 22  # the other worker's push may come in between
    assert accuracy > 0.2  # 0.1 by chance
    assert re.search(r"^2[0-2] steps in .* 2 workers$", err[-1])


# The quadratic.


def test_each_step_of_the_quadratic_is_the_one_worked_out_by_hand(commands):
    """x = 10, b = 1, gradients times 0.1: the distance from 1 shrinks by a tenth at each step."""
    alone = commands.python(str(EXAMPLES / "quadratic.py"), "--steps", "20")
    assert alone.wait() == 0, alone.err
    rows = rows_of(alone.out)
    assert len(rows) == 20
    x = 10.0
    for (before, gradient, expected, after), remark in rows:
        assert (expected, remark) == (after, "")
        assert abs(before - x) < 2e-6
        assert abs(gradient - 0.1 * (x - 1)) < 2e-7
        x = 1 + 0.9 * (x - 1)
        assert abs(after - x) < 2e-6


def test_two_workers_move_the_same_x(commands):
    code, out, err = commands.run(
        "psworker", "local", "--workers", "2", str(EXAMPLES / "quadratic.py"), "--steps", "50"
    )
    assert code == 0, err
    rows = rows_of([line.partition(" | ")[2] for line in out])
    assert len(rows) == 100
    assert min(abs(after - 1) for (_, _, _, after), _ in rows) < 0.01  # 9 * 0.9^100 = 0.0002, and less when stale


# By hand.


def test_descent_by_hand_is_that_of_the_optimizer_to_the_bit(commands):
    alone = commands.python(str(EXAMPLES / "manual_descent.py"))
    assert alone.wait() == 0, alone.err
    assert alone.out[0] == "largest difference between the two: 0"
    by_hand, by_optimizer = re.findall(r"0\.\d{4}", alone.out[1])
    assert by_hand == by_optimizer
    assert float(by_hand) > 0.89


def test_descent_by_hand_trains_with_two_workers_too(commands):
    form = "--batch-size", "200", "--learning-rate", "0.2"
    code, out, err = commands.run("psworker", "local", "--workers", "2", str(EXAMPLES / "manual_descent.py"), *form)
    assert code == 0, err
    [accuracies] = [re.findall(r"0\.\d{4}", line) for line in out if "test accuracy" in line]
    assert all(float(accuracy) > 0.89 for accuracy in accuracies)


# Word vectors.

SHORT_FORM = (
    *("--epochs", "1", "--batch-size", "2000", "--width", "32", "--window", "2", "--negatives", "2"),
    *("--report", "100", "--words", "coffee", "copper", "hindu", "malaria"),
)
#: Words of one kind with the key, to a reader who knows the world; 50 at most of the 3,642 of the vocabulary.
KINDS = {
    "coffee": "bananas barley beans beets cassava citrus cocoa coconuts corn cotton flowers fruit fruits grains grapes "
    "mangoes millet nuts oilseed olives onions palm peanuts pineapples potatoes pulses rice rubber sesame sorghum "
    "soybeans spices sugar sugarcane sunflower tea tobacco tomatoes vanilla vegetables wheat yams",
    "copper": "aluminum antimony bauxite chromite chromium clay coal cobalt diamonds gold graphite gypsum iron "
    "kaolin lead lignite limestone magnesium manganese marble mercury mica molybdenum nickel niobium ore phosphate "
    "phosphates potash salt silver sulfur tantalum tin titanium tungsten uranium zinc",
    "hindu": "adventist anglican animist apostolic atheist baha baptist believers beliefs buddhist catholic christian "
    "christians church hinduism islam islamic jehovah jewish lutheran methodist mormon muslim muslims orthodox "
    "pentecostal presbyterian protestant religion religions religious roman shia sikh sunni witness witnesses",
    "malaria": "bacterial dengue diarrhea disease diseases encephalitis fever hepatitis leptospirosis meningitis "
    "meningococcal protozoal rabies schistosomiasis typhoid yellow",
}


def neighbours_of(lines):
    """The nearest words of each word that is asked about."""
    found = [re.search(rf"^ *({'|'.join(KINDS)}): (.*)$", line) for line in lines]
    return {match[1]: re.findall(r"([a-z]+) -?[01]\.\d\d", match[2]) for match in found if match}


def assert_sense(neighbours):
    assert neighbours.keys() == KINDS.keys()
    for word, nearest in neighbours.items():
        assert len(nearest) == 7
        assert len(set(nearest) & set(KINDS[word].split())) >= 3, (word, nearest)  # 6 or 7 are usual, by chance 0


def test_words_of_one_kind_get_vectors_that_are_near_each_other(commands):
    alone = commands.python(str(EXAMPLES / "skipgram.py"), *SHORT_FORM, OPENBLAS_NUM_THREADS="1")
    assert alone.wait() == 0, alone.err
    losses = [float(loss) for loss in re.findall(r"^step +\d+: loss ([0-9.]+)$", "\n".join(alone.out), re.MULTILINE)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5  # 0.64 for who knows of the words no more than that one in three is near
    assert_sense(neighbours_of(alone.out))


def test_two_workers_move_rows_of_tables_on_two_shards(commands):
    code, out, err = commands.run(
        *("psworker", "local", "--workers", "2", "--shards", "2", "--threads", "1", "--progress", "plain"),
        *(str(EXAMPLES / "skipgram.py"), *SHORT_FORM),
    )
    assert code == 0, err
    assert_sense(neighbours_of([line.partition(" | ")[2] for line in out]))
