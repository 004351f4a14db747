"""`swarmtrain run ...`: whether a run takes newcomers."""

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose, group
from swarmtrain.cli.ordering import obeyed
from swarmtrain.console.lines import show, show_json

run_app = group("run", "Close a run to newcomers, or open it.")


def _door(name: str, about: str, done: str, *, closed: bool) -> None:
    @run_app.command(name, help=about)
    def order(
        state_dir: StateDir = None,
        as_json: AsJson = False,
        verbose: Verbose = False,
    ) -> None:
        answer = obeyed(state_dir, "door", closed=closed)
        show_json(answer) if as_json else show(done)


_door(
    "close",
    "Let nobody new in, whatever invite they have. Peers that were in come back as ever.",
    "Nobody new is let in; peers come back as ever.",
    closed=True,
)
_door(
    "open",
    "Let newcomers in again, with an invite.",
    "A peer with an open invite is let in again.",
    closed=False,
)
