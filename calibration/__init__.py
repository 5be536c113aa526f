"""Home of measuring and fitting: kernels timed on a GPU, fits of achieved share of peak, imports of measured tables.

Nothing here runs yet. Until it does, `hardware_db` holds no calibration, every prediction is made at efficiency 1,
and every result says "uncalibrated". This package will be the only importer of torch, inside functions, so that the
planner never needs it.
"""
