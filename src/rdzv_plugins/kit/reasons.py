"""What is wrong with a service, in words, and what to do about it."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from rdzv_plugins.kit.security import Security

_REFUSED = f"[Errno {errno.ECONNREFUSED}]"
_PLAIN_TEXT = ("wrong version", "record layer")
"""In what OpenSSL says when the other side does not speak TLS."""


@dataclass(frozen=True)
class Reason:
    """Why a service cannot be used. ``final``: waiting will not help. ``access``: it answers, but not to this user."""

    text: str
    remedy: str = ""
    final: bool = False
    access: bool = False

    def error(self, lead: str, service: str) -> EndpointUnreachable:
        """Make an exception of it; ``lead`` says what was tried, ``service`` what should be there, such as "Redis"."""
        kind = AccessRefused if self.access else EndpointUnreachable
        return kind(f"{lead}: {self.text}", remedy=self.remedy or default_remedy(service))


class Unusable(Exception):
    """Raised by an author's coroutines: the service cannot be used now, for the given ``reason``."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


SILENT = Reason("it accepts connections, but does not answer (it stands still, or is something else)")
NO_ANSWER = Reason("no answer (machine down, or a firewall drops the packets)")
HANGS_UP = Reason("it hangs up")


def default_remedy(service: str) -> str:
    """The remedy that fits whatever may be wrong with a service."""
    return f"Check that {service} runs there, and the address, the route and the firewalls between."


def network_reason(error: BaseException, service: str, security: Security | None = None) -> Reason | None:
    """Explain an error of a socket or of TLS, or the one that it was raised from; None if it is neither."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError):
            return _of_tls(each, service, security or Security())
        if isinstance(each, socket.gaierror):
            return Reason(f"the name does not resolve ({each.strerror})", "Check the name, or give an IP address.")
        if isinstance(each, ConnectionRefusedError) or (isinstance(each, OSError) and _REFUSED in str(each)):
            return Reason("connection refused (nobody listens there yet)", f"Is {service} running there, on that port?")
        if isinstance(each, OSError) and each.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return Reason((each.strerror or str(each)).lower(), "Check the address and the route.")
    return HANGS_UP if isinstance(error, (OSError, EOFError)) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def no_tls(service: str) -> Reason:
    """The reason for a service that was spoken to in TLS and does not speak it."""
    remedy = f"Ask for no TLS, nor cacert and cert; or switch TLS on in {service}."
    return Reason("it does not speak TLS", remedy, final=True)


def _of_tls(error: ssl.SSLError, service: str, security: Security) -> Reason:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message
        if "mismatch" in text.lower():
            remedy = "Its certificate needs this name or address as subject alternative name."
        elif "expired" in text or "not yet valid" in text:
            remedy = "Renew it, or set the clock of this machine."
        else:
            whose = security.cacert or "the system's authorities"
            remedy = f"It was not signed by {whose}: --rdzv-conf cacert=FILE names the right authority."
        return Reason(f"TLS: its certificate is refused: {text.rstrip('.').lower()}", remedy, final=True)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason:
        mine = f"this node's certificate {security.cert}" if security.cert else "this node has no certificate"
        return Reason(
            f"TLS: it refuses this node ({reason}); {mine}",
            "Give a client certificate that it trusts: --rdzv-conf cert=FILE,key=FILE.",
            final=True,
        )
    return no_tls(service) if any(each in reason for each in _PLAIN_TEXT) else Reason(f"TLS: {reason}")
