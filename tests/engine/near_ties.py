"""How far apart the two best tokens may be when rounding, not a fault, chose another one.

Distances are between log probabilities (equal to those between logits). Random weights make such ties common.
"""

# The same prompt in batches of the same shapes.
SAME_BATCHES = 0.01
# In batches of other shapes: other prefill chunks alone, without any cache, move the distance by up to 0.033
# (measured, dense and hybrid), and which answers share a step depends on when they were asked.
OTHER_BATCHES = 0.05
