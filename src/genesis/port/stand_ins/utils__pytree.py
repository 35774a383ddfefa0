"""torch.utils._pytree: PyTorch's, which takes the leaves of a structure for whatever they are."""

import torch.utils._pytree

globals().update({name: getattr(torch.utils._pytree, name) for name in torch.utils._pytree.__all__})
