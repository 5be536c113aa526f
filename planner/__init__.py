"""Capacity and cost planner for serving large language models.

>>> import planner
>>> request = planner.load_scenario("chat-llama-70b")
>>> request.llm.id
'llama-3.3-70b-instruct'

Names are imported on first use, so ``import planner`` is instant and a step time never loads a solver.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
