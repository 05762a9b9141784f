"""The only package that imports petals, hivemind, torch and transformers, and the programs that a node's child runs."""
