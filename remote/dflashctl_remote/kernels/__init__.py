"""Kernels, a folder each: the mathematics (README.md), a reference, the kernel, a check and a bench.

Triton is imported where a kernel is launched and nowhere else: machines without a GPU need not have it.
"""
