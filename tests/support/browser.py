"""Headless Chromium, for tests of pages and screenshots of the documentation. Needs Debian's `chromium-driver`."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.support.commands import BOUND

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

#: Why tests with a browser are skipped; "": they run.
MISSING = "" if CHROMIUM and DRIVER else "needs Chromium and its driver: apt-get install chromium chromium-driver"

#: As root there is no sandbox; the rest keeps it from calling home.
FLAGS = ["--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb"]
FLAGS += ["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else []


class Browser:
    """One window of a headless Chromium with a fresh profile. Close it, or use it as a context manager.

    `width` and `height` are in CSS pixels, `scale` of which one has device pixels; `scheme` is "light" or "dark".
    """

    def __init__(self, width: int = 1280, height: int = 900, scale: float = 1.0, scheme: str = "light") -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={self._profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        try:
            self.driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
        except BaseException:
            self._profile.cleanup()
            raise
        self.driver.set_script_timeout(BOUND)
        self.resize(width, height, scale)
        self.media(scheme)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends Chromium and removes its profile."""
        self.driver.quit()
        self._profile.cleanup()

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Sets the size of the page's area; below 600 pixels it is a phone with a touch screen."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, scheme: str = "light", reduced_motion: bool = False) -> None:
        """Sets what the user prefers."""
        motion = "reduce" if reduced_motion else "no-preference"
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def open(self, url: str) -> None:
        """Loads a page."""
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """The result of a JavaScript function body; `arguments` are its arguments."""
        return self.driver.execute_script(script, *arguments)

    def value(self, expression: str, *arguments: object) -> Any:
        """The value of a JavaScript expression."""
        return self.run(f"return {expression}", *arguments)

    def wait_for(self, expression: str, *arguments: object, seconds: float = BOUND) -> Any:
        """Waits until a JavaScript expression is true; its value then."""
        end = time.monotonic() + seconds
        while not (value := self.value(expression, *arguments)):
            assert time.monotonic() < end, f"not within {seconds:g} s: {expression}; {self.problems()}"
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        """Presses keys by their names in `selenium.webdriver.common.keys.Keys`, or characters, where the focus is."""
        actions = webdriver.ActionChains(self.driver)
        for key in keys:
            actions.send_keys(getattr(Keys, key, key))
        actions.perform()

    def problems(self) -> list[str]:
        """The warnings and errors of the console since the last call, without advice on speed."""
        entries: Sequence[dict[str, Any]] = self.driver.get_log("browser")
        entries = [entry for entry in entries if entry["source"] != "rendering"]
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self, path: Path, element: str = "", colors: int = 256) -> None:
        """Writes what is seen, or the element of an XPath, as a PNG of so many colors: a third of the size with all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if element:
            self.driver.find_element("xpath", element).screenshot(str(path))
        else:
            self.driver.save_screenshot(str(path))
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(colors, kmeans=3, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
