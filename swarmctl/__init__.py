"""Operate private Petals swarms: start, watch, judge and recover. The library; the command lives in `swarmctl_cli`."""

import logging

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())
