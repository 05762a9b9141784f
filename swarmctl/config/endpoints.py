"""Addresses with a port as an operator writes them: `203.0.113.5:31340`."""

from __future__ import annotations

import ipaddress
import re

from swarmctl.addresses import HIGHEST_PORT
from swarmctl.spec import Endpoint

_WRITTEN = re.compile(r"^(?P<ip>[^:\s]+):(?P<port>[0-9]{1,5})$")


def parse_endpoint(written: object) -> Endpoint:
    """`"203.0.113.5:31340"` as an endpoint.

    Raises:
        ValueError: with the predicate of a sentence whose subject is what was written.
    """
    found = _WRITTEN.match(written.strip()) if isinstance(written, str) else None
    if found is None:
        if isinstance(written, str) and written.count(":") > 1:
            raise ValueError("is not IP:PORT with an IPv4 address; IPv6 is not supported")
        raise ValueError('is not IP:PORT; write both, for example "203.0.113.5:31340"')
    try:
        # A name may lead elsewhere from behind what forwards than from before it; everybody is told this one.
        ip = ipaddress.IPv4Address(found["ip"])
    except ValueError:
        raise ValueError(f"begins with {found['ip']}, which is no IPv4 address") from None
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"begins with {ip}, which nobody can connect to")
    port = int(found["port"])
    if not 1 <= port <= HIGHEST_PORT:
        raise ValueError(f"ends with port {port}; ports are 1 to {HIGHEST_PORT}")
    return Endpoint(ip=str(ip), port=port)
