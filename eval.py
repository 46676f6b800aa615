"""Evaluate a checkpoint at eval_lengths: `python deepy.py eval.py -d configs 125M.yml local_setup.yml`.

Results go to `<log_dir>/results.json`.
"""

from megatron.launch.entry import read_run, run_entry


def main(argv: list[str]) -> int:
    """The evaluation at the end of a run, without the run: `load` (or `save`) names the checkpoint."""
    config = read_run(argv, overrides=["do_train=false"])
    from megatron.training.pretrain import pretrain

    return pretrain(config)


if __name__ == "__main__":
    run_entry(main)
