"""Proofs of other engines, from outside: does an OpenAI server's speculation change its answers?"""
