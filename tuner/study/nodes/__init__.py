"""Measuring on other machines: what runs there, and the engines that start it."""
