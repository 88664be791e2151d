"""Hosts of environments: worker processes, or this one; a worker process loads no asyncio."""
