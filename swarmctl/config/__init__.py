"""The swarm file: YAML → `SwarmSpec`, with every fault at once and where it stands.

text ─ document ─▶ values with places ─ reading ─▶ SwarmFile
SwarmFile ─ resolve, cards, model ─▶ draft ─ reach, checks ─▶ SwarmSpec
"""

from __future__ import annotations

from swarmctl.config.loading import FILE_NAME, find, load, load_hosts, validate_text
from swarmctl.config.presets import preset_path, preset_text, presets
from swarmctl.config.render import render
from swarmctl.config.schema import json_schema

__all__ = [
    "FILE_NAME",
    "find",
    "json_schema",
    "load",
    "load_hosts",
    "preset_path",
    "preset_text",
    "presets",
    "render",
    "validate_text",
]
