"""The machines of a swarm: whether they are fit for it (`check`), and making them so (`setup`)."""
