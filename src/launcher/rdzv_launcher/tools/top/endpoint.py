"""Everything that is watched at an endpoint: one job, or those that meet at an ``rdzv serve``, which come and go."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rdzv_launcher.tools.job import Meeting
from rdzv_launcher.tools.top.watching import JobWatch
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.threads import OwnThread

OTHERWISE = "`rdzv status` shows what is known of them from outside."
_MOST_JOBS, _AT_ONCE = 64, 16
"""How many jobs are watched at a time: each is a session with some watches."""
_EVERY_S = 2.0
"""Seconds between two requests for the list of jobs: one request each."""


class EndpointWatch:
    """Watches all jobs at an endpoint. Thread-safe. Call ``start`` or ``look_once``, then ``close``."""

    def __init__(self, request: Request, timeout: float) -> None:
        """Reaches the endpoint. Raises ``RdzvError``, also if its nodes cannot be watched, or if there is no job."""
        self._meeting = Meeting(request, timeout, who="top", otherwise=OTHERWISE)
        self._request, self._timeout = request, timeout
        self._lock = threading.Lock()
        self._jobs: dict[str, JobWatch] = {}
        self._problem = ""
        self._left_out = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        found = self._meeting.services()
        self._store = found if isinstance(found, Endpoint) else None
        if isinstance(found, Endpoint):
            names = self._named(self._meeting.runs(found))
            if not names and request.is_named:
                raise EndpointUnreachable(f"run {request.run_id!r} is not at {found}", remedy="Check --rdzv-id.")
            self._take(names)
        else:
            service, run = found
            first = [service]
            self._jobs[run] = JobWatch(
                run, lambda: first.pop() if first else self._service_again(), lambda: True, timeout
            )

    @property
    def where(self) -> str:
        return self._request.endpoint

    def start(self) -> None:
        """Watch from now on, whatever happens to the endpoint."""
        for job in self._jobs.values():
            job.start()
        if self._store is not None:
            self._thread = OwnThread(target=self._run, name="rdzv-top-jobs", on_error=self._failed)
            self._thread.start()

    def look_once(self) -> dict[str, Any]:
        """The same as ``data``, after asking each job. Raises ``RdzvError`` or ``TimeoutError`` if there is no job."""
        if not self._jobs:
            raise EndpointUnreachable(
                f"no job meets at {self.where}",
                remedy="It is --rdzv-endpoint of the job that is asked for, not MASTER_ADDR.",
            )
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = [*threads.map(partial(self._once, alone=len(self._jobs) == 1), self._jobs.values())]
        return {"endpoint": self.where, "problem": "", "jobs": found, "left_out": self._left_out}

    def data(self) -> dict[str, Any]:
        """All that is known now, in its JSON form."""
        with self._lock:
            jobs, problem, left_out = list(self._jobs.values()), self._problem, self._left_out
        found = [job.data() for job in jobs]
        return {"endpoint": self.where, "problem": problem, "jobs": found, "left_out": left_out}

    def close(self) -> None:
        """Stop watching."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(self._timeout)
        for job in self._jobs.values():
            job.close()

    @staticmethod
    def _once(job: JobWatch, *, alone: bool) -> dict[str, Any]:
        try:
            return job.look_once()
        except (RdzvError, TimeoutError) as error:
            if alone:
                raise
            return job.data() | {"problem": str(error)}

    def _service_again(self) -> CoordinationBackend:
        found = self._meeting.services()
        if isinstance(found, Endpoint):
            raise EndpointUnreachable(f"at {found} is another service now")
        return found[0]

    def _run(self) -> None:
        """Keep track of which jobs there are."""
        assert self._store is not None
        while not self._ending.wait(_EVERY_S):
            try:
                names = self._named(self._meeting.runs(self._store))
            except RdzvError as error:
                self._failed(error)
                continue
            gone = self._take(names)
            for job in gone:
                job.close()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._problem = str(error)

    def _named(self, runs: list[str]) -> list[str]:
        return [run for run in runs if run == self._request.run_id] if self._request.is_named else sorted(runs)

    def _take(self, names: list[str]) -> list[JobWatch]:
        """Watch new jobs; returns those that have gone. A job that alone is meant stays, as it may come back."""
        new = []
        with self._lock:
            self._problem = ""
            stays = set(names) | ({self._request.run_id} if self._request.is_named else set())
            gone = [
                self._jobs.pop(run) for run in list(self._jobs) if run not in stays and (names or len(self._jobs) > 1)
            ]
            for run in names:
                if run not in self._jobs and len(self._jobs) < _MOST_JOBS:
                    self._jobs[run] = self._watch(run)
                    new.append(self._jobs[run])
            self._left_out = len([run for run in names if run not in self._jobs])
        if self._thread is not None:
            for job in new:
                job.start()
        return gone

    def _watch(self, run: str) -> JobWatch:
        store, meeting = self._store, self._meeting
        assert store is not None
        return JobWatch(run, lambda: meeting.at(store, run)[0], lambda: run in meeting.runs(store), self._timeout)
