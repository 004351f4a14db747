"""Lets the final model write a few lines, from its file alone. Loads torch."""

from pathlib import Path

import safetensors.torch
import torch

from swarmtrain.config.settings import ModelSection
from swarmtrain.models.byte_transformer import NUM_BYTE_VALUES, build_model
from swarmtrain.trained.writing import Taste, written

_PROMPT = b"\n\ndef "
_NUM_BYTES = 240


def write_lines(model_path: Path, section: ModelSection, seed: int) -> str:
    """Let the model write after "def"; return printable lines.

    Args:
        model_path: a safetensors file with the weights by parameter name.
    """
    torch.set_num_threads(1)  # a few hundred tiny steps: more threads would only wait
    model = build_model(section, seed=0)
    model.load_state_dict(safetensors.torch.load_file(model_path))
    model.eval()
    taste = Taste(seed=seed)
    new = written(model, _PROMPT, _NUM_BYTES, section.context, taste, NUM_BYTE_VALUES)
    text = (_PROMPT + bytes(new)).decode("utf-8", errors="replace")
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)
