"""Pictures of the live page: light, dark and on a phone."""

import time
from pathlib import Path

from tests.support.browser import Browser
from tests.tools.screenshots.training import LEASE, DeepMnist

#: The steps after which a worker is slowed, and one killed.
SLOWED, KILLED = 300, 700

#: In the page: whether the slowed worker is far behind at this moment.
IS_STALE = "import('/main.js').then(({ job }) => job.worker('worker-1').staleness > 6)"

#: The part of the page with the heat map.
HEAT_MAP = "//section[contains(., 'Staleness by worker')]"


def take(images: Path, folder: Path) -> None:
    """Writes page-top.png, the upper part, page-light.png, page-dark.png, page-phone.png, and two of the heat map."""
    options = ("--shards", "2", "--http", "127.0.0.1:0", "--run-dir", str(folder / "run"), "--checkpoint-every", "20s")
    with DeepMnist(folder, *options, arguments=("--report", "1000000")) as run, Browser(1440, 830) as browser:
        browser.open(run.word_after("live page at "))
        run.wait_for_step(SLOWED)
        browser.picture(images / "heat-map-healthy.png", HEAT_MAP)
        run.slow()
        run.wait_for_step(KILLED)
        run.kill()
        browser.wait_for("document.querySelector('[data-state=lost]')", seconds=4 * LEASE)
        time.sleep(15)  # some curve after it
        browser.wait_for(IS_STALE)
        browser.picture(images / "heat-map-slow.png", HEAT_MAP)
        browser.picture(images / "page-top.png")
        browser.resize(1440, browser.value("document.documentElement.scrollHeight"))
        browser.picture(images / "page-light.png")
        browser.media("dark")
        browser.picture(images / "page-dark.png")
        browser.resize(390, 1400, 1.5)
        browser.picture(images / "page-phone.png")
        assert browser.problems() == []
