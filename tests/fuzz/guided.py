"""One target under atheris: `python -m tests.fuzz.guided TARGET [FOLDER...] [-libfuzzer_option=...]`."""

import logging
import resource
import sys
from hashlib import sha256

import atheris

from tests.fuzz.mutations import mutated

PACKAGES = ["pswire", "psjob", "psserver", "psworker"]

#: Bytes of address space for this process, so that one that allocates without bounds gets a MemoryError.
ADDRESS_SPACE = 8 << 30


def main() -> None:
    """Import the packages so that their coverage guides, and run."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    logging.disable(logging.WARNING)  # what is refused is logged
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=PACKAGES, enable_loader_override=False):
        from tests.fuzz import harness

        target = harness.load(name)
    kinds = getattr(target, "KINDS", {})

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if not hasattr(target, "unpack"):
            return bytes(atheris.Mutate(data, most))
        head = data[: getattr(target, "HEAD", 0)]
        body = mutated(data[len(head) :], most - len(head), seed, kinds, atheris.Mutate)
        return bytes(head + body)

    def check(data: bytes) -> None:
        try:
            harness.check(target, data)
        except harness.Finding:
            (harness.FINDINGS / f"{name}-{sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise

    atheris.Setup(sys.argv, check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
