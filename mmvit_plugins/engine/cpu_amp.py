"""Mixed precision on machines without a GPU: mmengine's AmpOptimWrapper refuses a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import Registry
from torch import nn

from mmvit_plugins.registry import SCOPE

__all__ = ["CPUAmpOptimWrapper", "OPTIM_WRAPPERS"]

OPTIM_WRAPPERS = Registry(MMENGINE_OPTIM_WRAPPERS.name, parent=MMENGINE_OPTIM_WRAPPERS, scope=SCOPE)


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """The forward pass under bfloat16 autocast on a CPU; weights, gradients and the step stay float32.

    bfloat16 has the range of float32, so no loss scaling is needed. A config that uses it must import this package:
    ``custom_imports=dict(imports=['mmvit_plugins.engine'])``, which ``tools/train.py --amp`` writes.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Autocast inside mmengine's own context, which delays gradient synchronisation while accumulating."""
        with super().optim_context(model), torch.autocast("cpu", dtype=torch.bfloat16):
            yield
