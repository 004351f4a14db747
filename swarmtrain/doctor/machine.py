"""Looking at this machine: reads, and writes nothing."""

import asyncio
import os
import platform
import time
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path

import psutil

from swarmtrain.config import file as config_file
from swarmtrain.doctor.findings import Machine
from swarmtrain.doctor.router import Router, ask
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.foundation.file_descriptors import raise_limit
from swarmtrain.peer.disk.group_storage import RUN_FILE
from swarmtrain.peer.disk.shelf import free_bytes
from swarmtrain.port_mapping.gateway import gateways, own_host
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.coordinator.assignment import memory_of


def look(directory: Path) -> Machine:
    """Look at this machine, for a peer that keeps its state in this folder."""
    version, device, is_cuda_idle, gflops, numerics = _torch()
    home = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    memory_bytes = int(psutil.virtual_memory().available)
    return Machine(
        python=f"{platform.python_version()} on {platform.platform(terse=True)}",
        directory=directory,
        free_bytes=free_bytes(directory),
        can_write=home.is_dir() and os.access(home, os.W_OK | os.X_OK),
        memory_bytes=memory_bytes,
        fits=_largest(memory_bytes) if device else "",
        needs_bytes=_needs(directory) if device else 0,
        torch=version,
        device=device,
        is_cuda_idle=is_cuda_idle,
        gflops=gflops,
        numerics=numerics,
        cores=_cores(),
        now_s=time.time(),
        installed_s=Path(__file__).stat().st_mtime,
        files=raise_limit(),
        ipv6=_ipv6(),
        congestion=_first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
        router=_router(),
    )


def _torch() -> tuple[str, str, bool, float, str]:
    """Version, device, True if CUDA is of no use, Gflop/s, and what differs in its arithmetic."""
    try:
        import torch

        from swarmtrain.foundation import numerics
        from swarmtrain.models.device import device_of
        from swarmtrain.pipeline.speed import flops_per_s
    except (ImportError, OSError) as error:
        return cleaned(str(error)), "", False, 0.0, ""
    device = device_of("auto")
    is_cuda_idle = torch.version.cuda is not None and device.type == "cpu"
    gflops = flops_per_s(1, device) / 1e9
    try:
        numerics.check()
    except numerics.NumericsError as error:
        return torch.__version__, str(device), is_cuda_idle, gflops, str(error)
    return torch.__version__, str(device), is_cuda_idle, gflops, ""


def _largest(memory_bytes: int) -> str:
    """Name of the largest size of model that fits."""
    from swarmtrain.plan.forecast_costs import costs

    fits = [one for one in costs() if one.memory_bytes <= memory_bytes]
    if not fits:
        return ""
    best = max(fits, key=lambda one: one.parameters)
    return f"{best.size} ({best.parameters / 1e6:.0f} M parameters)"


def _needs(directory: Path) -> int:
    """Memory of the run whose settings lie there, or of its smallest stage; 0 without."""
    from swarmtrain.pipeline.costs import stage_needs

    try:
        data = regular_file.read(directory / RUN_FILE, config_file.FILE_BYTES_MAX)
        config = config_file.from_canonical(data)
    except (OSError, UserError, RemoteFault):
        return 0
    if config.model.kind == "custom":
        return 0
    needs = stage_needs(config)
    return min(memory_of(needs, range(stage, stage + 1)) for stage in range(len(needs)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ipv6() -> str:
    """The address that packets to IPv6 networks would carry, "" if it is of no use there."""
    with suppress(ValueError):
        address = IPv6Address(own_host(6).partition("%")[0])
        return str(address) if address.is_global else ""
    return ""


def _first_line(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="ascii", errors="replace").split("\n")[0].strip()
    return ""


def _router() -> Router | None:
    found = [one for one in asyncio.run(gateways()) if one.version == 4]
    return ask(found[0]) if found else None
