"""How far apart the two best tokens may be when rounding, not a fault, chose another one.

Distances are between log probabilities (equal to those between logits). Random weights make such ties common.
"""

# What else is in a batch: no token has differed where the best two were 0.008 or more apart (the hybrid, 43 runs of
# its test, a busy machine among them).
SAME_CHUNKS = 0.01
# Where prompts are read in other chunks: that alone, without any cache, moves the distance by up to 0.033 (measured,
# dense and hybrid).
OTHER_CHUNKS = 0.05
