"""What trained decoders have become: how they share the data, what each is good at, how they compare."""
