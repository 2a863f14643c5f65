# The baseline of in1k.py: ViT-S on 256 uniform patches of 16 pixels with sinusoid positions at integer cells, as the
# authors' uniform tokeniser.
_base_ = "./in1k.py"
model = dict(
    backbone=dict(
        max_patch_size=16,
        num_tokens=256,
        origin="corner",
        scorer=dict(_delete_=True, type="mmvit_plugins.PixelBlurScorer"),
    )
)
