"""Pictures of TensorBoard: scalars of the workers and the job, and the graph with the shards of its variables."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.browser import Browser
from tests.support.commands import environment, free_address
from tests.tools.screenshots.training import DeepMnist

#: The steps after which a worker is slowed, one is killed, and pictures are taken.
SLOWED, KILLED, TAKEN = 300, 600, 900

#: The elements of a page in the shadow trees of its components too; `byText` is the first one that has it.
DEEP = """
function deep(selector, root = document, found = []) {
  found.push(...root.querySelectorAll(selector));
  for (const one of root.querySelectorAll('*')) if (one.shadowRoot) deep(selector, one.shadowRoot, found);
  return found;
}
const byText = (selector, text) => deep(selector).find(one => one.textContent.includes(text));
"""


def take(images: Path, folder: Path) -> None:
    """Writes tensorboard-scalars.png and tensorboard-graph.png."""
    run = folder / "run"
    report = ("--report", "100", "--test-images", "500")
    with DeepMnist(folder, "--shards", "2", "--run-dir", str(run), arguments=report) as training:
        for step, act in ((SLOWED, training.slow), (KILLED, training.kill), (TAKEN, lambda: None)):
            training.wait_for_step(step, 600)
            act()
        with serve(run / "tensorboard") as url, Browser(1440, 900) as browser:
            scalars(browser, url)
            browser.picture(images / "tensorboard-scalars.png", colors=64)
            graph(browser, url)
            browser.picture(images / "tensorboard-graph.png", colors=64)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """TensorBoard over a folder; its address."""
    address = free_address()
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host, "--port", port]
    command += ["--load_fast=false", "--reload_interval=2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), text=True) as server:
        try:
            assert server.stderr is not None
            next(line for line in server.stderr if "Press CTRL+C to quit" in line)
            os.set_blocking(server.stderr.fileno(), False)
            yield f"http://{address}/"
        finally:
            server.kill()


def scalars(browser: Browser, url: str) -> None:
    """The page of scalars, without settings and tables."""
    browser.open(f"{url}?tagFilter=accuracy%7Closs%7Cnorm%7Cstaleness%7Cper_second#timeseries")
    browser.wait_for(f"(() => {{ {DEEP} return deep('line-chart').length >= 5 }})()", seconds=60)
    browser.run(f"{DEEP} byText('mat-checkbox', 'Enable step selection').querySelector('input').click()")
    browser.run(f"{DEEP} deep('[aria-label=\"Close side pane\"]')[0].click()")
    drawn(browser, "line-chart")


def graph(browser: Browser, url: str) -> None:
    """The page of the graph, coloured by shards, with a layer open, and of its kernel the part on shard 1 selected."""
    browser.open(f"{url}#graphs&run=cluster")
    browser.wait_for(f"(() => {{ {DEEP} return deep('g.node.meta').length >= 5 }})()", seconds=60)
    browser.run(f"{DEEP} byText('paper-radio-button', 'Device').click()")
    for number, name in enumerate(("fc1", "fc1/kernel")):
        fire(browser, "node-toggle-expand", name)
        browser.wait_for(f"(() => {{ {DEEP} return deep('g.node.meta.expanded').length === {number + 1} }})()")
    fire(browser, "node-select", "fc1/kernel/part_1")
    browser.wait_for(f"(() => {{ {DEEP} return byText('.attr-right', '/shard:1') }})()")
    drawn(browser, "tf-graph-scene")
    browser.run(f"{DEEP} deep('tf-graph-scene')[0].fit()")
    drawn(browser, "tf-graph-scene")


def fire(browser: Browser, event: str, name: str) -> None:
    """What a click on a node of the graph fires."""
    browser.run(
        f"""{DEEP} deep('tf-graph-scene')[0].dispatchEvent(new CustomEvent(
            arguments[0], {{bubbles: true, composed: true, detail: {{name: arguments[1]}}}}))""",
        event,
        name,
    )


def drawn(browser: Browser, selector: str) -> None:
    """Waits until the animations of the page have ended: what is seen is the same for a second."""
    browser.driver.execute_async_script(
        f"""{DEEP}
        const done = arguments[0];
        let before = '', same = 0;
        const look = () => {{
          const now = deep('{selector}').map(one => (one.shadowRoot ?? one).innerHTML).join();
          same = now === before ? same + 1 : 0;
          before = now;
          same > 5 ? done() : setTimeout(look, 200);
        }};
        look();"""
    )
