"""What was found of a host, in words: the values that `host check` shows and that `up` refuses to start with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """FAULT: nodes there will not work. WARNING: they may, and something should be looked at. SILENT: no answer."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    SILENT = "silent"


class Topic(str, Enum):
    """What was looked at; the columns of the table, in this order."""

    SSH = "ssh"
    SWARMCTL = "swarmctl"
    CARDS = "gpus"
    MEMORY = "memory"
    DISK = "disk"
    MODEL = "model"
    PORTS = "ports"
    CLOCK = "clock"
    DAEMON = "p2pd"
    KEYS = "keys"
    SOCKETS = "sockets"
    LOGOUT = "logout"
    DIAL = "dial"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check of one host (or of `this machine`). `found`: a word or two for a table.

    `sentence`: what is wrong, with numbers; `hint`: what to type. Both are None where nothing is wrong.
    """

    host: str
    topic: Topic
    level: Level
    found: str = ""
    sentence: str | None = None
    hint: str | None = None
