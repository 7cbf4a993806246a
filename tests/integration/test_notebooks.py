"""The notebooks of the repository, and what their cells rely on, in a real kernel."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.messages import Status
from tests.support.commands import environment
from tests.support.servers import Client

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a notebook's cells in a kernel of its own; the text that each code cell shows."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def run(notebook, folder=tmp_path):
        client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder)}})
        client.execute(env=environment(OPENBLAS_NUM_THREADS="1"))
        return shown(notebook)

    return run


def shown(notebook):
    """Of each code cell, the text of its outputs."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(map(_text, cell.outputs)) for cell in cells]


def _text(output):
    if output.output_type == "error":
        return output.ename
    return output.text if output.output_type == "stream" else output.data["text/plain"]


def cells(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def words(text):
    """The words without numbers, bars, colors, and which worker it was."""
    return re.sub(r"\d+\.\d+|█+|\x1b\[\d*m|(?<=worker-)\d", "", text).split()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_it_computes(run, path):
    """The outputs that are committed are those of the cells, up to the order in which workers push."""
    notebook = nbformat.read(path, as_version=4)
    committed = shown(notebook)
    found = run(notebook, path.parent)
    for one, other in zip(found, committed, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), abs=0.03)
        assert words(one) == words(other)


AGAIN = """
with ps.session(SERVERS, name="notebook") as session:
    ps.GradientDescent(1.0).minimize(ops.sum(x))
print(x.value.item(), session.global_step)
"""

TRAIN = """
x.assign([8.0])
with ps.session(SERVERS, name="notebook") as session:
    for step in range(1_000_000):
        ps.GradientDescent(1.0).minimize(ops.sum(x))
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)  # as the kernel's manager does for the stop button
"""


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "with a server"])
def test_an_interrupted_cell_leaves_its_session_and_the_next_one_trains(run, embedded):
    with ServerThread(ServerConfig("127.0.0.1:0")) as server:
        servers = "None" if embedded else repr(server.address)
        begin = f"import os, signal\nimport psworker as ps\nfrom psworker import ops\nSERVERS = {servers}"
        notebook = cells(begin, 'x = ps.Variable([0.0], name="x")', TRAIN, "x = ps.Variable([8.0], name='x')", AGAIN)
        notebook.cells[2].metadata["tags"] = ["raises-exception"]
        *_, last = run(notebook)
        (interrupted,) = notebook.cells[2].outputs
        assert (interrupted.output_type, interrupted.ename) == ("error", "KeyboardInterrupt")
        assert last.splitlines()[-1] == "7.0 1", "the first step of a job of its own"
        if not embedded:
            assert "job 2 (notebook-2) begins, and job 1 (notebook-1)" in last
            (left,) = Client(server.address).unary(Status()).workers
            assert left.state == "left"


MODEL = """
net = nn.Sequential(nn.Dense(2, 2), ops.relu, nn.Dense(2, 1))
optimizer = ps.Adam(0.1)
x = ps.Variable(np.ones((1, 2)), name="x")
x
"""

FIT = """
with ps.session() as session:
    for batch in session.batches(ps.Dataset({"x": np.ones((8, 2), np.float32)}), 2):
        loss = ops.mean(net(batch.x) * ops.sum(x))
        optimizer.minimize(loss)
    print(len(session._replica.names), "variables on the server")
"""


def test_a_session_has_only_the_variables_of_the_last_run_of_a_cell_that_makes_a_model(run):
    """Though the kernel keeps the results of cells, and the notebook the last loss and session."""
    imports = "import numpy as np\nimport psworker as ps\nfrom psworker import nn, ops"
    shown = run(cells(imports, *[MODEL, FIT] * 3))
    assert shown[2::2] == ["5 variables on the server\n"] * 3
