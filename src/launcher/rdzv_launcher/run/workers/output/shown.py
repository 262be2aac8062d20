"""What is shown of the workers' output on our own streams: ``--tee``, its prefixes, stamps and folded lines."""

from __future__ import annotations

import logging
import socket
import string
from collections.abc import Mapping

from rdzv_launcher.run.workers.output.allowance import Allowance
from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.destinations import Destinations
from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.tail import Tail
from rdzv_launcher.run.workers.output.tee import Tee
from rdzv_launcher.run.workers.output.view import Folded, Plain, View, with_time, without_time
from rdzv_launcher.run.workers.spec import WorkersSpec

logger = logging.getLogger(__name__)


def show(
    found: Destinations, spec: WorkersSpec, variables: Mapping[int, Mapping[str, str]], ranks: Mapping[int, int]
) -> Tee:
    """Start showing the files of a round that are to be shown.

    ``variables`` are those of the workers and ``ranks`` their global ranks, both by local rank.
    """
    logs, host = spec.logs, socket.gethostname()
    stamped = with_time if logs.timestamps else without_time
    tails, filtered, views = list[Tail](), list[FilteredFile](), list[View]()
    for stream, paths, needles, path in (
        ("stdout", found.teed_stdouts, spec.stdout_filters, found.filtered_stdout),
        ("stderr", found.teed_stderrs, spec.stderr_filters, found.filtered_stderr),
    ):
        collected = FilteredFile(path, needles) if needles and path else None
        if collected is not None:
            filtered.append(collected)
        prefixes = {each: _prefix(spec, host, each, variables[each]) if each in variables else "" for each in paths}
        kind = Folded if logs.fold and len(paths) > 1 else Plain
        views.append(view := kind(Console(stream), prefixes, stamped, ranks))
        for each, file in paths.items():
            try:
                tails.append(
                    Tail(
                        file,
                        each,
                        view,
                        filtered=collected,
                        prefix=prefixes[each],
                        allowance=Allowance() if logs.fold else None,
                    )
                )
            except OSError as error:
                logger.warning("--tee cannot show %s: %s", file, error.strerror or error)
    return Tee(tails, filtered, views)


def _prefix(spec: WorkersSpec, host: str, local_rank: int, variables: Mapping[str, str]) -> str:
    """The prefix of each line. ``local_rank`` is not always the LOCAL_RANK of the worker's variables."""
    template = spec.prefix_template or ("${host}:${rank} " if spec.logs.prefix else "[${role_name}${local_rank}]:")
    return string.Template(template).safe_substitute(
        role_name=spec.role, rank=variables.get("RANK", ""), local_rank=local_rank, host=host, hostname=host
    )
