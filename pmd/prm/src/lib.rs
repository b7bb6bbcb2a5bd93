//! Bit layouts, opcodes and syndromes of the mlx5 device interface.
