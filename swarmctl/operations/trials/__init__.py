"""`verify recovery`: ephemeral swarms, faults done to them, what clients do meanwhile, and the record of it."""
