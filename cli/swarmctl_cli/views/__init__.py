"""Pure renderers: a value in, something rich can print out; nothing here reads, starts or waits."""
