"""The store of tuned choices, shared by all backends that choose among several implementations of one problem."""
