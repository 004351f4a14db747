"""`swarmtrain` whose senders serve the peers of the next stage in turn, whatever their speeds.

    python benchmarks/pipelines/equal_routes.py join ...

Routes that are fixed and equal: `speed.py` has them beside those that the run finds for itself.
"""

import sys
from collections.abc import Collection

from swarmtrain.__main__ import main
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import guardian
from swarmtrain_transport.pipeline.peer.balance import Balance


class InTurn(Balance):
    """Equal shares: no time is ever known, so all peers cost the same; and one peer is the next."""

    def measured(
        self, peer: PeerId, *, forward_s: float | None = None, backward_s: float | None = None
    ) -> None:
        pass

    def ranked(self, peers: Collection[PeerId], excluded: Collection[PeerId] = ()) -> list[PeerId]:
        return super().ranked(peers, excluded)[:1]


if __name__ == "__main__":
    guardian.Balance = InTurn
    sys.exit(main())
