"""Run by test_sharded.py on each of two processes: a few steps at ZeRO stages 0 and 3, the losses printed as JSON by the first."""

import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
import torch  # noqa: E402

from megatron.config.load import load_config  # noqa: E402
from megatron.model.gpt import GPT  # noqa: E402
from megatron.model.init import initialise  # noqa: E402


def losses(stage: int, overrides: list[str]) -> list[float]:
    config = load_config([], overrides)
    settings = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = GPT(config, 61)
        initialise(model, config.model, 1, lambda parameters: deepspeed.zero.GatheredParameters(parameters, modifier_rank=0))
    else:
        model = GPT(config, 61)
        initialise(model, config.model, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, config=settings, optimizer=optimizer)
    found = []
    for step in range(3):
        torch.manual_seed(100 * torch.distributed.get_rank() + step)
        tokens = torch.randint(0, 61, (2, 13))
        loss = engine(tokens[:, :-1], tokens[:, 1:]).mean()
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it would be compiled
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    results = [[losses(stage, overrides) for stage in (0, 3)] for overrides in json.loads(sys.argv[1])]
    if torch.distributed.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    torch.distributed.destroy_process_group()
