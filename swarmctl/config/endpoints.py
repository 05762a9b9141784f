"""Addresses with a port as an operator writes them: `203.0.113.5:31340`."""

from __future__ import annotations

import ipaddress
import re

from swarmctl.spec import Endpoint

_WRITTEN = re.compile(r"^(?P<ip>[^:\s]+):(?P<port>\d{1,5})$")
_HIGHEST_PORT = 65535


def parse_endpoint(written: object) -> Endpoint:
    """`"203.0.113.5:31340"` as an endpoint.

    Raises:
        ValueError: with the predicate of a sentence whose subject is what was written.
    """
    found = _WRITTEN.match(written.strip()) if isinstance(written, str) else None
    if found is None:
        raise ValueError('is not IP:PORT; write both, for example "203.0.113.5:31340"')
    try:
        # What libp2p is told names the kind of address, so a DNS name would not do.
        ip = ipaddress.IPv4Address(found["ip"])
    except ValueError:
        raise ValueError(f"begins with {found['ip']}, which is no IPv4 address") from None
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"begins with {ip}, which nobody can connect to")
    port = int(found["port"])
    if not 1 <= port <= _HIGHEST_PORT:
        raise ValueError(f"ends with port {port}; ports are 1 to {_HIGHEST_PORT}")
    return Endpoint(ip=str(ip), port=port)
