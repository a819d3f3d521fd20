"""Where handlers run: in the trio run of their engine, or on an asyncio loop. How the two call each other."""
