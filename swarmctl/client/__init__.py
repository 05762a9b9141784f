"""A client of a swarm: connect, generate, and what a run amounts to."""
