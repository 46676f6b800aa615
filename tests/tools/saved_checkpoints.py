"""Run by test_inspect_checkpoint.py on each of two processes: one step and a checkpoint under ZeRO 1 and 3, as a run saves it.

argv: the folder to save in, then flat keys. The first process writes the norms of the parameters to norms.json.
"""

import json
import sys
from pathlib import Path

import torch

from megatron.config.derive import complete
from megatron.config.load import load_config
from megatron.parallel.distributed import start_processes
from megatron.parallel.sharding import whole
from megatron.training.engine import build_engine, save_checkpoint

VOCABULARY, STEP = 61, 7


def main(folder: Path, overrides: list[str]) -> None:
    processes, norms = None, {}
    for stage in (1, 3):
        keys = [*overrides, f"zero_optimization.stage={stage}", f"save={folder / f'stage{stage}'}"]
        config = complete(load_config([], keys), 2)
        processes = processes or start_processes(config)
        engine = build_engine(config, VOCABULARY, processes)
        engine.optimizer.param_groups[0]["lr"] = 0.01
        tokens = torch.randint(0, VOCABULARY, (2, 13), generator=torch.Generator().manual_seed(processes.rank))
        engine.backward(engine(tokens[:, :-1], tokens[:, 1:]).mean())
        engine.step()
        state = {"step": STEP, "samples": 28, "seed": config.training.seed, "configuration": config.model_dump(mode="json")}
        save_checkpoint(engine, config, processes, STEP, state)
        with whole(engine.module.parameters()):
            norms[stage] = {name: p.detach().double().square().sum().sqrt().item() for name, p in engine.module.named_parameters()}
    if processes.is_first:
        (folder / "norms.json").write_text(json.dumps(norms))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
