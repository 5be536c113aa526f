"""Pages without a browser compute in the process of the test, where a test can see and replace what is computed.

For the whole process rather than for each test: a page that a test has left behind may still ask.
"""

import importlib.util
import os

from planner.web import bounds

os.environ[f"{bounds.VARIABLE}WORKERS"] = "0"
if importlib.util.find_spec("streamlit") is None:  # the web app needs the extra `app`
    collect_ignore_glob = ["test_*.py"]
