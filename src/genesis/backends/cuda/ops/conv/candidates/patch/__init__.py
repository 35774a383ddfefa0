"""The weight's gradient of few channels, from patches of an image in shared memory."""
