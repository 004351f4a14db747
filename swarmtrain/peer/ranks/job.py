"""A torchrun job that joins a run as one peer: rank 0 talks to the swarm, the others follow it.

After each inner step every rank comes here. Rank 0 does what any peer does then, and what concerns
values is told to the others and done by all; at last it says that training goes on, and how the run
stands. Not here: the loop's view of the run, which is the hook's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import nn

from swarmtrain.config import file as config_file
from swarmtrain.config.pipeline import refuse_stages
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation import numerics
from swarmtrain.foundation.errors import UserError, translate
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.disk.image_file import put_in
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.ranks.contribution import stop_encoders
from swarmtrain.peer.ranks.driver import LeadDriver, RankDriver, Word, serve
from swarmtrain.peer.ranks.layout import RankLayout
from swarmtrain.peer.ranks.ranks import Ranks
from swarmtrain.peer.ranks.saves import RankSaves
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.strategies import settings_of, strategy_of
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_transport.wire.messages import FIRST_GROUP

STRATEGIES = frozenset({"diloco"})
"""Strategies that work value by value on the whole vector, and were seen to end with equal
roots."""


class View(msgspec.Struct, frozen=True, array_like=True):
    """The run as rank 0 tells the others of it.

    Attributes:
        round: newest round in the weights.
        state_root: hex.
        peers: number of other peers.
        seed: seed of the job's own draws.
        is_over: the run's last round is in the weights.
        trouble: id, fact, meaning and remedy of what has ended it; () without any.
    """

    round: int = 0
    state_root: str = ""
    peers: int = 0
    seed: int = 0
    is_over: bool = False
    trouble: tuple[str, ...] = ()


class Job:
    """This rank's part of a job. All ranks make theirs at once.

    Raises:
        UserError: SWT-E643, not all ranks came.
    """

    def __init__(self) -> None:
        self._ranks = Ranks()
        self._driver: RankDriver | None = None
        self._said = View()
        self._is_told = self._is_begun = self._is_over = False

    @property
    def leads(self) -> bool:
        """True at rank 0."""
        return self._ranks.leads

    # ---- rank 0

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Whatever goes wrong until the first `go` is told to the others, who raise it too."""
        try:
            yield
        except Exception as error:
            if not self._is_begun and not self.is_broken:
                self._ranks.tell(Word.FAILED, msgspec.msgpack.encode(trouble_of(error)))
                self._end()
            raise

    def session(
        self, membership: Membership, model: nn.Module, optimizer: torch.optim.Optimizer | None,
        layout: Layout, hooks: Hooks,
    ) -> Session:  # fmt: skip
        """Begin a session over all ranks; see `Membership.session`.

        Raises:
            UserError: SWT-E642, the run's strategy or codec is not for jobs; E641, nor this model.
        """
        config, me = membership.config, membership.identity.peer_id
        check_run(config)
        said = (config_file.canonical(config), me)
        self._ranks.tell(Word.CONFIG, msgspec.msgpack.encode(said))
        self._is_told = True
        own = RankLayout(model, layout, config.exchange.block, self._ranks)
        storage = membership.storage
        membership.thread.wishes.may_pause = False  # the other ranks wait for this one
        driver = LeadDriver(
            me, own_strategy(config, own), ModelWeights(model, own, optimizer), own, self._ranks,
            digest=layout.digest, snapshot_rounds=config.checkpoint.snapshot_rounds,
            put=put_in(storage.directory),
        )  # fmt: skip
        self._driver = driver
        group = storage.of(FIRST_GROUP)
        return Session(
            me, membership.thread, group, config, driver, layout, hooks,
            saves=RankSaves(group, config, layout),
        )  # fmt: skip

    def go(self, view: View) -> None:
        """Let all ranks make their next step."""
        self._is_begun = True
        is_new, self._said = view != self._said, view
        self._ranks.tell(Word.GO, msgspec.msgpack.encode(view) if is_new else b"")

    def over(self, view: View) -> None:
        """The job has left the run: the others hear it. The network thread has ended."""
        if self._is_begun and not self._is_over and not self.is_broken:
            self._ranks.tell(Word.OVER, msgspec.msgpack.encode(view))
            self._end()
        self._is_over = True

    def _end(self) -> None:
        """The others have heard the last word: their encoders, of which each that has heard the
        run's settings has one, are asked for nothing more."""
        if self._is_told:
            stop_encoders(self._ranks)
        self._ranks.close()
        self._is_over = True

    def abandon(self) -> None:
        """Say nothing more to the others: this rank's loop has failed."""
        self._is_over = True

    @property
    def is_broken(self) -> bool:
        """True if the ranks are not in step any more: then the job can only end."""
        return self._driver is not None and self._driver.is_broken

    # ---- the others

    def follow(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> View:
        """Join with rank 0, until the run's weights are in the model.

        Raises:
            UserError: what rank 0 has raised; SWT-E101, this machine calculates other bits.
        """
        numerics.check()
        word, data, _ = self._ranks.hear()
        if word != Word.CONFIG:
            self._ranks.close()
            raise error_of(tuple(msgspec.msgpack.decode(data)))
        text, me = msgspec.msgpack.decode(data)
        config = config_file.from_canonical(text)
        layout = Layout.of(model, config.exchange.block)
        own = RankLayout(model, layout, config.exchange.block, self._ranks)
        self._driver = RankDriver(
            me, own_strategy(config, own), ModelWeights(model, own, optimizer), own, self._ranks,
            digest=layout.digest, snapshot_rounds=config.checkpoint.snapshot_rounds,
        )  # fmt: skip
        self._driver.listen()
        return self.served()

    def served(self) -> View:
        """Do what rank 0 tells until training goes on, or the job has left the run.

        Raises:
            UserError: joining has failed.
        """
        assert self._driver is not None
        while True:
            word, data, steps = self._ranks.hear()
            self._is_over = word in (Word.FAILED, Word.OVER)
            if self._is_over:
                self._driver.end()
                self._ranks.close()
            if word == Word.FAILED:
                raise error_of(tuple(msgspec.msgpack.decode(data)))
            if word in (Word.GO, Word.OVER):
                if data:
                    self._said = msgspec.msgpack.decode(data, type=View)
                return self._said
            serve(self._driver, word, data, steps)

    @property
    def is_over(self) -> bool:
        """True if the job has left the run."""
        return self._is_over


def own_strategy(config: RunConfig, own: RankLayout) -> Strategy:
    """The run's strategy on a rank's own vector."""
    return strategy_of(config, Layout(own.parameters, own.num_values, own.padded, b""))


def check_run(config: RunConfig) -> None:
    """Refuse a run that a job cannot be in.

    Raises:
        UserError: SWT-E642; or the model is served in stages.
    """
    refuse_stages(config)
    name, exchange = settings_of(config).name, config.exchange
    problem = ""
    if name not in STRATEGIES:
        problem = f"its strategy is {name}; jobs take part with {', '.join(sorted(STRATEGIES))}"
    elif facts_of(exchange.codec).kept is not None:
        problem = f"its codec is {exchange.codec}, which sends a part of each block"
    elif exchange.rounding == "stochastic":
        problem = "exchange.rounding is stochastic"
    if problem:
        raise UserError(
            "SWT-E642",
            f"A torchrun job cannot be a peer of this run: {problem}.",
            "Each rank of a job works on its own part of the model.",
            "Join from one process, or have the organiser set another strategy or codec.",
        )


def trouble_of(error: Exception) -> tuple[str, ...]:
    """An error in words that travel."""
    told = translate(error) or error
    if isinstance(told, UserError):
        return told.code, told.what, told.meaning, told.remedy
    return "SWT-E901", f"Rank 0 failed: {error!r}.", "", ""


def error_of(trouble: tuple[str, ...]) -> UserError:
    """The error that rank 0 has told."""
    return UserError(*trouble)
