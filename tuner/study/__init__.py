"""The course of a study, from the default configuration to the verdict."""
