"""Faults in its options: no help, a type that text cannot give, a default that its own text does not give."""

from dataclasses import dataclass

from right_state import backend

from rdzv_plugins import hookimpl, option
from rdzv_plugins.dynamic.options import DynamicSettings


@dataclass(frozen=True)
class Options(DynamicSettings):
    silent: int = option(1, help="")
    listed: list = option(None, help="Text cannot give a list: it becomes one letter by letter.")  # noqa: RUF009
    seconds: int = option(2.5, help="Text cannot give half a second.")


@hookimpl
def rdzv_register_backends():
    return backend("plugin-options-unexplained", options=Options)
