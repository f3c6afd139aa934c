"""Loads the fuzz plugin: its options, Hypothesis' profiles, and the environment of each worker.

Where there is no GPU that includes TRITON_INTERPRET=1, which has to be set before anything imports Triton.
"""

import sys

# The session of another project that has loaded the plugin may come here on its way to the suite, where it is too late
# to name plugins.
if "fuzz.plugin" not in sys.modules:
    pytest_plugins = ["fuzz.plugin"]
