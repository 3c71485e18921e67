"""The algorithm: `em_step` shows a whole step; `assign` has one function for each method; `solver` is exact."""
