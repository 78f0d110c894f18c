"""All that is to be known of a machine's GPU, in one run."""
