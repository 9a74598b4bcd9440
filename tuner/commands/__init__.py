"""One file per sub-command of `tune`: its options, and what it does with them."""
