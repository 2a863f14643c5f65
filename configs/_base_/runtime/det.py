# MMDetection, trained by epochs.
_base_ = "./default.py"
default_scope = "mmdet"
default_hooks = dict(
    checkpoint=dict(
        type="CheckpointHook", by_epoch=True, interval=1, max_keep_ckpts=3, save_best="coco/bbox_mAP", rule="greater"
    ),
    visualization=dict(_scope_="mmdet", type="DetVisualizationHook"),
)
visualizer = dict(
    _scope_="mmdet", type="DetLocalVisualizer", vis_backends=[dict(type="LocalVisBackend")], name="visualizer"
)
log_processor = dict(type="LogProcessor", window_size=50, by_epoch=True)
