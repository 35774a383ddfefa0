"""What all backends share that choose among several implementations of one problem: the store of what was tuned."""
