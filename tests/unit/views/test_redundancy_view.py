from __future__ import annotations

import json

from support.builders import a_host, a_server, a_spec

from swarmctl.coverage import analyse, holders_declared
from swarmctl.spec import Domain, SwarmSpec
from swarmctl_cli.views import redundancy, symbols


def thin() -> SwarmSpec:
    hosts = [a_host("a"), a_host("b"), a_host("c")]
    nodes = [a_server("a0", "0:4"), a_server("a1", "4:8"), a_server("b0", "0:6")]
    return a_spec(nodes, minimum=2, by=Domain.HOST, hosts=hosts)


def drawn(spec: SwarmSpec, **policy):
    holders = holders_declared(spec)
    report = analyse(spec, holders, **policy)
    remedy = redundancy.Remedy(repairs=report.repairs)
    return redundancy.render(report, holders, source="the file", remedy=remedy, width=100, symbols=symbols.UNICODE)


def test_a_redundant_swarm_says_what_may_be_lost(golden):
    golden("redundancy-met", drawn(a_spec(minimum=2)))


def test_a_thin_swarm_names_the_ranges_and_the_smallest_repair(golden):
    golden("redundancy-thin", drawn(thin()))


def test_a_gap_says_that_the_model_does_not_run(golden):
    golden("redundancy-gap", drawn(a_spec([a_server("a0", "0:4"), a_server("b0", "6:8")], minimum=1)))


def test_a_repair_that_the_declared_hosts_cannot_hold_says_so(golden):
    golden("redundancy-no-room", drawn(thin(), minimum=4))


def test_the_document_is_plain_json_with_every_block():
    spec = thin()
    report = analyse(spec, holders_declared(spec))
    data = json.loads(json.dumps(redundancy.document(report, source="config")))
    assert data["thin"] == [{"blocks": "6:8", "replicas": 1, "wanted": 2}]
    assert [block["replicas"] for block in data["blocks"]] == [2] * 6 + [1] * 2
    assert data["may_lose"] == {"nodes": ["a0", "b0"], "hosts": ["b"]}
    assert data["sole"]["hosts"] == {"a": ["6:8"]}
