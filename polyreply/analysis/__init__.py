"""What trained decoders have become: how they share the data, what each one tends to say, how far theory holds."""
