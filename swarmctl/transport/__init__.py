"""Ways to reach a host: `base` says what every one of them can do; they do not know each other."""
