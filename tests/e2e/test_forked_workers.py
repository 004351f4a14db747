"""A process that a program has forked off holds nothing of the peer, however long it lives."""

import json
import os
import signal
import socket

import pytest
from e2e_rig import place

pytestmark = pytest.mark.timeout(200)

RUN = """
[run]
name = "forks"
rounds = 100000
[model]
kind = "custom"
[data]
source = "own"
[exchange]
start_peers = 1
min_contributors = 1
"""

FORKS = """
import os, signal, sys, torch, swarmtrain
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with swarmtrain.join(model, optimizer) as swarm:
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    while not swarm.should_stop:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def test_a_killed_peer_is_gone_although_its_forked_worker_lives(tmp_path):
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN))
        events = tmp_path / "events"
        script = tmp_path / "train.py"
        script.write_text(FORKS)
        peer = here.start(script, SWARMTRAIN_INVITE=up.invite, SWARMTRAIN_EVENTS=str(events))
        child = int(peer.wait("the worker", lambda: peer.lines and peer.lines[0]))
        try:
            joined = json.loads(events.read_text().splitlines()[0])
            trains = up.status_when(lambda view: view["peers"][0]["state"] == "training")
            assert trains["unit"] == "samples"
            peer.process.kill()
            peer.process.wait()
            os.kill(child, 0)  # it lives
            with socket.create_server(("127.0.0.1", joined["port"]), reuse_port=False):
                pass
            up.status_when(lambda view: view["peers"][0]["state"] == "disconnected")
        finally:
            os.kill(child, signal.SIGKILL)
