"""The output of the workers, round after round: files, what is shown of them, and what goes to our own streams."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable, Mapping

from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.destinations import Destinations, Layout
from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.tail import Tail
from rdzv_launcher.run.workers.output.tee import Tee
from rdzv_launcher.run.workers.spec import WorkersSpec

logger = logging.getLogger(__name__)

_STUCK_S, _REST_S = 10.0, 120.0
"""How long the end of a round waits for our own streams to take the rest: while they take none, and at most."""


class Output:
    """One per agent, used by its main thread."""

    def __init__(
        self,
        spec: WorkersSpec,
        layout: Layout,
        capture: Callable[[Mapping[int, str]], Mapping[int, str]] | None = None,
    ) -> None:
        """``capture`` takes over the stderr of workers that would write to ours: ``WorkerMonitor.attach``."""
        self._spec = spec
        self._layout = layout
        self._capture = capture
        self._tee: Tee | None = None
        self._error_files: Mapping[int, str] = {}

    @property
    def root(self) -> str:
        """The directory of the files; ``os.devnull`` for none."""
        return self._layout.root

    def error_file(self, local_rank: int) -> str:
        """Where a worker of the newest round records its exception; empty if nowhere."""
        return self._error_files.get(local_rank, "")

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        """Make ready for a round; adds to the workers' ``variables`` what they have to know of it."""
        self.end()
        found = self._layout.begin(variables)
        self._error_files = found.error_files
        prefixes = {rank: self._prefix(rank, each) for rank, each in variables.items()}
        tails: list[Tail] = []
        filtered: list[FilteredFile] = []
        for stream, paths, needles, path in (
            ("stdout", found.teed_stdouts, self._spec.stdout_filters, found.filtered_stdout),
            ("stderr", found.teed_stderrs, self._spec.stderr_filters, found.filtered_stderr),
        ):
            collected = FilteredFile(path, needles) if needles and path else None
            if collected is not None:
                filtered.append(collected)
            console = Console(stream)
            for local_rank, file in paths.items():
                try:
                    tails.append(Tail(file, prefixes.get(local_rank, ""), console, collected))
                except OSError as error:
                    logger.warning("--tee cannot show %s: %s", file, error.strerror or error)
        self._tee = Tee(tails, filtered)
        if self._capture is None:
            return found
        return Destinations(**{**vars(found), "stderrs": self._capture(found.stderrs)})

    def end(self) -> None:
        """The workers of the round have ended: show the rest of what they wrote."""
        tee, self._tee = self._tee, None
        if tee is not None and not tee.stop(_STUCK_S, _REST_S):
            logger.warning("standard output or error did not take all lines of --tee: the rest is in %s", self.root)

    def _prefix(self, local_rank: int, variables: Mapping[str, str]) -> str:
        """Of each line. ``local_rank`` is not always the LOCAL_RANK of the worker's variables."""
        if not self._spec.prefix_template:
            return f"[{self._spec.role}{local_rank}]:"
        return string.Template(self._spec.prefix_template).safe_substitute(
            role_name=self._spec.role, rank=variables.get("RANK", ""), local_rank=local_rank
        )
