"""Contract tests stand on the installed petals, which needs hivemind's names restored before it is imported."""

from __future__ import annotations

from swarmctl.upstream.compat import import_petals

import_petals()
