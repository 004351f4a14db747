"""What a strategy promises to the driver that steps it.

A strategy names the exchanges it needs and does the arithmetic around them. It never opens a
socket, knows no peer but its own, and keeps no time: the driver calls `pseudo_gradient` when an
op starts and exactly one of `apply` and `skip` when it ends. Vectors are flat, padded to a whole
number of blocks, and live on the CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn


class Strategy(Protocol):
    """One peer's side of one way to train together."""

    @property
    def num_values(self) -> int:
        """Length of the padded vector."""

    @property
    def inner_steps(self) -> int:
        """Inner steps of one round."""

    def is_due(self, steps_since_outer: int) -> bool:
        """Whether an exchange is due after this many inner steps since the last outer step."""

    def set_initial(self, weights: Tensor) -> None:
        """Begin as op 0 with these weights, (num_values,); everything else is zero."""

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        """The shared state in fixed order; its bytes make the state root.

        The tensors are the live buffers: read them before the next but one `apply`, never write.
        """

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over downloaded shared state; pending work and error feedback are dropped.

        Raises:
            ValueError: a name is missing or unknown, or a length differs; nothing changed.
        """

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """What belongs to this peer alone and should survive its restart; may be empty."""

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back `local_arrays`. Only valid if no later op included this peer (rule 9)."""

    def pseudo_gradient(self, weights: Tensor) -> Tensor:
        """What this peer contributes to the op that starts: (num_values,), not changed until
        the op ends. `weights` are copied."""

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | Tensor | None = None,
    ) -> Tensor:
        """End the op with its committed result.

        Args:
            mean: (num_values,) the decoded mean, the same on every peer.
            included: (start, stop, whether our part is in the mean), in order, covering all;
                not looked at by a peer that contributed nothing.
            weights_now: (num_values,) the weights, with steps made since `pseudo_gradient`.
            decoded_own: with error feedback, our own part as the others decoded it.

        Returns:
            (num_values,) the weights to go on from, a new tensor.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """

    def skip(self) -> None:
        """End the op without a result: parameters, momentum and error feedback stay."""
