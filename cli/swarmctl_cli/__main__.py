"""`python -m swarmctl_cli`: the command, where its script is not on the path."""

from swarmctl_cli.app import main

main()
