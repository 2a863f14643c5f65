# MMSegmentation, trained by iterations. Configs set the checkpoint and log intervals that fit their schedule.
_base_ = "./default.py"
default_scope = "mmseg"
default_hooks = dict(
    checkpoint=dict(
        type="CheckpointHook", by_epoch=False, interval=16000, max_keep_ckpts=3, save_best="mIoU", rule="greater"
    ),
    visualization=dict(_scope_="mmseg", type="SegVisualizationHook"),
)
visualizer = dict(
    _scope_="mmseg", type="SegLocalVisualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer"
)
log_processor = dict(by_epoch=False)
tta_model = dict(_scope_="mmseg", type="SegTTAModel")
