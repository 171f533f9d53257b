"""CPU, memory and wait profiles of the process, in the format of pprof.

Start with profiler.py.
"""
