"""What the processes of a job write: logged in the run's folder, shown, and read for where servers and page are."""

import re
import time
from collections.abc import Callable
from functools import partial

from psworker.launch.display.plain import Display
from psworker.launch.machines import JobProcess
from psworker.launch.processes import Stream
from psworker.launch.reports import Reports
from psworker.launch.run_folder import OpenRunFolder

_LISTENING = re.compile(r"^psserver: .*\blistening on (\S+)$", re.MULTILINE)
#: The line of the process with the live page.
_PAGE = re.compile(r"^psserver: monitor at (\S+)$", re.MULTILINE)
#: The lines of a server that are not shown; and while the job is stopped, whose workers give their examples back.
_ROUTINE = re.compile(r"^psserver: .*\b(?:listening on|stopped at) ")
_ROUTINE_AT_STOP = re.compile(rf"{_ROUTINE.pattern}|^.* will be handed out again: worker ")


class ProcessOutput:
    """The output of all processes of one job. For several threads, as the display and the folder are.

    `listening` is called with a server's name and address when it has said that it listens; `failed` with the error of
    an output that its reader has closed. `folder` is the run's, `page_query` is appended to the address of the live
    page that is shown, and `stopping` is True while the job ends.
    """

    def __init__(
        self, display: Display, listening: Callable[[str, str], None], failed: Callable[[Exception], None]
    ) -> None:
        self.reports = Reports()
        self.folder: OpenRunFolder | None = None
        self.page_query = ""
        self.stopping = False
        self._display, self._listening, self._failed = display, listening, failed

    def of_server(self, server: JobProcess, stream: Stream, lines: list[str]) -> None:
        """Shows the lines that are not routine."""
        self._log(server.name, lines)
        routine = _ROUTINE_AT_STOP if self.stopping else _ROUTINE
        if others := [line for line in lines if not routine.match(line)]:
            self._show(server.name, stream, others)
        for address in _LISTENING.findall("\n".join(lines)):
            self._listening(server.name, address)

    def of_monitor(self, monitor: JobProcess, stream: Stream, lines: list[str]) -> None:
        """Shows where the live page is, and other lines."""
        self._log(monitor.name, lines)
        if others := [line for line in lines if not _PAGE.match(line)]:
            self._show(monitor.name, stream, others)
        for url in _PAGE.findall("\n".join(lines)):
            self.shown(partial(self._display.notice, needed=True), f"psworker: live page at {url}{self.page_query}")

    def of_worker(self, worker: JobProcess, stream: Stream, lines: list[str]) -> None:
        """Shows the lines, without the traceback of an error that another worker has shown."""
        written, shown = self.reports.read(worker.name, lines) if stream == "stderr" else (lines, lines)
        self._log(worker.name, written)
        if shown:
            self._show(worker.name, stream, shown)

    def say(self, name: str, text: str) -> None:
        """Log and show a line about a process."""
        text = f"psworker: {time.strftime('%H:%M:%S')} {text}"
        self._log(name, [text])
        self.shown(self._display.process_event, name, text)

    def shown(self, write: Callable[..., None], *arguments: object) -> None:
        """Write to the display; an output that its reader has closed ends the job, not only this thread."""
        try:
            write(*arguments)
        except OSError as error:
            self._failed(error)

    def _log(self, name: str, lines: list[str]) -> None:
        if self.folder and (problem := self.folder.log(name, lines)):
            self.shown(self._display.process_event, name, f"psworker: {problem}")

    def _show(self, name: str, stream: Stream, lines: list[str]) -> None:
        self.shown(self._display.lines, name, stream, lines)
