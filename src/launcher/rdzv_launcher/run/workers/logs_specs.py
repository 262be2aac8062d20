"""--logs-specs: a third-party class derived from torch's ``LogsSpecs``. torch is imported only if the flag is given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rdzv_launcher.run.workers.output.log_files import Destinations, Stream
from rdzv_launcher.run.workers.spec import Streams, WorkersSpec
from rdzv_plugins.errors import PluginError, UsageError
from rdzv_plugins.installed import entry_points

logger = logging.getLogger(__name__)

_GROUP = "torchrun.logs_specs"


class ThirdPartyLogs:
    """Takes the place of our ``Logs``; everything that it decides, it decides as it does under torchrun."""

    def __init__(self, spec: WorkersSpec, made: Any = None) -> None:
        """``made`` is such an object, to be used in place of --logs-specs.

        Raises ``UsageError`` if there is no such entry point, ``PluginError`` if the object cannot be created.
        """
        self._name = spec.logs_specs or type(made).__name__
        self._inner: Any = made
        if made:
            return
        found = {each.name: each for each in entry_points(_GROUP)}
        if self._name not in found:
            raise UsageError(
                f"--logs-specs={self._name}: no installed package has such an entry point in the group {_GROUP}",
                remedy=f"There are {', '.join(sorted(found))}." if found else "There is none at all.",
            )
        try:
            self._inner = found[self._name].load()(
                log_dir=spec.log_dir or None,
                redirects=_torchs(spec.redirects),
                tee=_torchs(spec.tee),
                local_ranks_filter=set(spec.shown_ranks) or None,
            )
        except Exception as error:
            raise self._fault(error) from error

    @property
    def root(self) -> str:
        """The directory in which it says the files are."""
        return str(self._inner.root_log_dir)

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        """Return the files of a round; adds to the workers' ``variables``. Raises ``PluginError``."""
        try:
            there = self._inner.reify(variables)
            found = Destinations(
                Stream(dict(there.stdouts), dict(there.tee_stdouts), there.filtered_stdout),
                Stream(dict(there.stderrs), dict(there.tee_stderrs), there.filtered_stderr),
                dict(there.error_files),
            )
        except Exception as error:
            raise self._fault(error) from error
        if not found.stdout.paths.keys() == found.stderr.paths.keys() == variables.keys():
            raise self._fault(ValueError("it does not say of each local rank where its output goes"))
        return found

    def _fault(self, error: Exception) -> PluginError:
        return PluginError(
            f"--logs-specs={self._name}: {type(error).__name__}: {error}",
            remedy="That is an error of the class, or of what it was asked for. Without the flag, torchrun's layout is "
            "used.",
        )


def _torchs(streams: Streams) -> Any:
    from torch.distributed.elastic.multiprocessing import Std

    if streams.by_rank is None:
        return Std(int(streams.all_ranks))
    return {rank: Std(int(value)) for rank, value in streams.by_rank.items()}
