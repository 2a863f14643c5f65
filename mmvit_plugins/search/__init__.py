"""Searches under a budget, on Optuna (extra ``search``): exit thresholds of DVT, pruning ratios of SparseViT.

Importing this imports nothing of Optuna; its modules do.
"""
