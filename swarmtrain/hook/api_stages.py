"""`swarmtrain.join_stages`: a program brings a model in stages, and this process trains some.

    model = swarmtrain.StagedModel(blocks, loss, example=(x, y))
    print(model.digest)                              # for the run file
    swarmtrain.join_stages(model, loader)            # until the run is over

Steps, learning rate and clipping are those of the run file, as stages step together. Whatever goes
wrong raises.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from swarmtrain.config.options import DEVICE_AUTO, Ways, parse_device, parse_span
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain.foundation.events import Event, Left
from swarmtrain.hook.api import in_words
from swarmtrain.hook.environment import INVITE, Surroundings
from swarmtrain.peer.hook_log import logger, speak_up
from swarmtrain.peer.run import live
from swarmtrain.peer.telling import Emit, Telling
from swarmtrain.pipeline.staged_model import MicroBatch, OwnWork, StagedModel

__all__ = ["StagedModel", "join_stages"]


def join_stages(
    model: StagedModel,
    batches: Iterable[MicroBatch] | None = None,
    invite: str | None = None,
    *,
    span: str = "",
    name: str = "",
    listen: str = "",
    state_dir: str | Path | None = None,
    up: str = "",
    down: str = "",
    daily: str = "",
    device: str = DEVICE_AUTO,
) -> Left:
    """Become a peer of a run in stages with a model of your own, and train until the run is over.

    Returns too when Ctrl+C has asked the peer to leave. News are lines of the logger `swarmtrain`,
    as those of `swarmtrain.join`.

    Args:
        model: the same at every peer. Each makes the stages that it serves, and no others.
        batches: (input, labels) of micro-batches like the model's example, in an order of this
            peer's own; gone through again when they end. None: `span` keeps it from the first
            stage, where data come in.
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        span: ``1-2`` or ``1``: stages to serve, counted from 0; "" for the one that the run lacks
            most.
        name: see `swarmtrain.join`.
        listen: see `swarmtrain.join`.
        state_dir: see `swarmtrain.join`.
        up: see `swarmtrain.join`.
        down: see `swarmtrain.join`.
        daily: see `swarmtrain.join`.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``mps``, where its stages are made and trained;
            ``auto`` is the first card, else Apple's GPU, else the processor. `batches` may lie
            anywhere.

    Returns:
        The round after which the peer has left, and in `roots` the hash of each stage's state: the
        same at all peers of a stage.

    Raises:
        UserError: as of `swarmtrain.join`; SWT-E804, the run is for another model; E613, the model
            cannot be cut as the run file says.
    """
    text = invite if invite is not None else os.environ.get(INVITE, "")
    speak_up()
    with in_words():
        if not text.strip():
            raise UserError(
                "SWT-E310",
                "No invite was given.",
                "An invite says where the run is and lets you in.",
                f"Give join_stages an invite, or set {INVITE}.",
            )
        here = Surroundings.read()
        options = here.options(
            text, "stages", name=name, listen=listen, state_dir=state_dir, up=up, down=down,
            daily=daily,
        )  # fmt: skip
        asked = parse_span(span) if span else None
        if batches is None and (asked is None or asked[0] == 0):
            raise misuse(
                "The first stage is for peers with data, and this one brings no batches.",
                'Give join_stages batches, or ask for later stages: span="1-2".',
            )
        options = replace(
            options, threads=torch.get_num_threads(), span=asked,
            ways=Ways(device=parse_device(device)),
        )  # fmt: skip
        return live(options, _Logged(here.emit()), own=OwnWork(model, batches or ()))


class _Logged(Telling):
    """Tells the news as lines of the logger, and to a program that has started this one."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logger.info, emit)
        self._put_out = emit

    def tell(self, event: Event, text: str) -> None:
        """See Telling.tell."""
        self._put_out(event)
        self.say(text)
