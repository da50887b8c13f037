"""Other engines, and ours: each in a process and an environment of its own."""
