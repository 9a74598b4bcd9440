"""Page of `tune compare`: samplers compared on one engine."""
