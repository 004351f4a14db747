"""The exchange alone: seconds, bytes and CPU seconds from the call to the committed mean.

    python benchmarks/allreduce.py --peers 4 --numel 1000000 --codec int8 --repeat 7 [--json]

starts a coordinator and the peers on loopback. The same by hand, on several hosts:

    benchmarks/allreduce.py coordinator --peers 4 --codec int8 --repeat 7 --listen HOST:PORT
    benchmarks/allreduce.py peer INVITE --rank 0 --numel 1000000 --listen HOST:0 >0.json
    benchmarks/allreduce.py summary *.json

What is timed, what is counted and what is not: README.md beside this file.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "transport"), str(ROOT / "optimizers")]

from swarmtrain.config import settings  # noqa: E402  the paths come first
from swarmtrain.config.options import Endpoint, JoinOptions, parse_endpoint  # noqa: E402
from swarmtrain_transport.credentials.invite import Invite  # noqa: E402

ROLES = ("coordinator", "peer", "summary")

ERROR_MAX = {"int8": 0.02, "none": 1e-6}
"""Relative error of a correct mean of normal values. int8 twice rounds to 1/127 of a block's
largest value, about 3.3 sigma at 1024 values: 0.0075 each time, 0.0106 together."""

VALUE_BYTES = {"int8": 1, "none": 4}
"""Bytes of an encoded value, without scales."""

PAUSE_S = 0.2
PAUSE_PER_VALUE_S = 40e-9
"""From one mean to the next call. Everybody has the mean at about the same time, and so calls at
about the same time; in between there is room for the check, which would else be timed."""

SECONDS_PER_ROUND_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange as one peer saw it. Bytes are both lanes with frames, without TCP and TLS."""

    seconds: float
    cpu_seconds: float
    bytes_up: int
    bytes_down: int
    relative_error: float


# ---- roles


def coordinate(arguments: argparse.Namespace) -> None:
    """Serve one run of warm-up and timed rounds; the invite is the line on stdout."""
    from swarmtrain.coordinator.service import serve

    config = run_config(arguments)
    listen: Endpoint = arguments.listen

    def announce(invite: Invite) -> None:
        print(invite, flush=True)

    async def main(state_dir: Path) -> None:
        await serve(
            config, state_dir, listen.host, listen.port, arguments.public_host,
            on_ready=announce, stop=asyncio.Event(),
        )  # fmt: skip

    with tempfile.TemporaryDirectory(prefix="allreduce-") as directory:
        asyncio.run(main(Path(directory)))


def run_config(arguments: argparse.Namespace) -> settings.RunConfig:
    """A run that brings its own vectors, and counts only what everybody contributed to."""
    peers: int = arguments.peers
    return settings.RunConfig(
        run=settings.RunSection(
            name=f"allreduce-{arguments.warmup}", rounds=arguments.warmup + arguments.repeat
        ),
        model=settings.ModelSection(kind="custom"),
        data=settings.DataSection(source="own"),
        exchange=settings.ExchangeSection(
            codec=arguments.codec,
            block=arguments.block,
            chunk_values=arguments.chunk_values,
            start_peers=peers,
            min_contributors=arguments.min_contributors or peers,
            wait_ready_s=SECONDS_PER_ROUND_MAX,
            deadline_floor_s=SECONDS_PER_ROUND_MAX,
            slices=arguments.slices,
        ),
        checkpoint=settings.CheckpointSection(every_rounds=1_000_000, snapshot_rounds=16),
    )


def take_part(arguments: argparse.Namespace) -> None:
    """Average known vectors until the run is over; one JSON object on stdout."""
    import torch
    from averager import Averager

    from swarmtrain.peer.membership import Membership

    torch.set_num_threads(arguments.threads)
    listen: Endpoint = arguments.listen
    with tempfile.TemporaryDirectory(prefix="allreduce-") as directory:
        membership = Membership.enter(
            JoinOptions(
                Invite.parse(arguments.invite), f"rank-{arguments.rank}", listen,
                (Path(directory),),
            )
        )  # fmt: skip
        try:
            exchange = membership.config.exchange
            warmup = int(membership.config.run.name.rpartition("-")[2])
            vectors = _Vectors(arguments.rank, exchange.start_peers, arguments.numel)
            averager = Averager.of(membership, arguments.numel)
            averager.start()
            rounds = membership.config.run.rounds
            rows = [_measure(averager, vectors, number) for number in range(rounds)]
            membership.thread.leave("done")
        finally:
            membership.close()
    report = {
        "rank": arguments.rank,
        "peers": exchange.start_peers,
        "numel": arguments.numel,
        "codec": exchange.codec,
        "block": exchange.block,
        "chunk_values": exchange.chunk_values,
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "exchanges": [asdict(row) for row in rows[warmup:]],
    }
    print(json.dumps(report), flush=True)


def _measure(averager: Any, vectors: "_Vectors", number: int) -> Exchange:
    """One call, timed; then the check and the pause, which are not."""
    own_cpu_s = time.thread_time()
    vector = vectors.own(number)
    own_cpu_s = time.thread_time() - own_cpu_s
    before = averager.traffic()
    cpu_s, began_s = time.process_time(), time.perf_counter()
    mean = averager.all_reduce(vector, out=vector)
    ended_s = time.perf_counter()
    checking_s = time.thread_time()
    error = vectors.relative_error(mean, number)
    checking_s = time.thread_time() - checking_s
    if not averager.included:
        raise SystemExit(f"round {number}: this peer's vector was left out")
    time.sleep(max(0.0, ended_s + vectors.pause_s - time.perf_counter()))
    after = averager.traffic()
    return Exchange(
        seconds=ended_s - began_s,
        cpu_seconds=time.process_time() - cpu_s - checking_s,
        bytes_up=after.bytes_up - before.bytes_up,
        bytes_down=after.bytes_down - before.bytes_down,
        relative_error=error,
    )


class _Vectors:
    """Known vectors: every rank can draw everybody's, and so knows the true mean."""

    def __init__(self, rank: int, peers: int, numel: int) -> None:
        import torch

        self.pause_s = PAUSE_S + PAUSE_PER_VALUE_S * numel
        self._base = _drawn(rank, numel)
        total = torch.zeros(numel, dtype=torch.float64)
        for other in range(peers):
            total += _drawn(other, numel)
        self._mean = (total / peers).to(torch.float32)
        self._norm = float(self._mean.norm())

    def own(self, number: int) -> Any:
        """The vector to give in a round; scaled, so that no two rounds have the same bytes."""
        return self._base * _scale(number)

    def relative_error(self, mean: Any, number: int) -> float:
        """|mean - true mean| / |true mean|, Euclidean."""
        return float(mean.div(_scale(number)).sub_(self._mean).norm()) / self._norm


def _drawn(rank: int, numel: int) -> Any:
    import numpy as np
    import torch

    drawn = np.random.default_rng(rank).standard_normal(numel, dtype=np.float32)
    return torch.from_numpy(drawn).mul_(0.01)


def _scale(number: int) -> float:
    """Other bytes in every round: peers keep results of 16 rounds, found by hash, and would not
    fetch one that they have. The steps are wider than those of a bfloat16 scale."""
    return 1.0 + (number % 32) / 32


# ---- all together


def drive(arguments: argparse.Namespace) -> None:
    """Coordinator and peers as processes on loopback, then the summary."""
    rounds = arguments.warmup + arguments.repeat
    limit_s = 60.0 + rounds * SECONDS_PER_ROUND_MAX
    serving = [
        "coordinator", f"--peers={arguments.peers}", f"--codec={arguments.codec}",
        f"--block={arguments.block}", f"--chunk-values={arguments.chunk_values}",
        f"--repeat={arguments.repeat}", f"--warmup={arguments.warmup}",
    ]  # fmt: skip
    started = [_start(serving)]
    try:
        assert started[0].stdout is not None
        invite = started[0].stdout.readline().strip()
        if not invite:
            raise SystemExit("the coordinator did not start; what it said is above")
        for rank in range(arguments.peers):
            joining = ["peer", invite, f"--rank={rank}", f"--numel={arguments.numel}"]
            started.append(_start([*joining, f"--threads={arguments.threads}"]))
        told = [process.communicate(timeout=limit_s)[0] for process in started[1:]]
        failed = [process.args for process in started[1:] if process.returncode]
        if failed:
            raise SystemExit(f"{len(failed)} of {arguments.peers} peers failed; see above")
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait()
    _tell(summary_of([json.loads(text) for text in told], arguments.rate_mbit), arguments.json)


def _start(words: list[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def summarise(arguments: argparse.Namespace) -> None:
    """The summary of what the peers of several hosts printed."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.files]
    _tell(summary_of(reports, arguments.rate_mbit), arguments.json)


def summary_of(reports: list[dict[str, Any]], rate_mbit: float | None) -> dict[str, Any]:
    """One row: the slowest peer of each exchange, and the median over exchanges."""
    first = reports[0]
    if sorted(report["rank"] for report in reports) != list(range(first["peers"])):
        raise SystemExit(f"expected one report of each of {first['peers']} ranks")
    exchanges = list(zip(*(report["exchanges"] for report in reports), strict=True))
    slowest = [max(row["seconds"] for row in rows) for rows in exchanges]
    error = max(row["relative_error"] for rows in exchanges for row in rows)
    codec = first["codec"]
    if not error <= ERROR_MAX[codec]:
        raise SystemExit(f"the mean is wrong: relative error {error:.3g}")

    def per_peer(key: str) -> float:
        means = [statistics.fmean(row[key] for row in rows) for rows in exchanges]
        return statistics.median(means)

    bytes_up = round(per_peer("bytes_up"))
    # Parts of and results for the slices of the others: a byte per value, or four.
    payload = 2 * first["numel"] * (first["peers"] - 1) / first["peers"] * VALUE_BYTES[codec]
    if bytes_up < payload:
        raise SystemExit(f"{bytes_up} bytes were sent, but the payload has {payload:.0f}")
    same = ("peers", "numel", "codec", "block", "chunk_values", "threads", "cores", "torch")
    return {
        **{key: first[key] for key in same},
        "repeat": len(exchanges),
        "seconds": round(statistics.median(slowest), 4),
        "seconds_min": round(min(slowest), 4),
        "seconds_max": round(max(slowest), 4),
        "cpu_seconds_per_peer": round(per_peer("cpu_seconds"), 4),
        "bytes_up_per_peer": bytes_up,
        "bytes_down_per_peer": round(per_peer("bytes_down")),
        "relative_error": float(f"{error:.3g}"),
        "peak_rss_mib": max(report["peak_rss_mib"] for report in reports),
        "rate_mbit": rate_mbit,
        "limit_seconds": round(8 * bytes_up / (rate_mbit * 1e6), 4) if rate_mbit else None,
    }


def _tell(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row))
        return
    for key, value in row.items():
        if value is not None:
            print(f"{key.replace('_', ' '):<22} {value}")


# ---- the command line


def main(words: list[str]) -> None:
    role = words[0] if words and words[0] in ROLES else ""
    parser = argparse.ArgumentParser(
        prog=f"allreduce.py {role}".strip(),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if role == "coordinator":
        _add_run(parser)
        parser.add_argument("--listen", type=parse_endpoint, default=Endpoint("127.0.0.1", 0))
        parser.add_argument("--public-host", default="", help="host that the invite names")
        coordinate(parser.parse_args(words[1:]))
    elif role == "peer":
        parser.add_argument("invite")
        parser.add_argument("--rank", type=int, required=True, help="0 to peers - 1")
        parser.add_argument("--listen", type=parse_endpoint, default=Endpoint("127.0.0.1", 0))
        _add_peer(parser)
        take_part(parser.parse_args(words[1:]))
    elif role == "summary":
        parser.add_argument("files", type=Path, nargs="+", help="what the peers printed")
        _add_output(parser)
        summarise(parser.parse_args(words[1:]))
    else:
        _add_run(parser)
        _add_peer(parser)
        _add_output(parser)
        drive(parser.parse_args(words))


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--codec", choices=sorted(ERROR_MAX), default="int8")
    parser.add_argument("--block", type=int, default=1024, help="values that share a scale")
    parser.add_argument("--chunk-values", type=int, default=262_144, help="values on one frame")
    parser.add_argument(
        "--min-contributors", type=int, default=0, help="vectors that a mean needs; 0: all"
    )
    parser.add_argument(
        "--slices", choices=("measured", "equal"), default="measured", help="how slices are cut"
    )
    parser.add_argument("--repeat", type=int, default=7, help="timed exchanges")
    parser.add_argument("--warmup", type=int, default=2, help="exchanges before them")


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--numel", type=int, default=1_000_000, help="values of the vector")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a peer")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--rate-mbit", type=float, help="link rate that was set: adds what its bytes must take"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
