"""What runs on a host beside each server: the runner that starts it, watches it, and leaves nothing of it behind."""
