"""Networks of the paper's experiments (GIN, ResNet20), and many small networks trained at once."""
