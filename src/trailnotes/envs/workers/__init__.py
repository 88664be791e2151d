"""Environments in worker processes; the worker loads no asyncio."""
