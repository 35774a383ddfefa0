"""1×1 convolutions in 16 bits whose pixels stream past: see candidate.py."""
