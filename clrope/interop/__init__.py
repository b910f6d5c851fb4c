"""Adapters: one file for each peer, with the peer's own argument names, orders and errors. None knows another."""
