"""A transformers Trainer; with an invite in the environment it is a peer of a run.

    pip install 'swarmtrain[hf]'
    python examples/trainer_transformers.py                # alone
    swarmtrain up examples/custom_run.toml                 # a run for it; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/trainer_transformers.py NAME  # once per peer

A small Llama with random weights learns to count in steps that it has to find out. Every peer has
examples of its own; all end with one model.
"""

import sys
import tempfile
import zlib

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from swarmtrain.errors import UserError, render
from swarmtrain.integrations.transformers import SwarmCallback

TOKENS = 32
STEPS = 400


def examples(name: str, count: int = 512, length: int = 16) -> list[dict[str, torch.Tensor]]:
    """Sequences that go up by a step of 1 to 4, around."""
    chance = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    start = torch.randint(TOKENS, (count, 1), generator=chance)
    step = torch.randint(1, 5, (count, 1), generator=chance)
    rows = (start + step * torch.arange(length)) % TOKENS
    return [{"input_ids": row, "labels": row} for row in rows]


def build(name: str, folder: str, *callbacks: TrainerCallback, **arguments: object) -> Trainer:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    settings = {
        "max_steps": STEPS, "per_device_train_batch_size": 16, "learning_rate": 3e-3,
        "logging_steps": 25, "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(folder, **{**settings, **arguments}),
        train_dataset=examples(name),
        callbacks=list(callbacks),
    )


def main(name: str) -> None:
    torch.set_num_threads(1)
    callback = SwarmCallback(name=name)
    with tempfile.TemporaryDirectory() as folder:
        result = build(name, folder, callback).train()
    print(f"mean loss {result.training_loss:.4f}")
    if callback.swarm.round:
        print(f"round {callback.swarm.round}  state root {callback.swarm.state_root}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except UserError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_status)
