"""From measured kernel times to the coefficients that predictions use.

``python -m calibration fit-table FOLDER`` fits tables of measurements (`tables`, `operators`, `fit`, `assemble`) and
writes one file per SKU and engine into ``hardware_db/calibrations``; ``python -m calibration run`` measures on the GPU
at hand and fits with the same code. The equations are those of `planner.roofline.kernels`, so that what is fitted is
what predicts. This package is the only importer of torch, inside functions: the planner and the fitting never need it.
"""
