"""Equal-size Hard EM: who trains on what, and how that is decided."""
