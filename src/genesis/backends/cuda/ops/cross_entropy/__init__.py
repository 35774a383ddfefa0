"""The cross entropy of logits and class indices, in one pass over the logits each way."""
