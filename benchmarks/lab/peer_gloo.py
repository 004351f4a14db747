"""torch.distributed gloo all-reduce. MODE: fp32, fp16 or bf16 (the casts both ways are timed)."""

import numpy as np
import torch
import torch.distributed as dist
from lab_peer import MODE, RANK, RUN_DIR, WORLD, measure

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{RUN_DIR}/gloo", rank=RANK, world_size=WORLD)
DTYPE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[MODE]


def run_round(x: np.ndarray) -> np.ndarray:
    t = torch.from_numpy(x).to(DTYPE)
    dist.all_reduce(t)
    return (t.float() / WORLD).numpy()


measure(run_round)
dist.destroy_process_group()
