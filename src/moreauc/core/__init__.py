"""What the losses are made of: tables and their update rules, surrogates, pair kernels, poolings, exact objectives."""
