"""The cells of `verify recovery`: which fault, when, to whom, with which cover, under which traffic. Pure values.

A cell is one experiment. Its name, `llama/kill/mid-step/first/same/greedy`, is what people type and files are called
by. Not every combination is possible; `impossible` says why one is not. `choice` has the lists that are run.
"""

from swarmctl.matrix.cell import Cell, Cover, Fault, Moment, Traffic, Victim, impossible, parse_cell
from swarmctl.matrix.choice import FAMILIES, QUICK, full, select

__all__ = [
    "FAMILIES",
    "QUICK",
    "Cell",
    "Cover",
    "Fault",
    "Moment",
    "Traffic",
    "Victim",
    "full",
    "impossible",
    "parse_cell",
    "select",
]
