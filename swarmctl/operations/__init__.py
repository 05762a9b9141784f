"""What an operator does to a swarm, as a library: each takes a `Site`, emits events into a sink, and prints nothing."""
