"""Stands before Triton, so that no request of a client ends it (docs/operations.md, "The front").

It lets in what asks for models and their answers: nothing that loads or unloads one, registers
shared memory, or changes tracing or logging. What breaks Triton 2.51 before a model sees it is
refused here.
"""

MOST_CALLS, MOST_BYTES = 2048, 4 << 20
"""Requests at a time and bytes of one, where nothing else is asked for. (A model takes 1,088 by
itself, and prompts of one MiB, some two as JSON that escapes what is not ASCII.)"""

CANCEL_ID, CANCEL = "cancel_id", "cancel"
"""Parameters of a request: its name, and the name of one that this takes back."""
LONGEST_NAME = 128
"""Characters of such a name."""
GIVEN_ID = "tandem-front-"
"""What an id begins with that a request has from here, because its client gave it none."""
STALL_S = 300.0
"""Behind which a client that does not read what it is answered has left."""
