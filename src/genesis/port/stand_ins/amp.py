"""torch.amp: what genesis.amp leaves out."""


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast knows a device."""
    return device_type in ("cpu", "cuda")
