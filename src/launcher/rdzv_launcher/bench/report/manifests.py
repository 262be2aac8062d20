"""What the results of a page were measured on, and what differs between them, marked."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_launcher.bench.method.results import Result
from rdzv_launcher.bench.report.html import Html, table, tag

_MACHINE = ("cpu", "cores", "memory_gib", "kernel", "limits", "python", "versions")
_ABSENT = "-"
DIFFERS = "≠ "
"""Put before a name whose values are not all the same, so that colour is not the only mark."""


def settings(results: Sequence[Result]) -> dict[str, str]:
    """A letter for each machine with its versions, by the name of the result: equal ones share it."""
    letters: dict[str, str] = {}
    names = itertools.chain(string.ascii_uppercase, (f"Z{number}" for number in itertools.count(1)))
    found = {}
    for result in results:
        about = json.dumps(_flat(result.manifest, _MACHINE), sort_keys=True)
        if about not in letters:
            letters[about] = next(names)
        found[result.name] = letters[about]
    return found


def results_table(results: Sequence[Result]) -> Html:
    """The results as a table, one row for each."""
    letters = settings(results)
    rows = []
    for result in results:
        about = result.manifest
        load = str(about.get("load", "?")) + (f", then {result.end.get('load', '?')}" if result.end else "")
        state = (
            "complete" if result.end is not None else tag("span", "INTERRUPTED: what is here is good", class_="warn")
        )
        rows.append(
            tag(
                "tr",
                tag("td", tag("a", result.name, href=f"#{anchor(result.bench)}")),
                tag("td", letters[result.name]),
                tag("td", str(about.get("started", "?"))),
                tag("td", tag("code", str(about.get("command", "?")))),
                tag("td", load),
                tag("td", state),
            )
        )
    return table(["result", "machine", "started", "command", "load average", "state"], rows)


def machines_table(results: Sequence[Result]) -> Html:
    """A table with a column for each machine with its versions."""
    letters = settings(results)
    columns = {letters[result.name]: _flat(result.manifest, _MACHINE) for result in results}
    intro = (
        "All results are of one machine with the same versions."
        if len(columns) == 1
        else f"{DIFFERS}marks what is not the same everywhere: figures of different machines or versions cannot be "
        "compared as such."
    )
    return Html(tag("p", intro) + _compared({f"machine {name}": values for name, values in columns.items()}))


def options_table(results: Sequence[Result]) -> Html:
    """The options with which each of these results of one benchmark was run."""
    columns = {result.name: _flat(dict(result.manifest.get("options") or {})) for result in results}
    return _compared(columns) if any(columns.values()) else tag("p", "No options are known.")


def _compared(columns: Mapping[str, Mapping[str, str]]) -> Html:
    rows = []
    for key in dict.fromkeys(itertools.chain.from_iterable(columns.values())):
        values = [column.get(key, _ABSENT) for column in columns.values()]
        differs = len(set(values)) > 1
        name = tag("th", (DIFFERS if differs else "") + key, scope="row")
        rows.append(tag("tr", name, [tag("td", value) for value in values], class_="differs" if differs else False))
    return table(["", *columns], rows)


def _flat(values: Mapping[str, Any], keys: Sequence[str] | None = None) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key in keys if keys is not None else values:
        value = values.get(key, _ABSENT)
        if isinstance(value, Mapping):
            flat |= {f"{key}: {name}".replace("_", " "): _text(each) for name, each in value.items()}
        else:
            flat[key.replace("_gib", ", GiB").replace("_", " ")] = _text(value)
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def anchor(text: str) -> str:
    """The identifier by which links on the page reach a section."""
    return "bench-" + "".join(each if each.isalnum() and each.isascii() else "-" for each in text)
