"""The shape of the swarm file: every key with its type, default and meaning. What depends on several keys is not here.

Nothing is required by these models, so that one invalid key never hides what is wrong elsewhere; `REQUIRED` says what
must be given, the JSON schema repeats it, and `resolve` reports what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swarmctl.config.written import Address, Blocks, Card, Cards, Count, Duration, EndpointText, Port, Switch
from swarmctl.spec import DEFAULT_PYTHON, ClientSpec, RedundancyPolicy, ServerSettings

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "": ("version", "swarm", "model", "nodes"),
    "model": ("source",),
    "nodes.*": ("blocks",),
}
"""Keys without a default, by section."""

_SERVER, _CLIENT, _POLICY = ServerSettings(), ClientSpec(), RedundancyPolicy()


class Section(BaseModel):
    """Base of all sections: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SettingsSection(Section):
    """`defaults`, and the same keys in a node."""

    torch_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="Type of the weights and of the computation; auto: as the checkpoint was stored."
    )
    quant: Literal["none", "int8", "nf4"] = Field(
        default="none", description="Quantisation of the weights; int8 and nf4 need a GPU."
    )
    device: Literal["cpu", "cuda", "mps"] | None = Field(
        default=None, description="Where to compute; null: cuda on a host that lists gpus, else cpu."
    )
    attn_cache_tokens: Count | None = Field(
        default=None,
        description="Attention cache in tokens, for all sessions together; null: petals' default for the model.",
    )
    inference_max_length: Count | None = Field(
        default=None, description="Longest session in tokens; null: petals' default for the model."
    )
    max_batch_size: Count | None = Field(
        default=None, description="Most tokens in one request; null: petals' default for the model."
    )
    update_period: Duration = Field(default=_SERVER.update_period_s, description="How often a server announces itself.")
    step_timeout: Duration = Field(
        default=_SERVER.step_timeout_s, description="How long a server keeps a session open between two steps."
    )
    session_timeout: Duration = Field(default=_SERVER.session_timeout_s, description="How long one session may last.")
    num_handlers: Count = Field(default=_SERVER.num_handlers, description="Processes of a server that answer requests.")
    throughput: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Announced speed in tokens per second; null: measured on the node, compute only."
    )
    threads: Count | None = Field(
        default=None, description="CPU threads of a server; null: as many as torch takes by itself."
    )
    cuda_graphs: Switch = Field(
        default=_SERVER.cuda_graphs,
        description="Replay recorded kernels for steps of one token on a GPU, with a recording for each batch size.",
        json_schema_extra={"default": "on" if _SERVER.cuda_graphs else "off"},
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        default=_SERVER.restarts,
        description="How often a server that ended by itself is started again within ten minutes; 0: never.",
    )


class NodeSection(SettingsSection):
    """One block server."""

    host: str | None = Field(default=None, description="Name of a host; may be left out when there is one host.")
    gpu: Card | None = Field(default=None, description="Card to pin; may be left out when the host lists one or none.")
    gpus: Cards | None = Field(
        default=None,
        description="In place of gpu: all, or several cards; each gets a node NAME-CARD with its part of the blocks.",
    )
    blocks: Blocks = Field(default=None, description='Blocks to serve, START:END without END, e.g. "0:8".')
    port: Port | None = Field(
        default=None,
        description="TCP port, with gpus that of the first card; null: a free one, chosen at the first start.",
    )
    announce: EndpointText = Field(
        default=None,
        description="IP:PORT at which others reach it, if something forwards to it; null: the host's address and port.",
    )


class BootstrapSection(Section):
    """One bootstrap peer."""

    host: str | None = Field(default=None, description="Name of a host; may be left out when there is one host.")
    port: Port | None = Field(default=None, description="TCP port; null: a free one, chosen at the first start.")
    announce: EndpointText = Field(
        default=None,
        description="IP:PORT at which others reach it, if something forwards to it; null: the host's address and port.",
    )


class HostSection(Section):
    """One machine."""

    connect: Literal["local"] | None = Field(default=None, description="local: this machine, nothing to log in to.")
    ssh: str | None = Field(default=None, description="Log in as user@host, or by a name from ~/.ssh/config.")
    address: Address = Field(
        default=None,
        description="IPv4 address or DNS name at which the others reach it; null: the host part of ssh, or 127.0.0.1.",
    )
    rack: str | None = Field(default=None, description="Rack, for redundancy by rack.")
    zone: str | None = Field(default=None, description="Zone, for redundancy by zone.")
    gpus: Cards = Field(default=[], description="Indices of the cards that may be used; all: those that it has.")
    python: str | None = Field(
        default=None,
        description=f"Python that has swarmctl and petals; null: {DEFAULT_PYTHON} behind ssh, as here on this machine.",
    )


class ModelSection(Section):
    """The model of the swarm."""

    source: str | None = Field(
        default=None, description="Folder (relative to this file, ~ expands) or hub name of the checkpoint."
    )
    dht_prefix: str | None = Field(
        default=None, description="Name of the model in the swarm, without dots and spaces; null: derived."
    )
    # Far above any model; without a bound a slip of the finger would fill the memory with empty blocks.
    blocks: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="Number of blocks; only for an unknown hub name."
    )
    hidden_size: Count | None = Field(default=None, description="Hidden size; only for an unknown hub name.")
    revision: str | None = Field(default=None, description="Commit or tag of a hub model.")


class RedundancySection(Section):
    """How many replicas each block needs."""

    min: Count = Field(default=_POLICY.minimum, description="Replicas below which a block is at risk.")
    target: Count = Field(default=_POLICY.target, description="Replicas that each block should have.")
    by: Literal["gpu", "host", "rack", "zone"] = Field(
        default="host", description="What may fail as one; replicas count only on different ones."
    )


class ClientSection(Section):
    """How `swarmctl generate` behaves."""

    connect_timeout: Duration = Field(
        default=_CLIENT.connect_timeout_s, description="How long a server may take to accept a connection."
    )
    suspect_after: Duration = Field(
        default=_CLIENT.suspect_after_s,
        description="How late an answer may be before another server is asked beside it.",
    )
    step_timeout: Duration = Field(
        default=_CLIENT.step_timeout_s, description="How long a server may take to answer one request."
    )
    recover_timeout: Duration = Field(
        default=_CLIENT.recover_timeout_s, description="How long to wait for a server that can replace a failed one."
    )
    update_period: Duration = Field(
        default=_CLIENT.update_period_s, description="How often the client looks for servers that came or went."
    )
    alloc_timeout: Duration = Field(
        default=_CLIENT.alloc_timeout_s,
        description="How long to queue for attention cache, at each full server in turn.",
    )
    replay_chunk_tokens: Count = Field(
        default=_CLIENT.replay_chunk_tokens, description="Tokens per request when a new server is fed the history."
    )
    max_length: Count | None = Field(
        default=None, description="Longest session in tokens, prompt included; null: what the prompt needs."
    )
    allow_strangers: bool = Field(
        default=_CLIENT.allow_strangers, description="Also use servers that this file does not name."
    )


class SwarmFile(Section):
    """The whole file."""

    version: int | None = Field(default=None, description="Version of this format: 1.")
    swarm: str | None = Field(
        default=None, description="Name of the swarm: letters, digits, _ and -; also its folder on each host."
    )
    model: ModelSection = ModelSection()
    redundancy: RedundancySection = RedundancySection()
    defaults: SettingsSection = SettingsSection()
    hosts: dict[str, HostSection] = Field(
        default={}, description="The machines, by name; without this section, this one."
    )
    bootstrap: list[BootstrapSection] | None = Field(
        default=None, description="Peers that the others join through; null: one on the first host, if all are local."
    )
    nodes: dict[str, NodeSection] = Field(default={}, description="The block servers, by name.")
    client: ClientSection = ClientSection()


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the swarm file, for editors."""
    schema = SwarmFile.model_json_schema()
    sections = schema["$defs"]
    for name, section in sections.items():
        section["title"] = name.removesuffix("Section").lower()
    _require(schema, REQUIRED[""])
    _require(sections["ModelSection"], REQUIRED["model"])
    _require(sections["NodeSection"], REQUIRED["nodes.*"])
    sections["HostSection"]["oneOf"] = [{"required": ["connect"]}, {"required": ["ssh"]}]
    schema["properties"]["version"]["const"] = 1
    schema["title"] = "swarm.yaml"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _require(section: dict[str, Any], keys: tuple[str, ...]) -> None:
    section["required"] = list(keys)
    for key in keys:
        declared = section["properties"][key]
        declared.pop("default", None)
        kept = [kind for kind in declared.pop("anyOf", ()) if kind.get("type") != "null"]
        for kind in kept:
            declared.update(kind)


def section_keys() -> Mapping[str, tuple[str, ...]]:
    """The keys of each section; `""` is the top level, `hosts.*` any host, `bootstrap[]` any bootstrap peer."""
    models: dict[str, type[Section]] = {
        "": SwarmFile,
        "model": ModelSection,
        "redundancy": RedundancySection,
        "defaults": SettingsSection,
        "hosts.*": HostSection,
        "bootstrap[]": BootstrapSection,
        "nodes.*": NodeSection,
        "client": ClientSection,
    }
    # What is a section's own before what it shares with `defaults`.
    return {name: tuple(sorted(model.model_fields, key=_is_shared(model))) for name, model in models.items()}


def _is_shared(model: type[Section]) -> Callable[[str], bool]:
    return lambda key: model is NodeSection and key in SettingsSection.model_fields
