# upernet_scenes.py with torch.compile switched on (mmengine compiles the whole training step; validation stays as it is).
# 'inductor' needs a C++ compiler. The first iterations are slow, so it pays on long runs only.
_base_ = "./upernet_scenes.py"
compile = dict(backend="inductor")
