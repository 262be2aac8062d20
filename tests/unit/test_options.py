"""--rdzv-conf: from text to a backend's options, with errors that name key, backend and what is accepted."""

from dataclasses import dataclass
from typing import Literal

import pytest

from rdzv_plugins import option
from rdzv_plugins.errors import OptionError, UsageError
from rdzv_plugins.options import PortRange, describe_options, parse_conf, parse_options


@dataclass(frozen=True)
class Options:
    flag: bool = option(False, help="A switch.")
    count: int = option(3, help="A number of things.", minimum=1, maximum=9)
    patience: float = option(60, help="How long to wait.", unit="s", minimum=0.1)
    name: str = option("x", help="A name.")
    mode: Literal["fast", "safe"] = option("safe", help="The mode.")
    ports: PortRange = option(PortRange(), help="Where to listen.")
    limit: int | None = option(None, help="A limit, or none.")


def parse(**conf):
    return parse_options(Options, conf, "backend 'toy'")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1, b = two ,c=x=y", {"a": "1", "b": "two", "c": "x=y"}),
        ("", {}),
        (" , ", {}),
        ("a=1,a=1", {"a": "1"}),
        ("a=1,b=3,a=2", "'a' twice: '1' and '2'"),
        *((text, "not of the form key=value") for text in ("a", "a=", "=1", "a=1,b")),
    ],
)
def test_conf_is_split_into_pairs(text, pairs):
    if isinstance(pairs, dict):
        assert parse_conf(text) == pairs
        return
    with pytest.raises(UsageError, match=pairs):
        parse_conf(text)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"flag": "yes"}, True),
        ({"flag": "0"}, False),
        ({"flag": False}, False),
        ({"count": "9"}, 9),
        ({"patience": "0.1"}, 0.1),
        ({"name": "a b"}, "a b"),
        ({"mode": "fast"}, "fast"),
        ({"ports": "29501"}, PortRange(29501, 29501)),
        ({"ports": "29501-29510"}, PortRange(29501, 29510)),
        ({"limit": "7"}, 7),
    ],
)
def test_text_becomes_the_fields_type(conf, expected):
    (key,) = conf
    value = getattr(parse(**conf), key)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("flag", "maybe", "true or false"),
        ("count", "1.5", "a whole number from 1 to 9"),
        ("count", "0", "from 1 to 9"),
        ("count", "10", "from 1 to 9"),
        ("patience", "0.09", "at least 0.1"),
        ("patience", "nan", "at least 0.1"),
        ("patience", "inf", "at least 0.1"),
        ("mode", "slow", "one of fast, safe"),
        ("ports", "70000", "a port or a range of ports"),
        ("ports", "5-4", "a port or a range of ports"),
        ("limit", "none", "a whole number"),
    ],
)
def test_wrong_value_names_key_backend_and_what_is_accepted(key, value, accepted):
    with pytest.raises(OptionError, match=rf"{key}={value} .*'toy'") as caught:
        parse(**{key: value})
    assert caught.value.remedy.startswith(f"{key} takes ")
    assert accepted in caught.value.remedy


def test_unknown_key_gets_the_nearest_and_the_list():
    with pytest.raises(OptionError, match="'toy' has no option 'patient'; did you mean 'patience'") as caught:
        parse(patient="1")
    assert caught.value.remedy == "It accepts: count, flag, limit, mode, name, patience, ports."


def test_class_that_checks_its_fields_itself_is_quoted():
    @dataclass(frozen=True)
    class Picky:
        low: int = option(1, help="Less than high.")

        def __post_init__(self):
            raise ValueError(f"low={self.low} is not below 2")

    with pytest.raises(OptionError, match="backend 'toy': low=3 is not below 2"):
        parse_options(Picky, {"low": "3"}, "backend 'toy'")


def test_description_has_every_field_in_order_and_its_defaults_can_be_given_back():
    infos = describe_options(Options)
    assert [info.name for info in infos] == ["flag", "count", "patience", "name", "mode", "ports", "limit"]
    patience = infos[2]
    told = (patience.default, patience.unit, patience.help, patience.type, infos[6].default)
    assert told == ("60", "s", "How long to wait.", "a number (s), at least 0.1", None)
    assert parse(**{info.name: info.default for info in infos if info.default is not None}) == Options()
    assert describe_options(None) == []


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_that_no_shell_took_away_are_named(quote):
    """From YAML or a list: torch ignores such a key."""
    for text in (f"{quote}count=5{quote}", f"count={quote}5{quote}"):
        with pytest.raises(OptionError, match="option 'count' of backend 'toy' was passed with quotes") as caught:
            parse_options(Options, parse_conf(text), "backend 'toy'")
        assert "Remove them" in caught.value.remedy
    assert parse(name="'x'").name == "'x'", "a text may have them"
