"""Other engines than the serving core: what is known of one, as values, and how it is written down."""
