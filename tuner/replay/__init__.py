"""Recorded surfaces: every configuration of a grid measured on a real engine, and searched again without one."""
