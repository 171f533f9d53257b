"""Profiles of the process itself, as pprof reads them: CPU, memory, and what is waited for."""
