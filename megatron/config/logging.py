"""Where figures go: terminal, JSON lines, TensorBoard, wandb."""

from typing import Literal

from megatron.config.base import Group, key


class LoggingConfig(Group):
    """`<log_dir>/metrics.jsonl` is always written when log_dir is set."""

    log_dir: str | None = key(
        None, "Folder of metrics.jsonl and log files; default: `<save>/logs` where save is set, else `logs`.", min_length=1
    )
    log_interval: int = key(10, "Steps between training lines.", ge=1, le=10**12)
    tensorboard_dir: str | None = key(None, "Folder of TensorBoard event files.", min_length=1)
    use_wandb: bool | None = key(None, "Log to Weights & Biases; default: no.")
    wandb_project: str = key("dape-neox", "wandb project.")
    wandb_group: str | None = key(None, "wandb group.")
    wandb_team: str | None = key(None, "wandb team or user.")
    wandb_run_name: str | None = key(None, "Name of the run; default: wandb's own.")
    wandb_host: str = key("https://api.wandb.ai", "wandb server.")
    wandb_init_all_ranks: bool = key(False, "Accepted as false only: rank 0 logs.", json_schema_extra={"only": False})
    log_grad_norm: bool = key(True, "Accepted for GPT-NeoX's files: the norm of the gradient is always logged.")
    peak_tflops: float | None = key(None, "Peak TFLOP/s of one device, for MFU; default: known GPUs by name, none on a CPU.", gt=0)
    wall_clock_breakdown: bool = key(False, "Log the time of forward, backward and step.")
    progress: Literal["auto", "bar", "lines", "none"] = key("auto", "Progress: a bar on a terminal, lines elsewhere.")
