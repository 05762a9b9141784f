"""What swarms, hosts and nodes may be called: folders, file names and arguments are made of these."""

from __future__ import annotations

import re

SWARM_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z")
HOST_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
NODE_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}\Z")
BOOTSTRAP_NAME = re.compile(r"^bootstrap-\d+\Z")
