"""The same bits on every processor: bundles served on emulated ones, beside this machine's."""
