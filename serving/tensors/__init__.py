"""Shapes, sizes and values of tensors, and where items lie in them."""
