"""What the facts of hosts mean: one test a sentence that `host check` can say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import a_host, a_server, a_spec

from swarmctl import __version__, build
from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import CheckFailed, HostNotSetUp, HostUnreachable
from swarmctl.models.profile import ModelProfile
from swarmctl.node.checkup import Checkup, ModelFound, Said
from swarmctl.node.dial import Call
from swarmctl.operations.hosts.check import failure_of
from swarmctl.operations.hosts.clocks import judge_clocks
from swarmctl.operations.hosts.dialling import Dialled, DialTable, Target
from swarmctl.operations.hosts.findings import Finding, Level, Topic
from swarmctl.operations.hosts.judging import judge, judge_copies
from swarmctl.operations.hosts.nvidia import Card, parse_cards
from swarmctl.operations.hosts.seen import Clock, Seen
from swarmctl.operations.hosts.sizes import need_of, params_of_block
from swarmctl.spec import SwarmSpec
from swarmctl.transport.base import AgentFacts, HostedNode

A, B = HostName("a"), HostName("b")
GIB = 1 << 30
FACTS = AgentFacts(
    version=__version__,
    build=build.digest(),
    python="python",
    python_version="3.11.7",
    hostname="a",
    user="ops",
    now=0.0,
    state="/home/ops/.local/state/swarmctl",
    run="/tmp/swarmctl-1000",
)
CHECKUP = Checkup(
    packages={"petals": "2.2.0.post1", "hivemind": "1.1.12", "torch": "2.13.0", "transformers": "4.34.1"},
    smi=None,
    memory_total=64 * GIB,
    memory_free=32 * GIB,
    disk_folder="/home/ops/.cache/petals",
    disk_free=500 * GIB,
    model=None,
    cached_bytes=0,
    taken={},
    daemon=None,
    modes={},
    killed_at_logout=None,
)
BIG = ModelProfile(
    source="petals-team/StableBeluga2",
    family="llama",
    num_blocks=80,
    hidden_size=8192,
    num_heads=64,
    num_kv_heads=8,
    vocab_size=32000,
)
TWO_CARDS = "0, NVIDIA A100-SXM4-80GB, 81920, 81037\n1, NVIDIA A100-SXM4-80GB, 81920, 3100\n"


def smi(stdout: str = "", code: int | None = 0, stderr: str = "") -> Said:
    return Said(code=code, stdout=stdout, stderr=stderr)


def seen(host: HostName = A, *, facts: AgentFacts = FACTS, **changes: object) -> Seen:
    return Seen(host=host, facts=facts, checkup=replace(CHECKUP, **changes))  # type: ignore[arg-type]


def said(one: Seen, spec: SwarmSpec | None = None, profile: ModelProfile | None = None) -> list[Finding]:
    return [found for found in judge(one, spec or a_spec(), profile) if found.sentence is not None]


def the_one(one: Seen, spec: SwarmSpec | None = None, profile: ModelProfile | None = None) -> Finding:
    (found,) = said(one, spec, profile)
    return found


def node(name: str, peer: str) -> HostedNode:
    return HostedNode(name=NodeName(name), peer=PeerId(peer))


def test_a_host_that_is_as_it_should_be_has_no_sentence_and_a_word_for_each_topic() -> None:
    found = judge(seen(), a_spec(), None)

    assert {one.level for one in found} == {Level.OK}
    assert {one.topic for one in found} == set(Topic) - {Topic.CLOCK, Topic.DIAL, Topic.MODEL}
    assert all(one.found for one in found)


# --- ssh and swarmctl ----------------------------------------------------------------------------------------------


def test_a_host_that_refuses_the_login_is_silent_with_sshs_own_words() -> None:
    failure = HostUnreachable(
        "host a (ops@a): it does not accept your key",
        reasons=["ops@a: Permission denied (publickey)."],
        hints=["by hand: ssh ops@a true"],
    )

    found = the_one(Seen(host=A, failure=failure))

    assert (found.topic, found.level) == (Topic.SSH, Level.SILENT)
    assert found.sentence == "host a (ops@a): it does not accept your key (ops@a: Permission denied (publickey).)"
    assert found.hint == "by hand: ssh ops@a true"
    assert isinstance(failure_of([found]), HostUnreachable)


def test_a_host_without_swarmctl_is_a_fault_and_not_silent() -> None:
    failure = HostNotSetUp("host a (ops@a): there is no ~/x there", hints=["swarmctl host setup a"])

    found = the_one(Seen(host=A, failure=failure))

    assert (found.topic, found.level, found.hint) == (Topic.SWARMCTL, Level.FAULT, "swarmctl host setup a")
    assert isinstance(failure_of([found]), CheckFailed)


def test_another_build_is_named_on_both_sides_whatever_else_is_known() -> None:
    other = replace(FACTS, build="0123456789ab")

    for one in (seen(facts=other), Seen(host=A, facts=other, broken="No module named swarmctl.node.checkup")):
        found = the_one(one)
        assert found.sentence == (
            f"host a has swarmctl {__version__} (build 0123456789ab), "
            f"and this machine {__version__} (build {build.digest()})"
        )
        assert found.hint == "swarmctl host setup a"


def test_a_host_that_cannot_be_looked_at_says_why() -> None:
    found = the_one(Seen(host=A, facts=FACTS, broken="its answer is not understood here"))

    assert found.sentence == "host a cannot be looked at: its answer is not understood here"


def test_a_missing_package_is_a_fault_and_another_version_a_warning() -> None:
    missing = the_one(seen(packages={**CHECKUP.packages, "petals": None, "torch": None}))
    other = the_one(seen(packages={**CHECKUP.packages, "transformers": "4.40.0"}))

    assert (missing.level, missing.sentence) == (Level.FAULT, "host a has no petals, no torch")
    assert other.level is Level.WARNING
    assert other.sentence is not None
    assert other.sentence.endswith("was verified with: transformers 4.40.0 (4.34.1)")


# --- cards and memory ----------------------------------------------------------------------------------------------


def test_the_cards_are_read_from_what_nvidia_smi_says() -> None:
    assert parse_cards(None) == ()
    first, second = parse_cards(smi(TWO_CARDS))
    assert first == Card(index=0, name="NVIDIA A100-SXM4-80GB", total=81920 << 20, free=81037 << 20)
    assert (second.index, second.free) == (1, 3100 << 20)
    (shared,) = parse_cards(smi("0, NVIDIA GB10, [N/A], [N/A]\n"))
    assert (shared.total, shared.free) == (None, None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (smi("Failed to initialize NVML: Driver/library version mismatch\n", 18), "Driver/library version mismatch"),
        (smi("", 127, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), "communicate"),
        (smi("No devices were found\n"), "No devices were found"),
        (smi("", None, "no answer within 8 s"), "no answer within 8 s"),
        (smi("", 9), "it ended with 9"),
    ],
)
def test_a_broken_driver_is_told_in_its_own_words(answer: Said, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_cards(answer)

    spec = a_spec([a_server("a0", "0:8", gpu=0)])
    found = the_one(seen(smi=answer), spec)
    assert found.level is Level.FAULT
    assert found.sentence is not None
    assert found.sentence.startswith("nvidia-smi on host a fails: ")
    # Where no card is used it is only worth a look.
    assert the_one(seen(smi=answer)).level is Level.WARNING


def test_a_card_that_the_file_uses_and_that_is_not_there_is_a_fault() -> None:
    spec = a_spec([a_server("a0", "0:8", gpu=2)], hosts=[a_host("a", gpus=(0, 2))])

    found = the_one(seen(smi=smi(TWO_CARDS)), spec)
    assert found.sentence == "the file uses gpu 2 of host a, and it has 0, 1"
    none = the_one(seen(smi=None), spec)
    assert none.sentence == "the file uses gpu 0, 2 of host a, and it has none"


def test_a_card_without_room_for_the_blocks_says_what_is_there_and_what_is_needed() -> None:
    spec = a_spec([a_server("a0", "0:40", gpu=0), a_server("a1", "0:40", gpu=1)], num_blocks=80)

    found = the_one(seen(smi=smi(TWO_CARDS)), spec, BIG)

    assert found.topic is Topic.MEMORY
    assert found.sentence == (
        "gpu 1 of host a has 3.0 GiB of memory free, and a1 needs 66.2 GiB "
        "(63.8 GiB of weights, 2.5 GiB of attention cache)"
    )


def test_a_cpu_host_is_judged_by_the_memory_of_the_machine_and_all_its_nodes() -> None:
    spec = a_spec([a_server("a0", "0:10"), a_server("a1", "10:20")], num_blocks=80)

    assert said(seen(memory_free=64 * GIB), spec, BIG) == []
    found = the_one(seen(memory_free=16 * GIB), spec, BIG)
    assert found.sentence is not None
    assert found.sentence.startswith("host a has 16.0 GiB of memory free, and a0 and a1 need 33.1 GiB ")


def test_nothing_is_said_about_memory_where_the_model_is_not_known() -> None:
    spec = a_spec([a_server("a0", "0:8")])

    assert said(seen(memory_free=1), spec, None) == []
    assert said(seen(memory_free=1), spec, replace(BIG, hidden_size=4096)) == []


def test_what_a_block_takes_is_known_from_the_family_or_from_the_files() -> None:
    assert params_of_block(BIG) == 855_638_016
    assert params_of_block(replace(BIG, family="mixtral")) is None
    one = a_server("a0", "0:2")
    need = need_of(one, replace(BIG, family="other", torch_dtype="float32"), {0: 400, 1: 400})
    assert need is not None
    # 200 weights of four bytes, served as bfloat16 of two.
    assert need.weights == 400
    packed = replace(one, settings=replace(one.settings, quant="nf4", attn_cache_tokens=10))
    small = need_of(packed, replace(BIG, family="other", torch_dtype="float32"), {0: 400, 1: 400})
    assert small is not None
    assert (small.weights, small.cache) == (106, 2 * 1024 * 10 * 2 * 2)


# --- disk, model, ports, the rest ----------------------------------------------------------------------------------


def test_too_little_disk_for_what_is_still_to_be_loaded_is_a_fault() -> None:
    spec = a_spec([a_server("a0", "0:8")])

    found = the_one(seen(disk_free=2 * GIB, cached_bytes=GIB), spec, BIG)
    assert found.sentence == (
        "host a has 2.0 GiB free for /home/ops/.cache/petals, and 11.8 GiB of /models/tiny are still to be loaded "
        "for its 8 blocks"
    )
    assert said(seen(disk_free=2 * GIB, cached_bytes=12 * GIB), spec, BIG) == []
    assert [one.topic for one in judge(seen(disk_free=0), spec, BIG, estimates=False) if one.sentence] == []


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (ModelFound(exists=False), "host a has no model in /models/tiny, where the file says that every host has it"),
        (
            ModelFound(exists=True, missing=("b.safetensors", "c.safetensors", "d.safetensors")),
            "the model in /models/tiny on host a lacks b.safetensors and 2 more",
        ),
        (
            ModelFound(exists=True, block_bytes={0: 1, 1: 1, 2: 1, 3: 1, 5: 1}),
            "the model in /models/tiny on host a has no block 4, which a1 is to serve",
        ),
    ],
)
def test_a_model_that_is_not_there_or_not_whole_is_a_fault(model: ModelFound, sentence: str) -> None:
    found = the_one(seen(model=model))

    assert (found.topic, found.sentence) == (Topic.MODEL, sentence)
    assert found.hint == "copy it there: rsync -a /models/tiny/ ops@a:/models/tiny/"


def test_a_port_that_somebody_else_has_is_a_fault_with_the_one_who_has_it() -> None:
    found = the_one(seen(taken={31337: "process 812 (nc -l 31337)"}))

    assert found.sentence == "port 31337 of boot on host a is taken by process 812 (nc -l 31337)"
    assert found.hint is not None
    assert "ss -ltnp 'sport = :31337'" in found.hint


def test_a_daemon_that_does_not_start_is_a_fault() -> None:
    assert the_one(seen(daemon="hivemind is not installed")).topic is Topic.DAEMON


def test_a_key_that_others_may_read_is_a_warning() -> None:
    found = the_one(seen(modes={"/s/a0/identity.key": 0o644, "/s/a1/identity.key": 0o400}))

    assert found.level is Level.WARNING
    assert found.hint == "on a: chmod 0400 /s/a0/identity.key"


def test_a_folder_for_sockets_that_is_too_long_there_is_a_fault() -> None:
    found = the_one(seen(facts=replace(FACTS, run="/" + 80 * "x")))

    assert found.sentence is not None
    assert found.sentence.startswith("the folder for sockets on host a is 10 bytes too long: /xxx")


def test_a_host_that_ends_processes_at_logout_is_a_fault() -> None:
    found = the_one(seen(killed_at_logout=True))

    assert found.hint == "on a: sudo loginctl enable-linger ops"


# --- several hosts -------------------------------------------------------------------------------------------------


def test_one_identity_on_two_hosts_is_named_with_both_places_and_a_way_out() -> None:
    hosts = [Seen(host=A, nodes=(node("a0", "Qm1"), node("a1", "Qm2"))), Seen(host=B, nodes=(node("b0", "Qm1"),))]

    (found,) = judge_copies(hosts, {NodeName("a0"): A, NodeName("a1"): A, NodeName("b0"): B})

    assert found.sentence is not None
    assert found.sentence.startswith(
        "a0 on host a and b0 on host b have one identity (peer Qm1): a key file was copied"
    )
    assert found.hint == "swarmctl down b0 --purge, then: swarmctl up"


def clocks(**ahead: float) -> list[Finding]:
    hosts = [Seen(host=HostName(name), clock=Clock(ahead_s=off, error_s=0.05)) for name, off in ahead.items()]
    return [found for found in judge_clocks(hosts) if found.sentence is not None]


def test_clocks_that_agree_are_no_fault() -> None:
    assert clocks(a=0.5, b=-1.0) == []


def test_a_clock_that_is_five_seconds_off_is_a_fault_of_its_host_alone() -> None:
    (found,) = clocks(a=0.0, b=-5.0)

    assert (found.host, found.topic, found.level) == ("b", Topic.CLOCK, Level.FAULT)
    assert found.sentence == ("the clock of host b is 5.0 s (±0.05 s) behind this machine's; the DHT tolerates 3 s")


def test_the_error_of_the_measurement_counts_against_the_clock() -> None:
    assert [found.host for found in clocks(b=2.96)] == ["b"]
    assert clocks(b=2.94) == []


def test_where_all_hosts_agree_it_is_this_machine_that_is_off() -> None:
    (found,) = clocks(a=5.0, b=5.1)

    assert found.host == "this machine"
    assert found.sentence is not None
    assert found.sentence.startswith("the clock of this machine is 5.0 s (±0.05 s) behind that of all hosts")


def test_two_hosts_that_are_too_far_apart_are_a_fault_though_each_is_near_enough_to_here() -> None:
    (found,) = clocks(a=2.0, b=-2.0)

    assert found.sentence == "the clocks of hosts a and b are 4.0 s apart; the DHT tolerates 3 s"


def test_an_address_that_is_not_reached_is_named_with_the_systems_words() -> None:
    target = Target(host=B, node="b0", call=Call(ip="192.0.2.12", port=31330))
    back = Target(host=A, node="a0", call=Call(ip="192.0.2.11", port=31330))
    table = DialTable(
        calls=(
            Dialled(source="a", target=target, words="connection refused"),
            Dialled(source="b", target=back, words=None),
        )
    )

    bad, good = table.findings
    assert bad.sentence == "host a does not reach b0 on host b at 192.0.2.12:31330: connection refused"
    assert bad.hint == "let TCP port 31330 of b be reached from a, or correct hosts.b.address in the file"
    assert (good.host, good.level) == ("b", Level.OK)
    assert (table.between("a", "b"), table.between("b", "a"), table.between("a", "a")) == (False, True, None)
