# Several tasks at once, trained by iterations. The heads are MMSegmentation's, hence its scope. No `save_best`: which
# task would say what is best? The last checkpoint counts, for single-task twins as well.
_base_ = "./default.py"
default_scope = "mmseg"
default_hooks = dict(
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=4000, max_keep_ckpts=3),
)
visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer")
log_processor = dict(by_epoch=False)
