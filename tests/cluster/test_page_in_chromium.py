"""The live page in headless Chromium, which shows clusters of processes: psserver/monitor/page."""

import itertools
import re
import signal
import threading

import numpy as np
import pytest

from pswire.errors import NotFinite
from pswire.messages import Gradient, Join, Push, Sender
from tests.support.browser import MISSING, Browser
from tests.support.commands import free_address
from tests.support.servers import NAME_KEY, Client

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is a browser")]

TRAIN = """
    import sys, time
    import numpy as np
    import psworker as ps
    from psworker import ops
    W, b = ps.Variable(np.ones(3), name="dense/W"), ps.Variable(1.0, name="dense/b")
    optimizer = ps.GradientDescent(0.001)
    with ps.session() as session:
        print("trains", flush=True)
        while True:
            optimizer.minimize(ops.sum(W * W) + b * b)
            time.sleep(float(sys.argv[1]))
"""

UNEVEN = """
    import numpy as np
    import psworker as ps
    from psworker import ops
    large, small = ps.Variable(np.ones((256, 256)), name="large"), ps.Variable(np.ones(4), name="small")
    optimizer = ps.GradientDescent(0.001)
    with ps.session() as session:
        while True:
            optimizer.minimize(ops.sum(large * large) + ops.sum(small * small))
"""

#: Functions for scripts in the page: `page` has the exports of main.js.
IN_PAGE = """
    const page = await import("/main.js");
    const job = page.job;
    const all = (selector) => [...document.querySelectorAll(selector)];
    const chart = (title) => all("canvas").find((one) => one.getAttribute("aria-label").startsWith(title));
    const row = (name) => all("tbody tr").find((one) => one.children[0].textContent === name);
"""


@pytest.fixture
def browser():
    with Browser(1440, 1600) as browser:
        yield browser


def inside(browser, script):
    """The value that an asynchronous script in the page returns."""
    return browser.run(f"{IN_PAGE} {script}")


def wait_inside(browser, expression):
    """Waits until an expression with the functions of `IN_PAGE` is true; its value."""
    return browser.wait_for(f"(async () => {{ {IN_PAGE} return {expression}; }})()")


def serve(commands, *options):
    """A server with its page, and the address of that."""
    server = commands.serve("--http", "127.0.0.1:0", *options)
    server.wait_for("live page at")
    return server, next(re.search(r"http://\S+", line)[0] for line in server.out if "live page at" in line)


class RawWorkers:
    """Workers as calls of one thread, all of which push small gradients of all variables, in turns, until the end."""

    def __init__(self, address, names, variables):
        self._client, self._end = Client(address), threading.Event()
        self._senders = [
            Sender(name, self._client.unary(Join(worker=name, name_key=NAME_KEY)).incarnation) for name in names
        ]
        arrays = {name: np.ones(shape, np.float32) for name, shape in variables.items()}
        self._client.register(self._senders[0], **arrays)
        self._gradients = tuple(Gradient(name, 0, array) for name, array in arrays.items())
        self._thread = threading.Thread(target=self._push)

    def _push(self):
        for sequence in itertools.count(1):
            for sender in self._senders:
                if self._end.wait(0.005):
                    return
                self._client.unary(Push(sender=sender, sequence=sequence, gradients=self._gradients, loss=1 / sequence))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()
        self._client.channel.close()


# --- what is seen of a cluster ----------------------------------------------------------------------------------------

#: The lightness of the rows of the heat map, in the order of the workers, from 0 to 255.
LIGHTNESS = """(() => {
    const canvas = chart("Staleness by worker"), scale = canvas.width / canvas.clientWidth;
    const rows = job.staleness.workers.length, high = Math.min(56, (canvas.clientHeight - 72) / rows);
    return job.staleness.workers.map((_, line) => {
        const at = [canvas.width * 0.45, (64 + (line + 0.2) * high) * scale].map(Math.round);
        const [r, g, b] = canvas.getContext("2d").getImageData(...at, 1, 1).data;
        return (r + g + b) / 3;
    });
})()"""


def test_curves_move_a_slowed_worker_is_dark_in_the_heat_map_and_a_killed_one_turns_grey(commands, browser):
    server, url = serve(commands, "--lease", "2")
    script = commands.script(TRAIN)
    workers = {}
    for name, pause in (("fast", "0.004"), ("slow", "0.3"), ("killed", "0.02")):
        workers[name] = commands.start("psworker", "run", "--servers", server.address, "--name", name, script, pause)
        workers[name].wait_for("trains")
    browser.open(url)
    wait_inside(browser, 'row("killed")?.dataset.state === "live" && job.history.length > 2')
    before = inside(browser, "window.before = chart('Cost by worker').toDataURL(); return job.history.length")
    wait_inside(browser, f"job.history.length > {before} && chart('Cost by worker').toDataURL() !== window.before")

    places = inside(browser, "return job.staleness.workers")
    fast, slow, killed = map(places.index, ("fast", "slow", "killed"))
    wait_inside(browser, f"{LIGHTNESS}[{slow}] < {LIGHTNESS}[{fast}] - 40")
    assert "the stalest is slow on dense/" in wait_inside(
        browser, "/the stalest is slow/.exec(chart('Staleness by').ariaLabel)?.input"
    )

    workers["killed"].end(signal.SIGKILL)
    wait_inside(browser, 'row("killed").dataset.state === "lost"')
    grey = browser.value("getComputedStyle(document.body).getPropertyValue('--gone').trim()")
    assert inside(browser, "return getComputedStyle(row('killed').children[2]).color") == rgb(grey)
    assert inside(browser, "return row('killed').children[1].innerText.trim()") == "lost"
    assert inside(browser, "return row('killed').querySelector('.key').dataset.paint") == grey
    faint = rgb(browser.value("getComputedStyle(document.body).getPropertyValue('--faint').trim()"))
    wait_inside(browser, f"{LIGHTNESS}[{killed}] === {sum(map(int, re.findall('[0-9]+', faint))) / 3}")
    wait_inside(browser, "all('tr[data-state=warning]').some((one) => one.textContent.includes('lease has expired'))")

    browser.run("document.querySelector('.legend a').click()")
    assert browser.value("location.hash") == "#worker=fast"
    assert browser.value("document.querySelector('.panel h2').textContent") == "fast"
    wait_inside(browser, "chart('Staleness of fast').ariaLabel.includes('now ')")
    for name in ("fast", "slow"):
        workers[name].end()
    assert browser.problems() == []
    server.end()


def rgb(color):
    """A color as browsers print it."""
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"


#: The mean lightness of the map of each shard, from 0 to 255.
SHARDS = """all(".shards canvas").map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((_, place) => place % 4 < 3).reduce((sum, one) => sum + one, 0) / (data.length * 0.75);
})"""


def test_a_hot_shard_is_named_and_dark_and_shows_the_variable_with_the_traffic(commands, browser):
    servers = [commands.serve("--shard", f"{shard}/2") for shard in range(2)]
    addresses = ",".join(server.address for server in servers)
    worker = commands.start("psworker", "run", "--servers", addresses, commands.script(UNEVEN))
    monitor = commands.start("psserver", "monitor", addresses, "--http", "127.0.0.1:0")
    monitor.wait_for("monitor at")
    browser.open(monitor.address)
    hot = wait_inside(browser, "all('.shards li').findIndex((one) => one.querySelector('.hot:not([hidden])')) + 1") - 1
    assert inside(browser, "return all('.hot:not([hidden])').length") == 1
    label = f"all('.shards canvas')[{hot}].ariaLabel"
    assert "; most traffic: large, " in wait_inside(browser, f"{label}.includes('most traffic') && {label}")
    wait_inside(browser, f"{SHARDS}[{hot}] < {SHARDS}[{1 - hot}] - 40")
    assert browser.problems() == []
    for command in (worker, monitor, *servers):
        command.end()


@pytest.mark.exhaustive
def test_64_workers_and_200_variables_are_shown_sample_by_sample_with_constant_memory(commands, browser):
    server, url = serve(commands)
    variables = {f"block{number // 4:02d}/layer{number % 4}/W": (4, 1 + number % 7) for number in range(200)}
    with RawWorkers(server.address, [f"worker-{number}" for number in range(64)], variables):
        browser.open(url)
        wait_inside(browser, "job.latest?.workers.length === 64 && page.samples.count > 4")
        script = "return [page.samples.count, page.frames.count, all('*').length, job.history.length]"
        samples, frames, nodes, length = inside(browser, script)
        wait_inside(browser, f"page.samples.count >= {samples + 10}")
        later = inside(browser, script)
        assert later[3] - length == later[0] - samples  # no sample was left out
        assert later[1] - frames <= later[0] - samples + 2  # each is drawn once
        assert later[2] == nodes
        assert inside(browser, "return [job.staleness.workers.length, job.staleness.variables.length]") == [64, 200]
        assert inside(browser, "return job.staleness.values.filter((one) => !Number.isNaN(one)).length") == 64 * 200
    assert browser.problems() == []
    server.end()


def test_a_minimization_is_shown_with_the_evaluations_of_its_last_accepted_point(commands, browser):
    server, url = serve(commands)
    point = {"iterations": 12, "evaluations": 1013, "loss": 0.26939, "gradient": 0.0069, "step": 0.5}
    counts = {"portions": 64, "counted": 37, "backups": 3, "backups_won": 1}
    all_of_it = [{"name": name, "over": False, **counts, "point": at} for name, at in (("first", None), ("fit", point))]
    browser.open(url)
    script = """
        const { MinimizationsCard } = await import("/views/storage.js");
        const card = new MinimizationsCard({ latest: { minimizations: arguments[0] } });
        card.update();
        return [...card.node.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    """
    header, *rows = browser.run(script, all_of_it)
    assert header == ["Minimization", "Iteration", "Loss", "Gradient", "Step", "Evaluations", "Portions", "Backups"]
    shown, portions = ["12", "0.26939", "0.0069", "0.5", "1,013"], ["37 of 64", "3, 1 first"]
    assert rows == [["first", *"–––––", *portions], ["fit", *shown, *portions]]
    assert browser.problems() == []
    server.end()


def test_a_refused_push_is_an_error_of_its_worker_and_a_banner_with_cause_and_remedy(commands, browser):
    server, url = serve(commands)
    with RawWorkers(server.address, ["w0", "w1"], {"W": (3, 4)}):
        browser.open(url)
        wait_inside(browser, "job.history.length > 1")
        assert browser.value("document.querySelector('.findings').hidden")
        bad = Client(server.address)
        sender = bad.join("bad")
        with pytest.raises(NotFinite):
            bad.unary(
                Push(sender=sender, sequence=1, gradients=(Gradient("W", 0, np.full((3, 4), np.nan, np.float32)),))
            )
        banner = browser.wait_for("document.querySelector('.findings li[data-level=error]')?.textContent")
        assert "a push of worker 'bad' was refused, and has changed nothing: " in banner
        assert "Remedy: look for NaN in its examples" in banner
        assert "NotFinite" in wait_inside(browser, "row('bad').querySelector('.error:not([hidden])')?.textContent")
        bad.channel.close()
    assert browser.problems() == []
    server.end()


def test_names_of_a_cluster_are_text_and_no_layout_overflows(commands, browser):
    server, url = serve(commands)
    worker, variable = "<img src=x onerror=document.title='hacked'>", "<b onclick=alert(1)>W</b>/kernel"
    with RawWorkers(server.address, [worker, "w" * 60], {variable: (3, 4), "b": (4,)}):
        browser.open(url)
        browser.wait_for("document.querySelectorAll('.legend li').length === 2")
        assert browser.value("[...document.querySelectorAll('.legend a')].map((one) => one.textContent)[0]") == worker
        assert browser.value("document.querySelectorAll('img, b[onclick]').length") == 0
        assert browser.value("document.title") != "hacked"
        for width, scheme in itertools.product((390, 820, 1440), ("light", "dark")):
            browser.resize(width, 900)
            browser.media(scheme)
            for fragment in ("", "#worker=" + "w" * 60):
                browser.run("location.hash = arguments[0]", fragment)
                wide = browser.value("document.documentElement.scrollWidth")
                assert wide <= width, (width, scheme, fragment)
            light = sum(map(int, re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor"))))
            assert (light < 384) == (scheme == "dark")
    assert browser.problems() == []
    server.end()


def test_the_keyboard_reaches_everything_and_escape_closes_a_panel(commands, browser):
    server, url = serve(commands)
    with RawWorkers(server.address, ["w0", "w1"], {"W": (3, 4), "b": (4,)}):
        browser.open(url)
        browser.wait_for("document.querySelectorAll('.legend li').length === 2")
        browser.run("document.querySelectorAll('[aria-label$=\"as a table\"]').forEach((one) => one.click())")
        listed = "[...document.querySelectorAll('a[href], button, [tabindex=\"0\"]')]"
        operable = f"{listed}.filter((one) => one.checkVisibility())"
        wanted = browser.wait_for(f"{operable}.length > 30 && {operable}.length")
        browser.run(f"window.reached = new Set(); {operable}.forEach((one, place) => (one.dataset.place = place))")
        browser.run("document.addEventListener('focusin', (event) => reached.add(event.target.dataset.place))")
        browser.press(*["TAB"] * (wanted + 5))
        assert browser.value("reached.size") >= wanted
        unnamed = "one.tagName !== 'A' && !(one.getAttribute('aria-label') || one.textContent.trim())"
        assert browser.value(f"{operable}.filter((one) => {unnamed}).length") == 0
        assert browser.value("[...document.querySelectorAll('canvas')].filter((one) => !one.ariaLabel).length") == 0

        browser.run("document.querySelector('.legend a').focus()")
        browser.press("ENTER")
        browser.wait_for("document.activeElement.id === 'panel-title'")
        assert browser.value("location.hash") == "#worker=w0"
        browser.press("ESCAPE")
        assert browser.value("document.querySelector('.panel').hidden")
        assert browser.value("[location.hash, document.activeElement.textContent]") == ["", "w0"]
        browser.open(f"{url}#variable=W")
        browser.driver.refresh()
        browser.wait_for("document.querySelector('.panel h2')?.textContent === 'W'")
    assert browser.problems() == []
    server.end()


def test_a_silent_monitor_is_said_with_the_reason_and_the_page_connects_again_by_itself(commands):
    http = free_address()
    options = ("--http", http)
    server = commands.serve(*options)
    with Browser() as browser:
        browser.open(f"http://{http}/")
        live = "document.querySelector('.connection').textContent === 'live'"
        notice = "(document.querySelector('.notice:not([hidden])')?.textContent ?? '')"
        browser.wait_for(live)
        assert browser.value(notice) == ""
        server.signal(signal.SIGSTOP)
        said = browser.wait_for(f"{notice}.startsWith('No data since') && {notice}")
        assert "the connection is open, but the monitor sends nothing: is its process stopped?" in said
        server.signal(signal.SIGCONT)
        browser.wait_for(live)
        assert browser.value(notice) == ""
        server.end()
        browser.wait_for(f"{notice}.includes('{http} does not answer')")
        assert browser.value("document.body.classList.contains('stale')")
        server = commands.serve(*options)
        browser.wait_for(f"{live} && {notice} === ''")
        server.end()


# --- parts of it ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_history_thins_itself_and_keeps_every_push_and_rectangles_have_the_areas_of_their_sizes(commands, browser):
    server, url = serve(commands)
    browser.open(url)
    points, pushes, first, last = browser.run("""
        const { History, CAPACITY, BANDS } = await import("/data/history.js");
        const history = new History();
        for (let step = 1; step <= CAPACITY + 10; step += 1) {
            const point = { time: step, step, rate: 1, p50: 0, p99: 9, stalenesses: [[0, 1], [40, 1]], variables: {} };
            history.append({ ...point, workers: { w: [step, 1 / step, null, 2] } });
        }
        const ends = [0, history.length - 1].map((at) => history.workers.get("w").steps[at]);
        return [history.length, history.bands.reduce((sum, one) => sum + one, 0), ...ends];
    """)
    assert (points, pushes, first, last) == (512 + 10, 2 * 1034, 2, 1034)
    areas, inside_all = browser.run("""
        const { treemap } = await import("/charts/treemap.js");
        const sizes = [6, 6, 4, 3, 2, 2, 1];
        const placed = treemap(sizes.map((size) => ({ size })), 10, 20, 60, 40);
        const fits = ({ left, top, width, height }) =>
            left > 9.99 && top > 19.99 && left + width < 70.01 && top + height < 60.01;
        return [placed.map(({ item, width, height }) => (width * height) / item.size), placed.every(fits)];
    """)
    np.testing.assert_allclose(areas, [100] * 7)
    assert inside_all
    assert browser.problems() == []
    server.end()
