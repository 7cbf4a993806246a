"""Fuzzing of all targets, one after the other: `python -m tests.fuzz [--seconds 60] [TARGET...]`.

Each begins with its inputs in the repository, and what earlier runs have found in build/fuzz. A finding ends its target
and stays in build/fuzz/findings; the exit code is 1 then. `--minimise FOLDER` replaces the inputs in
the repository by the fewest of them and of FOLDER that reach the same, and have the same fields of messages.
"""

import argparse
import logging
import re
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from tests.fuzz import coverage, harness
from tests.fuzz.packets import fields, unpack

#: Bytes of the longest input, and of those in the repository.
LONGEST, LONGEST_SEED = 20_000, 8_000

#: Seconds after which libFuzzer gives an input up; by the processor's time one has less (`harness.MAX_SECONDS`).
STUCK = 20


def fuzz(name: str, seconds: int) -> bool:
    """Fuzz one target and print its figures; whether nothing was found."""
    corpus, findings = harness.WORK / "corpus" / name, harness.FINDINGS
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={STUCK}", "-rss_limit_mb=3000"]
    options += [f"-artifact_prefix={findings}/{name}-", "-print_final_stats=1", "-verbosity=1"]
    seeds = [str(harness.CORPUS / name)] if harness.seeds(name) else []
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(corpus), *seeds, *options]
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
    taken, output = time.monotonic() - began, ended.stdout + ended.stderr
    runs = [int(count) for count in re.findall(r"^#(\d+)\s", output, re.MULTILINE)]
    edges = [int(count) for count in re.findall(r"\bcov: (\d+)", output)]
    memory = re.findall(r"peak_rss_mb: *(\d+)", output) or re.findall(r"rss: (\d+)Mb", output)[-1:]
    inputs = [*harness.seeds(name), *corpus.iterdir()]
    reached, there = coverage.lines(harness.load(name), [path.read_bytes() for path in inputs])
    print(
        f"{name:12} {max(runs, default=0):>9,} executions in {taken:3.0f} s, {max(edges, default=0):>6,} edges, "
        f"{reached:>5,} of {there:>5,} lines, {memory[0] if memory else '?'} MB, "
        f"{'nothing found' if ended.returncode == 0 else 'FINDING'}",
        flush=True,
    )
    if ended.returncode:
        (findings / f"{name}.log").write_text(output)
        print(ended.stdout[-3000:], ended.stderr.partition("ERROR: libFuzzer")[2][:500])
    return ended.returncode == 0


def minimise(name: str, folder: Path) -> None:
    """Keep the inputs that reach something that no smaller one does, or have a field of a message that none has."""
    target = harness.load(name)
    kinds = getattr(target, "KINDS", {})
    before = {path.read_bytes() for path in harness.seeds(name)}
    others = {path.read_bytes() for path in (folder / name).glob("*")}
    kept: dict[str, bytes] = {}
    seen: set[coverage.Arc | str] = set()
    for data in sorted(before | others, key=lambda data: (len(data), data)):
        packets = unpack(data[getattr(target, "HEAD", 0) :])
        found = coverage.arcs(target.COVERS, lambda data=data: target.run(data)) | fields(packets, kinds)
        if found - seen and len(data) <= LONGEST_SEED:
            seen |= found
            kept[sha256(data).hexdigest()[:16]] = data
    place = harness.CORPUS / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for digest, data in kept.items():
        (place / digest).write_bytes(data)
    print(f"{name:12} {len(kept):4} of {len(before | others):5} inputs, {sum(map(len, kept.values())):>8,} bytes")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--minimise", type=Path, metavar="FOLDER", help="choose inputs of FOLDER for the repository")
    parser.add_argument("targets", nargs="*", help="by default all")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # what is refused is logged
    names = arguments.targets or harness.names()
    if arguments.minimise:
        for name in names:
            minimise(name, arguments.minimise)
        return 0
    clean = [fuzz(name, arguments.seconds) for name in names]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
