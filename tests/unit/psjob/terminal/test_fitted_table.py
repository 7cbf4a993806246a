"""Tables that fit a terminal: which columns stay, and texts that are folded or lose their middle."""

import io

from rich.console import Console

from psjob.terminal.fitted_table import Column, FittedTable, fold, shorten

ROWS = ("gpu-node-17-12345", 1_234_567), ("cpu", 8)
NAME, STEPS = Column("name", lambda row: row[0], shortest=13), Column("steps", lambda row: f"{row[1]:,}", number=True)
HALF = Column("half", lambda row: f"{row[1] // 2:,}", 2, number=True)
NOTE = Column("two\nlines", lambda row: "as long as it is", 1, shortest=8)


def shown(columns, width, **settings):
    console = Console(file=io.StringIO(), width=width)
    console.print(FittedTable(columns, ROWS, **settings))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_is_whole_where_it_fits():
    table = FittedTable((NAME, STEPS, HALF), ROWS, "Rows")
    assert table.width == 17 + 2 + 9 + 2 + 7
    assert shown((NAME, STEPS, HALF), 37, title="Rows") == [
        "Rows",
        "name                   steps     half",
        "gpu-node-17-12345  1,234,567  617,283",
        "cpu                        8        4",
    ]


def test_columns_of_the_highest_rank_are_left_out_and_texts_folded_and_numbers_stay_whole():
    assert shown((NAME, STEPS, NOTE, HALF), 38) == [
        "                              two",
        "name                   steps  lines",
        "gpu-node-17-12345  1,234,567  as long",
        "                              as it is",
        "cpu                        8  as long",
        "                              as it is",
    ]
    assert shown((NAME, STEPS, HALF), 24) == [
        "name               steps",
        "gpu-           1,234,567",
        "node-17-12345",
        "cpu                    8",
    ]


def test_a_column_can_lose_the_middle_of_its_texts_in_place_of_being_folded():
    lines = shown((NAME._replace(cut=True, shortest=9), STEPS), 20)
    assert lines[1:] == ["gp…-12345  1,234,567", "cpu                8"]
    assert [shorten("gpu-node-17-12345", width) for width in (17, 12)] == ["gpu-node-17-12345", "gpu…17-12345"]


def test_a_text_is_folded_between_words_and_within_hosts_and_paths_and_no_letter_is_lost():
    text = "adam learning_rate=0.001, beta1=0.9 classifier/dense_1/weights gpu-node-17.cluster.example.com:7070"
    for width in range(5, 110):
        lines = fold(text, width)
        assert max(map(len, lines)) <= width
        assert "".join("".join(lines).split()) == "".join(text.split())
    assert fold("classifier/dense_1/weights", 20) == ["classifier/dense_1/", "weights"]
    assert fold("rate=0.001 beta=0.9", 12) == ["rate=0.001", "beta=0.9"]
    assert fold("", 5) == [""]


def test_a_number_column_can_have_a_least_width_and_a_style_depends_on_column_text_and_row():
    seen = []
    shown(
        (STEPS._replace(least=12),), 40, style=lambda column, text, row: seen.append((column.header, text, row)) or ""
    )
    assert seen == [("steps", "1,234,567", 0), ("steps", "8", 1)]
    assert shown((STEPS._replace(least=12),), 40)[0] == "       steps"


def test_control_characters_of_a_name_do_not_reach_the_terminal():
    (_, line) = shown((Column("name", lambda row: "\x1b[2J[bold]"),), 40)[:2]
    assert line == "\N{REPLACEMENT CHARACTER}[2J[bold]"
