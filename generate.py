"""Sample text from a checkpoint, on one process: `python generate.py -d configs 125M.yml local_setup.yml --set temperature=0.8`."""

from megatron.launch.entry import read_run, run_entry


def main(argv: list[str]) -> int:
    """Keys of the generation group say how; `load` (or `save`) names the checkpoint."""
    config = read_run(argv, world_size=1)
    from megatron.generation.run import sample_from_checkpoint

    return sample_from_checkpoint(config)


if __name__ == "__main__":
    run_entry(main)
