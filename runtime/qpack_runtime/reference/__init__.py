"""The reference executor: what every instruction means, in numpy. The oracle of every test; runs anywhere.

Values are computed in float32 and stored in each buffer's dtype. What a row gets depends on its own inputs and the
state of its slot alone: every function works row by row with shapes that the row's neighbours, bucket and padding
don't change.
"""
