"""Variables with which experiment trackers keep what a run logs in files, and send nothing.

A comparison runs the command many times. Without these variables, each run would appear as an experiment
among the user's own. An argument in the program, such as `wandb.init(mode="online")`, overrides its tracker's
variable.
"""

OFFLINE = {
    "WANDB_MODE": "offline",  # https://docs.wandb.ai/models/support/run_wandb_offline
    "COMET_START_ONLINE": "0",  # https://www.comet.com/docs/v2/guides/experiment-management/configure-sdk
    "NEPTUNE_MODE": "offline",  # https://docs.neptune.ai/offline
    "CLEARML_OFFLINE_MODE": "1",  # https://clear.ml/docs/latest/docs/guides/set_offline
    "SWANLAB_MODE": "offline",  # https://docs.swanlab.cn/en/api/cli-swanlab-offline.html
}
