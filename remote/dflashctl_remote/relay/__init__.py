"""Agents at both ends of a relay: stdlib Python alone, since they run under whatever python3 a host has."""
