"""The dialogue models of others that the paper compares with: AdaLabel and DialogBERT."""
