"""How the processes of a job are started: their commands, environments and the files of their security."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pswire.security.credentials import Credentials
from pswire.security.local_tokens import LocalTokens
from pswire.security.token_files import Role
from pswire.system.host import cores
from psworker import environment
from psworker.launch.job import Job
from psworker.launch.machines import Place, Start
from psworker.launch.run_folder import OpenRunFolder

#: The options of processes that are files of this machine.
_FILES = {"tls_ca", "tls_cert", "tls_key", "token_file"}


class Starts:
    """The starts of the processes of one job; `tokens` and `folder` are those of the run, if it has any."""

    def __init__(self, job: Job, tokens: LocalTokens | None, folder: OpenRunFolder | None) -> None:
        self._job, self._tokens, self._folder = job, tokens, folder
        self._name_key = secrets.token_hex(16)  # a worker that is started again takes its place at once

    def credentials(self, role: Role) -> Credentials:
        """Those of a client of the servers in this role."""
        return self._job.security.credentials(self._tokens, role)

    def server(self, name: str, address: str | None, place: Place) -> Start:
        """A server, which is started again at the `address` where the workers know it."""
        job, shard = self._job, self._job.server_names.index(name)
        options = _placed(job.security.server_options(self._tokens), place) | job.log_options
        optimizers = place.file(job.optimizers) if job.optimizers.endswith(".py") else job.optimizers
        return Start(
            job.server_command(shard, place.bind(address or job.bind[shard])),
            environment.of_server(options | {"optimizers": optimizers}),
            environment.of_server({"log_level": "warning"}),
            held=[self._folder.lock] if self._folder else [],
        )

    def monitor(self, servers: Sequence[str]) -> Start:
        """The process of the live page."""
        shown = asdict(self.credentials(Role.OBSERVER))
        shown["client_token_file"] = shown.pop("token_file")
        return Start(
            self._job.monitor_command(servers),
            environment.of_server(shown | self._job.log_options),
            environment.of_server({"log_level": "warning"}),
        )

    def worker(self, name: str, servers: Sequence[str], place: Place) -> Start:
        """A worker; one that starts late takes part in the job of the others, although these may have finished it."""
        job = self._job
        folder = None if job.run_folder is None else job.run_folder.path.absolute()
        options = {**job.worker_options, "checkpoint_dir": folder, "summary_dir": folder, "progress": "off"}
        options |= _placed(asdict(self.credentials(Role.WORKER)), place) | job.log_options
        return Start(
            job.worker_command(name, place.servers([*servers]), place.program(job.script)),
            environment.of_worker({**options, "resume": True, "name_key": self._name_key, "workers": job.workers}),
            threads=job.threads,
            share=max(1, cores() // job.workers),
        )


def _placed(options: Mapping[str, str], place: Place) -> dict[str, str]:
    """The options of a process, with the paths that their files have at its place."""
    return {name: place.file(value) if value and name in _FILES else value for name, value in options.items()}
