"""A run as a training loop sees it; this one is no run, and does nothing, exactly.

Not here: a run (`members`), and how a loop gets into one (`api`).
"""

from types import TracebackType

from torch import Tensor

from swarmtrain.foundation.errors import misuse

HOOK, STEP = "hook", "step"
"""Ways to say that a step was made: the optimizer's hook does, or the loop by `Swarm.step`."""


class Swarm:
    """The run as a training loop sees it. This one is the exact no-op that `join` gives without an
    invite.

    Attributes:
        error: the swarm's trouble, if it had any; the loop has trained alone since.
    """

    error: Exception | None = None

    def __init__(self, when: str = HOOK) -> None:
        self._when = when
        self._round, self._state_root, self._seed, self._is_over = 0, "", 0, False

    @property
    def round(self) -> int:
        """Newest round whose outcome is in the weights; 0 at the start and without a run, and after
        leaving the last one."""
        return self._round

    @property
    def state_root(self) -> str:
        """Hex hash of the state after `round`: the same at every peer, but where peers exchange in
        pairs (noloco) each has its own; "" without a run."""
        return self._state_root

    @property
    def peers(self) -> int:
        """Number of other peers in the run now."""
        return 0

    @property
    def should_stop(self) -> bool:
        """True if the run's last round is in the weights, so that the loop may end."""
        return self._is_over

    @property
    def seed(self) -> int:
        """A seed of this peer's own in this run, below 2**56; the same after a restart, 0 without
        a run. Peers that shuffle the same data by it read them in different orders."""
        return self._seed

    def step(self) -> None:
        """Count one step, and exchange if a round is due: for loops that joined with `when="step"`.

        Call it after each step of the optimizer, outside of compiled or captured regions, and not
        after one that was skipped. It takes the place of the hook.

        Raises:
            UserError: SWT-E610, the hook counts the steps already.
        """
        if self._when != STEP:
            raise misuse(
                "swarm.step() was called, but the optimizer's hook counts the steps already.",
                'Join with when="step", or leave swarm.step() out.',
            )

    def log(self, *, loss: Tensor | float | None = None, samples: int | None = None) -> None:
        """Say what the steps from now on are like.

        Args:
            loss: loss of the newest step, shown to people; the mean of several.
            samples: per step, which give this peer its weight in the mean.

        Raises:
            UserError: SWT-E610, one of them is no number.
        """
        for given in (loss, samples):
            if given is not None and not hasattr(given, "__float__"):
                raise misuse(
                    f"swarm.log takes numbers and tensors, not {type(given).__name__}.",
                    "Give it swarm.log(loss=loss, samples=len(x)), or leave one of them out.",
                )

    def finish_round(self) -> None:
        """At the end of a loop: give the steps since the last round, wait for it, and leave.

        Without it, leaving in mid-round says goodbye at once, and those steps stay local.
        """

    def leave(self) -> None:
        """Leave the run now; the loop may go on alone. Leaving twice is allowed."""

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the run, whatever ended the block."""
        self._exit(error)

    def _exit(self, error: BaseException | None) -> None:
        """The block has ended, with an error or without."""
