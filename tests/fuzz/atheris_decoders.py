"""The decoders of `targets` under a fuzzer that sees which lines it reaches.

    pip install '.[fuzz]'
    python tests/fuzz/atheris_decoders.py --seconds 60              # all of them, one by one
    python tests/fuzz/atheris_decoders.py frame-body --seconds 600

A finding ends the run with its traceback; the input lies in the corpus folder as crash-... . It
becomes a test in `test_findings.py` before it is mended. Not part of the test suite: it takes as
long as it is given, and atheris has no build for every Python.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUT_BYTES_MAX = 4096


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["swarmtrain", "swarmtrain_transport", "msgpack"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(target.examples):
        (folder / f"example-{number}").write_bytes(example)
    options = [
        f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-rss_limit_mb=4096",
        "-timeout=10", "-print_final_stats=1", f"-artifact_prefix={folder}/",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(folder)], target.feed)
    atheris.Fuzz()


def main() -> int:
    """Each target in a process of its own, because a fuzzer never gives one back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="one decoder; all of them without it")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--corpus", type=Path, help="folder that inputs are kept in")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "transport"), str(ROOT / "optimizers")]
    corpus = chosen.corpus or Path(tempfile.mkdtemp(prefix="swarmtrain-corpus-"))
    if chosen.here:
        fuzz(chosen.name, chosen.seconds, corpus)
    from tests.fuzz.targets import TARGETS

    names = [chosen.name] if chosen.name else list(TARGETS)
    failed = []
    for name in names:
        words = [sys.executable, __file__, name, "--here", "--corpus", str(corpus)]
        done = subprocess.run(
            [*words, "--seconds", str(chosen.seconds)], capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        runs = [line.split()[-1] for line in said.splitlines() if "number_of_executed" in line]
        print(f"{name:<18} {'ok' if done.returncode == 0 else 'FOUND'} runs={runs[-1:]}")
        if done.returncode != 0:
            failed.append(name)
            print(said[-4000:])
    print(f"corpus: {corpus}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
