"""Train one model: `python train.py -d configs 125M.yml local_setup.yml`, alone or under deepy.py, torchrun, deepspeed or srun."""

from megatron.launch.entry import read_run, run_entry


def main(argv: list[str]) -> int:
    """Check the whole configuration first; torch is imported after that."""
    config = read_run(argv)
    from megatron.training.pretrain import pretrain

    return pretrain(config)


if __name__ == "__main__":
    run_entry(main)
