# ToMe on DeiT-S with the falling schedule: in1k.py with r from 26 in the first block to 0 in the last ((13, -1) in the
# authors' notation). The same number of merges in all, earlier: faster, and a little less accurate.
_base_ = "./in1k.py"
model = dict(backbone=dict(r=(13, -1)))
