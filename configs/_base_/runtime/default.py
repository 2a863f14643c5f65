# What every task shares. `seg.py`, `det.py` and `cls.py` beside this file add the host library's scope and its visualiser.
#
# Distributed training uses NCCL. On a machine without a GPU tools/train.py switches to gloo by itself; for other runners set
# MMVIT_DIST_BACKEND=gloo in the environment, or pass --cfg-options env_cfg.dist_cfg.backend=gloo.
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    sampler_seed=dict(type="DistSamplerSeedHook"),
)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="{{$MMVIT_DIST_BACKEND:nccl}}"),
)
vis_backends = [dict(type="LocalVisBackend")]
log_level = "INFO"
load_from = None
resume = False
