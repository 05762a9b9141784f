"""The `swarmctl` command: the only code that knows typer and rich."""
