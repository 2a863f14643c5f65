# The ADE20K UPerNet schedule with 8 GPUs x 1 image of 1024 x 1024 (ours; a crop has four times the pixels of ADE20K's).
_base_ = "./ade20k_upernet_160k.py"
auto_scale_lr = dict(enable=False, base_batch_size=8)
