"""Exact solvers for the balanced assignments of an E-step: `balanced` for EqHard-EM, `sinkhorn` for EqSoft-EM."""
