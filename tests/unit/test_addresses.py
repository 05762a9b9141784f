from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.addresses import Multiaddr, host_fault, is_loopback, multiaddr, parse_multiaddr

IPV6 = "is an IPv6 address, and IPv6 is not supported; give an IPv4 address"
NO_IPV4 = "is no IPv4 address; write four numbers from 0 to 255, for example 192.0.2.11"
NO_ADDRESS = "is no address; write an IPv4 address or a DNS name"
NOWHERE = "is nothing to connect to; write the address that the other hosts use"

_hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.from_regex(r"[a-z0-9_]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z][a-z0-9]{0,5}){0,2}", fullmatch=True).filter(
        lambda name: host_fault(name) is None
    ),
)


@given(_hosts, st.integers(1, 65535), st.none() | st.from_regex(r"[A-Za-z0-9]{1,60}", fullmatch=True))
def test_what_is_built_is_parsed_to_the_same_parts(host: str, port: int, peer: str | None) -> None:
    assert parse_multiaddr(multiaddr(host, port, peer)) == Multiaddr(host=host, port=port, peer=peer)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.0.2.11", "/ip4/192.0.2.11/tcp/31337/p2p/QmA"),
        # What a node binds in a swarm of several hosts.
        ("0.0.0.0", "/ip4/0.0.0.0/tcp/31337/p2p/QmA"),
        ("gpu-a", "/dns4/gpu-a/tcp/31337/p2p/QmA"),
        ("gpu_a.rack-1.example", "/dns4/gpu_a.rack-1.example/tcp/31337/p2p/QmA"),
    ],
)
def test_an_address_and_a_name_are_written_in_their_own_way(host: str, expected: str) -> None:
    assert multiaddr(host, 31337, "QmA") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "192.0.2.1:31337",
        "/ip4/192.0.2.1",
        "/ip4/192.0.2.1/udp/1",
        "/ip4/192.0.2.1/tcp/1/",
        "/ip4/192.0.2.1/tcp/1/p2p/",
        "/ip4/192.0.2.1/tcp/1/p2p/a b",
        "/ip4/192.0.2.1/tcp/1/p2p/a/p2p/b",
        "/ip4/192.0.2.1/tcp/x",
        "/ip4/192.0.2.1/tcp/٣",
        " /ip4/192.0.2.1/tcp/1",
        "/ip4/192.0.2.1/tcp/1\n",
    ],
)
def test_a_text_that_is_no_multiaddr_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of a peer|is no peer id"):
        parse_multiaddr(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/ip6/::1/tcp/1", "begins with /ip6/; only /ip4/ and /dns4/ are supported"),
        ("/dns6/a/tcp/1", "begins with /dns6/"),
        ("/ip4/gpu-a/tcp/1", "has gpu-a after /ip4/, which takes an IPv4 address"),
        ("/ip4/192.0.2.300/tcp/1", "which takes an IPv4 address"),
        ("/dns4/192.0.2.1/tcp/1", "has 192.0.2.1 after /dns4/, which takes a DNS name"),
        ("/dns4/-a/tcp/1", '"-a" is no address'),
        ("/ip4/192.0.2.1/tcp/0", "port 0 is none; ports are 1 to 65535"),
        ("/ip4/192.0.2.1/tcp/65536", "port 65536 is none"),
    ],
)
def test_a_multiaddr_that_leads_nowhere_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_multiaddr(text)


@pytest.mark.parametrize("host", ["a/tcp/1", "", "::1", "a b", "192.0.2.999"])
def test_no_multiaddr_is_built_of_what_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match=r"is no|IPv6"):
        multiaddr(host, 1)


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("192.0.2.11", None),
        ("127.0.0.1", None),
        ("gpu-a", None),
        ("gpu_a.lan", None),
        ("3com.example", None),
        ("a" * 63 + ".example", None),
        ("::1", IPV6),
        ("2001:db8::7", IPV6),
        ("[2001:db8::7]", IPV6),
        ("[2001:db8::7]:4000", IPV6),
        ("fe80::1%eth0", IPV6),
        ("192.0.2.300", NO_IPV4),
        ("192.0.2", NO_IPV4),
        ("192.0.2.1.5", NO_IPV4),
        ("012.0.2.1", NO_IPV4),
        ("12", NO_IPV4),
        ("gpu.1", NO_IPV4),
        ("0.0.0.0", NOWHERE),
        ("224.0.0.1", NOWHERE),
        ("255.255.255.255", NOWHERE),
        ("gpu-a:31337", "ends with a port; write gpu-a alone, a port belongs to a node or bootstrap peer"),
        ("192.0.2.1:1", "ends with a port; write 192.0.2.1 alone, a port belongs to a node or bootstrap peer"),
        ("/ip4/192.0.2.1/tcp/1", "is a multiaddr; write its IPv4 address or DNS name alone"),
        ("", NO_ADDRESS),
        ("-a", NO_ADDRESS),
        ("a-", NO_ADDRESS),
        ("a..b", NO_ADDRESS),
        ("a.example.", NO_ADDRESS),
        ("a b", NO_ADDRESS),
        ("a\n", NO_ADDRESS),
        ("ops@a", NO_ADDRESS),
        ("a/b", NO_ADDRESS),
        ("bücher.example", NO_ADDRESS),
        ("a" * 64, NO_ADDRESS),
        (".".join(["abcdefg"] * 32), NO_ADDRESS),
    ],
)
def test_what_an_operator_writes_as_a_host_is_judged_with_what_to_write(written: str, fault: str | None) -> None:
    assert host_fault(written) == fault


def test_what_means_this_machine_everywhere_is_known() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "a.localhost"))
    assert not any(is_loopback(host) for host in ("192.0.2.1", "0.0.0.0", "localhost.example", "127.example"))
