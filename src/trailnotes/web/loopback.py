"""Check whether an address leads to this machine alone."""

from __future__ import annotations

import ipaddress

LOOPBACK = "127.0.0.1"
PUBLIC_HOST_WARNING = (
    "would let other machines in, without passwords or encryption: add --public if that is meant, or leave --host out"
)


def is_loopback(host: str) -> bool:
    """Tell whether a host is reached from this machine alone: a name other than ``localhost`` may lead anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
