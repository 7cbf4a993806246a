"""Limits of one message: how large its numbers are, how many entries its lists may have, how long its texts are.

A receiver checks them before it makes anything of a list or text (`pswire.codec`), so that a message of a few
megabytes cannot make millions of objects. They are far above what a job needs: 20,000 variables, 1,000 workers.
The options of a field in the `.proto` name its limit, and `pswire/codec/generated.py`, made of them, checks it.
"""

#: The largest integer in a message, unless it is a random one: what a receiver adds to it still fits into 64 bits.
MAX_NUMBER = (1 << 62) - 1

#: Bytes of a message: 2 MiB of tensors and their descriptions, or a Status of many variables.
MAX_MESSAGE = (4 << 20) + (64 << 10)

#: The last port of a host.
MAX_PORT = 65_535

#: Positions in a block of a data queue.
MAX_BLOCK = 1 << 32

#: Bytes of a request without lists of variables, such as a Join or a heartbeat.
MAX_SMALL_REQUEST = 64 << 10

#: Entries of a list with one for each variable: gradients, values, declarations, names, versions.
MAX_ENTRIES = 32_768

#: Entries of other lists, with one for each worker, job or epoch that a message names.
MAX_LISTED = 4096

#: Entries of a list with one for each shard.
MAX_SHARDS = 1024

#: Choices in a pull: each costs the shard some microseconds, during which it serves nothing else.
MAX_CHOICES = 1000

#: Values in an answer: of variables, and then of choices, which may be several of one variable.
MAX_VALUES = MAX_ENTRIES + MAX_CHOICES

#: Parts of a packed array: its elements, and their scales or indices.
MAX_PACKED_PARTS = 2

#: Operations with vectors in a message, and vectors of a variable: those of a history of 50 pairs.
MAX_OPERATIONS, MAX_VECTORS = 256, 128

#: Numbers in the results of operations: two for each.
MAX_RESULTS = 2 * MAX_OPERATIONS

#: Numbers that the metrics of an evaluation add up over all examples: a confusion matrix of 128 classes.
MAX_SUMS = 128 * 128

#: Characters of a note that a minimization keeps on a shard.
MAX_NOTE_LENGTH = 4096

#: Bytes of an optimizer or a row initializer: those of a schedule of some hundred steps.
MAX_SPEC_BYTES = 8 << 10

#: Bytes of a token or a key.
MAX_SECRET_BYTES = 2048

#: Characters of a word for displays, which shards keep for each worker.
MAX_LABEL_LENGTH = 64

#: Characters of a sentence for people, which shards keep.
MAX_TEXT_LENGTH = 1000

#: Characters of a sentence or path in an answer.
MAX_ANSWER_TEXT_LENGTH = 16_000

#: Portions of an evaluation that a worker holds: the one in work, and the ones taken in advance.
MAX_HELD_PORTIONS = 16

#: Characters of the result of a minimization.
MAX_RESULT_LENGTH = 4096
