"""Predictions held against measured serving runs.

`measured_runs` and `benchmark_files` read what was measured, `predict` simulates each run under its own protocol,
`accuracy` and `scoreboard` say how far off the predictions are and which published errors are closest to a plan,
`engine_fit` fits what an engine adds to its kernels, `startup_logs` reads what an engine said of its memory while it
started, by the lines in `startup_patterns`, and `log_memory` holds that against the prediction.
"""
