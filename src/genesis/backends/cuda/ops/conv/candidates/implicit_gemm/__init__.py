"""Any convolution, as a matrix product whose operands are gathered on the way."""
