# MMPretrain, trained by epochs.
_base_ = "./default.py"
default_scope = "mmpretrain"
default_hooks = dict(
    logger=dict(interval=100),
    checkpoint=dict(
        type="CheckpointHook", by_epoch=True, interval=1, max_keep_ckpts=3, save_best="accuracy/top1", rule="greater"
    ),
    visualization=dict(_scope_="mmpretrain", type="VisualizationHook", enable=False),
)
visualizer = dict(_scope_="mmpretrain", type="UniversalVisualizer", vis_backends=[dict(type="LocalVisBackend")])
