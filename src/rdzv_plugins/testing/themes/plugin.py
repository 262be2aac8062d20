"""Theme *plugin*: how a backend behaves before any node has met another.

It has to load quickly and report errors plainly.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Collection
from importlib.metadata import distributions, entry_points
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple
from unittest import mock

from rdzv_plugins.errors import OptionError, RdzvError, UsageError
from rdzv_plugins.installed import normalise
from rdzv_plugins.interfaces import Capability, Request
from rdzv_plugins.options import PortRange, describe_options, parse_conf, parse_options
from rdzv_plugins.registry import ENTRY_POINT_GROUP, PluginHost
from rdzv_plugins.registry.create import NoOptions, prepare
from rdzv_plugins.registry.discovery import PluginRecord
from rdzv_plugins.testing.nodes import NodeTheme
from rdzv_plugins.testing.suite import on_ground

_BUILT_IN = ("static", "rdzv_plugins.backends.static")
_TIMES = 2.0
"""The most CPU time that loading may take, as a multiple of that of a built-in backend."""
_CERTAINLY = 5.0
"""A busy machine does not cause more than this: measuring again would change nothing."""
_ATTEMPTS = 4
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NONSENSE = "~"
_SCALARS = (bool, int, float, str, PortRange)
_SHORT_S = 3


_LOAD_S = 120.0
_PROGRAM = """
import json, sys, time
from importlib.metadata import EntryPoint
from rdzv_plugins.registry.discovery import PluginRecord, validate

name, value = sys.argv[1:]
before = set(sys.modules)
record = PluginRecord(name, value, "", "")
record.plugin = EntryPoint(name, value, "rdzv_plugins").load()
validate(record)
new = {module.partition(".")[0] for module in set(sys.modules) - before}
print(json.dumps({"seconds": time.process_time(), "modules": sorted(new), "error": record.error}))
"""


class PluginTheme(NodeTheme):
    """Tests for a light module, explained and checked options, a well-formed list entry, and errors with a remedy."""

    theme: ClassVar[str] = "plugin"
    builds_on_ground = False

    # loading

    def test_loading_is_fast(self) -> None:
        """Loading it costs hardly more CPU time than loading a built-in backend."""
        record = self.entry.record
        own, other = first_load(record.name, record.value).seconds, first_load(*_BUILT_IN).seconds
        for attempt in range(_ATTEMPTS):  # whatever else the machine does makes a process slower, never faster
            if own <= _TIMES * other:
                return
            if attempt and own > _CERTAINLY * other:
                break
            own = min(own, load(record.name, record.value).seconds)
            other = min(other, load(*_BUILT_IN).seconds)
        raise AssertionError(
            f"an interpreter that has loaded {record.value} has used {own:.2f} s of CPU time, one with a built-in "
            f"backend {other:.2f} s: every launch and every list pays for that; import inside of create()"
        )

    def test_loading_imports_nothing_of_others(self) -> None:
        """Loading it imports nothing but itself, rdzv_plugins and the standard library: no torch, no client library."""
        record = self.entry.record
        found = foreign(first_load(record.name, record.value).modules, record)
        assert not found, f"{record.value} imports {', '.join(found)} when it is loaded: do so inside of create()"

    # its entry in the list

    def test_name_and_summary(self) -> None:
        """Its name is lower-case words with hyphens, its summary is one line."""
        backend = self.entry.backend
        assert _WORD.fullmatch(backend.name), f"the name {backend.name!r} is not lower-case words with hyphens"
        _check_line(backend.summary, "the summary")

    def test_aliases(self) -> None:
        """Its aliases are well-formed, and lead to it."""
        backend = self.entry.backend
        catalog = PluginHost.load().catalog
        for alias in backend.aliases:
            assert _WORD.fullmatch(alias), f"the alias {alias!r} is not lower-case words with hyphens"
            assert alias != backend.name, f"{alias!r} is both name and alias"
            assert catalog.find(alias).backend.name == backend.name

    def test_entry_point_has_the_name_of_the_backend(self) -> None:
        """Its entry point has its name: torchrun finds it by that."""
        found = self.entry
        names = {normalise(each) for each in (found.backend.name, *found.backend.aliases)}
        assert any(normalise(each.name) in names for each in entry_points(group=ENTRY_POINT_GROUP)), (
            f"no entry point is called {found.backend.name!r}: torchrun looks for it behind "
            f"rdzv-plugins.{found.record.name}, and does not find it"
        )

    # options

    def test_every_option_has_help(self) -> None:
        """Every option has one line of help."""
        for info in describe_options(self.entry.backend.options):
            _check_line(info.help, f"the help of option {info.name!r}")

    def test_options_have_types_that_text_can_give(self) -> None:
        """Every option is of a type that text can give."""
        for name, hint in self._hints().items():
            assert _is_scalar(hint), (
                f"option {name!r} is of type {hint}: take bool, int, float, str, PortRange or Literal, each also | None"
            )

    def test_defaults_parse_from_their_text(self) -> None:
        """Every default, written after --rdzv-conf, gives itself."""
        options = self.entry.backend.options or NoOptions
        given = dict(self.harness.conf)
        for info in describe_options(options):
            if info.default in (None, "", "REQUIRED") or info.name in given:
                continue
            pair = f"{info.name}={info.default}"
            default = getattr(parse_options(options, given, "the backend"), info.name)
            try:
                parsed = getattr(parse_options(options, given | parse_conf(pair), "the backend"), info.name)
            except UsageError as error:
                raise AssertionError(f"the default {pair} is refused when it is written: {error}") from error
            assert parsed == default, f"{pair} gives {parsed!r}, and without it there is {default!r}"

    def test_unknown_option_is_refused(self) -> None:
        """An unknown option is refused, with the name of the backend and what it accepts."""
        self._refuse("no_such_option", "1")

    def test_wrong_type_is_refused(self) -> None:
        """An option of the wrong type is refused, with its name, the backend and what it takes."""
        for name, hint in self._hints().items():
            if str not in (hint, *typing.get_args(hint)):
                self._refuse(name, _NONSENSE)

    def test_out_of_range_is_refused(self) -> None:
        """An option out of its range is refused, with its name, the backend and the range."""
        options = self.entry.backend.options
        for field in dataclasses.fields(options) if options else ():
            for bound, step in (("minimum", -1), ("maximum", 1)):
                if field.metadata.get(bound) is not None:
                    self._refuse(field.name, str(field.metadata[bound] + step))

    # the endpoint

    def test_good_request_is_accepted(self) -> None:
        """The endpoint and the options of its harness are accepted."""
        request = self._prepare(self.harness.request(self.harness.endpoint(self.directory)))
        assert request.options is not None

    def test_wrong_endpoint_is_refused(self) -> None:
        """An endpoint of a wrong form is refused before anything starts, with what to write instead."""
        if not self.harness.wrong_endpoints:
            self.gap("not tried: the harness lists no wrong endpoints")
        for wrong in self.harness.wrong_endpoints:
            error = self._error(self.harness.request(wrong), UsageError)
            assert wrong in str(error) or "endpoint" in str(error), f"does not name the endpoint {wrong!r}: {error}"

    @on_ground
    def test_nobody_at_the_endpoint(self) -> None:
        """Nobody at the endpoint ends within the time-out in an error that names it and says what to do."""
        nowhere = self.harness.nowhere(self.directory)
        if nowhere is None:
            self.gap("not tried: the harness has no endpoint where nothing listens")
            return
        with self.nodes("2", endpoint=nowhere, conf=self.join_timeout(_SHORT_S)) as job:
            rank = {"node_rank": 1} if self.declares(Capability.NODE_RANK) else {}
            error = job.node(**rank).join().error()
        error.must_be(RdzvError, saying=re.escape(nowhere))

    def _hints(self) -> dict[str, Any]:
        options = self.entry.backend.options
        return typing.get_type_hints(options) if options else {}

    def _prepare(self, request: Request) -> Request:
        """Prepare a request as the launcher does, first of all."""
        with mock.patch.dict(os.environ, self.harness.environment):
            return prepare(self.entry, request)

    def _error(self, request: Request, kind: type[RdzvError]) -> RdzvError:
        """How the request is refused: this has to be ``kind``, with a remedy."""
        what = f"--rdzv-endpoint={request.endpoint} --rdzv-conf={dict(request.conf)}"
        try:
            self._prepare(request)
        except RdzvError as raised:
            error = raised
        else:
            raise AssertionError(f"{what} is not refused")
        wrong = f"{what} is refused by {type(error).__name__}, not by {kind.__name__}: {error}"
        assert isinstance(error, kind), wrong
        assert error.remedy, f"{what} is refused without a remedy: {error}"
        return error

    def _refuse(self, key: str, value: str) -> None:
        endpoint = self.directory / f"endpoint-{key}-{value}"
        endpoint.mkdir()
        error = self._error(self.harness.request(self.harness.endpoint(endpoint), conf={key: value}), OptionError)
        for word in (key, self.entry.backend.name):
            assert word in str(error), f"does not name {word!r}: {error}"


def _check_line(text: str, what: str) -> None:
    assert text.strip(), f"{what} is empty"
    assert "\n" not in text, f"{what} has more than one line"


def _is_scalar(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        kinds = [each for each in typing.get_args(hint) if each is not NoneType]
        return len(kinds) == 1 and _is_scalar(kinds[0])
    return hint in _SCALARS or typing.get_origin(hint) is Literal


class Loaded(NamedTuple):
    """An interpreter that has loaded one plug-in and asked it for its backends."""

    seconds: float
    """CPU time in seconds, including the start of the interpreter."""
    modules: Collection[str]
    """Top-level names of what the plug-in has imported, including itself."""


def load(name: str, value: str) -> Loaded:
    """Load the entry point ``name = value``. Raises AssertionError with its output if that fails."""
    command = [sys.executable, "-c", _PROGRAM, name, value]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOAD_S)
    assert done.returncode == 0, f"loading {value} failed:\n{done.stderr}"
    data = json.loads(done.stdout.splitlines()[-1])  # it may print something itself
    assert not data["error"], f"the plug-in {value} {data['error']}"
    return Loaded(data["seconds"], data["modules"])


first_load = functools.cache(load)
"""The same, once for all tests of this process."""


def foreign(modules: Collection[str], record: PluginRecord) -> list[str]:
    """The modules installed by other distributions: neither the plug-in's own, nor of this project."""
    own = record.value.partition(":")[0].partition(".")[0]
    unknown = set(modules) - {*sys.stdlib_module_names, "rdzv_plugins", "pluggy", own}
    if not unknown:
        return []
    mine = normalise(record.distribution)
    others = [each for each in distributions() if normalise(each.metadata["Name"] or "") != mine]
    installed = {path.parts[0].partition(".")[0] for other in others for path in other.files or ()}
    return sorted(unknown & installed)
