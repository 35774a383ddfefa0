"""The launch of any element-wise op, with broadcasting, any strides and any of the dtypes."""
