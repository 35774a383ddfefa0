"""Resizing of images, and its gradient."""
