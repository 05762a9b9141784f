"""What swarmctl takes for granted about the installed petals, hivemind and transformers."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import petals
import pytest
import torch
from hivemind.dht import DHT, DHTNode
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from petals.client.config import ClientConfig
from petals.client.inference_session import InferenceSession
from petals.client.remote_generation import RemoteGenerationMixin
from petals.client.remote_sequential import RemoteSequential
from petals.client.routing import RemoteSequenceManager
from petals.client.routing.sequence_info import RemoteSequenceInfo
from petals.client.routing.sequence_manager import SequenceManagerState, _SequenceManagerUpdateThread
from petals.data_structures import RemoteModuleInfo, ServerInfo, ServerState
from petals.server.handler import TransformerConnectionHandler
from petals.server.server import Server
from petals.server.throughput import measure_compute_rps
from petals.utils.ping import PingAggregator, ping
from support.fakeswarm import Die, peer_id
from support.sessions import Bench

from swarmctl.blocks import NodeName
from swarmctl.errors import ExitCode, UpstreamMissing
from swarmctl.spec import ServerSettings
from swarmctl.store import Launch
from swarmctl.upstream import compat
from swarmctl.upstream.router import Router
from swarmctl.upstream.server import server_arguments
from swarmctl.upstream.session import RecoverableSession
from swarmctl.upstream.stream import HANDLER

# --- a program that imports petals through swarmctl -------------------------------------------------------------

PROGRAM = """
import json, logging
root, loops = logging.getLogger(), logging.getLogger("asyncio")
def look():
    return [root.level, [repr(handler) for handler in root.handlers], loops.level, loops.disabled]
before = look()
import hivemind
native = dir(hivemind)
from swarmctl.upstream.compat import import_petals
version = import_petals().__version__
import swarmctl.upstream.model
import sys, torch
unused = [name for name in ("sympy", "torch.distributed.tensor", "torch._dynamo") if name in sys.modules]
trains = torch.distributed.is_available()
facts = {"before": before, "after": look(), "native": native, "version": version, "unused": unused, "trains": trains}
print(json.dumps(facts))
"""
# Those that Python shows a user, or that say that something was left open.
CATEGORIES = ("FutureWarning", "UserWarning", "RuntimeWarning", "ResourceWarning", "SyntaxWarning")
STRICT = [f"-Werror::{category}" for category in CATEGORIES]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Imports are for the life of a process, so they are looked at in one of their own."""
    return subprocess.run(
        [sys.executable, *STRICT, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_petals_is_imported_and_left_again_without_a_word(program: subprocess.CompletedProcess[str]) -> None:
    assert (program.returncode, program.stderr) == (0, "")
    assert json.loads(program.stdout)["version"] == petals.__version__


def test_importing_petals_leaves_the_root_logger_and_asyncios_as_they_were(
    program: subprocess.CompletedProcess[str],
) -> None:
    facts = json.loads(program.stdout)

    assert facts["after"] == facts["before"]


def test_what_accelerate_has_for_training_is_not_imported_and_torch_is_as_it_was(
    program: subprocess.CompletedProcess[str],
) -> None:
    facts = json.loads(program.stdout)

    assert facts["unused"] == []
    assert facts["trains"] is True


def names_taken_from_hivemind() -> set[str]:
    """What petals imports from hivemind's top level, or looks up there."""
    taken: set[str] = set()
    for path in Path(petals.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "hivemind" and node.level == 0:
                taken |= {alias.name for alias in node.names}
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hivemind":
                taken.add(node.attr)
    return taken


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_exactly_the_names_that_petals_misses_in_hivemind_are_put_back(
    program: subprocess.CompletedProcess[str],
) -> None:
    native = set(json.loads(program.stdout)["native"])

    assert names_taken_from_hivemind() - native == set(compat.RESTORED) - native


@pytest.mark.parametrize("name", compat.RESTORED)
def test_a_name_that_is_put_back_is_the_one_of_its_home(name: str) -> None:
    hivemind = compat.import_hivemind()

    assert getattr(hivemind, name) is getattr(importlib.import_module(compat.RESTORED[name]), name)


@pytest.mark.parametrize(
    ("gone", "load", "hint"),
    [
        ("petals", compat.import_petals, "pip install --no-deps petals==2.2.0.post1"),
        ("hivemind", compat.import_hivemind, "pip install swarmctl"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, gone: str, load: Callable[[], object], hint: str
) -> None:
    monkeypatch.setitem(sys.modules, gone, None)

    with pytest.raises(UpstreamMissing, match=f"{gone} cannot be imported") as caught:
        load()

    assert caught.value.hints[0] == hint
    assert caught.value.exit_code is ExitCode.FAILED


def test_a_name_that_hivemind_has_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.RESTORED, "no_such_name", "hivemind.p2p")

    with pytest.raises(UpstreamMissing, match="hivemind has no no_such_name") as caught:
        compat.import_hivemind()

    assert caught.value.context == {"name": "no_such_name", "module": "hivemind.p2p"}


# --- the client -------------------------------------------------------------------------------------------------


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def attributes_set_by(kind: type) -> set[str]:
    """The attributes that a class's `__init__` gives its instances."""
    tree = ast.parse(inspect.getsource(kind))
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def test_our_session_is_one_of_petals_and_takes_its_arguments() -> None:
    assert issubclass(RecoverableSession, InferenceSession)
    assert parameters(InferenceSession.__init__) == ["self", "sequence_manager", "max_length"]
    assert parameters(RecoverableSession.__init__)[:3] == ["self", "sequence_manager", "max_length"]
    assert parameters(InferenceSession.step) == parameters(RecoverableSession.step)
    assert "session" in parameters(RemoteGenerationMixin.generate)


def test_what_generate_keeps_on_a_session_is_there() -> None:
    session = Bench("a=0:6").session

    assert session.output_ids is None
    assert session.last_token_id is None
    assert (session.num_blocks, session.position) == (6, 0)


def test_petals_own_layers_step_through_our_session_and_survive_a_death() -> None:
    bench = Bench("a=0:3", "b=3:6", "c=3:6")
    layers = RemoteSequential(ClientConfig(), sequence_manager=bench.router)

    with bench.session as session, layers.use_session(session), torch.inference_mode():
        for tokens in (4, 1, 1):
            inputs = bench.inputs(tokens, batch=2)
            order = torch.tensor([1, 0]) if tokens == 1 else None
            answer = layers(inputs, prompts=None, hypo_ids=order)
            assert torch.equal(answer, bench.reference.step(inputs, None, order))
            bench["b"].will(Die)
        assert layers.position == 6

    assert bench.route() == []


def test_our_router_stands_on_what_a_sequence_manager_has() -> None:
    assert issubclass(Router, RemoteSequenceManager)
    assert parameters(RemoteSequenceManager.__init__) == ["self", "config", "block_uids", "dht", "state"]
    used = {"config", "dht", "state", "lock_changes", "ping_aggregator", "_thread", "_thread_start_lock"}
    assert used <= attributes_set_by(RemoteSequenceManager)
    assert isinstance(RemoteSequenceManager.ready, property)
    assert isinstance(RemoteSequenceManager.block_uids, property)
    assert parameters(RemoteSequenceManager._update) == ["self"]
    assert parameters(RemoteSequenceManager.on_request_failure) == parameters(Router.on_request_failure)
    assert {"p2p", "sequence_info"} <= {field.name for field in dataclasses.fields(SequenceManagerState)}


def test_the_refresh_thread_calls_update_when_it_is_triggered() -> None:
    class Manager:
        def update(self) -> None:
            """Never called here."""

    manager = Manager()
    thread = _SequenceManagerUpdateThread(60.0, WeakMethod(manager.update))

    assert not thread.trigger.is_set()
    assert not thread.ready.is_set()
    assert not thread.is_alive()


def test_petals_table_can_be_filled_and_sorted_again() -> None:
    uids = ("tiny.0", "tiny.1")
    table = RemoteSequenceInfo.make_empty(uids)
    peer = a_peer("a")
    info = ServerInfo(state=ServerState.ONLINE, throughput=1.0, start_block=0, end_block=2)

    table.update_([RemoteModuleInfo(uid=uid, servers={peer: info}) for uid in uids])
    assert [[span.peer_id for span in spans] for spans in table.spans_containing_block] == [[peer], [peer]]

    for block in table.block_infos:
        block.servers.pop(peer)
    table.spans_by_priority, table.spans_containing_block = table._sort_spans(table.block_infos)
    assert table.spans_by_priority == []


def test_pings_take_a_limit_and_give_seconds_by_peer() -> None:
    assert parameters(PingAggregator.ping)[:2] == ["self", "peer_ids"]
    assert "wait_timeout" in parameters(ping)
    assert parameters(PingAggregator.to_dict) == ["self"]


def test_streams_are_opened_under_the_name_that_the_servers_handler_has() -> None:
    assert TransformerConnectionHandler._get_handle_name(None, "rpc_inference") == HANDLER
    assert parameters(P2P.call_binary_stream_handler) == ["self", "peer_id", "handler_name"]
    assert parameters(P2P.send_protobuf) == ["protobuf", "writer"]
    assert parameters(P2P.receive_protobuf) == ["input_protobuf_type", "reader"]
    assert parameters(RemoteExpertWorker.run_coroutine) == ["coro", "return_future"]


def test_the_client_takes_every_setting_that_we_give_it() -> None:
    given = {
        "initial_peers",
        "dht_prefix",
        "allowed_servers",
        "connect_timeout",
        "request_timeout",
        "update_period",
        "use_server_to_server",
        "show_route",
    }

    assert given <= {field.name for field in dataclasses.fields(ClientConfig)}


def test_the_dht_runs_a_coroutine_of_ours_with_its_node() -> None:
    assert parameters(DHT.run_coroutine) == ["self", "coro", "return_future"]
    assert {"sufficient_expiration_time", "num_workers"} <= {
        *parameters(DHTNode.get_many),
        *parameters(DHTNode.get_many_by_id),
    }


# --- the server -------------------------------------------------------------------------------------------------


def a_launch(**changes: Any) -> Launch:
    values: dict[str, Any] = {
        "kind": "server",
        "swarm": "lab",
        "node": NodeName("a0"),
        "peer": peer_id("a0"),
        "port": 31400,
        "listen_ip": "127.0.0.1",
        "announce_ip": "127.0.0.1",
        "initial_peers": (f"/ip4/127.0.0.1/tcp/31337/p2p/{peer_id('boot')}",),
        "identity": "/nodes/a0/identity",
        "sockets": "/run/a0",
        "progress": "/nodes/a0/progress.json",
        "observed": "/nodes/a0/observed.json",
        "model_source": "/models/tiny",
        "dht_prefix": "tiny",
        "num_blocks": 6,
        "hidden_size": 64,
        "blocks": "2:4",
    }
    return Launch(**{**values, **changes})


def test_every_setting_of_a_server_is_taken_by_the_server_or_its_peer() -> None:
    arguments = server_arguments(a_launch(), ServerSettings())
    own = inspect.signature(Server.__init__).parameters
    for_the_peer = {*parameters(DHT.__init__), *parameters(DHTNode.create), *parameters(P2P.create)}

    assert set(arguments) - set(own) <= for_the_peer
    needed = {name for name, p in own.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    assert needed <= set(arguments)
    # What the server passes to its peer itself may not come twice.
    assert not (set(arguments) - set(own)) & {"start", "num_workers", "client_mode", "use_relay", "use_auto_relay"}


def test_a_server_listens_on_its_port_and_tells_others_what_it_was_told_to_announce() -> None:
    plain = server_arguments(a_launch(), ServerSettings())
    behind = server_arguments(a_launch(announce_ip="203.0.113.5", announce_port=5000), ServerSettings())

    assert plain["host_maddrs"] == plain["announce_maddrs"] == behind["host_maddrs"] == ["/ip4/127.0.0.1/tcp/31400"]
    assert behind["announce_maddrs"] == ["/ip4/203.0.113.5/tcp/5000"]


def test_a_servers_place_is_fixed_and_its_speed_is_not_tested_over_the_internet() -> None:
    arguments = server_arguments(a_launch(), ServerSettings())

    assert arguments["block_indices"] == "2:4"
    assert isinstance(arguments["throughput"], float)
    assert arguments["skip_reachability_check"] is True
    assert arguments["reachable_via_relay"] is False
    assert (arguments["use_relay"], arguments["use_auto_relay"]) == (False, False)


def test_a_record_outlives_two_announcements() -> None:
    arguments = server_arguments(a_launch(), ServerSettings(update_period_s=10.0))

    assert arguments["expiration"] > 2 * arguments["update_period"] == 20.0


@pytest.mark.parametrize("quant", ["none", "int8", "nf4"])
def test_every_quantization_of_the_file_is_one_of_petals(quant: str) -> None:
    assert server_arguments(a_launch(), ServerSettings(quant=quant))["quant_type"].name == quant.upper()


def test_a_server_without_a_bootstrap_peer_is_not_started_for_it_would_join_the_public_swarm() -> None:
    with pytest.raises(ValueError, match="needs a bootstrap peer"):
        server_arguments(a_launch(initial_peers=()), ServerSettings())


def test_compute_speed_is_measured_by_a_function_of_these_arguments() -> None:
    assert parameters(measure_compute_rps) == [
        "config",
        "device",
        "dtype",
        "quant_type",
        "tensor_parallel_devices",
        "n_tokens",
        "n_steps",
        "inference",
    ]
    used = {"block_config", "device", "torch_dtype", "quant_type", "tensor_parallel_devices", "num_blocks", "stop"}
    assert used | {"server_info", "module_container"} <= attributes_set_by(Server)


def a_peer(name: str) -> PeerID:
    """The peer id of this name as hivemind's own type."""
    return PeerID.from_base58(peer_id(name))
