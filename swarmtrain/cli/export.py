"""`swarmtrain export FOLDER DIRECTORY...`: one model of a run's newest checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson


def export(
    folder: Annotated[Path, typer.Argument(help="New folder for the model.")],
    directories: Annotated[
        list[Path], typer.Argument(help="State directories of peers, or a folder of them.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make one model of a run's newest checkpoints, for safetensors. Where the model is in stages,
    the peers of these directories have all of them together. They may go on meanwhile."""
    import msgspec

    from swarmtrain.console.units import human_bytes
    from swarmtrain.export import export as make

    made = make(folder, directories)
    if as_json:
        print(msgspec.json.encode(made).decode())
        return
    for part in made.stages:
        of = f"stage {part.stage}" if len(made.stages) > 1 else "the model"
        print(f"{of}: round {part.op}, state {part.state_root[:16]}")
    size = human_bytes(made.model_bytes)
    print(f"{folder}/model.safetensors: {made.num_values} values, {size}; manifest.json beside it")
